"""Write who was here, for how long and at which price, which peers were active, and what each relayed.

Invariants:

- For one receiver and version, one relay receipt counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from learner.ledger.queries.peers import PeerQueries
from learner.ledger.rows import CarriedRow, MetRow, PeerRow, PlanRow, PresenceRow, ReachRow, TroubleRow
from learner.ledger.sqlite.database import LedgerFile
from learner.trust.relay_credit import Credit
from protocol.core.ids import PeerId

NOTE = """
INSERT INTO credit_notes (rowid, manifest, receiver, envelope) VALUES (
    max((SELECT coalesce(max(rowid), 0) + 1 FROM credit_notes),
        (SELECT coalesce(max(CAST(CAST(value AS TEXT) AS INTEGER)), 0) FROM meta WHERE key = 'incarnation_seen') << 32),
    ?, ?, ?)
"""
"""Insert a credit note. Its number is its row; a node asks for the notes after the last one that it has. A ledger
restored from an older copy has already given some numbers away. So numbers start above `incarnation_seen` times 2^32:
no incarnation makes 2^32 notes."""


@dataclass(frozen=True)
class PeerLedger(PeerQueries):
    """The part of the ledger that writes what peers do. Raises LedgerError."""

    db: LedgerFile
    _planned: list[frozenset[PeerId]] = field(default_factory=list)
    """The active peers of the last plan that was written here, once there is one."""

    def peer_joined(self, row: PeerRow, now_ms: int) -> int:
        """Write that a peer is present from now on; return the id of its presence."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO peers (peer, name, role, engine, machine, micros_per_hour, currency, first_seen_ms,"
                " last_seen_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (peer) DO UPDATE SET"
                " name = excluded.name, role = excluded.role, engine = excluded.engine, machine = excluded.machine,"
                " micros_per_hour = excluded.micros_per_hour, currency = excluded.currency,"
                " last_seen_ms = excluded.last_seen_ms",
                (
                    row.peer, row.name, row.role, row.engine, row.machine, row.micros_per_hour, row.currency,
                    now_ms, now_ms,
                ),
            )  # fmt: skip
            cursor = db.execute(
                "INSERT INTO presence (peer, began_ms, ended_ms) VALUES (?, ?, ?)", (row.peer, now_ms, now_ms)
            )
        return int(cursor.lastrowid or 0)

    def peers_present(self, presences: Sequence[PresenceRow], now_ms: int) -> None:
        """Write that these peers are still here at `now_ms`, or were until then."""
        with self.db.transaction() as db:
            for row in presences:
                db.execute(
                    "UPDATE peers SET last_seen_ms = ?, engine_s = peers.engine_s + ? - before.engine_s"
                    " FROM presence AS before WHERE before.id = ? AND peers.peer = before.peer",
                    (now_ms, row.engine_s, row.presence),
                )
                db.execute(
                    "UPDATE presence SET ended_ms = ?, bytes_up = ?, bytes_down = ?, engine_s = ?, reason = ?"
                    " WHERE id = ?",
                    (now_ms, row.bytes_up, row.bytes_down, row.engine_s, row.reason, row.presence),
                )
                if row.standby_s > 0:
                    db.execute("INSERT OR REPLACE INTO standby VALUES (?, ?)", (row.presence, row.standby_s))
                rows = [(row.presence, source.value, joules) for source, joules in row.energy.items()]
                db.executemany("INSERT OR REPLACE INTO energy VALUES (?, ?, ?)", rows)

    def write_troubles(self, rows: Sequence[TroubleRow]) -> None:
        """Write what these peers report that they cannot do, or can do again."""
        with self.db.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO troubles (peer, kind, version, times, reason, since_ms, ended_ms)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        row.peer, row.kind, None if row.version is None else str(row.version), row.times, row.reason,
                        row.since_ms, row.ended_ms,
                    )
                    for row in rows
                ],
            )  # fmt: skip

    def write_reach(self, rows: Sequence[ReachRow], met: Sequence[MetRow]) -> None:
        """Write how these peers say that they are reached, and how they met others."""
        with self.db.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO reach (peer, kind, why, since_ms) VALUES (?, ?, ?, ?)",
                [(row.peer, row.kind.value, row.why, row.since_ms) for row in rows],
            )
            db.executemany(
                "INSERT OR REPLACE INTO meetings (peer, other, way, since_ms) VALUES (?, ?, ?, ?)",
                [(row.peer, row.other, row.way.value, row.since_ms) for row in met],
            )

    def circuits_carried(self, rows: Sequence[CarriedRow]) -> None:
        """Add the bytes that circuits carried between these peers."""
        with self.db.transaction() as db:
            db.executemany(
                "INSERT INTO carried (one, other, bytes) VALUES (?, ?, ?)"
                " ON CONFLICT (one, other) DO UPDATE SET bytes = carried.bytes + excluded.bytes",
                [(row.one, row.other, row.num_bytes) for row in rows],
            )

    def planned(self, row: PlanRow) -> None:
        """Write a new plan: all active peers the first time, and then the changes only. For two thousand peers, each
        full plan would take 100 kB."""
        written: object = row.active
        if self._planned:
            now, before = set(row.active), self._planned[-1]
            written = {"on": sorted(now - before), "off": sorted(before - now)}
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO plans (at_ms, kappa, micros_per_hour, active, reasons) VALUES (?, ?, ?, ?, ?)",
                (row.at_ms, row.kappa, row.micros_per_hour, json.dumps(written), json.dumps(row.reasons)),
            )
        self._planned[:] = [frozenset(row.active)]

    def relays_credited(
        self, credits: Sequence[Credit], now_ms: int, noted: Callable[[Credit], bytes] | None = None
    ) -> list[Credit]:
        """Write these credits; return the new ones, since a receiver's receipt for a version counts once.

        `noted` makes the credit note of each new one.
        """
        fresh = []
        with self.db.transaction() as db:
            for credit in credits:
                key = (credit.manifest, credit.receiver)
                insert = "INSERT INTO relay_receipts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
                if db.execute(insert, (*key, now_ms, credit.raw)).rowcount:
                    rows = [(*key, relay, size) for relay, size in credit.shares.items()]
                    db.executemany("INSERT INTO relayed VALUES (?, ?, ?, ?)", rows)
                    if noted is not None:
                        db.execute(NOTE, (*key, noted(credit)))
                    fresh.append(credit)
        return fresh
