"""A model that every swarm of this directory starts from, and a machine for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.tasks.registry import open_task
from tests.e2e.models import write_half_taught
from tests.e2e.programs import Machine, Swarm

TASK = "reverse:letters=2"
"""Small enough to be half learned in two seconds."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of 50 k parameters that gets a good part of `TASK` right."""
    directory = tmp_path_factory.mktemp("e2e") / "model"
    write_half_taught(
        directory, open_task(TASK, seed=7), lr=5e-3, batch=512, hidden_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, vocab_size=64,
        max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    return directory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    machine = Machine(root=tmp_path)
    try:
        yield machine
    finally:
        machine.clear()


@pytest.fixture
def swarm(machine: Machine, model: Path) -> Swarm:
    return Swarm(machine=machine, directory=machine.root / "swarm", model=model)
