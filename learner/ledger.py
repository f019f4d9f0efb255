"""The learner's memory: leases, verdicts, receipts, versions, steps and what every peer did, in SQLite.

What always holds: what a receipt says is committed to disk before the receipt exists (WAL, synchronous FULL); a record
is counted once, because an index of a lease is admitted once; a record is consumed by at most one step of the surviving
chain, because going back to a checkpoint un-consumes what later steps took, and its payload is kept for as long as the
oldest checkpoint kept could need it. Readers may open the file while the learner writes. Synchronous: the node calls it
on a worker thread. Times are milliseconds since 1970 on the learner's clock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, Self

from learner.intake import Place
from learner.ledger_schema import (
    CONTINUATIONS,
    ORPHANS,
    PLANS,
    READABLE,
    RECALLS,
    RELAYS,
    SCHEMA,
    SCHEMA_VERSION,
    SCORES,
)
from learner.relay_credit import Credit
from protocol.errors import LocalProtocolError
from protocol.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import Rule

BUSY_S = 10.0
"""How long to wait for another writer, of which there should be none: a backup tool may hold the file for a moment."""


ALL = 1 << 62
"""More leases or records than any ledger has."""


class LedgerError(Exception):
    """The ledger cannot be used; its data are untouched. The message names the file and the next step."""


@dataclass(frozen=True, kw_only=True)
class PeerRow:
    """What a peer said of itself when it joined."""

    peer: PeerId
    name: str
    role: str
    engine: str
    machine: str
    micros_per_hour: int
    currency: str


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """One lease. `prompt` is the task's index of its prompt; `place` the episodes that it goes on with, if any;
    `started` the version that it was begun with, if that was said.
    """

    lease: LeaseId
    peer: PeerId
    task: str
    prompt: int
    rollouts: int
    issued_ms: int
    deadline_ms: int
    envelope: bytes
    place: Place | None = None
    started: PolicyVersion | None = None


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """One judged record. `version` is its oldest behaviour version; `envelope` is there for admitted records only."""

    record: RecordId
    lease: LeaseId
    index: int
    peer: PeerId
    rule: Rule
    reward: float | None
    tokens: int
    version: PolicyVersion
    lag: int
    received_ms: int
    generation_ms: int
    detail: str
    envelope: bytes | None


@dataclass(frozen=True, kw_only=True)
class UnconsumedRow:
    """One admitted record that waits to be trained on: of which prompt, and where in which episode if not its first
    turn. `reward` is None where the episode went on.
    """

    prompt: int
    lease: LeaseId
    reward: float | None
    peer: PeerId
    envelope: bytes
    place: Place | None


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One training step: `step` is the version it produced; `reward` the mean over what it was trained on.

    `metrics` are the figures that the trainer replied, flat, and `by_lag`: by the lag in digits, those of its tokens
    and the mean `reward` of its rollouts.
    """

    step: int
    incarnation: int
    began_ms: int
    waited_s: float
    train_s: float
    rollouts: int
    tokens: int
    reward: float
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StayRow:
    """How a stay of a peer stands: `presence` is the id that `peer_joined` gave, `reason` why it ended, if it did.

    The amounts are those of this stay: chunk bytes moved, seconds the engine generated, seconds it stood by.
    """

    presence: int
    bytes_up: int
    bytes_down: int
    engine_s: float = 0.0
    standby_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """Who was to be on from `at_ms` on, at which price per hour, how often versions were published, what changed."""

    at_ms: int
    kappa: int
    active: tuple[PeerId, ...]
    micros_per_hour: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """A durable state to go on from: the trainer's directory (its name), the curriculum's state at that step, and how
    many leases and records the ledger had then.
    """

    step: int
    incarnation: int
    directory: str
    state: Mapping[str, Any]
    leases: int = 0
    records: int = 0


