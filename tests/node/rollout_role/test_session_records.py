"""A node's session records: bytes that circuits through it carried are reported as they grow, and summed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio
from trio.testing import MockClock

from node.energy.meter_selection import Meters
from node.energy.monitor import EnergyWatch
from node.network.budget_reports import FaultLog
from node.network.swarm_peer import SwarmPeer
from node.rollout_role.session_records import SESSION_S, SessionRecords
from node.runtime.events import EventLog
from node.state.receipts import Receipts
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transfer.serving import Knowledge
from tests.support.ledgers import ALPHA, BETA
from tests.support.trainer_fixture import SWARM


async def test_what_circuits_carried_is_told_as_it_grows(tmp_path: Path, autojump_clock: MockClock) -> None:
    events, told = EventLog(), list[int]()
    events.listen(lambda name, fields: told.append(fields["bytes_carried"]) if name == "traffic" else None)
    carried: list[Mapping[tuple[PeerId, PeerId], int]] = [{(ALPHA, BETA): 5}, {}, {(ALPHA, BETA): 7}]
    meters = Meters(told="none")
    async with MemoryNetwork().node("relay") as transport:
        transport.take_carried = lambda: carried.pop(0) if carried else {}  # type: ignore[method-assign]
        with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
            knowledge = Knowledge(genesis=b"", newest=bytes, peers=list)
            session = SessionRecords(
                receipts=Receipts(tmp_path / "receipts.sqlite"),
                transport=transport,
                price=Price(),
                swarm=SwarmPeer.build(transport, store, knowledge, FaultLog(events=events)),
                energy=EnergyWatch(lambda: meters, is_lent=lambda: True, engine_s=float, events=EventLog()),
                events=events,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.run)
                while carried:
                    await trio.sleep(SESSION_S)
                nursery.cancel_scope.cancel()
            session.receipts.close()
    assert told == [5, 12]
    assert session.bytes_carried == 12
