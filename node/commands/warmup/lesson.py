"""Run the steps of a warm-up, block by block, until a range is met or all steps are taken.

Before each block the trainer's state is kept. After it the loss on held-back examples is measured, and if a range is
wanted, held-out prompts are evaluated. A block that ends above the range is undone, and repeated in shorter blocks at a
lower rate. A block that ends within the range ends the warm-up.

Invariants:

- The range is met by measurement: the returned weights have a score within it.
- A model that is in the range before the first step is not changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from node.commands.warmup.batches import Batches
from node.commands.warmup.kept import Kept
from node.commands.warmup.options import ScoreRange
from node.commands.warmup.progress import Progress
from node.commands.warmup.schedule import Schedule
from node.commands.warmup.scoring import Judged
from node.learner_role.training.supervised import Example, Pace, arrays_of
from node.learner_role.training.trainer_process import CallTrainer
from node.runtime.errors import RunError

MAX_UNDONE = 24
"""Most overshoots in all. By then the rate is 2e-7 of the requested one, and a single step leads past the range."""

MOVING_SHARE = 8
"""Once the score has risen by this fraction of the range's lower end, it is measured more often."""

FINE_SHARE = 5
"""From then on a block has this fraction of its steps."""

EMPTY_IN_A_ROW = 100
"""Steps without any example that fits, after which a task's options are taken to ask for more than the model allows."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a warm-up ended: the number of steps, the loss and the scores, if they were measured."""

    steps: int
    loss: float | None
    judged: Judged | None


@dataclass(kw_only=True)
class Lesson:
    """One warm-up. `judge` scores the trainer's weights; None if no held-out prompts are evaluated."""

    call: CallTrainer
    batches: Batches
    schedule: Schedule
    held_back: Sequence[Example]
    kept: Kept
    progress: Progress
    block: int
    target: ScoreRange | None = None
    judge: Callable[[int], Awaitable[Judged]] | None = None
    _looks: int = 0
    _empty: int = 0

    async def run(self) -> Ending:
        """Teach, and return how it ended. Raises RunError if the range was not met, and what `call` raises."""
        steps, pace, undone, first = await self._begin()
        ending = Ending(steps=steps, loss=None, judged=None)
        while steps < self.batches.total:
            await self._keep(steps, pace, undone, first)
            block = min(pace.block, self.batches.total - steps)
            for step in range(steps, steps + block):
                await self._step(step, pace.rate)
            ending = await self._look(steps + block)
            reached = None if ending.judged is None else ending.judged.reached
            if self.target is not None and reached is not None:
                if reached > self.target.high:
                    undone, pace = undone + 1, pace.after_overshoot()
                    await self._undo(steps, pace, undone, first)
                    continue
                if reached >= self.target.low:
                    return ending
                pace = self._paced(pace, reached - (first or 0.0))
            steps += block
        if self.target is None:
            return ending
        await self._keep(steps, pace, undone, first)
        raise self._missed(self.target, ending)

    async def _begin(self) -> tuple[int, Pace, int, float | None]:
        """Continue, or measure the model as it is; return (steps, pace, blocks undone, score before the first step)."""
        if (reached := self.kept.reached) is not None:
            await self.call("restore", _kept_settings(str(self.kept.checkpoint(reached.steps))), None)
            return reached.steps, reached.pace, reached.undone, reached.score
        ending = await self._look(0)
        first = None if ending.judged is None else ending.judged.reached
        if self.target is not None and first is not None and first >= self.target.low:
            where = "above" if first > self.target.high else "in"
            raise RunError(
                f"The model scores {first:.1%} before the first step, which is {where} the range {self.target}. It "
                "needs no warm-up, and nothing was written. Begin with it as it is, set another range with --until, or "
                "give only a length with --epochs or --steps."
            )
        return 0, Pace(block=self.block, rate=1.0), 0, first

    async def _keep(self, steps: int, pace: Pace, undone: int, first: float | None) -> None:
        """Save a checkpoint of the current state, unless there is one."""
        directory = self.kept.checkpoint(steps)
        if not directory.exists():
            await self.call("save", {"directory": str(directory)}, None)
        self.kept.note(steps, pace, undone=undone, score=first)

    async def _undo(self, steps: int, pace: Pace, undone: int, first: float | None) -> None:
        if undone > MAX_UNDONE:
            raise RunError(
                f"{MAX_UNDONE} blocks ended above the range {self.target}, the last after a single small step: it is "
                "too narrow for so few held-out prompts. Widen --until, or raise [task] held_out."
            )
        await self.call("restore", _kept_settings(str(self.kept.checkpoint(steps))), None)
        self.kept.note(steps, pace, undone=undone, score=first)
        self.progress.undone(steps, block=pace.block, rate=pace.rate)

    def _paced(self, pace: Pace, risen: float) -> Pace:
        assert self.target is not None
        fine = max(1, self.block // FINE_SHARE)
        return pace.after_block(risen, moving=self.target.low / MOVING_SHARE, fine_block=fine)

    async def _step(self, step: int, share: float) -> None:
        examples = self.batches.batch(step)
        self._empty = 0 if examples else self._empty + 1
        if self._empty >= EMPTY_IN_A_ROW:
            raise RunError(f"None of the task's examples for the last {EMPTY_IN_A_ROW} steps could be learnt from.")
        if not examples:
            return
        rate = self.schedule.rate * self.schedule.at(step) * share
        reply, _ = await self.call("supervised", {"learning_rate": rate}, arrays_of(examples))
        self.progress.step(step + 1, loss=float(reply["loss"]), rate=rate, tokens=sum(map(len, examples)))

    async def _look(self, steps: int) -> Ending:
        loss, judged = await self._loss(), None
        if self.judge is not None:
            judged = await self.judge(self._looks)
            self._looks += 1
        self.progress.look(steps, loss=loss, judged=judged)
        return Ending(steps=steps, loss=loss, judged=judged)

    async def _loss(self) -> float | None:
        """Return the mean cross entropy on the held-back examples, in nats a token; None if there are none."""
        if not self.held_back:
            return None
        _, found = await self.call("logprobs", {"temperature": 1.0}, arrays_of(self.held_back))
        return -float(np.mean(found["logprobs"], dtype=np.float64))

    def _missed(self, target: ScoreRange, ending: Ending) -> RunError:
        score = "" if ending.judged is None else f" The last score was {ending.judged.reached:.1%}."
        return RunError(
            f"The range {target} was not met in {ending.steps} steps.{score} No result was written. The same command "
            f"with more --epochs or --steps continues from here, kept in {self.kept.place}; a higher --learning-rate "
            "with --anew learns faster."
        )


def _kept_settings(directory: str) -> dict[str, object]:
    return {"directory": directory, "keep_hyperparameters": True}
