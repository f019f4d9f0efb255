"""A rollout node's own books: the receipts the learner signed for its work, when it was at work, what it exchanged.

One SQLite file (WAL, synchronous NORMAL: after a power cut the last receipts may be missing, which the learner still
has). What always holds: a lease's receipt is kept once however often it is sent, the latest where several came; the
signed bytes are kept as they came, so that anyone can check them later; reading never creates or changes the file.
Synchronous and safe to call from several threads.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any

from learner.ledger.sqlite.files import SQLITE_ERRORS, Ailment, FileGone, Whereabouts, ailment_of, connect
from node.state.receipt_rows import (
    JudgedCompletion,
    JudgedRecord,
    KeptNote,
    KeptProof,
    KeptReputation,
    PeerTraffic,
    Refusal,
    RefusedVerdict,
    Session,
    StoredProof,
    StoredReceipt,
    Sums,
)
from protocol.accounting.claims import EnergySource, Price
from protocol.accounting.reputation_note import MAX_REPUTATION_NOTE_BYTES, ReputationNote
from protocol.core.codec import decode, encode
from protocol.core.errors import PeerError
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import Receipt, Rule

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, began_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
    micros_per_hour INTEGER NOT NULL, currency TEXT NOT NULL,
    bytes_up INTEGER NOT NULL DEFAULT 0, bytes_down INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE receipts (
    lease BLOB PRIMARY KEY, peer TEXT NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    issued_ms INTEGER NOT NULL, tokens INTEGER NOT NULL, engine_s REAL NOT NULL, raw BLOB NOT NULL
) STRICT;
CREATE TABLE verdicts (
    lease BLOB NOT NULL REFERENCES receipts, idx INTEGER NOT NULL, record BLOB NOT NULL, rule TEXT NOT NULL,
    reward REAL, detail TEXT NOT NULL
) STRICT;
CREATE INDEX verdicts_by_rule ON verdicts (rule);
CREATE INDEX receipts_by_date ON receipts (issued_ms);
"""

TRAFFIC = """
CREATE TABLE IF NOT EXISTS traffic (
    session INTEGER NOT NULL REFERENCES sessions, peer TEXT NOT NULL, bytes_up INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL, PRIMARY KEY (session, peer)
) STRICT
"""
"""Made in every file that is opened for writing: those of before traffic was kept by peer have no such table."""

EVIDENCE = """
CREATE TABLE IF NOT EXISTS tallies (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, raw BLOB NOT NULL, PRIMARY KEY (incarnation, version)
) STRICT;
CREATE TABLE IF NOT EXISTS proofs (
    record BLOB NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL, place INTEGER NOT NULL,
    raw BLOB NOT NULL, PRIMARY KEY (incarnation, version, place),
    FOREIGN KEY (incarnation, version) REFERENCES tallies
) STRICT;
CREATE INDEX IF NOT EXISTS proofs_by_record ON proofs (record);
CREATE TABLE IF NOT EXISTS relay_receipts (
    manifest BLOB PRIMARY KEY, signed_ms INTEGER NOT NULL, raw BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS credit_notes (number INTEGER PRIMARY KEY, raw BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS reputation (
    one INTEGER PRIMARY KEY CHECK (one = 1), note BLOB NOT NULL, raw BLOB NOT NULL
) STRICT
"""
"""Which versions one's records trained, what one signed of others' relaying, and what the learner signed of one's own,
by its number in the learner's books; and how it says that one stands: the latest note, and its envelope. Made like
TRAFFIC."""


NO_ENERGY: Mapping[EnergySource, float] = MappingProxyType({})

RELAY_RECEIPTS_KEPT = 1024
"""Of one's own: one has a byte for each chunk of a version, so of a large model they take 40 MB. What was credited by
them, the learner keeps."""


ENERGY = """
CREATE TABLE IF NOT EXISTS energy (
    session INTEGER NOT NULL REFERENCES sessions, source TEXT NOT NULL, joules REAL NOT NULL,
    PRIMARY KEY (session, source)
) STRICT
"""
"""What the machine took of the mains in each session, by where that is known from. Made like TRAFFIC."""


