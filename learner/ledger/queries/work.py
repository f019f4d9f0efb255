"""Read what a ledger has of the work: leases, the verdicts on their records, and what became of the records."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from learner.ledger.queries.receipts import stored_receipt
from learner.ledger.rows import LeaseRow, TeacherRow, UnconsumedRow
from learner.ledger.sqlite.column_values import from_json, version_from
from learner.ledger.sqlite.files import Queries, Row
from learner.monitoring.fruitless_leases import ROUND_MS, ROUNDS, SPAN_MS, End, Loop
from learner.rollouts.admission import EpisodeSlots
from learner.rollouts.buffer import UNINFORMATIVE
from learner.rollouts.reward_parts import Parts, RewardPart
from protocol.core.ids import LeaseId, PeerId, RecordId
from protocol.work import Rule

OPEN = "status = 'open' AND receipt IS NULL"

ENDS = {"returned": End.RETURNED, "expired": End.EXPIRED, "lost": End.LOST}


class KnownLease(Row, frozen=True):
    """A lease and its state. `status` is as in the ledger. `started_version` is the version that it was begun with, if
    the peer reported that."""

    lease: LeaseId
    peer: PeerId
    task: str
    prompt: int
    rollouts: int
    issued_ms: int
    deadline_ms: int
    status: str
    closed_ms: int | None
    started_version: str | None


class RecordFate(Row, frozen=True):
    """A record, its verdict, the step that consumed it, and why its group was dropped, if it was."""

    idx: int
    record: RecordId
    rule: Rule
    detail: str
    reward: float | None
    step: int | None
    lag: int | None
    dropped: str | None


class CameRecord(Row, frozen=True):
    """The verdict on a record, the step that consumed it, when it arrived, and its lease."""

    rule: str
    step: int | None
    received_ms: int
    lease: LeaseId


class RejectedGroup(Row, frozen=True):
    """Records of a lease that one rule rejected, with one reason: how many, and when the last of them arrived."""

    lease: LeaseId
    rule: str
    detail: str
    received_ms: int
    records: int


class RejectedRow(Row, frozen=True):
    """A rejected record. `incarnation` and `version` name its oldest behaviour version."""

    peer: PeerId
    rule: Rule
    lease: LeaseId
    idx: int
    incarnation: int
    version: int
    lag: int
    received_ms: int
    detail: str


class PeerWork(Row, frozen=True):
    """Tokens that count for a peer, its records that were trained on, and those that were dropped."""

    tokens: int = 0
    trained: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class WorkQueries:
    """The queries about work."""

    db: Queries

    # The whole ledger

    def trained(self) -> int:
        """Return how many records were trained on."""
        return int(self.db.query("SELECT count(*) FROM records WHERE step IS NOT NULL")[0][0])

    def lags(self) -> dict[int, int]:
        """Return how many records were trained on at each lag."""
        return dict(
            self.db.query(
                "SELECT trained_lag, count(*) FROM records WHERE step IS NOT NULL AND rule = 'admitted'"
                " GROUP BY trained_lag ORDER BY trained_lag"
            )
        )

    def lags_by_step(self) -> dict[int, tuple[float, int]]:
        """Return the mean and the largest lag of the records of each step."""
        rows = self.db.query(
            "SELECT step, avg(trained_lag), max(trained_lag) FROM records"
            " WHERE step IS NOT NULL AND rule = 'admitted' AND trained_lag IS NOT NULL GROUP BY step"
        )
        return {step: (mean, largest) for step, mean, largest in rows}

    def later_turns(self) -> int:
        """Return how many admitted records continued an episode, or a completion that had been begun."""
        sql = "SELECT count(*) FROM records JOIN continuations USING (lease) WHERE rule = 'admitted' AND turn > 0"
        return sum(count for (count,) in self.db.query(sql, of="continuations"))

    def uninformative(self) -> int:
        """Return how many admitted records are in groups that were dropped because they teach nothing."""
        sql = f"SELECT count(*) FROM records r {dropped(self.db)} WHERE r.rule = 'admitted' AND d.reason = ?"
        return int(self.db.query(sql, (UNINFORMATIVE,))[0][0])

    def received(self) -> list[tuple[int, int]]:
        """Return when how many tokens arrived that count. Tokens that a restart orphaned count at the time of their
        delivery."""
        return [
            *self.db.query("SELECT received_ms, sum(tokens) FROM records WHERE rule = 'admitted' GROUP BY received_ms"),
            *self.db.query(
                "SELECT coalesce(l.closed_ms, l.issued_ms), o.tokens FROM orphans o JOIN leases l USING (lease)",
                of="orphans",
            ),
        ]

    def fruitless(self) -> Loop | None:
        """Return how leases ended since the last admitted record, if the learner's alarm would fire: no lease brings a
        record."""
        last_ms = self.db.query("SELECT max(received_ms) FROM records WHERE rule = 'admitted'")[0][0] or 0
        recalled = "AND lease NOT IN (SELECT lease FROM recalled)" if self.db.has_table("recalled") else ""
        ended = f"FROM leases WHERE status IN ('returned', 'expired', 'lost') AND closed_ms > ? {recalled}"
        ((first_ms, end_ms, rounds),) = self.db.query(
            f"SELECT min(closed_ms), max(closed_ms), count(DISTINCT closed_ms / {ROUND_MS}) {ended}", (last_ms,)
        )
        if rounds < ROUNDS or end_ms - first_ms < SPAN_MS:
            return None
        rows = self.db.query(f"SELECT status, count(*) {ended} GROUP BY status", (last_ms,))
        return Loop(ends=Counter({ENDS[status]: number for status, number in rows}), span_s=(end_ms - first_ms) / 1000)

    def open_leases(self) -> list[LeaseRow]:
        """Return leases that are neither delivered nor closed, and have no receipt."""
        return [
            LeaseRow(
                lease=LeaseId(row[0]), peer=PeerId(row[1]), task=row[2], prompt=row[3], rollouts=row[4],
                issued_ms=row[5], deadline_ms=row[6], envelope=row[7], place=_place(*row[9:]),
                started=None if row[8] is None else version_from("leases.started_version", row[8]),
            )
            for row in self.db.query(
                "SELECT lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope, started_version, root,"
                " turn, slots FROM leases LEFT JOIN continuations USING (lease)"
                f" WHERE {OPEN} ORDER BY issued_ms, lease"
            )
        ]  # fmt: skip

    def leased_lately(self, span_ms: int) -> list[PeerId]:
        """Return peers that were granted a lease within `span_ms` before the last lease."""
        rows = self.db.query(
            "SELECT DISTINCT peer FROM leases WHERE issued_ms >= (SELECT max(issued_ms) FROM leases) - ?", (span_ms,)
        )
        return [PeerId(peer) for (peer,) in rows]

    @property
    def _unconsumed(self) -> str:
        """SQL that finds admitted records, as `r`, that no surviving step has consumed or dropped."""
        return (
            "FROM records r JOIN leases l USING (lease) LEFT JOIN continuations c USING (lease)"
            f" WHERE r.rule = 'admitted' AND r.step IS NULL AND {has_payload(self.db)}"
            " AND NOT EXISTS (SELECT 1 FROM dropped d WHERE d.lease = coalesce(c.root, r.lease))"
        )

    def group_sizes(self) -> set[int]:
        """Return the sizes, in completions, of the groups that are leased or wait to be trained on."""
        rows = self.db.query(
            "SELECT rollouts FROM leases LEFT JOIN continuations c USING (lease) WHERE c.root IS NULL AND"
            f" ({OPEN} OR lease IN (SELECT coalesce(c.root, r.lease) {self._unconsumed})){self._no_teachers('lease')}"
        )
        return {int(size) for (size,) in rows}

    def unconsumed(self) -> list[UnconsumedRow]:
        """Return admitted records that no surviving step has consumed or dropped, ordered by turn and arrival."""
        of_waiting = f"SELECT lease, idx FROM cut_off WHERE lease IN (SELECT r.lease {self._unconsumed})"
        cut_off = {(lease, index) for lease, index in self.db.query(of_waiting, of="cut_off")}
        parts = self._parts(f"lease IN (SELECT r.lease {self._unconsumed})")
        return [
            UnconsumedRow(
                prompt=row[0], lease=LeaseId(row[1]), reward=row[2], peer=PeerId(row[3]), envelope=row[4],
                place=_place(*row[6:]), cut_off=(row[1], row[5]) in cut_off, parts=parts.get((row[1], row[5]), ()),
            )
            for row in self.db.query(
                "SELECT l.prompt, r.lease, r.reward, r.peer, r.envelope, r.idx, c.root, c.turn, c.slots"
                f" {self._unconsumed}"
                " ORDER BY coalesce(c.turn, -1), r.received_ms, r.lease, r.idx"
            )
        ]  # fmt: skip

    def _parts(self, where: str, values: Sequence[Any] = ()) -> dict[tuple[LeaseId, int], Parts]:
        """Return rewards with names, by the lease and the index of their record."""
        found: defaultdict[tuple[LeaseId, int], list[RewardPart]] = defaultdict(list)
        sql = f"SELECT lease, idx, name, value, weight FROM reward_parts WHERE {where} ORDER BY lease, idx, place"
        for lease, index, name, value, weight in self.db.query(sql, values, of="reward_parts"):
            part = RewardPart(name=name, value=math.nan if value is None else value, weight=weight)
            found[LeaseId(lease), index].append(part)
        return {record: tuple(parts) for record, parts in found.items()}

    def _no_teachers(self, lease: str) -> str:
        """Return a condition that excludes teachers' leases by the column `lease`, if the ledger has the table of such
        leases."""
        return f" AND {lease} NOT IN (SELECT lease FROM teacher_leases)" if self.db.has_table("teacher_leases") else ""

    def teachers(self) -> list[TeacherRow]:
        """Return what each teacher has scored, for all teachers that were ever granted a lease."""
        return [
            TeacherRow(peer=PeerId(peer), groups=groups, refused=delivered - groups, tokens=tokens, engine_s=engine_s)
            for peer, groups, delivered, tokens, engine_s in self.db.query(
                "SELECT peer, sum(stands), sum(status = 'delivered'), sum(tokens * stands), sum(coalesce(engine_s, 0))"
                " FROM (SELECT l.peer, l.status, t.tokens, t.engine_s, t.engine_s IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM revisions v WHERE v.lease = t.lease) AS stands"
                " FROM teacher_leases t JOIN leases l USING (lease)) GROUP BY peer ORDER BY peer",
                of="teacher_leases",
            )
        ]

    def counts(self) -> tuple[int, int]:
        """Return how many leases and records there are; none is ever deleted."""
        leases, records = (
            self.db.query(f"SELECT coalesce(max({number}), 0) FROM {table}") for table, number in _numbered(self.db)
        )
        return int(leases[0][0]), int(records[0][0])

    def since(self, leases: int, records: int, decides: str = "") -> tuple[list[int], list[tuple[int, float]]]:
        """Return what came after the first `leases` leases and `records` records, in order: the problems that were
        leased, and (problem, mean reward) of each group that was admitted. `decides` names one of several rewards; ""
        means their sum."""
        value_sql, named = "r.reward", tuple[str, ...]()
        if decides and self.db.has_table("reward_parts"):
            this = "FROM reward_parts p WHERE p.lease = r.lease AND p.idx = r.idx AND p.name = ?2"
            value_sql = f"CASE WHEN EXISTS (SELECT 1 {this}) THEN (SELECT p.value {this}) ELSE r.reward END"
            named = (decides,)
        given = self.db.query(
            "SELECT prompt FROM leases LEFT JOIN continuations c USING (lease)"
            f" WHERE leases.rowid > ? AND c.root IS NULL{self._no_teachers('leases.lease')} ORDER BY leases.rowid",
            (leases,),
        )
        seen = self.db.query(
            "WITH fresh AS (SELECT DISTINCT coalesce(c.root, r.lease) AS root FROM records r"
            " LEFT JOIN continuations c USING (lease) WHERE r.rule = 'admitted' AND r.rowid > ?1),"
            " turns AS (SELECT root, root AS lease FROM fresh"
            " UNION ALL SELECT c.root, c.lease FROM continuations c JOIN fresh USING (root))"
            f" SELECT l.prompt, avg({value_sql}) FROM turns t JOIN leases l ON l.lease = t.root"
            " JOIN records r ON r.lease = t.lease AND r.rule = 'admitted'"
            # A group is complete with a return for each of its episodes.
            " GROUP BY t.root HAVING count(r.reward) = max(l.rollouts) ORDER BY max(r.rowid)",
            (records, *named),
        )
        return [prompt for (prompt,) in given], [(prompt, mean) for prompt, mean in seen if mean is not None]

    def completion_tokens(self, records: int = 1 << 18) -> list[tuple[int, list[int]]]:
        """Return (problem, tokens of each completion) of the groups that were admitted last, in order, from the newest
        `records` records. For episodes, these are the tokens of the first turns. Groups that were returned unfinished
        are left out."""
        rows = self.db.query(
            "SELECT l.prompt, r.lease, r.tokens FROM records r JOIN leases l USING (lease)"
            " LEFT JOIN continuations c USING (lease) WHERE r.rule = 'admitted' AND c.root IS NULL"
            " AND l.status = 'delivered'"
            " AND r.rowid > ? ORDER BY r.rowid",
            (self.counts()[1] - records,),
        )
        found: dict[bytes, tuple[int, list[int]]] = {}
        for prompt, lease, tokens in rows:
            found.setdefault(lease, (prompt, []))[1].append(tokens)
        return list(found.values())

    # By peer

    def leases_by_peer(self) -> defaultdict[str, dict[str, int]]:
        """Return how many leases of each status each peer has."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for peer, status, number in self.db.query("SELECT peer, status, count(*) FROM leases GROUP BY peer, status"):
            found[peer][status] = number
        return found

    def recalled_by_peer(self) -> dict[str, tuple[int, int]]:
        """Return how many leases were returned because the learner had recalled them, and their rollouts."""
        rows = self.db.query(
            "SELECT peer, count(*), sum(rollouts) FROM recalled JOIN leases USING (lease) GROUP BY peer", of="recalled"
        )
        return {peer: (leases, rollouts) for peer, leases, rollouts in rows}

    def late_by_peer(self) -> dict[str, int]:
        """Return how many leases were delivered after their deadline, or after they had been withdrawn."""
        return dict(
            self.db.query(
                "SELECT l.peer, count(DISTINCT r.lease) FROM records r JOIN leases l USING (lease)"
                " WHERE r.rule IN (?, ?) AND l.status = 'delivered' AND l.peer = r.peer GROUP BY l.peer",
                (Rule.LATE.value, Rule.UNKNOWN_LEASE.value),
            )
        )

    def verdicts_by_peer(self) -> defaultdict[str, Counter[Rule]]:
        """Return how many records each rule decided. All rules that this program does not know count as one."""
        found: defaultdict[str, Counter[Rule]] = defaultdict(Counter)
        for peer, rule, number in self.db.query("SELECT peer, rule, count(*) FROM records GROUP BY peer, rule"):
            found[peer][Rule(rule)] += number
        return found

    def work_by_peer(self) -> defaultdict[str, PeerWork]:
        """Return each peer's work. Its tokens include those that a restart of the learner orphaned."""
        found: defaultdict[str, PeerWork] = defaultdict(PeerWork)
        for peer, *sums in self.db.query(
            "SELECT r.peer, sum(r.tokens), sum(r.step IS NOT NULL), sum(d.lease IS NOT NULL)"
            f" FROM records r {dropped(self.db)} WHERE r.rule = 'admitted' GROUP BY r.peer"
        ):
            found[peer] = PeerWork(*sums)
        orphaned = "SELECT l.peer, sum(o.tokens) FROM orphans o JOIN leases l USING (lease) GROUP BY l.peer"
        for peer, tokens in self.db.query(orphaned, of="orphans"):
            found[peer] = msgspec.structs.replace(found[peer], tokens=found[peer].tokens + tokens)
        return found

    def judged(self, began_ms: int, width_ms: float) -> list[tuple[PeerId, int, int, int]]:
        """Return, by peer and stretch of `width_ms` from `began_ms` on, how many records were admitted, and how many
        arrived."""
        return self.db.query(
            "SELECT peer, CAST((received_ms - ?) / ? AS INTEGER) AS stretch, sum(rule = 'admitted'), count(*)"
            " FROM records GROUP BY peer, stretch",
            (began_ms, width_ms),
        )

    def newest_rejected(self, each: int, detail_chars: int) -> list[RejectedRow]:
        """Return the newest `each` rejected records of each peer and rule, newest first, with `detail_chars` of their
        detail."""
        return self.db.rows(
            RejectedRow,
            "FROM (SELECT peer, rule, lease, idx, incarnation, version, lag, received_ms, substr(detail, 1, ?) AS"
            " detail, row_number() OVER (PARTITION BY peer, rule ORDER BY received_ms DESC, lease, idx) AS place"
            " FROM records WHERE rule <> 'admitted') WHERE place <= ? ORDER BY received_ms DESC, lease, idx",
            (detail_chars, each),
        )

    # One peer

    def records_of(self, peer: PeerId) -> list[CameRecord]:
        """Return a peer's records in the order of arrival."""
        return self.db.rows(CameRecord, "FROM records WHERE peer = ? ORDER BY received_ms, rowid", (peer,))

    def verdicts_of(self, peer: PeerId) -> list[tuple[Rule, int, int]]:
        """Return, by rule, how many records it decided, and how many of these were trained on."""
        sql = "SELECT rule, count(*), sum(step IS NOT NULL) FROM records WHERE peer = ? GROUP BY rule"
        return [(Rule(rule), count, trained) for rule, count, trained in self.db.query(sql, (peer,))]

    def rejections_of(self, peer: PeerId, limit: int) -> list[RejectedGroup]:
        """Return a peer's rejected records by lease, rule and reason, newest first."""
        return self.db.rows(
            RejectedGroup,
            "SELECT lease, rule, detail, max(received_ms), count(*) FROM records WHERE peer = ? AND rule <> 'admitted'"
            " GROUP BY lease, rule, detail ORDER BY max(received_ms) DESC, lease LIMIT ?",
            (peer, limit),
        )

    # One lease or record

    def leases_like(self, prefix: str, limit: int) -> list[LeaseId]:
        """Return leases whose ids begin with `prefix`, in hex."""
        return self._ids("SELECT lease FROM leases WHERE substr(lower(hex(lease)), 1, ?) = ? LIMIT ?", prefix, limit)

    def records_like(self, prefix: str, limit: int) -> list[RecordId]:
        """Return records whose ids begin with `prefix`, in hex."""
        sql = "SELECT DISTINCT record FROM records WHERE substr(lower(hex(record)), 1, ?) = ? LIMIT ?"
        return self._ids(sql, prefix, limit)

    def lease_of(self, record: RecordId) -> LeaseId:
        """Return the lease under which a record was trained on or admitted, or else first arrived."""
        sql = "SELECT lease FROM records WHERE record = ? ORDER BY step IS NULL, rule <> 'admitted', rowid LIMIT 1"
        return LeaseId(self.db.query(sql, (record,))[0][0])

    def lease(self, lease: LeaseId) -> KnownLease:
        """Return a lease that exists."""
        (found,) = self.db.rows(KnownLease, "FROM leases WHERE lease = ?", (lease,))
        return found

    def receipt_of(self, lease: LeaseId, peer: PeerId) -> bytes | None:
        """Return the receipt already given to `peer` for `lease`, or None."""
        return stored_receipt(self.db, lease, peer)

    def lease_envelope(self, lease: LeaseId) -> bytes | None:
        """Return the lease as it was signed; None if there is no such lease, or its payload was deleted."""
        rows = self.db.query("SELECT envelope FROM leases WHERE lease = ?", (lease,))
        return rows[0][0] if rows else None

    def is_recalled(self, lease: LeaseId) -> bool:
        """Return whether the learner recalled the lease."""
        return bool(self.db.query("SELECT 1 FROM recalled WHERE lease = ?", (lease,), of="recalled"))

    def fates(self, lease: LeaseId, record: RecordId | None = None) -> list[RecordFate]:
        """Return what became of the records of a lease, or of one of them."""
        return self.db.rows(
            RecordFate,
            "SELECT r.idx, r.record, r.rule, r.detail, r.reward, r.step, r.trained_lag, d.reason FROM records r"
            f" {dropped(self.db)} WHERE r.lease = ?1 AND (?2 IS NULL OR r.record = ?2) ORDER BY r.idx",
            (lease, record),
        )

    def came_again(self, record: RecordId, lease: LeaseId) -> list[tuple[Rule, LeaseId]]:
        """Return the verdicts on the same record under other leases than this one."""
        sql = "SELECT rule, lease FROM records WHERE record = ? AND lease <> ? ORDER BY rowid"
        return [(Rule(rule), other) for rule, other in self.db.query(sql, (record, lease))]

    def rules_of(self, lease: LeaseId) -> dict[int, str]:
        """Return which rule decided each place of a lease; the one that admitted it, if one did."""
        return dict(
            self.db.query("SELECT idx, rule FROM records WHERE lease = ? ORDER BY rule <> 'admitted' DESC", (lease,))
        )

    def _ids(self, sql: str, prefix: str, limit: int) -> list[Any]:
        return [found for (found,) in self.db.query(sql, (len(prefix), prefix.lower(), limit))]


