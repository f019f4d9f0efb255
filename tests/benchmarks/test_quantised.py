"""Policies trained on rollouts of few bits: the runs, their records and conclusions; models of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import small_card
from benchmarks.cards.laboratory import FormatCell, QuantisedLaboratory
from benchmarks.cards.random_model import write_random_model
from benchmarks.lagged.laboratory import prepare
from benchmarks.lagged.recipe import DEFAULT, Cell, Recipe
from benchmarks.quantised import figures_of, lost, read_record, upper_end
from node.engine.transformers_worker.policy import Policy, Settings

SMALL = Recipe(
    task="reverse:letters=2,alphabet=4",
    max_new_tokens=4,
    steps=4,
    prompts=2,
    group=2,
    begin=0.0,
    every=2,
    held_out=8,
    last=2,
)
CELL = Cell(recipe="reversal", objective=DEFAULT, staleness=0, learning_rate=1e-3, seed=0)
TINY: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 120,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return prepare(SMALL, 0, tmp_path_factory.mktemp("cards") / "model")


@pytest.mark.parametrize("form", ["stored", "int8", "int4"])
def test_a_run_of_each_format(model: Path, form: str, tmp_path: Path) -> None:
    laboratory = QuantisedLaboratory(CELL, SMALL, model, form, tmp_path)
    told = figures_of(laboratory.run())
    assert 0 <= told["final"] <= told["best"] <= 1
    assert told["mismatch_kl"] >= 0
    assert not list(tmp_path.iterdir()), "versions are removed when they are installed"


def test_formats_see_the_same_problems(model: Path, tmp_path: Path) -> None:
    batches = [QuantisedLaboratory(CELL, SMALL, model, form, tmp_path)._draw() for form in ("stored", "int8")]
    assert batches[0].indexes == batches[1].indexes


def test_losses_are_paired_by_seed() -> None:
    finals = {("stored", 1): 0.9, ("stored", 2): 0.8, ("int8", 1): 0.88, ("int8", 2): 0.79, ("int8", 3): 0.1}
    finished = {
        FormatCell(recipe="reversal", form=form, seed=seed): {"final": final} for (form, seed), final in finals.items()
    }
    assert lost(finished, "reversal", "int8") == pytest.approx([2.0, 1.0])
    assert upper_end([2.0, 1.0]) == pytest.approx(1.5 + 12.706 * 0.5, abs=1e-3)
    assert upper_end([2.0]) is None


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert read_record(path) == {}
    path.write_text('{"cell": {"recipe": "reversal", "form": "int4", "seed": 3}, "told": {"final": 0.5}}\n')
    assert read_record(path) == {FormatCell(recipe="reversal", form="int4", seed=3): {"final": 0.5}}


@pytest.mark.parametrize("shard_bytes", [10_000, 1 << 40])
def test_a_model_that_nobody_trained_can_be_installed(tmp_path: Path, shard_bytes: int) -> None:
    parameters = write_random_model(tmp_path / "model", TINY, seed=0, shard_bytes=shard_bytes)
    assert (tmp_path / "model" / "model.safetensors").exists() == (shard_bytes > 10_000)
    policy = Policy(Settings(device="cpu", quantization="int4"))
    policy.install(tmp_path / "model", {"version": 1})
    assert policy.describe()["parameters"] == parameters


def test_what_the_kernel_ended_is_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert small_card.killed_in(tmp_path) == 2
