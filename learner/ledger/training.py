"""Write incarnations, steps, published versions, evaluations and checkpoints.

Checkpoints that are kept beyond the newest ones need no payloads.

Invariants:

- A record is consumed by at most one step of the surviving chain. Going back to a checkpoint frees the records that
  later steps consumed, and deletes the tallies that were signed of them.
- A record's payload is kept as long as one of the newest checkpoints, from which restarts continue, could need it.
- A payload is also kept until its audit is over, since a record that fails is kept as it was signed.
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
from learner.provisioning.estimation.learner_time import seconds_by_kind
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion


@dataclass(frozen=True)
class TrainingLedger(TrainingQueries):
    """The part of the ledger that writes training. Raises LedgerError."""

    db: LedgerFile

    def begin_incarnation(self, base: int, now_ms: int) -> int:
        """Start the next incarnation at step `base`: later steps are deleted, and the records that they consumed are
        free again.

        Its number is above all earlier ones, and above those that were given to `incarnation_seen`.
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
        """Note that versions of this incarnation exist that this ledger knows nothing of. The next incarnation will be
        above it."""
        with self.db.transaction() as db:
            seen = max(incarnation, self.incarnations_seen())
            db.execute("INSERT OR REPLACE INTO meta VALUES ('incarnation_seen', ?)", (str(seen).encode(),))

    def forked(self, row: CheckpointRow, origin: bytes, now_ms: int) -> None:
        """Begin with a checkpoint of another swarm, whose id is `origin`, as if our first incarnation had made it."""
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
        """Write that a step consumed `groups` and dropped others. Raises LocalProtocolError when a surviving step has
        already consumed one of them.

        Args:
            row: the step.
            groups: lease -> lag when the batch formed. The lease of an episode is that of its first turn. Records of
                later turns go with it, at their own lag.
            dropped: lease -> reason.
            time: the learner's use of its time since the last such row.
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
        """Write the learner's use of its time since the last such row."""
        with self.db.transaction() as db:
            _pass(db, row)

    def batch_dropped(self, step: int, dropped: Mapping[LeaseId, str]) -> None:
        """Write that step `step` took these groups and could not train on them (lease -> reason). No later step may
        take them."""
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
        """Write that a version was signed. `new_bytes` are the bytes of chunks that the version before it did not
        have."""
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
        """Write a version's accuracy on held-out problems. `more` has other numbers by (task, metric); the task ""
        means all."""
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
        """Write that a checkpoint is on disk. Payloads are kept for the `newest` checkpoints, and for the leases that
        are `under_audit`."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            _forget_payloads(db, newest, under_audit)

    def begun_with(self, files: Mapping[str, str]) -> None:
        """Write the digests of the model files that the run begins with."""
        self.marked("base_model", json.dumps(dict(files)).encode())

    def begun_under(self, settings: Mapping[str, Any]) -> None:
        """Write the settings that the run begins with, which are plain JSON."""
        self.marked("settings", json.dumps(dict(settings)).encode())

    def marked(self, name: str, value: bytes) -> bytes | None:
        """Write `value` under `name`; return the value before, None if there was none."""
        with self.db.transaction() as db:
            before = db.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
        return None if before is None else bytes(before[0])

    def checkpoints_removed(
        self, steps: Sequence[int], *, newest: int = ALL, under_audit: Collection[LeaseId] = ()
    ) -> None:
        """Write that these checkpoints are about to be deleted. `newest` and `under_audit` are as in `checkpointed`."""
        with self.db.transaction() as db:
            db.executemany("DELETE FROM checkpoints WHERE step = ?", [(step,) for step in steps])
            _forget_payloads(db, newest, under_audit)


def _described(row: CheckpointRow) -> str:
    return json.dumps({"curriculum": dict(row.state), "leases": row.leases, "records": row.records})


def _pass(db: sqlite3.Connection, row: TimeRow) -> None:
    db.execute(
        "INSERT INTO learner_time (from_ms, until_ms, step, seconds) VALUES (?, ?, ?, ?)",
        (row.from_ms, row.until_ms, row.step, json.dumps(seconds_by_kind(row.time))),
    )


def _drop(db: sqlite3.Connection, step: int, dropped: Mapping[LeaseId, str]) -> None:
    """Write dropped groups. A group that was dropped for good before (`learner.ledger.trust`) keeps its reason."""
    db.executemany(
        "INSERT INTO dropped VALUES (?, ?, ?) ON CONFLICT (lease) DO NOTHING",
        [(lease, step, why) for lease, why in dropped.items()],
    )


def _forget_payloads(db: sqlite3.Connection, newest: int, under_audit: Collection[LeaseId]) -> None:
    """Delete the payloads that no restart can ask for. A restart continues from one of the `newest` checkpoints, so the
    oldest of them is the limit. If none of these can be read, it continues from an older one, without the records that
    it would free.

    A payload under audit is deleted with a later checkpoint, also by a learner that was restarted and no longer audits
    it.
    """
    (oldest,) = db.execute(
        "SELECT min(step) FROM (SELECT step FROM checkpoints ORDER BY step DESC LIMIT ?)", (newest,)
    ).fetchone()
    if oldest is None:
        return
    kept = "hex(l.lease) NOT IN (SELECT value FROM json_each(?1))"
    audited = json.dumps([lease.hex().upper() for lease in under_audit])
    db.execute(
        # Look up each payload that is left, since far more groups were ever dropped.
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
