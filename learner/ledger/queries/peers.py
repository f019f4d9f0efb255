"""Read what a ledger has of peers: who was here, at which price, how each is reached, its relaying, its troubles."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from learner.ledger.rows import CarriedRow, MetRow, ReachRow, TroubleRow
from learner.ledger.sqlite.column_values import version_from
from learner.ledger.sqlite.files import Queries, Row
from learner.ledger.troubles import ORDER
from protocol.accounting.claims import EnergySource
from protocol.core.ids import PeerId, PolicyVersion
from protocol.reach import ReachKind, Way
from protocol.trouble import TroubleKind


class KnownPeer(Row, frozen=True):
    """A peer's own description when it last joined, when it was seen, and for how many seconds its engine generated."""

    peer: PeerId
    name: str
    role: str
    engine: str
    machine: str
    micros_per_hour: int
    currency: str
    engine_s: float
    first_seen_ms: int
    last_seen_ms: int


@dataclass(frozen=True, kw_only=True)
class PeerPresence:
    """One session of a peer: the chunk bytes that it moved, its seconds on standby, its energy in joules by source."""

    peer: PeerId
    began_ms: int
    ended_ms: int
    bytes_up: int
    bytes_down: int
    standby_s: float = 0.0
    energy: Mapping[EnergySource, float] = field(default_factory=dict)


class RelayedBytes(Row, frozen=True):
    """The chunk bytes that one peer received from a relay, of so many versions."""

    relay: PeerId
    receiver: PeerId
    num_bytes: int
    versions: int


@dataclass(frozen=True)
class PeerQueries:
    """The queries about peers."""

    db: Queries

    def all(self, role: str | None = None, ending: str = "") -> list[KnownPeer]:
        """Return every peer, or those of a role, or those whose ids end with `ending`; ordered by id."""
        return self.db.rows(
            KnownPeer,
            "FROM peers WHERE (?1 IS NULL OR role = ?1) AND (?2 = '' OR substr(peer, -length(?2)) = ?2) ORDER BY peer",
            (role, ending),
        )

    def named(self, peer: PeerId) -> KnownPeer | None:
        """Return the peer with this id; None if it never joined."""
        return next((one for one in self.all(ending=peer) if one.peer == peer), None)

    def knows(self, peer: PeerId) -> bool:
        """Return whether the peer has joined before."""
        return bool(self.db.query("SELECT 1 FROM peers WHERE peer = ?", (peer,)))

    def presences(self) -> list[PeerPresence]:
        """Return all sessions of all peers."""
        standby = dict(self.db.query("SELECT presence, seconds FROM standby", of="standby"))
        energy: defaultdict[int, dict[EnergySource, float]] = defaultdict(dict)
        for presence, source, joules in self.db.query("SELECT presence, source, joules FROM energy", of="energy"):
            energy[presence][EnergySource(source)] = joules
        return [
            PeerPresence(
                peer=PeerId(peer), began_ms=began_ms, ended_ms=ended_ms, bytes_up=up, bytes_down=down,
                standby_s=standby.get(presence, 0.0), energy=energy[presence],
            )
            for presence, peer, began_ms, ended_ms, up, down in self.db.query(
                "SELECT id, peer, began_ms, ended_ms, bytes_up, bytes_down FROM presence"
            )
        ]  # fmt: skip

    def relayed(self) -> list[RelayedBytes]:
        """Return the credited bytes by relay and receiver, the largest first."""
        return self.db.rows(
            RelayedBytes,
            "SELECT relay, receiver, sum(bytes) AS total, count(*) FROM relayed GROUP BY relay, receiver"
            " ORDER BY total DESC, receiver",
            of="relayed",
        )

    def members(self, peers: Collection[PeerId]) -> set[PeerId]:
        """Return those of `peers` that have ever joined as rollout nodes."""
        sql = "SELECT peer FROM peers WHERE role = 'rollout' AND peer IN (SELECT value FROM json_each(?))"
        return {PeerId(peer) for (peer,) in self.db.query(sql, (json.dumps(list(peers)),))}

    def users_of(self, versions: Collection[PolicyVersion]) -> list[tuple[PeerId, PolicyVersion]]:
        """Return which peers have trained records whose oldest tokens are of one of these versions."""
        rows = self.db.query(
            "SELECT DISTINCT peer, incarnation, version FROM records"
            " WHERE rule = 'admitted' AND step IS NOT NULL AND version >= ?",
            (min((version.version for version in versions), default=0),),
        )
        found = [(PeerId(peer), PolicyVersion(incarnation, version)) for peer, incarnation, version in rows]
        return [(peer, version) for peer, version in found if version in versions]

    def troubles(self) -> list[TroubleRow]:
        """Return the troubles by peer; for each peer, in the order in which they count."""
        found = [
            TroubleRow(
                peer=PeerId(peer), kind=kind, times=times, reason=reason, since_ms=since_ms, ended_ms=ended_ms,
                version=None if version is None else version_from("troubles.version", version),
            )
            for peer, kind, version, times, reason, since_ms, ended_ms in self.db.query(
                "SELECT peer, kind, version, times, reason, since_ms, ended_ms FROM troubles", of="troubles"
            )
        ]  # fmt: skip
        return sorted(found, key=lambda row: (row.peer, ORDER.index(TroubleKind(row.kind))))

    def reach(self) -> list[ReachRow]:
        """Return how each peer says that it is reached, ordered by time."""
        return [
            ReachRow(peer=PeerId(peer), kind=ReachKind(kind), why=why, since_ms=since_ms)
            for peer, kind, why, since_ms in self.db.query(
                "SELECT peer, kind, why, since_ms FROM reach ORDER BY since_ms, peer", of="reach"
            )
        ]

    def met(self) -> list[MetRow]:
        """Return how each peer says that it met others, ordered by the time of the first report."""
        return [
            MetRow(peer=PeerId(peer), other=PeerId(other), way=Way(way), since_ms=since_ms)
            for peer, other, way, since_ms in self.db.query(
                "SELECT peer, other, way, since_ms FROM meetings ORDER BY since_ms, peer, other", of="meetings"
            )
        ]

    def carried(self) -> list[CarriedRow]:
        """Return what circuits carried between two peers, the largest first."""
        return [
            CarriedRow(one=PeerId(one), other=PeerId(other), num_bytes=num_bytes)
            for one, other, num_bytes in self.db.query(
                "SELECT one, other, bytes FROM carried ORDER BY bytes DESC, one, other", of="carried"
            )
        ]
