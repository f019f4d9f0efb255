"""Run the meters: when they are read, when not, and what is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.energy.meter_selection import Meters
from node.energy.monitor import LOOK_S, EnergyWatch
from node.energy.rapl import Rapl, find_rapl
from node.runtime.events import EventLog, Field
from protocol.accounting.claims import Energy, EnergySource
from tests.node.energy.test_rapl import zone
from tests.support.learner_fixture import until


class Machine:
    """A directory like /sys/class/powercap, and whether its owner lends it."""

    def __init__(self, root: Path) -> None:
        self.counter = zone(root, "intel-rapl:0", "package-0", 0) / "energy_uj"
        self.rapl = find_rapl(root)
        self.is_lent, self.engine_s, self.looked = True, 0.0, 0
        self.said: list[tuple[str, dict[str, Field]]] = []

    def watch(self, meters: Meters, *, reports: bool = True) -> EnergyWatch:
        events = EventLog()
        events.listen(lambda event, fields: self.said.append((event, dict(fields))))
        return EnergyWatch(
            lambda: meters, is_lent=self.lent, engine_s=lambda: self.engine_s, events=events, reports=reports
        )

    def lent(self) -> bool:
        self.looked += 1
        return self.is_lent

    async def look(self, joules: float, clock: MockClock) -> None:
        """The counter shows so many joules at the next look, which is over afterwards."""
        self.counter.write_text(str(round(joules * 1e6)))
        before = self.looked
        clock.jump(LOOK_S)
        await until(lambda: self.looked >= before + 2)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_what_is_read_and_estimated_is_told(machine: Machine, mock_clock: MockClock) -> None:
    watch = machine.watch(Meters(told="both", rapl=machine.rapl, watts=300.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await until(lambda: machine.looked == 2)
        machine.engine_s = 2.0
        await machine.look(100.0, mock_clock)
        await until(lambda: watch.reported() == [Energy(EnergySource.RAPL, 100.0), Energy(EnergySource.TABLE, 600.0)])
        machine.is_lent = False
        await machine.look(5000.0, mock_clock)
        machine.is_lent = True
        await machine.look(9000.0, mock_clock)
        await machine.look(9010.0, mock_clock)
        await until(lambda: watch.joules[EnergySource.RAPL] == pytest.approx(110.0))
        nursery.cancel_scope.cancel()
    assert machine.said[0] == ("energy_read", {"how": "both"})


async def test_a_sum_is_said_now_and_then(machine: Machine, mock_clock: MockClock) -> None:
    watch = machine.watch(Meters(told="", rapl=machine.rapl))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await until(lambda: machine.looked == 2)
        for number in range(1, 13):
            await machine.look(50.0 * number, mock_clock)
        await until(lambda: len(machine.said) == 2)
        nursery.cancel_scope.cancel()
    assert machine.said[1] == ("energy", {"joules": 600, "watts": 10})


async def test_a_machine_without_meters_tells_nothing(machine: Machine, mock_clock: MockClock) -> None:
    watch = machine.watch(Meters(told="nothing", rapl=Rapl(zones=())))
    assert watch.reported() == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await until(lambda: machine.looked == 2)
        nursery.cancel_scope.cancel()
    assert watch.reported() == []


async def test_an_owner_may_keep_it(machine: Machine, mock_clock: MockClock) -> None:
    watch = machine.watch(Meters(told="", watts=100.0), reports=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await until(lambda: machine.looked == 2)
        machine.engine_s = 3.0
        assert watch.reported() == []
        assert watch.joules == {EnergySource.TABLE: 300.0}
        nursery.cancel_scope.cancel()
