"""Choose the format for `quantization = "auto"`."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec
import pytest

from node.config.node_config import EngineSection, LimitsSection
from node.engine.weight_format import choose_format, memory_for
from protocol.versions.manifest import SignedManifest
from tests.support.doctor_findings import SIGNED

AUTO = EngineSection(kind="transformers", quantization="auto", device="cpu")
ALL = ("stored", "int8", "int4", "fp8")
GB = 10**9


def of_parameters(number: int) -> SignedManifest:
    [tensor, *_] = SIGNED.manifest.tensors
    large = msgspec.structs.replace(tensor, shape=[number])
    manifest = msgspec.structs.replace(SIGNED.manifest, tensors=[large])
    return dataclasses.replace(SIGNED, manifest=manifest)


@pytest.mark.parametrize(
    ("memory_gb", "taken", "held"),
    [
        (8.0, ALL, ""),
        (2.0, ALL, "int8"),
        (1.0, ALL, "int4"),
        (0.3, ALL, "int4"),
        (1.0, ("stored", "int8"), "int8"),
        (0.3, ("stored",), ""),
        (8.0, ("int4", "int8"), "int8"),
        (8.0, ("fp8",), ""),
    ],
)
def test_the_best_that_the_swarm_takes_and_that_fits(
    memory_gb: float, taken: tuple[str, ...], held: Literal["", "int8", "int4"]
) -> None:
    newest = of_parameters(500_000_000)
    choice = choose_format(AUTO, taken=taken, newest=newest, memory_bytes=round(memory_gb * GB))
    assert choice.section.quantization == held
    assert choice.section.scheme_in_force == held
    assert choice.why


def test_what_is_not_known_is_no_reason_to_quantise() -> None:
    assert choose_format(AUTO, taken=ALL, newest=None, memory_bytes=GB).section.quantization == ""
    choice = choose_format(AUTO, taken=ALL, newest=of_parameters(10**9), memory_bytes=None)
    assert (choice.section.quantization, choice.why) == ("", "how much memory there is is not known")


def test_what_an_owner_says_stays() -> None:
    asked = msgspec.structs.replace(AUTO, quantization="int8")
    assert choose_format(asked, taken=("stored",), newest=None, memory_bytes=None).section == asked


def test_vllm_knows_fp8_alone() -> None:
    vllm = msgspec.structs.replace(AUTO, kind="vllm", device="cuda", compute_dtype="float32")
    for taken, held in ((ALL, "fp8"), (("stored", "int4"), "")):
        choice = choose_format(vllm, taken=taken, newest=of_parameters(10**9), memory_bytes=4 * GB)
        assert choice.section.quantization == held


def test_a_limit_of_the_owners_counts() -> None:
    limited = memory_for(AUTO, LimitsSection(ram_gb=0.6))
    assert limited == 600_000_000
    whole = memory_for(AUTO, LimitsSection())
    assert whole is not None
    assert whole > limited