def _numbered(db: Queries) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the tables of leases and of records, with the columns that number their rows in the order of arrival."""
    if db.has_table("lease_rows"):
        return ("lease_rows", "no"), ("record_rows", "no")
    return ("leases", "rowid"), ("records", "rowid")


def has_payload(db: Queries) -> str:
    """Return SQL that is true for `records r` whose signed bytes are stored. It looks them up among the payloads, which
    are few."""
    return (
        "r.rowid IN (SELECT no FROM record_payloads)" if db.has_table("record_payloads") else "r.envelope IS NOT NULL"
    )


def dropped(db: Queries) -> str:
    """Return SQL that joins `dropped`, as `d`, to `records r`. For an episode, all turns are dropped under the name of
    its first lease. A ledger of an older program has no other turns."""
    root = "(SELECT root FROM continuations c WHERE c.lease = r.lease)" if db.has_table("continuations") else "NULL"
    return f"LEFT JOIN dropped d ON d.lease = coalesce({root}, r.lease)"


def _place(root: bytes | None, turn: int | None, slots: str | None) -> EpisodeSlots | None:
    if root is None or turn is None or slots is None:
        return None
    return EpisodeSlots(root=LeaseId(root), turn=turn, slots=tuple(from_json("continuations.slots", slots, list[int])))
