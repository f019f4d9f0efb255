"""Write the invite that leads to the learner, and keep the learner's own row in the ledger up to date.

With that row, a report of a running or killed run shows the bytes that the learner's connection carried and the energy
that its machine used.

Invariants:

- The invite in the state directory is that of the newest start.
- The row's bytes served, bytes carried by circuits, and joules are at most PRESENCE_S old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from learner.ledger.rows import CarriedRow, PeerRow, PresenceRow
from node.config.invite_text import INVITE_FILE
from node.config.swarm_config import SwarmConfig
from node.energy.monitor import EnergyWatch
from node.learner_role.shared.context import Service
from node.network.invites import invite_to
from node.network.traffic_growth import has_grown
from node.network.transport import machine_name
from node.runtime.atomic_files import write_durably
from node.runtime.errors import UsageError
from node.state.learner_state import LearnerStateDir
from protocol.accounting.claims import MICROS
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import PeerId
from swarm.transfer.serving import Serving
from swarm.transport.interface import Traffic

PRESENCE_S = 2.0
"""Seconds between two writes of the learner's own presence and byte counts."""


@dataclass(kw_only=True, eq=False)
class LearnerAnnouncer(Service):
    """Writes the invite and the learner's own presence.

    `energy` measures this machine's energy, which is recorded if the operator wants it.
    """

    config: SwarmConfig
    home: LearnerStateDir
    serving: Serving
    take_carried: Callable[[], Mapping[tuple[PeerId, PeerId], int]]
    """Returns the bytes that circuits through the learner carried since the last call, by pair."""
    energy: EnergyWatch
    total_traffic: Callable[[], Traffic]
    """Returns all bytes that were moved since the start."""
    _told: tuple[int, int] = (0, 0)
    _moved: Traffic = field(default_factory=Traffic)
    _carried: int = 0
    """Bytes that circuits carried since the start."""
    _unwritten: Counter[tuple[PeerId, PeerId]] = field(default_factory=Counter)

    def write_invite(self, addresses: list[str]) -> str:
        """Write the invite for volunteers to the state directory, and return it. Raises UsageError, RunError.

        It names our addresses, announced ones first. If nobody can dial us, there is no invite, and an earlier one is
        removed.
        """
        path = self.home.root / INVITE_FILE
        if not addresses:
            path.unlink(missing_ok=True)
            return ""
        try:
            text = invite_to(self.home, self.config, addresses)
        except LocalProtocolError as error:
            raise UsageError(f"[network] announce: the invite cannot be written: {error}. Announce fewer.") from None
        write_durably(path, text.encode() + b"\n")
        return text

    async def note(self) -> int:
        """Record in the ledger that the learner is present, and return the id of its presence. Raises LedgerError."""
        row = PeerRow(
            peer=self.home.learner.peer_id,
            name=self.config.swarm.name,
            role="learner",
            engine="trainer",
            machine=machine_name(),
            micros_per_hour=round(self.config.price.per_hour * MICROS),
            currency=self.config.price.currency,
        )
        return await trio.to_thread.run_sync(self.ledger.peers.peer_joined, row, self.context.now_ms())

    async def run(self, presence: int) -> None:
        """Update the presence with that id until cancelled, and once more then. Raises LedgerError."""
        try:
            while True:
                await self._keep(presence)
                await trio.sleep(PRESENCE_S)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await self._keep(presence)
            raise

    async def _keep(self, presence: int) -> None:
        up, carried = self.serving.served_bytes, self.take_carried()
        self._unwritten.update(carried)
        self._carried += sum(carried.values())
        moved = self.total_traffic()
        if (up, self._carried) != self._told or has_grown(self._moved, moved):
            self._told, self._moved = (up, self._carried), moved
            self.events.emit(
                "traffic", bytes_up=up, bytes_down=0, bytes_carried=self._carried,
                sent_bytes=moved.sent, received_bytes=moved.received,
            )  # fmt: skip
        row = PresenceRow(
            presence=presence, bytes_up=up, bytes_down=0, energy=self.energy.joules if self.config.energy.report else {}
        )
        pairs = [
            CarriedRow(one=one, other=other, num_bytes=num_bytes) for (one, other), num_bytes in self._unwritten.items()
        ]
        await trio.to_thread.run_sync(self._write, row, pairs, self.context.now_ms())
        self._unwritten.clear()

    def _write(self, row: PresenceRow, pairs: list[CarriedRow], now_ms: int) -> None:
        self.ledger.peers.peers_present([row], now_ms)
        if pairs:
            self.ledger.peers.circuits_carried(pairs)
