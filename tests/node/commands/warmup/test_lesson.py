"""The steps of a warm-up, with a scripted trainer: blocks, ranges, overshoots, resuming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.monitoring.eval_scores import Scores
from node.commands.warmup.batches import Bounds, Endless
from node.commands.warmup.kept import Kept, open_kept
from node.commands.warmup.lesson import MAX_UNDONE, Lesson
from node.commands.warmup.options import ScoreRange
from node.commands.warmup.progress import Progress
from node.commands.warmup.schedule import Schedule
from node.commands.warmup.scoring import Judged
from node.learner_role.training.supervised import Example, example_of
from node.runtime.errors import RunError
from protocol.core.pipe import Arrays, Header

RANGE = ScoreRange(low=0.5, high=0.7)
ONE = example_of([((5,), False), ((2,), True)])


@dataclass
class Learning:
    """A model that scores by what it has learnt: the sum of the rates of its steps."""

    learnt: float = 0.0
    asked: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    saved: dict[str, float] = field(default_factory=dict)
    fails_at: int = -1

    async def call(self, op: str, header: Mapping[str, object], arrays: Arrays | None = None) -> tuple[Header, Arrays]:
        self.asked.append(op)
        match op:
            case "supervised":
                rate = float(str(header["learning_rate"]))
                if len(self.rates) == self.fails_at:
                    raise RunError("it died")
                self.rates.append(rate)
                self.learnt += rate
                return {"loss": 1.0}, {}
            case "save":
                Path(str(header["directory"])).mkdir()
                self.saved[str(header["directory"])] = self.learnt
            case "restore":
                self.learnt = self.saved[str(header["directory"])]
            case "logprobs":
                assert arrays is not None
                return {}, {"logprobs": np.full(int(arrays["mask"].sum()), self.learnt - 1, np.float32)}
        return {}, {}

    async def judge(self, _number: int) -> Judged:
        share = min(1.0, self.learnt)
        return Judged(by="format", scores=Scores(greedy=0.0, sampled=0.0, named={"format": (1.0, share)}))


def lesson(
    kept: Kept, model: Learning, *, total: int = 100, block: int = 10, rate: float = 0.02, **more: Any
) -> Lesson:
    def draw(_task: int, _drawn: int) -> Example:
        return ONE

    settings: dict[str, Any] = {
        "batches": Endless(draw=draw, weights=[1.0], bounds=Bounds(tokens=8, examples=2), total=total),
        "schedule": Schedule(rate=rate, rise=0, total=total, decay="none"),
        "held_back": [ONE, ONE],
        "progress": Progress(as_json=True),
        "target": RANGE,
        "judge": model.judge,
    }
    return Lesson(call=model.call, kept=kept, block=block, **(settings | more))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def opened(out: Path) -> Any:
    return open_kept(out, {"seed": 0}, anew=False)


async def test_it_stops_in_the_range(out: Path) -> None:
    model = Learning()
    with opened(out) as kept:
        ending = await lesson(kept, model).run()
    assert ending.judged is not None
    assert RANGE.low <= ending.judged.reached <= RANGE.high
    assert ending.steps == 26, "one block of ten, then blocks of two since the score moves"
    assert ending.loss == pytest.approx(1 - model.learnt)


async def test_a_block_that_goes_too_far_is_undone(out: Path) -> None:
    model = Learning()
    with opened(out) as kept:
        ending = await lesson(kept, model, rate=0.1).run()
    assert "restore" in model.asked
    assert ending.judged is not None
    assert ending.judged.reached == pytest.approx(model.learnt)
    assert RANGE.low <= model.learnt <= RANGE.high
    assert min(model.rates) < max(model.rates), "the rate falls with each overshoot"


async def test_a_range_that_is_too_narrow_is_told(out: Path) -> None:
    async def leaps(number: int) -> Judged:
        return Judged(by="format", scores=Scores(greedy=0, sampled=0, named={"format": (1.0, 1.0 if number else 0.0)}))

    model = Learning()
    with opened(out) as kept, pytest.raises(RunError, match=f"{MAX_UNDONE} blocks ended above the range 0.5..0.7"):
        await lesson(kept, model, judge=leaps).run()
    assert model.asked.count("restore") == MAX_UNDONE


@pytest.mark.parametrize(("learnt", "where"), [(0.6, "in"), (0.9, "above")])
async def test_a_model_that_needs_none_is_left_alone(out: Path, learnt: float, where: str) -> None:
    model = Learning(learnt=learnt)
    with opened(out) as kept, pytest.raises(RunError, match=f"{where} the range 0.5..0.7\\. It needs no warm-up"):
        await lesson(kept, model).run()
    assert not model.rates
    assert not kept.place.exists()


async def test_a_range_that_is_not_met_can_be_gone_on_with(out: Path) -> None:
    model = Learning()
    with opened(out) as kept, pytest.raises(RunError, match=r"was not met in 20 steps. The last score was 20.0%"):
        await lesson(kept, model, rate=0.01, total=20).run()
    with opened(out) as kept:
        ending = await lesson(kept, model, rate=0.01, total=80).run()
    assert len(model.rates) == ending.steps, "no step was taken twice"
    assert model.asked.count("restore") == 1


async def test_a_length_alone_asks_nobody(out: Path) -> None:
    model = Learning()
    with opened(out) as kept:
        ending = await lesson(kept, model, total=25, target=None, judge=None).run()
    assert (ending.steps, ending.judged) == (25, None)
    assert model.asked.count("save") == 3
    assert model.asked.count("logprobs") == 4, "before the first step, too"


async def test_what_was_lost_to_a_crash_is_taken_again(out: Path) -> None:
    model = Learning(fails_at=14)
    with opened(out) as kept, pytest.raises(RunError, match="it died"):
        await lesson(kept, model, total=25, target=None, judge=None).run()
    model.fails_at = -1
    with opened(out) as kept:
        assert kept.reached is not None
        assert kept.reached.steps == 10
        ending = await lesson(kept, model, total=25, target=None, judge=None).run()
    assert ending.steps == 25
    assert model.learnt == pytest.approx(25 * 0.02)


async def test_a_task_that_makes_nothing_that_fits_ends_it(out: Path) -> None:
    empty = Endless(draw=lambda *_: None, weights=[1.0], bounds=Bounds(tokens=8, examples=2), total=500)
    with opened(out) as kept, pytest.raises(RunError, match="could be learnt from"):
        await lesson(kept, Learning(), target=None, judge=None, batches=empty).run()
