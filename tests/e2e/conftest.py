"""Provide the model that every swarm of this directory starts from, and a machine for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.tasks.registry import open_task
from node.tasks.tokenizer import write_character_tokenizer
from tests.e2e.doom import VARIABLE
from tests.e2e.models import write_half_taught
from tests.e2e.programs import Machine, Swarm, free_port
from tests.support.store_fixture import safetensors_file

TASK = "reverse:letters=2"
"""Small enough to be half learned in two seconds."""

DOOMED_STEPS = 50
"""Training steps of a swarm whose trainer hashes, unless a test wants more."""


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
    blamed = [(program.name, event) for program in machine.programs for event in program.events("peer_fault")]
    assert blamed == [], "our own programs keep to the protocol, whatever happens to them"


@pytest.fixture
def swarm(machine: Machine, model: Path) -> Swarm:
    return Swarm(machine=machine, directory=machine.root / "swarm", model=model)


@pytest.fixture
def doomed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    """A swarm whose model is a name and a tokenizer: nobody computes with it."""
    model = machine.root / "model"
    model.mkdir()
    write_character_tokenizer(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(safetensors_file({"layer": ("U8", (1,), b"0")}))
    monkeypatch.setenv(VARIABLE, str(machine.root / "doom"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=model)
    swarm.configure(steps=DOOMED_STEPS, port=free_port(), heartbeat_s=5.0)
    return swarm
