"""The vLLM worker classifies a model directory before it loads anything from it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from node.engine.vllm_worker.model_contents import read_contents
from tests.support.node_fixtures import Models
from tests.support.store_fixture import safetensors_file


@pytest.mark.parametrize(
    ("kind", "bits", "packed"), [("F32", 32, False), ("BF16", 16, False), ("F8_E4M3", 8, True), ("F4", 4, True)]
)
def test_only_plain_tensors_are_swapped_in_place(
    models: Models, tmp_path: Path, kind: str, bits: int, packed: bool
) -> None:
    """A swap that stops at one that cannot be read ends the worker, again and again."""
    directory = tmp_path / "changed"
    shutil.copytree(models.first, directory)
    tensors = {
        name: (kind, tuple(tensor.shape), bytes(math.prod(tensor.shape) * bits // 8))
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    (directory / "model.safetensors").write_bytes(safetensors_file(tensors))
    contents = read_contents(directory)
    contents.require_like(read_contents(models.first))
    assert contents.is_packed == packed
    assert contents.computes_in == {"F32": "float32", "BF16": "bfloat16"}.get(kind, "auto")


def test_what_most_parameters_are_stored_in_is_what_it_is_computed_in(models: Models, tmp_path: Path) -> None:
    """Norms are often kept in 32 bits beside matrices of 16."""
    directory = tmp_path / "changed"
    shutil.copytree(models.first, directory)
    tensors = {
        name: ("F32", tuple(one.shape), bytes(4 * one.numel()))
        if one.ndim == 1
        else ("F16", tuple(one.shape), bytes(2 * one.numel()))
        for name, one in load_file(directory / "model.safetensors").items()
    }
    (directory / "model.safetensors").write_bytes(safetensors_file(tensors))
    assert read_contents(directory).computes_in == "float16"


def test_longrope_goes_no_further_than_where_its_factors_change(models: Models, tmp_path: Path) -> None:
    """vLLM takes the factors of long sequences for all of them once it may be asked for long ones."""
    directory = tmp_path / "changed"
    shutil.copytree(models.first, directory)
    assert read_contents(directory).original_length is None
    config = json.loads((directory / "config.json").read_text())
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    changed = {**config, "rope_parameters": {**rope, "original_max_position_embeddings": 24}}
    (directory / "config.json").write_text(json.dumps(changed))
    assert read_contents(directory).original_length == 24
