"""Whether a machine's owner lends it just now: within the hours, and while nobody holds it back (a pause, a program).

For those who wait for that, or must stop. What always holds: all see the same at the same moment, since it changes only
when the clock is looked at (`look`), which `run` does when hours should end or begin and every LOOK_S, or when somebody
begins or ends a hold; what is done under `until_over` is cancelled when it is lent no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import trio

from node.config.daily_hours import ALWAYS, Hours

LOOK_S = 30.0
"""A wall clock that was set, a machine that slept, or the change to summer time is noticed within so long."""


class Availability:
    """See the module's paragraph. `local_now`: what the wall clock shows."""

    def __init__(self, hours: Hours = ALWAYS, local_now: Callable[[], datetime] = datetime.now) -> None:
        self._hours = hours
        self._local_now = local_now
        self._changed: Callable[[], None] = lambda: None
        self._scopes: set[trio.CancelScope] = set()
        self._holds: dict[str, str] = {}
        self._began, self._ended = trio.Event(), trio.Event()
        (self._began if hours.left_s(local_now()) != 0 else self._ended).set()

    @property
    def is_on(self) -> bool:
        """Whether it is lent, as of the last look."""
        return self._began.is_set()

    @property
    def held(self) -> str:
        """Why it is not lent although the hours may go on, for its owner to read: who holds it back; empty if nobody
        does.
        """
        return ", and ".join(self._holds.values())

    @property
    def left_s(self) -> float | None:
        """Seconds until it is lent no more, 0 while it is not, None if there is no such end."""
        return self._hours.left_s(self._local_now()) if self.is_on else 0.0

    @property
    def turns_at(self) -> str:
        """The time of day at which the hours end or begin, as HH:MM; empty if never."""
        now = self._local_now()
        return self._hours.end(now) or self._hours.begin(now)

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the clock until cancelled; `changed` is called at every change, and at once if it is not lent now."""
        self._changed = changed
        if not self.is_on:
            changed()
        if self._hours.is_always:
            return
        while True:
            self.look()
            now = self._local_now()
            await trio.sleep(min(LOOK_S, self._hours.left_s(now) or self._hours.begin_in_s(now)))

    def hold(self, holder: str, why: str) -> None:
        """Until `release(holder)` it is not lent: its owner reads that by `why`, a clause."""
        if self._holds.get(holder) != why:
            self._holds[holder] = why
            self._turn(is_on=False, anew=True)

    def release(self, holder: str) -> None:
        """`holder` holds it back no more; does nothing if it did not."""
        if self._holds.pop(holder, None) is not None:
            self._turn(is_on=self._is_free(), anew=True)

    def look(self) -> None:
        """What does the clock show now?"""
        self._turn(is_on=self._is_free(), anew=False)

    def _is_free(self) -> bool:
        return not self._holds and self._hours.left_s(self._local_now()) != 0

    def _turn(self, *, is_on: bool, anew: bool) -> None:
        """It is lent now, or not; `anew`: if not, the reason is another."""
        if is_on == self.is_on:
            if anew and not is_on:
                self._changed()
            return
        if is_on:
            self._began.set()
            self._ended = trio.Event()
        else:
            self._ended.set()
            self._began = trio.Event()
            for scope in self._scopes:
                scope.cancel()
        self._changed()

    async def wait_on(self) -> None:
        """Wait until it is lent; at once if it is."""
        while not self.is_on:
            await self._began.wait()

    async def wait_off(self) -> None:
        """Wait until it is not; at once if it is not."""
        while self.is_on:
            await self._ended.wait()

    @contextmanager
    def until_over(self) -> Iterator[None]:
        """What is inside is cancelled when it is lent no more."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
