"""Provide directories in memory, and small models with random weights, to tests of the node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.learner_fixture import fast_directory

VOCAB_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Models:
    """Model directories: two sets of weights of one tiny Qwen3 (tied), two of a tiny Qwen3-MoE, and others, named by
    their difference.
    """

    first: Path
    second: Path
    untied: Path
    llama: Path
    mixture: Path
    second_mixture: Path
    sharded: Path
    without_tensor: Path
    misshapen: Path
    truncated: Path
    pickled: Path
    absent: Path

    @property
    def bad(self) -> tuple[Path, ...]:
        return (self.without_tensor, self.misshapen, self.truncated, self.pickled, self.absent)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a directory in memory with a short name, as sockets need."""
    with fast_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    _save(root / "first", seed=1)
    _save(root / "second", seed=2)
    _save(root / "untied", seed=3, tie_word_embeddings=False)
    _save(root / "llama", seed=4, architecture="Llama")
    for name, seed in (("mixture", 5), ("second_mixture", 6)):
        _save(root / name, seed=seed, architecture="Qwen3Moe", **MIXTURE)
    _save(root / "sharded", seed=1, max_shard_size="200KB")
    _save_changed(root / "first", root / "without_tensor", drop="model.norm.weight")
    _save_changed(root / "first", root / "misshapen", halve="model.norm.weight")
    shutil.copytree(root / "first", root / "truncated")
    weights = root / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shutil.copytree(root / "first", root / "pickled")
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    names = (
        "first", "second", "untied", "llama", "mixture", "second_mixture", "sharded", "without_tensor", "misshapen",
        "truncated", "pickled",
    )  # fmt: skip
    assert json.loads((root / "sharded" / "model.safetensors.index.json").read_text())["weight_map"]
    return Models(**{name: root / name for name in names}, absent=root / "absent")


MIXTURE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
    "max_position_embeddings": 2048,
}
"""A mixture of experts with three layers, of which the second has no experts."""


def _save(
    directory: Path, *, seed: int, architecture: str = "Qwen3", max_shard_size: str = "1GB", **config: Any
) -> None:
    import torch
    import transformers

    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()
    settings = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # a size that vLLM can run on a CPU
        "intermediate_size": 256,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        # Large, so that two random models, or two prompts, give clearly different distributions.
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    wanted = getattr(transformers, f"{architecture}Config")(**settings | config)
    getattr(transformers, f"{architecture}ForCausalLM")(wanted).save_pretrained(
        directory, max_shard_size=max_shard_size
    )


def _save_changed(source: Path, directory: Path, *, drop: str = "", halve: str = "") -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, directory)
    tensors = load_file(source / "model.safetensors")
    if drop:
        del tensors[drop]
    if halve:
        tensors[halve] = tensors[halve][: len(tensors[halve]) // 2].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
