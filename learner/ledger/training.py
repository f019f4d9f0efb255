"""The ledger of training: incarnations, steps, published versions, evaluations and checkpoints.

What always holds: a record is consumed by at most one step of the surviving chain, because going back to a checkpoint
un-consumes what later steps took, and forgets the tallies that were signed of them; and its payload is kept for as long
as one of the newest checkpoints, which restarts go on from, could need it, or an audit of it is not over, since what
fails is kept as it was signed. Checkpoints that are kept beyond those need no payload.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from learner.ledger.queries.training import ALL, TrainingQueries
from learner.ledger.rows import CheckpointRow, StepRow, TallyRow, TimeRow
from learner.ledger.sqlite.database import LedgerFile
from learner.ledger.work_tables import NUMBER
from learner.provisioning.estimation.learner_time import told_time
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion


@dataclass(frozen=True)
class TrainingLedger(TrainingQueries):
    """See the module's paragraph. Raises LedgerError."""

    db: LedgerFile

    def begin_incarnation(self, base: int, now_ms: int) -> int:
        """Start the next incarnation at step `base`: later steps are forgotten and what they consumed is free again.

        Its number lies above all that began, and above what `incarnation_seen` was told.
        """
        with self.db.transaction() as db:
            (begun,) = db.execute("SELECT coalesce(max(incarnation), 0) FROM incarnations").fetchone()
            incarnation = max(begun, self.incarnations_seen()) + 1
            db.execute("INSERT INTO incarnations VALUES (?, ?, ?)", (incarnation, base, now_ms))
            db.execute("UPDATE record_rows SET step = NULL, trained_lag = NULL WHERE step > ?", (base,))
            db.execute("DELETE FROM dropped WHERE step > ?", (base,))
            db.execute("DELETE FROM steps WHERE step > ?", (base,))
            db.execute("DELETE FROM checkpoints WHERE step > ?", (base,))
            db.execute("DELETE FROM tallies WHERE version > ?", (base,))
        return int(incarnation)

    def incarnation_seen(self, incarnation: int) -> None:
        """Versions of this incarnation are out, which this ledger knows nothing of: what begins next lies above it."""
        with self.db.transaction() as db:
            seen = max(incarnation, self.incarnations_seen())
            db.execute("INSERT OR REPLACE INTO meta VALUES ('incarnation_seen', ?)", (str(seen).encode(),))

    def forked(self, row: CheckpointRow, origin: bytes, now_ms: int) -> None:
        """Begin with a checkpoint of another swarm, whose id is `origin`, as if it were our first incarnation's."""
        with self.db.transaction() as db:
            db.execute("INSERT INTO incarnations VALUES (1, 0, ?)", (now_ms,))
            db.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            db.execute("INSERT INTO meta VALUES ('forked_from', ?), ('forked_at', ?)", (origin, str(row.step).encode()))

    def step_trained(
        self,
        row: StepRow,
        groups: Mapping[LeaseId, int],
        dropped: Mapping[LeaseId, str],
        time: TimeRow | None = None,
    ) -> None:
        """A step consumed `groups` (lease -> lag when the batch formed) and dropped others (lease -> reason); `time` is
        what the learner's time went into since it was last told.

        Of episodes the lease is that of their first turns; the records of later ones go with it, at their own lag.
        Raises LocalProtocolError when a surviving step has consumed one of them before.
        """
        with self.db.transaction() as db:
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
                f"UPDATE record_rows SET step = ?, trained_lag = ? WHERE lease = {NUMBER} AND rule = 'admitted'",
                [(row.step, lag, lease) for lease, lag in groups.items()],
            )
            db.executemany(
                "UPDATE record_rows SET step = ?, trained_lag = ? - version WHERE rule = 'admitted'"
                " AND lease IN (SELECT no FROM continuations JOIN lease_rows USING (lease) WHERE root = ?)",
                [(row.step, row.step - 1, lease) for lease in groups],
            )
            _drop(db, row.step, dropped)
            if time is not None:
                _pass(db, time)

    def time_passed(self, row: TimeRow) -> None:
        """The learner's time went into this, since it was last told."""
        with self.db.transaction() as db:
            _pass(db, row)

    def batch_dropped(self, step: int, dropped: Mapping[LeaseId, str]) -> None:
        """Groups that step `step` took and could not be trained on (lease -> reason): no later step may take them."""
        with self.db.transaction() as db:
            _drop(db, step, dropped)

    def version_published(
        self,
        version: PolicyVersion,
        manifest: ManifestHash,
        now_ms: int,
        *,
        total_bytes: int,
        new_bytes: int,
        tally: TallyRow | None = None,
    ) -> None:
        """A version was signed; `new_bytes` of its chunks were not in the version before it."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?)",
                (version.incarnation, version.version, manifest, now_ms, total_bytes, new_bytes),
            )
            if tally is not None:
                db.execute(
                    "INSERT INTO tallies VALUES (?, ?, ?, ?)",
                    (tally.version.incarnation, tally.version.version, tally.after, tally.envelope),
                )

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
        with self.db.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?)",
                (version.incarnation, version.version, now_ms, prompts, greedy, sampled),
            )
            db.executemany(
                "INSERT OR REPLACE INTO evaluation_scores VALUES (?, ?, ?, ?, ?)",
                [(version.incarnation, version.version, *which, value) for which, value in more.items()],
            )

    def checkpointed(
        self, row: CheckpointRow, now_ms: int, *, newest: int = ALL, under_audit: Collection[LeaseId] = ()
    ) -> None:
        """A durable state exists. `newest`: payloads are kept for the newest so many states; older ones stay without.
        `under_audit`: leases whose payloads are not forgotten yet."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            _forget_payloads(db, newest, under_audit)

    def begun_with(self, files: Mapping[str, str]) -> None:
        """The run begins with a model of these files."""
        self.marked("base_model", json.dumps(dict(files)).encode())

    def begun_under(self, settings: Mapping[str, Any]) -> None:
        """The run begins under these settings, which are plain JSON."""
        self.marked("settings", json.dumps(dict(settings)).encode())

    def marked(self, name: str, value: bytes) -> bytes | None:
        """Write `value` down as what is so from now on; return what was so before, None if nobody wrote that."""
        with self.db.transaction() as db:
            before = db.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
        return None if before is None else bytes(before[0])

    def checkpoints_removed(
        self, steps: Sequence[int], *, newest: int = ALL, under_audit: Collection[LeaseId] = ()
    ) -> None:
        """These directories are about to be deleted. `newest` and `under_audit`: as in `checkpointed`."""
        with self.db.transaction() as db:
            db.executemany("DELETE FROM checkpoints WHERE step = ?", [(step,) for step in steps])
            _forget_payloads(db, newest, under_audit)


