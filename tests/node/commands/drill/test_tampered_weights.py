"""The weights of a cheat that saves memory: the same files, with other numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from node.commands.drill.tampered_weights import GROUP, Variant, round_weights, write_variant

SHAPES = {
    "model.embed_tokens.weight": (16, 64),
    "model.layers.0.self_attn.o_proj.weight": (64, 64),
    "model.layers.1.self_attn.o_proj.weight": (64, 64),
    "model.layers.1.mlp.down_proj.weight": (64, 96),
    "model.layers.1.mlp.up_proj.weight": (96, 64),
    "model.norm.weight": (64,),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    directory = tmp_path / "model"
    directory.mkdir()
    tensors = {name: dice.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return directory


def test_the_true_ones_are_the_very_files(model: Path, tmp_path: Path) -> None:
    write_variant(model, tmp_path / "out", Variant.TRUE)
    for path in model.iterdir():
        assert (tmp_path / "out" / path.name).samefile(path)


@pytest.mark.parametrize(("variant", "bits"), [(Variant.INT8, 8), (Variant.FOUR_BIT, 4)])
def test_matrices_are_rounded_and_vectors_are_not(model: Path, tmp_path: Path, variant: Variant, bits: int) -> None:
    before = load_file(model / "model.safetensors")
    write_variant(model, tmp_path / "out", variant)
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    assert np.array_equal(after["model.norm.weight"], before["model.norm.weight"])
    for name, weights in after.items():
        assert weights.shape == SHAPES[name]
        if weights.ndim == 2:
            assert not np.array_equal(weights, before[name])
            for row in weights.reshape(-1, GROUP if bits == 4 else weights.shape[1]):
                assert len(np.unique(row)) <= 2**bits - 1


def test_rounding_is_to_the_nearest_level() -> None:
    weights = np.array([[1.0, -1.0, 0.49 / 7, 0.51 / 7]], np.float32)
    assert np.allclose(round_weights(weights, bits=4), [[1.0, -1.0, 0.0, 1 / 7]])
    assert round_weights(np.zeros((1, 4), np.float32), bits=8).tolist() == [[0.0] * 4]


def test_the_last_layer_adds_nothing_in_a_smaller_model(model: Path, tmp_path: Path) -> None:
    before = load_file(model / "model.safetensors")
    write_variant(model, tmp_path / "out", Variant.SMALLER)
    after = load_file(tmp_path / "out" / "model.safetensors")
    gone = {name for name in after if not after[name].any()}
    assert gone == {"model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"}
    assert all(np.array_equal(after[name], before[name]) for name in after.keys() - gone)


def test_half_as_many_bits_are_rounded_as_well(model: Path, tmp_path: Path) -> None:
    values = np.array([[1.0, 0.6, -0.25, 0.1]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    header = json.dumps({"w.weight": {"dtype": "BF16", "shape": [1, 4], "data_offsets": [0, 8]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + halves.tobytes())
    write_variant(model, tmp_path / "out", Variant.FOUR_BIT)
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()[8 + len(header) :]
    found = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.allclose(found, [1.0, 4 / 7, -2 / 7, 1 / 7], rtol=0.005)


def test_a_file_that_is_none_is_named(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\x00" * 4)
    with pytest.raises(ValueError, match=r"header|model\.safetensors"):
        write_variant(model, tmp_path / "out", Variant.INT8)
