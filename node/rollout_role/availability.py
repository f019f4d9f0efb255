"""Track whether the owner lends the machine now: within the hours, and while no hold is in force (a pause, a program).

Tasks can wait for a change, or be cancelled by one.

Invariants:

- All tasks see the same state at the same moment. It changes only when a hold begins or ends, when the hours change,
  and in `look`, which reads the clock. `run` calls `look` when hours should begin or end, and every LOOK_S.
- Code under `until_over` is cancelled when the machine is no longer lent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import trio

from node.config.daily_hours import ALWAYS, Hours

LOOK_S = 30.0
"""Seconds within which a clock that was set, a machine that slept, or the change to summer time is noticed."""


class Availability:
    """Whether the machine is lent, from its hours and holds. `local_now` returns the time of the wall clock."""

    def __init__(self, hours: Hours = ALWAYS, local_now: Callable[[], datetime] = datetime.now) -> None:
        self._hours = hours
        self._local_now = local_now
        self._changed: Callable[[], None] = lambda: None
        self._scopes: set[trio.CancelScope] = set()
        self._holds: dict[str, str] = {}
        self._rescheduled = trio.Event()
        self._began, self._ended = trio.Event(), trio.Event()
        (self._began if hours.left_s(local_now()) != 0 else self._ended).set()

    @property
    def is_lent(self) -> bool:
        """Return whether the machine is lent, as of the last look."""
        return self._began.is_set()

    @property
    def held(self) -> str:
        """Return the reasons of the holds in force, for the owner to read; empty if there is none."""
        return ", and ".join(self._holds.values())

    @property
    def left_s(self) -> float | None:
        """Return the seconds until the machine is no longer lent, 0 while it is not, None if there is no such end."""
        return self._hours.left_s(self._local_now()) if self.is_lent else 0.0

    @property
    def turns_at(self) -> str:
        """Return the time of day at which the hours next end or begin, as HH:MM; empty if never."""
        now = self._local_now()
        return self._hours.end(now) or self._hours.begin(now)

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the clock until cancelled. Calls `changed` at every change, and at once if it is not lent now."""
        self._changed = changed
        if not self.is_lent:
            changed()
        while True:
            self._rescheduled = trio.Event()
            self.look()
            with trio.move_on_after(self._look_in_s):
                await self._rescheduled.wait()

    @property
    def _look_in_s(self) -> float:
        """The seconds until the clock is read again, at the latest."""
        if self._hours.is_always:
            return math.inf
        now = self._local_now()
        return min(LOOK_S, self._hours.left_s(now) or self._hours.begin_in_s(now))

    def change(self, hours: Hours) -> None:
        """Lend the machine in these hours from now on. If it is not lent, its next turn may be at another time."""
        self._hours = hours
        self._rescheduled.set()
        self._turn(is_lent=self._is_free(), anew=not self._holds)

    def hold(self, holder: str, why: str) -> None:
        """Stop lending until `release(holder)`. `why` is a clause that the owner reads."""
        if self._holds.get(holder) != why:
            self._holds[holder] = why
            self._turn(is_lent=False, anew=True)

    def release(self, holder: str) -> None:
        """End the hold of `holder`, if there is one."""
        if self._holds.pop(holder, None) is not None:
            self._turn(is_lent=self._is_free(), anew=True)

    def look(self) -> None:
        """Read the clock, and note whether the machine is lent now."""
        self._turn(is_lent=self._is_free(), anew=False)

    def _is_free(self) -> bool:
        return not self._holds and self._hours.left_s(self._local_now()) != 0

    def _turn(self, *, is_lent: bool, anew: bool) -> None:
        """Note whether the machine is lent. `anew`: if it is not, the reason has changed."""
        if is_lent == self.is_lent:
            if anew and not is_lent:
                self._changed()
            return
        if is_lent:
            self._began.set()
            self._ended = trio.Event()
        else:
            self._ended.set()
            self._began = trio.Event()
            for scope in self._scopes:
                scope.cancel()
        self._changed()

    async def wait_on(self) -> None:
        """Wait until the machine is lent. Return at once if it is."""
        while not self.is_lent:
            await self._began.wait()

    async def wait_off(self) -> None:
        """Wait until the machine is not lent. Return at once if it is not."""
        while self.is_lent:
            await self._ended.wait()

    @contextmanager
    def until_over(self) -> Iterator[None]:
        """Cancel the code inside when the machine is no longer lent."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