BUSY_S = 10.0
"""How long to wait for another program that holds the file."""


class ReceiptsError(Exception):
    """The receipts cannot be used; what is in the file is untouched. The message names the file and the next step."""


def _damaged(path: Path, why: object) -> ReceiptsError:
    return ReceiptsError(
        f"{path} is damaged, or no file of receipts ({why}). Restore it from a copy, or move it and about.json away:"
        " the learner has signed what is in it, and keeps that as well."
    )


class Receipts:
    """See the module's paragraph.

    Args:
        path: the file; made when it is missing, unless `read_only`.
        read_only: look at the file of a node that may be running.

    Raises ReceiptsError when the file is missing (read-only), unreadable, or written by a newer program.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = RLock()
        if read_only and not path.is_file():
            raise ReceiptsError(
                f"{path}: there are no receipts. Join a swarm first, or name the state of a node that did."
            )
        with self._named("Check that its directory exists and is writable"):
            self._db = connect(path, timeout_s=BUSY_S, read_only=read_only, shared=True)
            self._whereabouts = Whereabouts(path, self._db)
        try:
            self._prepare(read_only)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Writing

    def add(self, receipt: Receipt, raw: bytes, *, engine_s: float) -> bool:
        """Keep `receipt`, whose envelope is `raw` and whose records took `engine_s` of the engine; False when known."""
        version = receipt.version
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    receipt.lease, receipt.peer, version.incarnation, version.version, receipt.issued_ms,
                    receipt.tokens, engine_s, raw,
                ),
            )  # fmt: skip
            if not cursor.rowcount:
                return False
            db.executemany(
                "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
                [(receipt.lease, v.index, v.record, v.rule.value, v.reward, v.detail) for v in receipt.verdicts],
            )
        return True

    def add_proofs(
        self,
        tally: bytes,
        proofs: Sequence[KeptProof],
        notes: Sequence[KeptNote] = (),
        reputation: KeptReputation | None = None,
    ) -> None:
        """Keep proofs that were checked, all of one version, whose tally has the envelope `tally`, and credit notes;
        and a reputation, which replaces the one before."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO tallies VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                {(one.version.incarnation, one.version.version, tally) for one in proofs},
            )
            db.executemany(
                "INSERT INTO proofs VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [
                    (one.record, one.version.incarnation, one.version.version, one.proof.place, encode(one.proof))
                    for one in proofs
                ],
            )
            insert = "INSERT INTO credit_notes VALUES (?, ?) ON CONFLICT DO NOTHING"
            db.executemany(insert, [(one.number, one.raw) for one in notes])
            if reputation is not None:
                values = (encode(reputation.note), reputation.raw)
                db.execute("INSERT OR REPLACE INTO reputation VALUES (1, ?, ?)", values)

    def relayed(self, manifest: ManifestHash, raw: bytes, now_ms: int) -> None:
        """Keep the relay receipt that this node signed for a version, and the latest RELAY_RECEIPTS_KEPT in all."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO relay_receipts VALUES (?, ?, ?)", (manifest, now_ms, raw))
            db.execute(
                "DELETE FROM relay_receipts WHERE rowid NOT IN"
                " (SELECT rowid FROM relay_receipts ORDER BY signed_ms DESC, rowid DESC LIMIT ?)",
                (RELAY_RECEIPTS_KEPT,),
            )

    def revise(self, receipt: Receipt, raw: bytes) -> bool:
        """Keep a later receipt instead of the one that is kept for its lease; False when there is none, or one that is
        as new.
        """
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE receipts SET incarnation = ?, version = ?, issued_ms = ?, tokens = ?, raw = ?"
                " WHERE lease = ? AND issued_ms < ?",
                (
                    receipt.version.incarnation, receipt.version.version, receipt.issued_ms, receipt.tokens, raw,
                    receipt.lease, receipt.issued_ms,
                ),
            )  # fmt: skip
            if not cursor.rowcount:
                return False
            db.execute("DELETE FROM verdicts WHERE lease = ?", (receipt.lease,))
            db.executemany(
                "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
                [(receipt.lease, v.index, v.record, v.rule.value, v.reward, v.detail) for v in receipt.verdicts],
            )
        return True

    def session_began(self, price: Price, now_ms: int) -> int:
        """Note that the node is at work from now on; return the id of the session."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO sessions (began_ms, ended_ms, micros_per_hour, currency) VALUES (?, ?, ?, ?)",
                (now_ms, now_ms, price.micros_per_hour, price.currency),
            )
        return int(cursor.lastrowid or 0)

    def session_lasts(
        self,
        session: int,
        now_ms: int,
        *,
        bytes_up: int,
        bytes_down: int,
        traffic: Iterable[PeerTraffic] = (),
        energy: Mapping[EnergySource, float] = NO_ENERGY,
    ) -> None:
        """The node is or was still at work at `now_ms`; bytes are those of the session so far, also those by peer, and
        so are joules by source.

        `traffic` may leave out peers for whom nothing has changed.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE sessions SET ended_ms = ?, bytes_up = ?, bytes_down = ? WHERE id = ?",
                (now_ms, bytes_up, bytes_down, session),
            )
            db.executemany(
                "INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " bytes_up = excluded.bytes_up, bytes_down = excluded.bytes_down",
                [(session, one.peer, one.bytes_up, one.bytes_down) for one in traffic],
            )
            db.executemany(
                "INSERT OR REPLACE INTO energy VALUES (?, ?, ?)",
                [(session, source.value, joules) for source, joules in energy.items()],
            )

    # Reading

    def sums(self) -> Sums:
        """Everything received so far, added up."""
        with self._snapshot():
            ((number, tokens, engine_s, first_ms, last_ms),) = self._query(
                "SELECT count(*), coalesce(sum(tokens), 0), coalesce(sum(engine_s), 0), min(issued_ms), max(issued_ms)"
                " FROM receipts"
            )
            verdicts: dict[Rule, int] = {}
            for name, count in self._query("SELECT rule, count(*) FROM verdicts GROUP BY rule"):
                verdicts[Rule(name)] = verdicts.get(Rule(name), 0) + count
            versions = "SELECT incarnation, version FROM receipts ORDER BY incarnation {0}, version {0} LIMIT 1"
            oldest, newest = self._query(versions.format("ASC")), self._query(versions.format("DESC"))
        return Sums(
            receipts=number,
            tokens=tokens,
            engine_s=engine_s,
            verdicts={rule: verdicts[rule] for rule in Rule if rule in verdicts},
            oldest=PolicyVersion(*oldest[0]) if oldest else None,
            newest=PolicyVersion(*newest[0]) if newest else None,
            first_ms=first_ms,
            last_ms=last_ms,
        )

    def sessions(self) -> list[Session]:
        """All sessions, in order."""
        energy: defaultdict[int, dict[EnergySource, float]] = defaultdict(dict)
        for session, source, joules in self._query("SELECT * FROM energy") if self._has("energy") else ():
            energy[session][EnergySource(source)] = joules
        return [
            Session(
                began_ms=began_ms,
                ended_ms=ended_ms,
                price=Price(micros_per_hour=micros, currency=currency),
                bytes_up=up,
                bytes_down=down,
                energy=energy[session],
            )
            for session, began_ms, ended_ms, micros, currency, up, down in self._query(
                "SELECT id, began_ms, ended_ms, micros_per_hour, currency, bytes_up, bytes_down FROM sessions"
                " ORDER BY began_ms, id"
            )
        ]

    def traffic(self, limit: int) -> list[PeerTraffic]:
        """The `limit` peers with whom most was exchanged in all sessions, most first."""
        if not self._has("traffic"):
            return []
        return [
            PeerTraffic(peer=PeerId(peer), bytes_up=up, bytes_down=down)
            for peer, up, down in self._query(
                "SELECT peer, sum(bytes_up), sum(bytes_down) FROM traffic GROUP BY peer"
                " ORDER BY sum(bytes_up) + sum(bytes_down) DESC, peer LIMIT ?",
                (limit,),
            )
        ]

    def refused(self, limit: int) -> list[RefusedVerdict]:
        """The latest `limit` records that were not admitted, newest first."""
        return [
            RefusedVerdict(lease=LeaseId(lease), index=index, rule=Rule(rule), detail=detail, issued_ms=issued_ms)
            for lease, index, rule, detail, issued_ms in self._query(
                "SELECT v.lease, v.idx, v.rule, v.detail, r.issued_ms FROM verdicts v JOIN receipts r USING (lease)"
                " WHERE v.rule <> ? ORDER BY r.issued_ms DESC, v.lease, v.idx LIMIT ?",
                (Rule.ADMITTED.value, limit),
            )
        ]

    def refusals(self, limit: int) -> list[Refusal]:
        """The latest `limit` leases, rules and reasons by which something was not admitted, newest first."""
        return [
            Refusal(lease=LeaseId(lease), rule=Rule(rule), detail=detail, issued_ms=issued_ms, records=records)
            for lease, rule, detail, issued_ms, records in self._query(
                "SELECT v.lease, v.rule, v.detail, r.issued_ms, count(*) FROM verdicts v JOIN receipts r USING (lease)"
                " WHERE v.rule <> ? GROUP BY v.lease, v.rule, v.detail ORDER BY r.issued_ms DESC, v.lease LIMIT ?",
                (Rule.ADMITTED.value, limit),
            )
        ]

    def judged(self, began_ms: int, width_ms: float) -> list[tuple[int, int, int]]:
        """How many records were admitted and how many refused, by stretch of `width_ms` from `began_ms` on."""
        return [
            (stretch, admitted, total - admitted)
            for stretch, admitted, total in self._query(
                "SELECT CAST((r.issued_ms - ?) / ? AS INTEGER) AS stretch, sum(v.rule = ?), count(*)"
                " FROM verdicts v JOIN receipts r USING (lease) GROUP BY stretch",
                (began_ms, width_ms, Rule.ADMITTED.value),
            )
        ]

    def leases_with(self, *rules: Rule) -> int:
        """How many leases have a record that one of `rules` decided."""
        marks = ", ".join("?" * len(rules))
        values = tuple(rule.value for rule in rules)
        return int(self._query(f"SELECT count(DISTINCT lease) FROM verdicts WHERE rule IN ({marks})", values)[0][0])

    def stored(self) -> Iterator[StoredReceipt]:
        """Every receipt as it was sent, oldest first, without holding all in memory."""
        after: tuple[int, bytes] = (-1, b"")
        while page := self._query(
            "SELECT issued_ms, lease, peer, raw FROM receipts WHERE (issued_ms, lease) > (?, ?)"
            " ORDER BY issued_ms, lease LIMIT 256",
            after,
        ):
            for issued_ms, lease, peer, raw in page:
                yield StoredReceipt(lease=LeaseId(lease), peer=PeerId(peer), issued_ms=issued_ms, raw=raw)
            after = (page[-1][0], page[-1][1])

    def proven_upto(self) -> tuple[PolicyVersion, int]:
        """Behind the last proof that is kept: its version, and the place after its own."""
        rows = self._query(
            "SELECT incarnation, version, place FROM proofs ORDER BY incarnation DESC, version DESC, place DESC LIMIT 1"
        )
        return (PolicyVersion(rows[0][0], rows[0][1]), rows[0][2] + 1) if rows else (PolicyVersion(0, 0), 0)

    def credited_upto(self) -> int:
        """The number of the last credit note that is kept, 0 if none is."""
        return int(self._query("SELECT coalesce(max(number), 0) FROM credit_notes")[0][0])

    def reputation(self) -> KeptReputation | None:
        """What the learner said last of how this node stands, None if it has said nothing yet."""
        rows = self._query("SELECT note, raw FROM reputation") if self._has("reputation") else []
        if not rows:
            return None
        [(note, raw)] = rows
        try:
            found: ReputationNote = decode(ReputationNote, note, MAX_REPUTATION_NOTE_BYTES)
        except PeerError as error:
            raise ReceiptsError(
                f"{self.path}: the reputation in it cannot be read ({error}). Restore it from a copy, or move it away."
            ) from None
        return KeptReputation(note=found, raw=raw)

    def credit_notes(self) -> Iterator[bytes]:
        """The learner's notes on what this node is credited with, in order."""
        if self._has("credit_notes"):
            for (raw,) in self._query("SELECT raw FROM credit_notes ORDER BY number"):
                yield raw

    def proofs(self, record: RecordId | None = None) -> Iterator[StoredProof]:
        """Every proof, or those of one record, in the order of versions and places."""
        after = (-1, -1, -1)
        while self._has("proofs") and (
            page := self._query(
                "SELECT p.record, p.incarnation, p.version, p.place, t.raw, p.raw FROM proofs p"
                " JOIN tallies t USING (incarnation, version)"
                " WHERE (p.incarnation, p.version, p.place) > (?1, ?2, ?3) AND (?4 IS NULL OR p.record = ?4)"
                " ORDER BY p.incarnation, p.version, p.place LIMIT 256",
                (*after, record),
            )
        ):
            for found, incarnation, version, _, tally, proof in page:
                yield StoredProof(
                    record=RecordId(found), version=PolicyVersion(incarnation, version), tally=tally, proof=proof
                )
            after = (page[-1][1], page[-1][2], page[-1][3])

    def find(self, prefix: str, limit: int) -> list[JudgedRecord]:
        """Up to `limit` records whose ids begin with `prefix`, in hex, as their receipts judge them; each once, as it
        was admitted, however often it was delivered again."""
        return [
            JudgedRecord(record=RecordId(record), lease=LeaseId(lease), rule=Rule(rule), detail=detail)
            for record, lease, rule, detail in self._query(
                "SELECT record, lease, rule, detail FROM (SELECT *, row_number() OVER (PARTITION BY record"
                " ORDER BY rule <> 'admitted', rowid) AS rank FROM verdicts WHERE substr(lower(hex(record)), 1, ?) = ?)"
                " WHERE rank = 1 LIMIT ?",
                (len(prefix), prefix.lower(), limit),
            )
        ]

    def decisions(self, prefix: str, limit: int) -> list[JudgedCompletion]:
        """All records of the leases whose ids begin with `prefix`, in hex, or else the records whose own do; of `limit`
        leases or records at most."""
        select = (
            "SELECT v.lease, v.idx, v.record, v.rule, v.detail, v.reward, r.issued_ms, r.tokens FROM verdicts v"
            " JOIN receipts r USING (lease) WHERE"
        )
        start = (len(prefix), prefix)
        rows = self._query(
            f"{select} v.lease IN (SELECT lease FROM receipts WHERE substr(lower(hex(lease)), 1, ?) = ? LIMIT ?)"
            " ORDER BY v.lease, v.idx",
            (*start, limit),
        ) or self._query(
            f"{select} v.record IN (SELECT DISTINCT record FROM verdicts WHERE substr(lower(hex(record)), 1, ?) = ?"
            " LIMIT ?) ORDER BY v.rowid",
            (*start, limit),
        )
        return [
            JudgedCompletion(
                lease=LeaseId(lease), index=index, record=RecordId(record), rule=Rule(rule), detail=detail,
                reward=reward, issued_ms=issued_ms, tokens=tokens,
            )
            for lease, index, record, rule, detail, reward, issued_ms, tokens in rows
        ]  # fmt: skip

    def peers(self) -> list[PeerId]:
        """Whom the receipts name, the latest first: one, if the node has always had one key."""
        rows = self._query("SELECT peer FROM receipts GROUP BY peer ORDER BY max(issued_ms) DESC")
        return [PeerId(peer) for (peer,) in rows]

    def receipt_for(self, lease: LeaseId) -> bytes | None:
        """The receipt of a lease as it was sent."""
        rows = self._query("SELECT raw FROM receipts WHERE lease = ?", (lease,))
        return rows[0][0] if rows else None

    def newest(self, limit: int) -> list[bytes]:
        """The latest `limit` receipts as they were sent, newest first."""
        rows = self._query("SELECT raw FROM receipts ORDER BY issued_ms DESC, lease DESC LIMIT ?", (limit,))
        return [raw for (raw,) in rows]

    def trained_of(self, records: Sequence[RecordId]) -> dict[RecordId, PolicyVersion]:
        """Of these records those of which a proof is kept, with the last version that was published with them."""
        if not self._has("proofs"):
            return {}
        newest = (
            "SELECT incarnation, version FROM proofs WHERE record = ? ORDER BY incarnation DESC, version DESC LIMIT 1"
        )
        found = {record: self._query(newest, (record,)) for record in records}
        return {record: PolicyVersion(*rows[0]) for record, rows in found.items() if rows}

    def relay_receipts(self) -> Iterator[bytes]:
        """The relay receipts that this node signed, oldest first."""
        if self._has("relay_receipts"):
            for (raw,) in self._query("SELECT raw FROM relay_receipts ORDER BY signed_ms, manifest"):
                yield raw

    # Inside

    def _has(self, table: str) -> bool:
        """Files that no program has written to since it was invented lack a table."""
        return bool(self._query("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)))

    @contextmanager
    def _named(self, advice: str) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            match ailment_of(error):
                case None:
                    raise
                case Ailment.BUSY:
                    raise ReceiptsError(
                        f"{self.path} is locked: another program holds it for longer than {BUSY_S:g} s. End that one,"
                        " then do this again. Nothing was changed."
                    ) from error
                case Ailment.DAMAGED:
                    raise _damaged(self.path, error) from error
                case Ailment.PLACE:
                    raise ReceiptsError(f"{self.path}: {error}. {advice}.") from error
        except FileGone as gone:
            kept = "Restore it from a copy" if gone.rescued is None else f"All that it held is in {gone.rescued}"
            raise ReceiptsError(
                f"{gone} while the node used it. {kept}. Find out who did that, move it back to {self.path}, and start"
                " again."
            ) from None
        except OSError as error:
            if error.filename != str(self.path):
                raise
            raise ReceiptsError(f"{self.path} cannot be opened: {error.strerror}. {advice}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._named("Free the disk or end what holds the file; receipts can be asked for again"):
            self._whereabouts.require()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several queries that see one moment."""
        with self._lock, self._named("Restore it from a copy, or move it away"):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")

    def _query(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock, self._named("Restore it from a copy, or move it away"):
            return self._db.execute(sql, values).fetchall()

    def _prepare(self, read_only: bool) -> None:
        """Nothing is written, not even the journal mode, before the file is known to be ours."""
        with self._named("Check that it is a file of receipts and that its directory is writable"):
            if not read_only and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._create()
            self._require_schema()
            if not read_only:
                self._db.execute(TRAFFIC)
                self._db.execute(ENERGY)
                for statement in EVIDENCE.split(";"):
                    self._db.execute(statement)
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._whereabouts.require()

    def _create(self) -> None:
        with self._transaction() as db:
            for statement in filter(str.strip, SCHEMA.split(";")):
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('receipts', ?)", (str(SCHEMA_VERSION).encode(),))

    def _require_schema(self) -> None:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'receipts'").fetchone()
        if row is None:
            raise ReceiptsError(f"{self.path} is a database, but not one of receipts. Choose another state directory.")
        if row[0] != str(SCHEMA_VERSION).encode():
            written = row[0].decode(errors="replace") if isinstance(row[0], bytes) else str(row[0])
            raise ReceiptsError(
                f"{self.path} has receipts of format {written}, this program reads {SCHEMA_VERSION}."
                " Use the volery that wrote it."
            )
