"""Whether a machine's owner lends it just now, followed on the wall clock: for those who wait for that, or must stop.

What always holds: all see the same at the same moment, since it changes only when the clock is looked at (`look`),
which `run` does when hours should end or begin and every LOOK_S; what is done under `until_over` is cancelled when they
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import trio

from node.hours import ALWAYS, Hours

LOOK_S = 30.0
"""A wall clock that was set, a machine that slept, or the change to summer time is noticed within so long."""


class Shift:
    """See the module's paragraph. `local_now`: what the wall clock shows."""

    def __init__(self, hours: Hours = ALWAYS, local_now: Callable[[], datetime] = datetime.now) -> None:
        self._hours = hours
        self._local_now = local_now
        self._changed: Callable[[], None] = lambda: None
        self._scopes: set[trio.CancelScope] = set()
        self._began = trio.Event()
        if hours.left_s(local_now()) != 0:
            self._began.set()

    @property
    def is_on(self) -> bool:
        """Whether it is lent, as of the last look."""
        return self._began.is_set()

    @property
    def left_s(self) -> float | None:
        """Seconds until it is lent no more, 0 outside its hours, None if they never end."""
        return self._hours.left_s(self._local_now()) if self.is_on else 0.0

    @property
    def turns_at(self) -> str:
        """The time of day at which that changes, as HH:MM; empty if never."""
        now = self._local_now()
        return self._hours.end(now) or self._hours.begin(now)

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the clock until cancelled; `changed` is called at every change, and at once if it is not lent now."""
        if self._hours.is_always:
            return
        self._changed = changed
        if not self.is_on:
            changed()
        while True:
            self.look()
            now = self._local_now()
            await trio.sleep(min(LOOK_S, self._hours.left_s(now) or self._hours.begin_in_s(now)))

    def look(self) -> None:
        """What does the clock show now?"""
        is_on = self._hours.left_s(self._local_now()) != 0
        if is_on == self.is_on:
            return
        if is_on:
            self._began.set()
        else:
            self._began = trio.Event()
            for scope in self._scopes:
                scope.cancel()
        self._changed()

    async def wait_on(self) -> None:
        """Wait until it is lent; at once if it is."""
        while not self.is_on:
            await self._began.wait()

    @contextmanager
    def until_over(self) -> Iterator[None]:
        """What is inside is cancelled when its hours end."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