class Ledger:
    """See the module's paragraph. Safe to call from several threads; calls are serialised."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        self.path = path
        self._lock = RLock()
        self._db = _open(path)
        try:
            self._prepare(swarm)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is on disk together when the block ends, or not at all. Raises LedgerError."""
        with self._lock, self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled it back already
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Other errors of SQLite's (its subclasses of DatabaseError) are mistakes of ours, and travel."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"{self.path}: {error}. Free the disk, or end what holds the file, then start again: what was "
                "acknowledged is safe."
            ) from error
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise
            raise LedgerError(
                f"{self.path} is not a readable ledger ({error}). Restore it from a copy, or move it away."
            ) from error

    # Incarnations and the chain

    def incarnations(self) -> list[tuple[int, int]]:
        """(incarnation, the step it began at), in order."""
        return [
            (row[0], row[1]) for row in self._query("SELECT incarnation, base FROM incarnations ORDER BY incarnation")
        ]

    def begin_incarnation(self, base: int, now_ms: int) -> int:
        """Start the next incarnation at step `base`: later steps are forgotten and what they consumed is free again."""
        with self.transaction() as db:
            (incarnation,) = db.execute("SELECT coalesce(max(incarnation), 0) + 1 FROM incarnations").fetchone()
            db.execute("INSERT INTO incarnations VALUES (?, ?, ?)", (incarnation, base, now_ms))
            db.execute("UPDATE records SET step = NULL, trained_lag = NULL WHERE step > ?", (base,))
            db.execute("DELETE FROM dropped WHERE step > ?", (base,))
            db.execute("DELETE FROM steps WHERE step > ?", (base,))
            db.execute("DELETE FROM checkpoints WHERE step > ?", (base,))
        return int(incarnation)

    def forked(self, row: CheckpointRow, origin: bytes, now_ms: int) -> None:
        """Begin with a checkpoint of another swarm, whose id is `origin`, as if it were our first incarnation's."""
        with self.transaction() as db:
            db.execute("INSERT INTO incarnations VALUES (1, 0, ?)", (now_ms,))
            db.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            db.execute("INSERT INTO meta VALUES ('forked_from', ?), ('forked_at', ?)", (origin, str(row.step).encode()))

    # Peers

    def knows(self, peer: PeerId) -> bool:
        """Whether the peer has been here before."""
        return bool(self._query("SELECT 1 FROM peers WHERE peer = ?", (peer,)))

    def peer_joined(self, row: PeerRow, now_ms: int) -> int:
        """Note that a peer is present from now on; return the id of its presence."""
        with self.transaction() as db:
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

    def peers_present(self, stays: Sequence[StayRow], now_ms: int) -> None:
        """These peers are still here at `now_ms`, or were until then."""
        with self.transaction() as db:
            for stay in stays:
                db.execute(
                    "UPDATE peers SET last_seen_ms = ?, engine_s = peers.engine_s + ? - before.engine_s"
                    " FROM presence AS before WHERE before.id = ? AND peers.peer = before.peer",
                    (now_ms, stay.engine_s, stay.presence),
                )
                db.execute(
                    "UPDATE presence SET ended_ms = ?, bytes_up = ?, bytes_down = ?, engine_s = ?, reason = ?"
                    " WHERE id = ?",
                    (now_ms, stay.bytes_up, stay.bytes_down, stay.engine_s, stay.reason, stay.presence),
                )
                if stay.standby_s > 0:
                    db.execute("INSERT OR REPLACE INTO standby VALUES (?, ?)", (stay.presence, stay.standby_s))

    def peer_present(self, presence: int, now_ms: int, *, bytes_up: int, bytes_down: int, reason: str = "") -> None:
        """`peers_present` for one."""
        stay = StayRow(presence=presence, bytes_up=bytes_up, bytes_down=bytes_down, reason=reason)
        self.peers_present([stay], now_ms)

    def planned(self, row: PlanRow) -> None:
        """Who is to be on was decided anew."""
        with self.transaction() as db:
            db.execute(
                "INSERT INTO plans (at_ms, kappa, micros_per_hour, active, reasons) VALUES (?, ?, ?, ?, ?)",
                (row.at_ms, row.kappa, row.micros_per_hour, json.dumps(row.active), json.dumps(row.reasons)),
            )

    # Relays

    def members(self, peers: Collection[PeerId]) -> set[PeerId]:
        """Those of `peers` that have ever joined as rollout nodes."""
        marks = ", ".join("?" * len(peers))
        found = self._query(f"SELECT peer FROM peers WHERE role = 'rollout' AND peer IN ({marks})", tuple(peers))
        return {PeerId(peer) for (peer,) in found}

    def users_of(self, versions: Collection[PolicyVersion]) -> list[tuple[PeerId, PolicyVersion]]:
        """Who has admitted records of which the oldest tokens are of one of these versions."""
        rows = self._query(
            "SELECT DISTINCT peer, incarnation, version FROM records WHERE rule = 'admitted' AND version >= ?",
            (min((version.version for version in versions), default=0),),
        )
        found = [(PeerId(peer), PolicyVersion(incarnation, version)) for peer, incarnation, version in rows]
        return [(peer, version) for peer, version in found if version in versions]

    def relays_credited(self, credits: Sequence[Credit], now_ms: int) -> list[Credit]:
        """Write these credits; return those that were new, since a receiver's receipt for a version counts once."""
        fresh = []
        with self.transaction() as db:
            for credit in credits:
                key = (credit.manifest, credit.receiver)
                insert = "INSERT INTO relay_receipts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
                if db.execute(insert, (*key, now_ms, credit.raw)).rowcount:
                    rows = [(*key, relay, size) for relay, size in credit.shares.items()]
                    db.executemany("INSERT INTO relayed VALUES (?, ?, ?, ?)", rows)
                    fresh.append(credit)
        return fresh

    # Leases and records

    def leases_issued(self, rows: Sequence[LeaseRow]) -> None:
        """Write leases before they are handed out."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO leases (lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(r.lease, r.peer, r.task, r.prompt, r.rollouts, r.issued_ms, r.deadline_ms, r.envelope) for r in rows],
            )
            db.executemany(
                "INSERT INTO continuations VALUES (?, ?, ?, ?)",
                [(r.lease, r.place.root, r.place.turn, json.dumps(r.place.slots)) for r in rows if r.place is not None],
            )

    def leases_closed(self, leases: Sequence[LeaseId], status: str, now_ms: int) -> None:
        """These leases will not be delivered: 'expired', 'returned', 'recalled' (and returned therefore) or 'lost'."""
        with self.transaction() as db:
            if status == "recalled":
                db.executemany(
                    "INSERT INTO recalled SELECT lease FROM leases WHERE lease = ? AND status = 'open'",
                    [(lease,) for lease in leases],
                )
                status = "returned"
            db.executemany(
                "UPDATE leases SET status = ?, closed_ms = ? WHERE lease = ? AND status = 'open'",
                [(status, now_ms, lease) for lease in leases],
            )

    def leases_started(self, started: Sequence[tuple[LeaseId, PolicyVersion]]) -> None:
        """Peers said with which version they began to generate; the first word counts."""
        with self.transaction() as db:
            db.executemany(
                "UPDATE leases SET started_version = ? WHERE lease = ? AND started_version IS NULL",
                [(str(version), lease) for lease, version in started],
            )

    def leases_granted_again(self, leases: Sequence[LeaseId]) -> None:
        """Their peers had lost them; with which version they are begun is to be said anew."""
        with self.transaction() as db:
            db.executemany("UPDATE leases SET started_version = NULL WHERE lease = ?", [(lease,) for lease in leases])

    def open_leases(self) -> list[LeaseRow]:
        """Leases neither delivered nor closed."""
        return [
            LeaseRow(
                lease=LeaseId(row[0]), peer=PeerId(row[1]), task=row[2], prompt=row[3], rollouts=row[4],
                issued_ms=row[5], deadline_ms=row[6], envelope=row[7], started=_version(row[8]), place=_place(*row[9:]),
            )
            for row in self._query(
                "SELECT lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope, started_version, root,"
                " turn, slots FROM leases LEFT JOIN continuations USING (lease) WHERE status = 'open'"
                " ORDER BY issued_ms, lease"
            )
        ]  # fmt: skip

    def deliveries_judged(
        self,
        rows: Sequence[RecordRow],
        receipts: Mapping[LeaseId, bytes],
        now_ms: int,
        orphaned: Mapping[LeaseId, int] | None = None,
    ) -> None:
        """Write verdicts and receipts of one or more deliveries, all or nothing, on disk when this returns.

        `orphaned`: completion tokens that count for their authors although a restart orphaned them.
        Raises LocalProtocolError when a lease has a receipt already: a delivery is judged once.
        """
        with self.transaction() as db:
            for lease, receipt in receipts.items():
                update = "UPDATE leases SET status = 'delivered', closed_ms = ?, receipt = ? WHERE lease = ?"
                if not db.execute(f"{update} AND receipt IS NULL", (now_ms, receipt, lease)).rowcount:
                    raise LocalProtocolError(f"lease {lease.hex()[:8]} was never issued, or was judged before")
            db.executemany("INSERT INTO orphans VALUES (?, ?)", list((orphaned or {}).items()))
            db.executemany(
                # The same bytes twice in one delivery are one record.
                "INSERT INTO records (record, lease, idx, peer, rule, reward, tokens, incarnation, version, lag,"
                " received_ms, generation_ms, detail, envelope) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (lease, record) DO NOTHING",
                [
                    (
                        r.record, r.lease, r.index, r.peer, r.rule.value, r.reward, r.tokens,
                        r.version.incarnation, r.version.version, r.lag, r.received_ms, r.generation_ms, r.detail,
                        r.envelope,
                    )
                    for r in rows
                ],
            )  # fmt: skip

    def receipt_of(self, lease: LeaseId, peer: PeerId) -> bytes | None:
        """The receipt already given to `peer` for `lease`, or None."""
        rows = self._query("SELECT receipt FROM leases WHERE lease = ? AND peer = ?", (lease, peer))
        return rows[0][0] if rows else None

    def lease_envelope(self, lease: LeaseId) -> bytes:
        """The lease as it was signed. KeyError when there is none of that id, or it is of no use any more."""
        rows = self._query("SELECT envelope FROM leases WHERE lease = ? AND envelope IS NOT NULL", (lease,))
        if not rows:
            raise KeyError(lease.hex())
        return bytes(rows[0][0])

    def unconsumed(self) -> list[UnconsumedRow]:
        """Admitted records that no surviving step has taken or dropped, in order of turns and of arrival."""
        return [
            UnconsumedRow(
                prompt=row[0], lease=LeaseId(row[1]), reward=row[2], peer=PeerId(row[3]), envelope=row[4],
                place=_place(*row[5:]),
            )
            for row in self._query(
                "SELECT l.prompt, r.lease, r.reward, r.peer, r.envelope, c.root, c.turn, c.slots"
                " FROM records r JOIN leases l USING (lease) LEFT JOIN continuations c USING (lease)"
                " WHERE r.rule = 'admitted' AND r.step IS NULL AND r.envelope IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM dropped d WHERE d.lease = coalesce(c.root, r.lease))"
                " ORDER BY coalesce(c.turn, 0), r.received_ms, r.lease, r.idx"
            )
        ]  # fmt: skip

    # Steps and versions

    def step_trained(self, row: StepRow, groups: Mapping[LeaseId, int], dropped: Mapping[LeaseId, str]) -> None:
        """A step consumed `groups` (lease -> lag when the batch formed) and dropped others (lease -> reason).

        Of episodes the lease is that of their first turns; the records of later ones go with it, at their own lag.
        Raises LocalProtocolError when a surviving step has consumed one of them before.
        """
        with self.transaction() as db:
            db.execute(
                "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.step, row.incarnation, row.began_ms, row.waited_s, row.train_s, row.rollouts, row.tokens,
                    row.reward, json.dumps(dict(row.metrics)),
                ),
            )  # fmt: skip
            for lease in groups:
                if db.execute("SELECT 1 FROM records WHERE lease = ? AND step IS NOT NULL", (lease,)).fetchone():
                    raise LocalProtocolError(f"lease {lease.hex()[:8]} was trained on before")
            db.executemany(
                "UPDATE records SET step = ?, trained_lag = ? WHERE lease = ? AND rule = 'admitted'",
                [(row.step, lag, lease) for lease, lag in groups.items()],
            )
            db.executemany(
                "UPDATE records SET step = ?, trained_lag = ? - version WHERE rule = 'admitted'"
                " AND lease IN (SELECT lease FROM continuations WHERE root = ?)",
                [(row.step, row.step - 1, lease) for lease in groups],
            )
            db.executemany(
                "INSERT INTO dropped VALUES (?, ?, ?)", [(lease, row.step, why) for lease, why in dropped.items()]
            )

    def newest_steps(self, count: int) -> list[StepRow]:
        """The last `count` steps of the surviving chain, in order."""
        rows = self._query(
            "SELECT step, incarnation, began_ms, waited_s, train_s, rollouts, tokens, reward, metrics FROM steps"
            " ORDER BY step DESC LIMIT ?",
            (count,),
        )
        return [
            StepRow(
                step=r[0], incarnation=r[1], began_ms=r[2], waited_s=r[3], train_s=r[4], rollouts=r[5], tokens=r[6],
                reward=r[7], metrics=json.loads(r[8]),
            )
            for r in reversed(rows)
        ]  # fmt: skip

    def batch_dropped(self, step: int, dropped: Mapping[LeaseId, str]) -> None:
        """Groups that step `step` took and could not be trained on (lease -> reason): no later step may take them."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO dropped VALUES (?, ?, ?)", [(lease, step, why) for lease, why in dropped.items()]
            )

    def version_published(
        self, version: PolicyVersion, manifest: ManifestHash, now_ms: int, *, total_bytes: int, new_bytes: int
    ) -> None:
        """A version was signed; `new_bytes` of its chunks were not in the version before it."""
        with self.transaction() as db:
            db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?)",
                (version.incarnation, version.version, manifest, now_ms, total_bytes, new_bytes),
            )

    def versions(self) -> list[tuple[PolicyVersion, ManifestHash]]:
        """Published versions with the hashes of their manifests, oldest first."""
        rows = self._query("SELECT incarnation, version, manifest FROM versions ORDER BY incarnation, version")
        return [(PolicyVersion(row[0], row[1]), ManifestHash(row[2])) for row in rows]

    def evaluated(
        self,
        version: PolicyVersion,
        now_ms: int,
        *,
        prompts: int,
        greedy: float,
        sampled: float,
        more: Mapping[tuple[str, str], float] = MappingProxyType({}),
    ) -> None:
        """A version's accuracy on held-out prompts; `more` figures by (task, metric), the task "" being all."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?)",
                (version.incarnation, version.version, now_ms, prompts, greedy, sampled),
            )
            db.executemany(
                "INSERT OR REPLACE INTO evaluation_scores VALUES (?, ?, ?, ?, ?)",
                [(version.incarnation, version.version, *which, value) for which, value in more.items()],
            )

    def checkpointed(self, row: CheckpointRow, now_ms: int) -> None:
        """A durable state exists."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            _forget_payloads(db)

    def checkpoints(self) -> list[CheckpointRow]:
        """Durable states, newest first."""
        rows = self._query("SELECT step, incarnation, directory, state FROM checkpoints ORDER BY step DESC")
        return [checkpoint_row(*row) for row in rows]

    def counts(self) -> tuple[int, int]:
        """How many leases and records there are; none is ever deleted."""
        leases = self._query("SELECT coalesce(max(rowid), 0) FROM leases")[0][0]
        return int(leases), int(self._query("SELECT coalesce(max(rowid), 0) FROM records")[0][0])

    def since(self, leases: int, records: int) -> tuple[list[int], list[tuple[int, float]]]:
        """Beyond the first so many leases and records, in order: the prompts that were leased, and (prompt, mean
        reward) of each group that was admitted.
        """
        given = self._query(
            "SELECT prompt FROM leases LEFT JOIN continuations c USING (lease)"
            " WHERE leases.rowid > ? AND c.root IS NULL ORDER BY leases.rowid",
            (leases,),
        )
        seen = self._query(
            "WITH fresh AS (SELECT DISTINCT coalesce(c.root, r.lease) AS root FROM records r"
            " LEFT JOIN continuations c USING (lease) WHERE r.rule = 'admitted' AND r.rowid > ?),"
            " turns AS (SELECT root, root AS lease FROM fresh"
            " UNION ALL SELECT c.root, c.lease FROM continuations c JOIN fresh USING (root))"
            " SELECT l.prompt, avg(r.reward) FROM turns t JOIN leases l ON l.lease = t.root"
            " JOIN records r ON r.lease = t.lease AND r.rule = 'admitted'"
            # Complete is a group with a return for each of its first turns.
            " GROUP BY t.root HAVING count(r.reward) = sum(t.lease = t.root) ORDER BY max(r.rowid)",
            (records,),
        )
        return [prompt for (prompt,) in given], [(prompt, mean) for prompt, mean in seen]

    def checkpoints_removed(self, steps: Sequence[int]) -> None:
        """These directories are about to be deleted."""
        with self.transaction() as db:
            db.executemany("DELETE FROM checkpoints WHERE step = ?", [(step,) for step in steps])
            _forget_payloads(db)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._translated():
            return self._db.execute(sql, values).fetchall()

    def _prepare(self, swarm: bytes) -> None:
        if self._query("SELECT 1 FROM sqlite_master"):  # asked before anything is changed: it may not be ours
            self._require_ours(swarm)
        with self._translated():
            self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
        with self.transaction() as db:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                _create(db, swarm)
            _execute(db, RELAYS)
            _execute(db, PLANS)
            _execute(db, RECALLS)
            _execute(db, CONTINUATIONS)
            _execute(db, SCORES)
            _execute(db, ORPHANS)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA_VERSION).encode(),))
        self._require_ours(swarm)

    def _require_ours(self, swarm: bytes) -> None:
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
            raise LedgerError(
                f"{self.path} is a database, but not a ledger. Move it away, or choose another state directory."
            )
        meta: dict[str, bytes] = dict(self._query("SELECT key, value FROM meta"))
        require_schema(self.path, meta)
        if (theirs := meta.get("swarm", b"")) != swarm:
            raise LedgerError(
                f"{self.path} belongs to another swarm ({theirs.hex()[:8]}). Choose another state directory."
            )


