"""The chunk table that is computed while an export is written matches the files on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.artifacts.chunk_names import ChunkNames
from learner.artifacts.version_builder import VersionBuilder
from learner.training.server import Trainer
from protocol.core.pipe import Arrays
from protocol.versions.manifest import Manifest
from tests.support.trainer_fixture import NOW_MS, SWARM, version

CONFIG: dict[str, Any] = {
    "vocab_size": 1013,  # no chunk ends where a tensor does
    "hidden_size": 96,
    "intermediate_size": 49,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
EXPERTS: dict[str, Any] = {
    **{name: value for name, value in CONFIG.items() if name not in ("tie_word_embeddings", "head_dim")},
    **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}
DENSE = {"config": CONFIG}


def loaded(place: Path, make: dict[str, Any], **fields: Any) -> Trainer:
    trainer = Trainer()
    for op, arguments in (
        ("make_model", {"directory": str(place), **make}),
        ("load", {"directory": str(place), "hyperparameters": {"max_new_tokens": 4}, **fields}),
    ):
        reply, _ = trainer.answer({"id": 0, "op": op, **arguments}, {})
        assert reply["ok"], reply
    return trainer


def exported(trainer: Trainer, directory: Path, **fields: Any) -> Arrays:
    reply, names = trainer.answer({"id": 0, "op": "export", "directory": str(directory), **fields}, {})
    assert reply["ok"], reply
    assert reply["files"] == sorted(file.name for file in directory.iterdir())
    return names


def published(directory: Path, names: Arrays | None = None, known: ChunkNames | None = None) -> Manifest:
    publisher = VersionBuilder(
        learner=SWARM.learner,
        authority=SWARM.authority,
        certificate=SWARM.certificate,
        names=known or ChunkNames(),
    )
    return publisher.publish(directory, version("1.0"), None, NOW_MS, names=names).signed.manifest


def spoil(file: Path) -> None:
    """Change every byte, so that the file says it is what it was."""
    found = file.stat()
    with file.open("r+b") as opened:
        opened.seek(8 + int.from_bytes(file.read_bytes()[:8], "little"))
        opened.write(bytes(found.st_size - opened.tell()))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(
    ("make", "load", "fields"),
    [
        (DENSE, {}, {"dtype": "float32"}),
        (DENSE, {}, {"dtype": "bfloat16", "max_shard_bytes": 70_000}),
        (DENSE, {"compute_dtype": "bfloat16"}, {"dtype": "bfloat16"}),  # which FSDP cuts, over a group of one
        ({"config": EXPERTS, "architecture": "qwen3_moe"}, {}, {"dtype": "bfloat16", "max_shard_bytes": 200_000}),
    ],
)
def test_the_manifest_is_the_one_that_the_files_have(
    tmp_path: Path, make: dict[str, Any], load: dict[str, Any], fields: dict[str, Any]
) -> None:
    directory = tmp_path / "export"
    names = exported(loaded(tmp_path / "model", make, **load), directory, **fields)
    expected = published(directory)
    assert published(directory, names) == expected
    assert len(expected.chunks) > 4
    weights = sorted(directory.glob("*.safetensors"))
    assert len(weights) == len(names["files"])
    for file in weights:
        spoil(file)
    assert published(directory, names) == expected, "nothing was read again"
    weights[0].touch()
    assert published(directory, names).chunks != expected.chunks, "a file that was changed since must be read again"


def test_an_adapters_export_has_the_manifest_of_its_files(tmp_path: Path) -> None:
    trainer = loaded(tmp_path / "model", DENSE, lora={"rank": 2, "alpha": 4})
    known = ChunkNames()
    for name in ("first", "next"):
        names = exported(trainer, tmp_path / name)
        assert published(tmp_path / name, names, known) == published(tmp_path / name)


def test_names_are_of_the_pieces_that_were_written(tmp_path: Path) -> None:
    names = exported(loaded(tmp_path / "model", DENSE), tmp_path / "export")
    assert names["files"].dtype == names["ends"].dtype == np.uint64
    assert names["digests"].shape == (len(names["ends"]), 32)
    [(_, number, size, _, count)] = names["files"].tolist()
    file = (tmp_path / "export" / "model.safetensors").stat()
    assert (number, size, count) == (file.st_ino, file.st_size, len(names["ends"]))
    assert int(names["ends"][-1]) == size
