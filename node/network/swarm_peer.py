"""Do what every member of a swarm does for the others in any role: serve what it has, and fetch chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import trio

from node.network.budget_reports import FaultLog, tell_refusals
from swarm.store import ChunkStore
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.interface import Transport


@dataclass(frozen=True, kw_only=True)
class SwarmPeer:
    """`serving` answers questions and sends chunks, `exchange` fetches them; `faults` records what peers do wrong."""

    transport: Transport
    faults: FaultLog
    serving: Serving
    exchange: ChunkExchange

    @classmethod
    def build(cls, transport: Transport, store: ChunkStore, knowledge: Knowledge, faults: FaultLog) -> Self:
        """Build the parts, so that fetched chunks are served at once."""

        serving = Serving(
            transport=transport, store=store, knowledge=knowledge, report=faults.report, trouble=faults.events.trouble
        )
        exchange = ChunkExchange(
            transport=transport,
            store=store,
            tell_gained=lambda signed: serving.tell_gained(signed.hash),
            report=faults.report,
            serving=serving,
        )
        return cls(transport=transport, faults=faults, serving=serving, exchange=exchange)

    def start(self, nursery: trio.Nursery) -> None:
        """Serve from now on, and fetch chunks until `nursery` is cancelled."""
        self.serving.start()
        nursery.start_soon(self.exchange.run)
        nursery.start_soon(tell_refusals, self.transport, self.faults.events)
