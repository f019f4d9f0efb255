"""Write prompts before they are leased, so that no task writes one on the thread that communicates with peers.

The curriculum chooses the next prompt only at the moment when it is leased. The prompts written ahead are those that
would be next if nothing were observed meanwhile. Those that turn out not to be next are thrown away. So checkpoints,
restarts and the choice among the next few (`learner.rollouts.prompt_choice`) do not depend on how fast prompts are
written.

Consumes: indexes that come next. Waits for: requests that take prompts. Wakes: requests for leases that found none.

Invariants:

- A task's code runs on a worker thread if it is cheap, otherwise in a verifier's process (`node.verifiers.dispatch`).
- At most AHEAD prompts are written ahead, or fewer if they have AHEAD_TOKENS tokens.
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
"""Most prompts that are written ahead. That covers most batches, which are leased at once when the batch before was
taken."""

AHEAD_TOKENS = 1 << 20
"""Token ids that are written ahead: 36 MB in Python. Eight of the longest prompts have as many."""

TOGETHER = 8
"""Prompts that a worker thread writes in one call, since a call costs as much as a cheap prompt."""


@dataclass(kw_only=True)
class PromptWriter:
    """Keeps the next prompts written.

    Args:
        suite: the tasks, whose curriculum chooses the prompts.
        write: writes prompts, in order: `node.verifiers.dispatch.Verifiers.prompts`.
        alone: whether the prompt of an index should be written alone, because a process needs its time for it.
        writers: the number of simultaneous calls of `write`.
        signals: carries the news that prompts are available again.
    """

    suite: TaskSuite
    write: Callable[[Sequence[int]], Awaitable[list[Written]]]
    alone: Callable[[int], bool]
    writers: int
    signals: LearnerSignals
    _shelf: dict[int, Written] = field(default_factory=dict)
    _writing: set[int] = field(default_factory=set)
    _is_missed: bool = False
    """Whether a request found no prompt."""
    _is_full: bool = False
    """Whether no prompt was missing at the last look. The next look is after half of them were taken."""
    _wake: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.suite.progressed.subscribe(lambda _: self._look_again())

    def next_prompt(self) -> Prompt | None:
        """Return the next prompt to lease; None while it is being written. Raises TaskError, see `TaskSuite.draw`."""
        prompt = self.suite.draw(lambda index: self._shelf.pop(index, None))
        self._is_missed = prompt is None
        return prompt

    async def run(self) -> None:
        """Write the next prompts until cancelled. Raises RunError, see `node.verifiers.dispatch.FAILED_IN_A_ROW`."""
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
            if self._is_missed and self.suite.upcoming(1)[0] in self._shelf:
                self._is_missed = False
                self.signals.prompts_ready.emit(None)

    def _look_again(self) -> None:
        """Wake the writers, because other prompts come next."""
        self._wake.set()
        self._wake = trio.Event()

    def _claim(self) -> list[int]:
        """Return the indexes to write now, and mark them as being written; empty while enough are written."""
        [first] = self.suite.upcoming(1)
        is_there = first in self._shelf or first in self._writing
        if self._is_full and is_there and len(self._shelf) + len(self._writing) > AHEAD // 2:
            return []
        upcoming = self.suite.upcoming(AHEAD)
        self._shelf = {index: self._shelf[index] for index in upcoming if index in self._shelf}
        missing = [index for index in upcoming if index not in self._shelf and index not in self._writing]
        has_enough = sum(map(len, self._shelf.values())) >= AHEAD_TOKENS and is_there
        self._is_full = has_enough or not missing
        if self._is_full:
            return []
        if missing[0] == first or self.alone(missing[0]):  # a request that waits for it gets it as soon as possible
            some = missing[:1]
        else:
            some = [index for index in missing if not self.alone(index)][:TOGETHER]
        self._writing.update(some)
        return some
