"""Prompts, written before they are leased, so that no task writes one on the thread that talks to peers.

The curriculum says which prompt comes next, at the moment when it is leased and not before. What is written ahead is
what would come next if nothing were observed meanwhile; what turns out otherwise is thrown away. So checkpoints,
restarts and the choice among the next few (`learner.rollouts.prompt_choice`) are the same however fast the prompts are
written.

Consumes: indexes that come next. Waits for: whoever takes a prompt. Wakes: requests for leases that were cut short.

Invariants:
- A task's code runs on a worker thread if it is cheap, else in a verifier's process (`node.verifiers.dispatch`).
- At most AHEAD prompts are written ahead, or fewer once they have AHEAD_TOKENS tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.rollouts.open_leases import Prompt
from node.learner_role.shared.signals import LearnerSignals
from node.tasks.task_suite import TaskSuite, Written
from swarm.transport.error_groups import first_cause

AHEAD = 64
"""Prompts that are written ahead: most batches, which are leased in one go when the one before was taken."""

AHEAD_TOKENS = 1 << 20
"""Token ids that are written ahead: 36 MB as Python holds them. Eight of the longest prompts are as many."""

TOGETHER = 8
"""Prompts that a worker thread writes in one go: a turn of a thread costs as much as a cheap prompt."""


@dataclass(kw_only=True)
class PromptWriter:
    """See the module's paragraph.

    Args:
        write: says what prompts say, in order; `node.verifiers.dispatch.Verifiers.prompts`.
        alone: whether that of this index is better asked for alone, since it takes its time in a process.
        writers: how many are asked for at a time.
    """

    schooling: TaskSuite
    write: Callable[[Sequence[int]], Awaitable[list[Written]]]
    alone: Callable[[int], bool]
    writers: int
    signals: LearnerSignals
    _shelf: dict[int, Written] = field(default_factory=dict)
    _writing: set[int] = field(default_factory=set)
    _is_missed: bool = False
    """Somebody has asked for a prompt that was not there."""
    _is_full: bool = False
    """Nothing was missing when that was last looked at, which is again when half of it was taken."""
    _wake: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.schooling.progressed.subscribe(lambda _: self._look_again())

    def next_prompt(self) -> Prompt | None:
        """The next prompt to lease; None while it is being written. Raises TaskError, see `TaskSuite.draw`."""
        prompt = self.schooling.draw(lambda index: self._shelf.pop(index, None))
        self._is_missed = prompt is None
        return prompt

    async def run(self) -> None:
        """Write what comes next until cancelled. Raises RunError, see `node.verifiers.dispatch.FAILED_IN_A_ROW`."""
        with first_cause():
            async with trio.open_nursery() as nursery:
                for _ in range(self.writers):
                    nursery.start_soon(self._write)

    async def _write(self) -> None:
        while True:
            if not (some := self._claim()):
                await self._wake.wait()
                continue
            try:
                written = await self.write(some)
            finally:
                self._writing.difference_update(some)
            self._shelf.update(zip(some, written, strict=True))
            if self._is_missed and self.schooling.upcoming(1)[0] in self._shelf:
                self._is_missed = False
                self.signals.prompts_ready.emit(None)

    def _look_again(self) -> None:
        """Other prompts come next. Those who write look again."""
        self._wake.set()
        self._wake = trio.Event()

    def _claim(self) -> list[int]:
        """What to write now, and it is being written from here on; nothing while enough is there."""
        [first] = self.schooling.upcoming(1)
        is_there = first in self._shelf or first in self._writing
        if self._is_full and is_there and len(self._shelf) + len(self._writing) > AHEAD // 2:
            return []
        upcoming = self.schooling.upcoming(AHEAD)
        self._shelf = {index: self._shelf[index] for index in upcoming if index in self._shelf}
        missing = [index for index in upcoming if index not in self._shelf and index not in self._writing]
        has_enough = sum(map(len, self._shelf.values())) >= AHEAD_TOKENS and is_there
        self._is_full = has_enough or not missing
        if self._is_full:
            return []
        if missing[0] == first or self.alone(missing[0]):  # whoever waits for it has it as soon as it is written
            some = missing[:1]
        else:
            some = [index for index in missing if not self.alone(index)][:TOGETHER]
        self._writing.update(some)
        return some
