"""Test the benchmark of distillation: its counts, and that a teacher's scores reach the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import distillation
from benchmarks.distillation import STUDENT, TARGET, TEACHER, Classroom, Models, Record, Run, Way, best, cell, compare
from benchmarks.harness import crossing
from benchmarks.lagged.laboratory import Laboratory, prepare
from tests.benchmarks.test_staleness import SMALL


def test_the_fewest_tokens_of_any_way_count() -> None:
    one, two, three = (Way(prompts=8, group=2, rate=rate) for rate in (1e-3, 2e-3, 3e-3))
    runs = {one: Run(tokens=None, curve=()), two: Run(tokens=900, curve=()), three: Run(tokens=700, curve=())}
    assert best(runs) == 700
    assert best({one: Run(tokens=None, curve=())}) is None


def test_tokens_to_the_target_lie_between_two_measurements() -> None:
    assert crossing([(0, 0.1), (1000, 0.7), (2000, 0.9)], TARGET) == pytest.approx(1500)
    assert crossing([(0, 0.1), (1000, 0.8)], TARGET) == pytest.approx(1000)
    assert crossing([(0, 0.1), (1000, 0.7)], TARGET) is None
    assert crossing([(0, 0.9)], TARGET) == 0


def test_a_run_that_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    way, run = Way(prompts=8, group=2, rate=3e-4), Run(tokens=70, curve=((0, 0.1), (70, 0.9)))
    record = Record(path=tmp_path / "runs.jsonl")
    assert record.read() == {}
    record.add(3, "distill", way, run)

    models = Models(directory=tmp_path / "nothing is made here", quick=True)
    assert compare(3, models, {"distill": (way,)}, record) == {"distill": {way: run}}
    assert not models.directory.exists()
    Record(path=None).add(3, "distill", way, run)
    assert Record(path=None).read() == {}


@pytest.mark.parametrize(
    ("shape", "least", "most"), [(STUDENT, 2.7e6, 3.4e6), (TEACHER, 47e6, 53e6)], ids=["3M", "50M"]
)
def test_the_models_have_the_sizes_that_are_claimed(
    tmp_path: Path, shape: dict[str, object], least: float, most: float
) -> None:
    with torch.device("meta"):
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(**{key: value for key, value in shape.items() if key != "model_type"})
        found = sum(parameter.numel() for parameter in Qwen3ForCausalLM(config).parameters())
    assert least < found < most


def test_both_train_on_the_same_problems_and_count_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(distillation, "MAX_TOKENS", 40)
    monkeypatch.setattr(distillation, "TOKENS_BETWEEN", 5)
    model = prepare(SMALL, 0, tmp_path / "model")
    teacher = Laboratory(cell("grpo", 1e-4, 0), SMALL, model)
    told = {}
    for objective in ("grpo", "distill"):
        room = Classroom(cell(objective, 1e-4, 0), SMALL, model, teacher if objective == "distill" else None)
        run = told[objective] = room.to_target()
        assert room.tokens == run.curve[-1][0] >= 40 or run.tokens is not None
    assert told["grpo"].curve[1][0] == told["distill"].curve[1][0], "the first step of both draws the same"
