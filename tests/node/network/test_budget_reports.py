"""Report what budgets refused, and keep few rows for peers' faults."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from node.network.budget_reports import FAULTS, FAULTS_OF_PEER, TOLD_EVERY_S, FaultLog, tell_refusals
from node.runtime.events import EventLog, Field
from protocol.core.errors import Fault
from protocol.core.ids import PeerId
from swarm.testing.memory_transport import MemoryNetwork

ONE, OTHER = PeerId("one"), PeerId("other")


class Rows:
    """What was emitted."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Field]] = []
        self.events = EventLog()
        self.events.listen(lambda name, fields: self.rows.append({"event": name, **fields}))


async def test_refusals_are_told_once_a_period_and_at_the_end(autojump_clock: MockClock) -> None:
    told = Rows()
    async with MemoryNetwork().node("learner") as transport, trio.open_nursery() as nursery:
        nursery.start_soon(tell_refusals, transport, told.events)
        transport.note_refusal("handshakes", "192.0.2.66")
        await trio.sleep(TOLD_EVERY_S * 3.5)
        row = {"event": "over_budget", "budget": "handshakes", "times": 1, "who": "192.0.2.66", "who_times": 1}
        assert told.rows == [row]
        transport.note_refusal("handshakes", "192.0.2.66")
        nursery.cancel_scope.cancel()
    assert told.rows == [row, row]


async def test_a_peer_that_errs_all_the_time_leaves_few_rows_and_others_theirs(autojump_clock: MockClock) -> None:
    told = Rows()
    log = FaultLog(events=told.events)
    for _ in range(1000):
        log.report(ONE, Fault.MALFORMED, "rubbish")
    assert len(told.rows) == FAULTS_OF_PEER.burst
    log.report(OTHER, Fault.MALFORMED, "rubbish")
    assert told.rows[-1] == {
        "event": "peer_fault",
        "peer": OTHER,
        "fault": "malformed",
        "detail": "rubbish",
        "unsaid": 1000 - FAULTS_OF_PEER.burst,
    }
    await trio.sleep(1 / FAULTS_OF_PEER.per_s)
    log.report(ONE, Fault.MALFORMED, "rubbish")
    assert (told.rows[-1]["peer"], told.rows[-1]["unsaid"]) == (ONE, 0)


async def test_many_peers_that_err_once_leave_no_more_rows_than_all_may(autojump_clock: MockClock) -> None:
    told = Rows()
    log = FaultLog(events=told.events)
    for number in range(10_000):
        log.report(PeerId(str(number)), Fault.MALFORMED, "rubbish")
    assert len(told.rows) == FAULTS.burst
