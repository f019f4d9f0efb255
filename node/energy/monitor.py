"""Read the meters while the node runs, and say what they and the estimate add up to.

Invariants:

- Readings are taken on a thread, one at a time, so a driver that hangs blocks nothing else.
- The owner's own time does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from node.energy.meter import Meter
from node.energy.meter_selection import Meters
from node.runtime.events import EventLog
from protocol.accounting.claims import Energy, EnergySource

LOOK_S = 5.0
"""Seconds between readings. A processor's counter wraps after a quarter of an hour at the earliest, and a reading takes
a few ms."""

SAID_S = 60.0
"""Seconds between `energy` events, which are kept in the event log."""


class EnergyWatch:
    """Count the joules of this machine while it is lent.

    Args:
        find: finds the meters of this machine; called on a thread, and may wait.
        is_lent: whether the machine is lent now.
        engine_s: seconds of generation since the node started, which estimates multiply.
        reports: whether the learner gets the figures.
    """

    def __init__(
        self,
        find: Callable[[], Meters],
        *,
        is_lent: Callable[[], bool],
        engine_s: Callable[[], float],
        events: EventLog,
        reports: bool = True,
    ) -> None:
        self._find, self._is_lent, self._engine_s, self._events = find, is_lent, engine_s, events
        self._reports = reports
        self._meters = Meters(told="")
        self._meter = Meter()

    @property
    def joules(self) -> Mapping[EnergySource, float]:
        """Return the joules since the node started, by source."""
        found = dict(self._meter.joules)
        if self._meters.watts is not None:
            found[self._meters.source] = self._meters.watts * self._engine_s()
        return found

    def reported(self) -> list[Energy]:
        """Return the same as heartbeats send it; nothing if the owner keeps it private."""
        return [Energy(source, joules) for source, joules in self.joules.items()] if self._reports else []

    async def run(self) -> None:
        """Read the meters until cancelled."""
        self._meters = await trio.to_thread.run_sync(self._find, abandon_on_cancel=True)
        self._events.emit("energy_read", how=self._meters.told)
        said_s, said_j = trio.current_time(), 0.0
        while True:
            # Asked before and after: a reading that waited for the driver may have ended in the owner's own time.
            was_lent = self._is_lent()
            readings = await trio.to_thread.run_sync(self._meters.look, abandon_on_cancel=True)
            now_s = trio.current_time()
            self._meter.look(readings, now_s, lent=self._is_lent() and was_lent)
            if now_s - said_s >= SAID_S and (joules := sum(self.joules.values())) > said_j:
                self._events.emit("energy", joules=round(joules), watts=round((joules - said_j) / (now_s - said_s)))
                said_s, said_j = now_s, joules
            await trio.sleep(LOOK_S)