def _described(row: CheckpointRow) -> str:
    return json.dumps({"curriculum": dict(row.state), "leases": row.leases, "records": row.records})


def _pass(db: sqlite3.Connection, row: TimeRow) -> None:
    db.execute(
        "INSERT INTO learner_time (from_ms, until_ms, step, seconds) VALUES (?, ?, ?, ?)",
        (row.from_ms, row.until_ms, row.step, json.dumps(told_time(row.time))),
    )


def _drop(db: sqlite3.Connection, step: int, dropped: Mapping[LeaseId, str]) -> None:
    """What was dropped for good before (`learner.ledger.trust`) stays as it was told then."""
    db.executemany(
        "INSERT INTO dropped VALUES (?, ?, ?) ON CONFLICT (lease) DO NOTHING",
        [(lease, step, why) for lease, why in dropped.items()],
    )


def _forget_payloads(db: sqlite3.Connection, newest: int, under_audit: Collection[LeaseId]) -> None:
    """Forget what no restart can ask for: a restart goes on from one of the `newest` checkpoints, and the oldest of
    them is the limit; where none of them can be read, it goes on from an older one without what it would un-consume.
    What is under audit is forgotten with a later checkpoint, also by a learner that has begun anew and audits it no
    more."""
    (oldest,) = db.execute(
        "SELECT min(step) FROM (SELECT step FROM checkpoints ORDER BY step DESC LIMIT ?)", (newest,)
    ).fetchone()
    if oldest is None:
        return
    kept = "hex(l.lease) NOT IN (SELECT value FROM json_each(?1))"
    audited = json.dumps([lease.hex().upper() for lease in under_audit])
    db.execute(
        # Looked up for each payload that is left: those that were ever dropped are far more.
        "DELETE FROM record_payloads WHERE no IN (SELECT e.no FROM record_payloads e"
        " CROSS JOIN record_rows r USING (no) CROSS JOIN lease_rows l ON l.no = r.lease"
        f" WHERE {kept} AND (r.step <= ?2 OR r.step IS NULL AND EXISTS"
        " (SELECT 1 FROM dropped d WHERE d.step <= ?2 AND d.lease = coalesce("
        "(SELECT root FROM continuations c WHERE c.lease = l.lease), l.lease))))",
        (audited, oldest),
    )
    db.execute(
        "DELETE FROM lease_payloads WHERE no IN (SELECT e.no FROM lease_payloads e CROSS JOIN lease_rows l USING (no)"
        " WHERE l.status <> 'open' AND NOT EXISTS"
        " (SELECT 1 FROM record_rows r JOIN record_payloads p USING (no) WHERE r.lease = l.no))"
    )
