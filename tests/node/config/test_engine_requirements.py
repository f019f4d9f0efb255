"""Which engines a swarm takes rollouts of: what the learner says, and what it answers a node."""

from __future__ import annotations

import pytest

from node.config.engine_requirements import EngineTerms, accepted_dtypes
from node.config.node_config import EngineSection
from protocol.versions.exchange import COMPUTE_DTYPE, QUANTIZED

STRICT = EngineTerms(compute_dtype="float32")
EASY = EngineTerms(compute_dtype="float32", auto_is_it=True)


def said(dtype: str) -> dict[str, bytes]:
    return {COMPUTE_DTYPE: dtype.encode()}


def test_a_swarm_that_asks_for_nothing_takes_all_and_says_nothing() -> None:
    for ext in ({}, said("bfloat16"), said("auto")):
        assert EngineTerms().objection(ext) is None
    assert EngineTerms().ext == {}
    assert accepted_dtypes({}) == ()


def test_float32_is_asked_for() -> None:
    assert STRICT.objection(said("float32")) is None
    for dtype in ("bfloat16", "auto"):
        objection = STRICT.objection(said(dtype))
        assert objection is not None
        assert f'compute_dtype = "{dtype}": set [engine] compute_dtype = "float32" in node.toml' in objection
    assert accepted_dtypes(STRICT.ext) == ("float32",)


def test_the_weights_own_format_is_enough_where_that_is_it() -> None:
    assert EASY.objection(said("auto")) is None
    assert EASY.objection(said("float16")) is not None
    assert accepted_dtypes(EASY.ext) == ("float32", "auto")


def test_an_older_node_does_not_say_and_is_told_what_to_do() -> None:
    assert "use a newer volery" in (STRICT.objection({}) or "")


def test_words_of_strangers_are_shown_so_that_they_do_nothing() -> None:
    assert "\x1b" not in (STRICT.objection({COMPUTE_DTYPE: b"\x1b[2J\xff" + b"x" * 4000}) or "")
    assert len(STRICT.objection({COMPUTE_DTYPE: b"x" * 4000}) or "") < 400
    assert accepted_dtypes({COMPUTE_DTYPE: b",\x1b[2J,,float32"}) == ("\\x1b[2J", "float32")


def test_quantised_weights_are_refused_unless_they_are_allowed() -> None:
    scheme = {QUANTIZED: b"fp8"}
    assert "yours has fp8" in (EngineTerms().objection(scheme) or "")
    assert EngineTerms(quantized=True).objection(scheme) is None
    assert EngineTerms(quantized=True).ext == {QUANTIZED: b""}


@pytest.mark.parametrize(
    ("section", "declared"),
    [
        (EngineSection(), "auto"),
        (EngineSection(device="cpu"), "float32"),
        (EngineSection(device="cpu", compute_dtype="bfloat16"), "bfloat16"),
        (EngineSection(device="cuda", compute_dtype="float32"), "float32"),
    ],
)
def test_a_node_says_what_its_engine_computes_in(section: EngineSection, declared: str) -> None:
    assert section.compute_dtype_in_force == declared
