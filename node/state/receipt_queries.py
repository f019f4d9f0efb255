"""Read a rollout node's receipts for its owner: for reports, statements, and to explain decisions.

Invariants:

- Reading never creates or changes the file, to which a node may be writing.
- Damage is reported in a sentence that names the file and the next step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from learner.ledger.sqlite.files import Ailment, Doing, FileGone, SqliteFile
from node.state.receipt_rows import (
    JudgedCompletion,
    JudgedRecord,
    KeptReputation,
    PeerTraffic,
    RejectedVerdict,
    Rejection,
    Session,
    StoredProof,
    StoredReceipt,
    Sums,
)
from node.state.receipt_tables import SCHEMA_VERSION
from protocol.accounting.claims import EnergySource, Price
from protocol.accounting.reputation_note import MAX_REPUTATION_NOTE_BYTES, ReputationNote
from protocol.core.codec import decode
from protocol.core.errors import PeerError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId
from protocol.work import Rule

BUSY_S = 10.0
"""Seconds to wait for another program that holds the file."""

ADVICE = {
    Doing.OPEN: "Check that its directory exists and is writable",
    Doing.PREPARE: "Check that it is a file of receipts and that its directory is writable",
    Doing.READ: "Restore it from a copy, or move it away",
    Doing.WRITE: "Free disk space, or end the program that holds the file; receipts can be requested again",
}


class ReceiptsError(Exception):
    """The receipts cannot be used, and the file is unchanged. The message names the file and the next step."""


class ReceiptQueries(SqliteFile):
    """The receipts at `path`, for reading. Safe to call from several threads.

    Raises ReceiptsError if the file is missing, unreadable, or written by a newer program.
    """

    def __init__(self, path: Path, *, read_only: bool = True) -> None:
        if read_only and not path.is_file():
            raise ReceiptsError(
                f"{path}: there are no receipts. Join a swarm first, or name the state of a node that did."
            )
        super().__init__(path, busy_s=BUSY_S, read_only=read_only)

    def sums(self) -> Sums:
        """Return the sums of everything received so far."""
        with self._one_moment():
            ((number, tokens, engine_s, first_ms, last_ms),) = self.query(
                "SELECT count(*), coalesce(sum(tokens), 0), coalesce(sum(engine_s), 0), min(issued_ms), max(issued_ms)"
                " FROM receipts"
            )
            verdicts: dict[Rule, int] = {}
            rollouts = f"SELECT rule, count(*) FROM verdicts WHERE {self._no_scores()} GROUP BY rule"
            for name, count in self.query(rollouts):
                verdicts[Rule(name)] = verdicts.get(Rule(name), 0) + count
            scored = self.query(
                "SELECT coalesce(sum(tokens > 0), 0), coalesce(sum(tokens = 0), 0), coalesce(sum(tokens), 0)"
                " FROM receipts JOIN scored USING (lease)",
                of="scored",
            )
            groups_scored, groups_rejected, tokens_scored = scored[0] if scored else (0, 0, 0)
            versions = "SELECT incarnation, version FROM receipts ORDER BY incarnation {0}, version {0} LIMIT 1"
            oldest, newest = self.query(versions.format("ASC")), self.query(versions.format("DESC"))
        return Sums(
            receipts=number,
            tokens=tokens - tokens_scored,
            engine_s=engine_s,
            verdicts={rule: verdicts[rule] for rule in Rule if rule in verdicts},
            oldest=PolicyVersion(*oldest[0]) if oldest else None,
            newest=PolicyVersion(*newest[0]) if newest else None,
            first_ms=first_ms,
            last_ms=last_ms,
            groups_scored=groups_scored,
            groups_rejected=groups_rejected,
            tokens_scored=tokens_scored,
        )

    def _no_scores(self) -> str:
        """Return a condition that excludes verdicts on a teacher's scores."""
        return "lease NOT IN (SELECT lease FROM scored)" if self.has_table("scored") else "TRUE"

    def sessions(self) -> list[Session]:
        """Return all sessions, in order."""
        energy: defaultdict[int, dict[EnergySource, float]] = defaultdict(dict)
        for session, source, joules in self.query("SELECT * FROM energy", of="energy"):
            energy[session][EnergySource(source)] = joules
        moved = {session: both for session, *both in self.query("SELECT * FROM moved", of="moved")}
        unknown = (None, None)
        return [
            Session(
                began_ms=began_ms,
                ended_ms=ended_ms,
                price=Price(micros_per_hour=micros, currency=currency),
                bytes_up=up,
                bytes_down=down,
                sent_bytes=moved.get(session, unknown)[0],
                received_bytes=moved.get(session, unknown)[1],
                energy=energy[session],
            )
            for session, began_ms, ended_ms, micros, currency, up, down in self.query(
                "SELECT id, began_ms, ended_ms, micros_per_hour, currency, bytes_up, bytes_down FROM sessions"
                " ORDER BY began_ms, id"
            )
        ]

    def traffic(self, limit: int) -> list[PeerTraffic]:
        """Return the `limit` peers with which most was exchanged in all sessions, most first."""
        return self.rows(
            PeerTraffic,
            "SELECT peer, sum(bytes_up), sum(bytes_down) FROM traffic GROUP BY peer"
            " ORDER BY sum(bytes_up) + sum(bytes_down) DESC, peer LIMIT ?",
            (limit,),
            of="traffic",
        )

    def rejected(self, limit: int) -> list[RejectedVerdict]:
        """Return the latest `limit` records that were not admitted, newest first."""
        return self.rows(
            RejectedVerdict,
            "SELECT v.lease, v.idx, v.rule, v.detail, r.issued_ms FROM verdicts v JOIN receipts r USING (lease)"
            " WHERE v.rule <> ? ORDER BY r.issued_ms DESC, v.lease, v.idx LIMIT ?",
            (Rule.ADMITTED.value, limit),
        )

    def rejections(self, limit: int) -> list[Rejection]:
        """Return the latest `limit` leases with the rules and reasons by which records were rejected, newest first."""
        return self.rows(
            Rejection,
            "SELECT v.lease, v.rule, v.detail, r.issued_ms, count(*) FROM verdicts v JOIN receipts r USING (lease)"
            " WHERE v.rule <> ? GROUP BY v.lease, v.rule, v.detail ORDER BY r.issued_ms DESC, v.lease LIMIT ?",
            (Rule.ADMITTED.value, limit),
        )

    def judged(self, began_ms: int, width_ms: float) -> list[tuple[int, int, int]]:
        """Return how many records were admitted and rejected, by interval of `width_ms` from `began_ms` on."""
        return self.query(
            "SELECT CAST((r.issued_ms - ?1) / ?2 AS INTEGER) AS stretch, sum(v.rule = ?3), sum(v.rule <> ?3)"
            f" FROM verdicts v JOIN receipts r USING (lease) WHERE {self._no_scores()} GROUP BY stretch",
            (began_ms, width_ms, Rule.ADMITTED.value),
        )

    def leases_with(self, *rules: Rule) -> int:
        """Return how many leases have a record that one of `rules` decided."""
        marks = ", ".join("?" * len(rules))
        values = tuple(rule.value for rule in rules)
        return int(self.query(f"SELECT count(DISTINCT lease) FROM verdicts WHERE rule IN ({marks})", values)[0][0])

    def stored(self) -> Iterator[StoredReceipt]:
        """Yield every receipt as it was sent, oldest first, without holding all in memory."""
        after: tuple[int, bytes] = (-1, b"")
        page = "FROM receipts WHERE (issued_ms, lease) > (?, ?) ORDER BY issued_ms, lease LIMIT 256"
        while found := self.rows(StoredReceipt, page, after):
            yield from found
            after = (found[-1].issued_ms, found[-1].lease)

    def reputation(self) -> KeptReputation | None:
        """Return the learner's latest statement of this node's reputation; None if there is none yet."""
        for note, raw in self.query("SELECT note, raw FROM reputation", of="reputation"):
            try:
                return KeptReputation(note=decode(ReputationNote, note, MAX_REPUTATION_NOTE_BYTES), raw=raw)
            except PeerError as error:
                raise ReceiptsError(
                    f"{self.path}: the reputation in it cannot be read ({error}). Restore it from a copy, or move it "
                    "away."
                ) from None
        return None

    def credit_notes(self) -> Iterator[bytes]:
        """Yield the learner's credit notes for this node, in order."""
        return (raw for (raw,) in self.query("SELECT raw FROM credit_notes ORDER BY number", of="credit_notes"))

    def proofs(self, record: RecordId | None = None) -> Iterator[StoredProof]:
        """Yield every proof, or those of one record, in the order of versions and places."""
        after = (-1, -1, -1)
        while page := self.query(
            "SELECT p.record, p.incarnation, p.version, p.place, t.raw, p.raw FROM proofs p"
            " JOIN tallies t USING (incarnation, version)"
            " WHERE (p.incarnation, p.version, p.place) > (?1, ?2, ?3) AND (?4 IS NULL OR p.record = ?4)"
            " ORDER BY p.incarnation, p.version, p.place LIMIT 256",
            (*after, record),
            of="proofs",
        ):
            for found, incarnation, version, _, tally, proof in page:
                yield StoredProof(
                    record=RecordId(found), version=PolicyVersion(incarnation, version), tally=tally, proof=proof
                )
            after = page[-1][1:4]

    def num_trained(self) -> int:
        """Return how many records have a proof that they were trained on."""
        rows = self.query("SELECT count(DISTINCT record) FROM proofs", of="proofs")
        return int(rows[0][0]) if rows else 0

    def find(self, prefix: str, limit: int) -> list[JudgedRecord]:
        """Return up to `limit` records whose ids begin with `prefix`, in hex, with their verdicts. Each record stands
        once, as admitted if it ever was, no matter how often it was delivered again."""
        return self.rows(
            JudgedRecord,
            "FROM (SELECT *, row_number() OVER (PARTITION BY record ORDER BY rule <> 'admitted', rowid) AS rank"
            " FROM verdicts WHERE substr(lower(hex(record)), 1, ?) = ?) WHERE rank = 1 LIMIT ?",
            (len(prefix), prefix.lower(), limit),
        )

    def decisions(self, prefix: str, limit: int) -> list[JudgedCompletion]:
        """Return all records of the leases whose ids begin with `prefix`, in hex; if there are none, the records whose
        own ids do. At most `limit` leases or records."""
        select = (
            "SELECT v.lease, v.idx, v.record, v.rule, v.detail, v.reward, r.issued_ms, r.tokens FROM verdicts v"
            " JOIN receipts r USING (lease) WHERE"
        )
        start = (len(prefix), prefix)
        return self.rows(
            JudgedCompletion,
            f"{select} v.lease IN (SELECT lease FROM receipts WHERE substr(lower(hex(lease)), 1, ?) = ? LIMIT ?)"
            " ORDER BY v.lease, v.idx",
            (*start, limit),
        ) or self.rows(
            JudgedCompletion,
            f"{select} v.record IN (SELECT DISTINCT record FROM verdicts WHERE substr(lower(hex(record)), 1, ?) = ?"
            " LIMIT ?) ORDER BY v.rowid",
            (*start, limit),
        )

    def peers(self) -> list[PeerId]:
        """Return the peers that the receipts name, the latest first: one, if the node has always had one key."""
        rows = self.query("SELECT peer FROM receipts GROUP BY peer ORDER BY max(issued_ms) DESC")
        return [PeerId(peer) for (peer,) in rows]

    def receipt_for(self, lease: LeaseId) -> bytes | None:
        """Return the receipt of a lease as it was sent; None if there is none."""
        rows = self.query("SELECT raw FROM receipts WHERE lease = ?", (lease,))
        return rows[0][0] if rows else None

    def newest(self, limit: int) -> list[bytes]:
        """Return the latest `limit` receipts as they were sent, newest first."""
        rows = self.query("SELECT raw FROM receipts ORDER BY issued_ms DESC, lease DESC LIMIT ?", (limit,))
        return [raw for (raw,) in rows]

    def trained_of(self, records: Sequence[RecordId]) -> dict[RecordId, PolicyVersion]:
        """Return the records with a proof, each with the last version that was published with it."""
        newest = (
            "SELECT incarnation, version FROM proofs WHERE record = ? ORDER BY incarnation DESC, version DESC LIMIT 1"
        )
        found = {record: self.query(newest, (record,), of="proofs") for record in records}
        return {record: PolicyVersion(*rows[0]) for record, rows in found.items() if rows}

    def relay_receipts(self) -> Iterator[bytes]:
        """Yield the relay receipts that this node signed, oldest first."""
        newest = "SELECT raw FROM relay_receipts ORDER BY signed_ms, manifest"
        return (raw for (raw,) in self.query(newest, of="relay_receipts"))

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Let several queries see the same moment."""
        with self._lock, self._named(Doing.READ):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")

    def _prepare(self) -> None:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'receipts'").fetchone()
        if row is None:
            raise ReceiptsError(f"{self.path} is a database, but not one of receipts. Choose another state directory.")
        if row[0] != str(SCHEMA_VERSION).encode():
            written = row[0].decode(errors="replace") if isinstance(row[0], bytes) else str(row[0])
            raise ReceiptsError(
                f"{self.path} has receipts of format {written}, and this program reads {SCHEMA_VERSION}."
                " Use the volery that wrote it."
            )

    def _failure(self, doing: Doing, ailment: Ailment, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return ReceiptsError(f"{self.path} cannot be opened: {error.strerror}. {ADVICE[doing]}.")
        match ailment:
            case Ailment.BUSY:
                return ReceiptsError(
                    f"{self.path} is locked: another program has held it for more than {BUSY_S:g} s. End that program,"
                    " then do this again. Nothing was changed."
                )
            case Ailment.DAMAGED:
                return ReceiptsError(
                    f"{self.path} is damaged, or no file of receipts ({error}). Restore it from a copy, or move it and"
                    " about.json away: the learner signed the receipts in it, and keeps them as well."
                )
            case Ailment.PLACE:
                return ReceiptsError(f"{self.path}: {error}. {ADVICE[doing]}.")

    def _taken_away(self, gone: FileGone) -> Exception:
        kept = "Restore it from a copy" if gone.rescued is None else f"Its contents are in {gone.rescued}"
        return ReceiptsError(
            f"{gone} while the node used it. {kept}. Find out what did that, move the file back to {self.path}, and "
            "start again."
        )