def checkpoints_of(path: Path) -> tuple[bytes, list[CheckpointRow]]:
    """The swarm's id and the durable states, newest first, of a ledger that somebody else may be writing to.

    Raises LedgerError.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as db:
            meta = dict(db.execute("SELECT key, value FROM meta"))
            require_schema(path, meta)
            rows = db.execute("SELECT step, incarnation, directory, state FROM checkpoints ORDER BY step DESC")
            return meta.get("swarm", b""), [checkpoint_row(*row) for row in rows]
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"{path} cannot be read as a ledger ({error}). Name another run, or restore it.") from error


def require_schema(path: Path, meta: Mapping[str, bytes]) -> None:
    """Raise LedgerError unless this program understands the ledger that says `meta` of itself."""
    schema = meta.get("schema", b"").decode("ascii", "replace")
    if schema not in map(str, READABLE):
        raise LedgerError(
            f"{path} has ledger format {schema or 'unknown'}, this program reads {SCHEMA_VERSION}. Use the volery that"
            " wrote it."
        )


def _version(name: str | None) -> PolicyVersion | None:
    return None if name is None else PolicyVersion(*map(int, name.split(".")))


def _described(row: CheckpointRow) -> str:
    return json.dumps({"curriculum": dict(row.state), "leases": row.leases, "records": row.records})


def checkpoint_row(step: int, incarnation: int, directory: str, text: str) -> CheckpointRow:
    """The row as it was written; in one of before counts were kept all is counted."""
    said = json.loads(text)
    if "curriculum" not in said:
        said = {"curriculum": said, "leases": ALL, "records": ALL}
    return CheckpointRow(
        step=step,
        incarnation=incarnation,
        directory=directory,
        state=said["curriculum"],
        leases=said["leases"],
        records=said["records"],
    )


def _place(root: bytes | None, turn: int | None, slots: str | None) -> Place | None:
    if root is None or turn is None or slots is None:
        return None
    return Place(root=LeaseId(root), turn=turn, slots=tuple(json.loads(slots)))


def _forget_payloads(db: sqlite3.Connection) -> None:
    """Forget what no restart can ask for: a restart goes on from a checkpoint, and the oldest one kept is the limit."""
    (oldest,) = db.execute("SELECT min(step) FROM checkpoints").fetchone()
    if oldest is None:
        return
    db.execute("UPDATE records SET envelope = NULL WHERE envelope IS NOT NULL AND step <= ?", (oldest,))
    db.execute(
        "UPDATE records SET envelope = NULL WHERE envelope IS NOT NULL AND step IS NULL"
        " AND (lease IN (SELECT lease FROM dropped WHERE step <= ?1) OR lease IN"
        " (SELECT c.lease FROM continuations c JOIN dropped d ON d.lease = c.root WHERE d.step <= ?1))",
        (oldest,),
    )
    db.execute(
        "UPDATE leases SET envelope = NULL WHERE envelope IS NOT NULL AND status <> 'open'"
        " AND NOT EXISTS (SELECT 1 FROM records r WHERE r.lease = leases.lease AND r.envelope IS NOT NULL)"
    )


def _create(db: sqlite3.Connection, swarm: bytes) -> None:
    _execute(db, SCHEMA)
    db.execute("INSERT INTO meta VALUES ('schema', ?), ('swarm', ?)", (str(SCHEMA_VERSION).encode(), swarm))


def _execute(db: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def _open(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    except sqlite3.OperationalError as error:
        raise LedgerError(
            f"{path} cannot be opened ({error}). Check that its directory exists and is writable."
        ) from error
