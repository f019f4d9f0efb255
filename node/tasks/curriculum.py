"""Which problem comes next: a cursor over a task's indexes, and a difficulty that rises with recent success.

A pure core. What always holds: no index is given twice; `state()` is a plain JSON object, and a cursor made from it
gives the very same indexes from there on; the difficulty rises one level at a time and never falls, so a lucky streak
costs one level of patience at most (`REHEARSAL` keeps the lower levels in the mixture)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self

from node.tasks.port import Task, TaskError, index_at, place_of

WINDOW = 32
"""Groups that a judgement rests on: two training steps of 16 prompts, so that chance moves the mean a few percent."""

MASTERED = 0.8
"""Mean reward over the window at which the next level begins: above it most groups are all right and teach nothing."""

REHEARSAL = 4
"""Every fourth problem comes from a lower level, so that what was learnt is not lost."""


@dataclass(kw_only=True)
class TaskCursor:
    """See the module's paragraph. `ordinal` counts the problems given, `recent` holds mean rewards at `level`."""

    levels: int
    fingerprint: str
    ordinal: int = 0
    level: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @classmethod
    def start(cls, task: Task) -> Self:
        """A cursor at the beginning of `task`."""
        return cls(levels=task.levels, fingerprint=task.fingerprint)

    @classmethod
    def restore(cls, task: Task, state: dict[str, Any]) -> Self:
        """The cursor that gave `state`. Raises TaskError when the task is not the one it belongs to."""
        if state["fingerprint"] != task.fingerprint:
            raise TaskError(
                f"the task is not the one this run began with (now {task.fingerprint}, then {state['fingerprint']}): "
                "its options, its seed or its file changed. Put them back, or start a new run in another directory."
            )
        recent = deque((float(mean) for mean in state["recent"]), maxlen=WINDOW)
        cursor = cls.start(task)
        cursor.ordinal, cursor.level, cursor.recent = int(state["ordinal"]), int(state["level"]), recent
        return cursor

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            "fingerprint": self.fingerprint,
            "ordinal": self.ordinal,
            "level": self.level,
            "recent": list(self.recent),
        }

    def next_index(self) -> int:
        """The index of the next problem to lease."""
        ordinal = self.ordinal
        self.ordinal += 1
        if self.level > 0 and ordinal % REHEARSAL == 0:
            return index_at(ordinal, ordinal // REHEARSAL % self.level, self.levels)
        return index_at(ordinal, self.level, self.levels)

    def observe(self, index: int, mean_reward: float) -> None:
        """Take note of a finished group. Groups of other levels say nothing about this one."""
        _, level = place_of(index, self.levels)
        if level != self.level:
            return
        self.recent.append(mean_reward)
        if self.level + 1 < self.levels and len(self.recent) == WINDOW and sum(self.recent) >= MASTERED * WINDOW:
            self.level += 1
            self.recent.clear()
