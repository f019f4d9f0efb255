"""Merge adapters into weights as engines do, or leave them alone; refuse files that are no such adapter."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from learner.artifacts.weight_values import bfloat16_bits, narrowed, tensors_of, widened
from node.commands.export.adapters import CONFIG, WEIGHTS, has_adapter, keep_adapter, merge
from node.runtime.errors import RunError
from protocol.versions.safetensors_header import LayoutError
from tests.support.store_fixture import safetensors_file

MODULE = "model.layers.0.self_attn.q_proj"
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "base_model_name_or_path": "."}


def values(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def entry(array: NDArray[np.float32], dtype: str = "F32") -> tuple[str, tuple[int, ...], bytes]:
    return dtype, array.shape, narrowed(array, dtype)


def version(directory: Path, dtype: str = "F32", module: str = MODULE, **config: Any) -> dict[str, NDArray[np.float32]]:
    """A version with an adapter: the arrays W, A and B."""
    directory.mkdir()
    made = {"W": values(4, 3), "A": values(2, 3, seed=1), "B": values(4, 2, seed=2)}
    (directory / "model.safetensors").write_bytes(
        safetensors_file({"other": ("U8", (2,), b"ab"), f"{MODULE}.weight": entry(made["W"], dtype)})
    )
    (directory / WEIGHTS).write_bytes(
        safetensors_file({f"base_model.model.{module}.lora_{side}.weight": entry(made[side]) for side in ("A", "B")})
    )
    (directory / CONFIG).write_text(json.dumps({**ADAPTER, **config}))
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    return made


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_merged_weight_is_rounded_once(tmp_path: Path, dtype: str) -> None:
    made = version(tmp_path / "v", dtype)
    shared = tmp_path / "the operator's own"
    os.link(tmp_path / "v" / "model.safetensors", shared)
    before = shared.read_bytes()
    assert merge(tmp_path / "v") == 1
    assert shared.read_bytes() == before, "a link to it is not written through"
    found = {one.name: one for one in tensors_of([tmp_path / "v" / "model.safetensors"])}
    base = widened(narrowed(made["W"], dtype), dtype, "W").reshape(4, 3)
    assert found[f"{MODULE}.weight"].raw() == narrowed(base + np.float32(2) * (made["B"] @ made["A"]), dtype)
    assert found["other"].raw() == b"ab"
    assert not has_adapter(tmp_path / "v")
    assert sorted(one.name for one in (tmp_path / "v").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_an_adapter_alone_names_its_base(tmp_path: Path) -> None:
    version(tmp_path / "v")
    keep_adapter(tmp_path / "v", "Qwen/Qwen3-0.6B")
    assert sorted(one.name for one in (tmp_path / "v").iterdir()) == [CONFIG, WEIGHTS, "tokenizer.json"]
    said = json.loads((tmp_path / "v" / CONFIG).read_text())
    assert (said["base_model_name_or_path"], said["r"]) == ("Qwen/Qwen3-0.6B", 2)


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        ("model.layers.9.q_proj", {}, "no weight of that name and shape"),
        (MODULE, {"use_dora": True}, "use_dora"),
        (MODULE, {"bias": "all"}, "bias"),
        (MODULE, {"r": 0}, "its r or lora_alpha"),
        (MODULE, {"lora_alpha": "x"}, "its r or lora_alpha"),
        (MODULE, {"peft_type": "IA3"}, "does not describe a LoRA adapter"),
    ],
    ids=["another model", "dora", "bias", "rank", "alpha", "kind"],
)
def test_other_adapters_are_refused(tmp_path: Path, module: str, config: dict[str, Any], words: str) -> None:
    version(tmp_path / "v", module=module, **config)
    with pytest.raises(RunError, match=words):
        merge(tmp_path / "v")


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    version(tmp_path / "v")
    (tmp_path / "v" / WEIGHTS).write_bytes(
        safetensors_file({f"base_model.model.{MODULE}.lora_A.weight": entry(values(2, 3))})
    )
    with pytest.raises(RunError, match="lacks the pair of A and B"):
        merge(tmp_path / "v")


def test_weights_beyond_their_type_are_refused(tmp_path: Path) -> None:
    version(tmp_path / "v", "F16", lora_alpha=1e9)
    with pytest.raises(RunError, match="not finite"):
        merge(tmp_path / "v")


@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
def test_bfloat16_is_what_torch_has(numbers: list[float]) -> None:
    import torch

    array = np.array(numbers, np.float32)
    theirs = torch.from_numpy(array.copy()).bfloat16()
    mine = widened(narrowed(array, "BF16"), "BF16", "x")
    np.testing.assert_array_equal(mine, theirs.float().numpy())
    again = bfloat16_bits(mine[~np.isnan(mine)])
    np.testing.assert_array_equal(widened(again.tobytes(), "BF16", "x"), mine[~np.isnan(mine)])


def test_whole_numbers_are_no_weights() -> None:
    with pytest.raises(LayoutError, match="only F32, BF16, F16 and F64 can be read"):
        widened(b"ab", "U8", "x")
