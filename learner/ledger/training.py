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
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from learner.ledger.rows import CheckpointRow, StepRow, TallyRow
from learner.ledger.sqlite.column_values import from_json
from learner.ledger.sqlite.database import LedgerFile, snapshot
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion

ALL = 1 << 62
"""More leases or records than any ledger has."""


BASE_MODEL = "SELECT value FROM meta WHERE key = 'base_model'"

SEEN = "SELECT value FROM meta WHERE key = 'incarnation_seen'"

SETTINGS = "SELECT value FROM meta WHERE key = 'settings'"

STEPS = "SELECT step, incarnation, began_ms, waited_s, train_s, rollouts, tokens, reward, metrics FROM steps"

CHECKPOINTS = "SELECT step, incarnation, directory, state FROM checkpoints ORDER BY step DESC"


@dataclass
class TrainingLedger:
    """See the module's paragraph. Raises LedgerError."""

    db: LedgerFile

    def incarnations(self) -> list[tuple[int, int]]:
        """(incarnation, the step it began at), in order."""
        return [
            (row[0], row[1]) for row in self.db.query("SELECT incarnation, base FROM incarnations ORDER BY incarnation")
        ]

    def begin_incarnation(self, base: int, now_ms: int) -> int:
        """Start the next incarnation at step `base`: later steps are forgotten and what they consumed is free again.

        Its number lies above all that began, and above what `incarnation_seen` was told.
        """
        with self.db.transaction() as db:
            (begun,) = db.execute("SELECT coalesce(max(incarnation), 0) FROM incarnations").fetchone()
            incarnation = max(begun, _seen(db.execute(SEEN).fetchall())) + 1
            db.execute("INSERT INTO incarnations VALUES (?, ?, ?)", (incarnation, base, now_ms))
            db.execute("UPDATE records SET step = NULL, trained_lag = NULL WHERE step > ?", (base,))
            db.execute("DELETE FROM dropped WHERE step > ?", (base,))
            db.execute("DELETE FROM steps WHERE step > ?", (base,))
            db.execute("DELETE FROM checkpoints WHERE step > ?", (base,))
            db.execute("DELETE FROM tallies WHERE version > ?", (base,))
        return int(incarnation)

    def incarnation_seen(self, incarnation: int) -> None:
        """Versions of this incarnation are out, which this ledger knows nothing of: what begins next lies above it."""
        with self.db.transaction() as db:
            seen = max(incarnation, _seen(db.execute(SEEN).fetchall()))
            db.execute("INSERT OR REPLACE INTO meta VALUES ('incarnation_seen', ?)", (str(seen).encode(),))

    def incarnations_seen(self) -> int:
        """The highest that `incarnation_seen` was told, 0 before that."""
        return _seen(self.db.query(SEEN))

    def published(self, version: PolicyVersion, manifest: ManifestHash) -> bool:
        """Whether this version was published, with this manifest."""
        rows = self.db.query(
            "SELECT 1 FROM versions WHERE incarnation = ? AND version = ? AND manifest = ?",
            (version.incarnation, version.version, manifest),
        )
        return bool(rows)

    def forked(self, row: CheckpointRow, origin: bytes, now_ms: int) -> None:
        """Begin with a checkpoint of another swarm, whose id is `origin`, as if it were our first incarnation's."""
        with self.db.transaction() as db:
            db.execute("INSERT INTO incarnations VALUES (1, 0, ?)", (now_ms,))
            db.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (row.step, row.incarnation, row.directory, now_ms, _described(row)),
            )
            db.execute("INSERT INTO meta VALUES ('forked_from', ?), ('forked_at', ?)", (origin, str(row.step).encode()))

    def step_trained(self, row: StepRow, groups: Mapping[LeaseId, int], dropped: Mapping[LeaseId, str]) -> None:
        """A step consumed `groups` (lease -> lag when the batch formed) and dropped others (lease -> reason).

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
                "UPDATE records SET step = ?, trained_lag = ? WHERE lease = ? AND rule = 'admitted'",
                [(row.step, lag, lease) for lease, lag in groups.items()],
            )
            db.executemany(
                "UPDATE records SET step = ?, trained_lag = ? - version WHERE rule = 'admitted'"
                " AND lease IN (SELECT lease FROM continuations WHERE root = ?)",
                [(row.step, row.step - 1, lease) for lease in groups],
            )
            _drop(db, row.step, dropped)

    def newest_steps(self, count: int) -> list[StepRow]:
        """The last `count` steps of the surviving chain, in order."""
        return [step_row(row) for row in reversed(self.db.query(f"{STEPS} ORDER BY step DESC LIMIT ?", (count,)))]

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

    def newest_manifest(self) -> ManifestHash | None:
        """The manifest's hash of the version that was published last; None before the first."""
        rows = self.db.query("SELECT manifest FROM versions ORDER BY incarnation DESC, version DESC LIMIT 1")
        return ManifestHash(rows[0][0]) if rows else None

    def versions(self) -> list[tuple[PolicyVersion, ManifestHash]]:
        """Published versions with the hashes of their manifests, oldest first."""
        rows = self.db.query("SELECT incarnation, version, manifest FROM versions ORDER BY incarnation, version")
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

    def base_model(self) -> dict[str, str]:
        """A digest by name of each file of the model that the run began with; empty when nobody wrote it down."""
        return _base_model(self.db.query(BASE_MODEL))

    def begun_with(self, files: Mapping[str, str]) -> None:
        """The run begins with a model of these files."""
        with self.db.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('base_model', ?)", (json.dumps(dict(files)).encode(),))

    def settings(self) -> dict[str, Any]:
        """The settings that are fixed for the run, by name; empty when nobody wrote them down."""
        return _settings(self.db.query(SETTINGS))

    def begun_under(self, settings: Mapping[str, Any]) -> None:
        """The run begins under these settings, which are plain JSON."""
        with self.db.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('settings', ?)", (json.dumps(dict(settings)).encode(),))

    def marked(self, name: str, value: bytes) -> bytes | None:
        """Write `value` down as what is so from now on; return what was so before, None if nobody wrote that."""
        with self.db.transaction() as db:
            before = db.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
        return None if before is None else bytes(before[0])

    def checkpoints(self) -> list[CheckpointRow]:
        """Durable states, newest first."""
        return [_checkpoint_row(*row) for row in self.db.query(CHECKPOINTS)]

    def checkpoints_removed(
        self, steps: Sequence[int], *, newest: int = ALL, under_audit: Collection[LeaseId] = ()
    ) -> None:
        """These directories are about to be deleted. `newest` and `under_audit`: as in `checkpointed`."""
        with self.db.transaction() as db:
            db.executemany("DELETE FROM checkpoints WHERE step = ?", [(step,) for step in steps])
            _forget_payloads(db, newest, under_audit)

    def scores(self) -> list[tuple[PolicyVersion, float]]:
        """Evaluated versions with the mean reward of their samples, oldest first, also those that a restart cut off."""
        rows = self.db.query("SELECT incarnation, version, sampled FROM evaluations ORDER BY incarnation, version")
        return [(PolicyVersion(row[0], row[1]), float(row[2])) for row in rows]


def checkpoints_of(path: Path) -> tuple[bytes, list[CheckpointRow]]:
    """The swarm's id and the durable states, newest first, of a ledger that somebody else may be writing to.

    Raises LedgerError.
    """
    with snapshot(path) as db:
        ((swarm,),) = db.query("SELECT value FROM meta WHERE key = 'swarm'")
        return swarm, [_checkpoint_row(*row) for row in db.query(CHECKPOINTS)]


def base_of(path: Path) -> dict[str, str]:
    """As `TrainingLedger.base_model`, of a ledger that somebody else may be writing to, and empty while no checkpoint
    rests on it. Raises LedgerError.
    """
    with snapshot(path) as db:
        return _base_model(db.query(BASE_MODEL)) if db.query("SELECT 1 FROM checkpoints LIMIT 1") else {}


def settings_of(path: Path) -> dict[str, Any]:
    """As `TrainingLedger.settings`, of a ledger that somebody else may be writing to, and empty while nothing rests on
    them: no checkpoint, and no lease, whose records may wait to be trained on. Raises LedgerError.
    """
    with snapshot(path) as db:
        rests = db.query("SELECT 1 FROM checkpoints UNION ALL SELECT 1 FROM leases LIMIT 1")
        return _settings(db.query(SETTINGS)) if rests else {}


def step_row(row: tuple[Any, ...]) -> StepRow:
    """One of STEPS."""
    return StepRow(
        step=row[0], incarnation=row[1], began_ms=row[2], waited_s=row[3], train_s=row[4], rollouts=row[5],
        tokens=row[6], reward=row[7], metrics=from_json("steps.metrics", row[8], dict[str, Any]),
    )  # fmt: skip


def _seen(rows: list[tuple[bytes]]) -> int:
    return from_json("meta.incarnation_seen", rows[0][0], int) if rows else 0


def _settings(rows: list[tuple[bytes]]) -> dict[str, Any]:
    return dict(from_json("meta.settings", rows[0][0], dict[str, Any])) if rows else {}


def _base_model(rows: list[tuple[bytes]]) -> dict[str, str]:
    return dict(from_json("meta.base_model", rows[0][0], dict[str, str])) if rows else {}


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    """What the column `state` of a checkpoint has."""

    curriculum: dict[str, Any]
    leases: int
    records: int


def _described(row: CheckpointRow) -> str:
    return json.dumps({"curriculum": dict(row.state), "leases": row.leases, "records": row.records})


def _checkpoint_row(step: int, incarnation: int, directory: str, text: str) -> CheckpointRow:
    """The row as it was written; in one of before counts were kept all is counted."""
    said = from_json("checkpoints.state", text, dict[str, Any])
    if "curriculum" not in said:
        return CheckpointRow(
            step=step, incarnation=incarnation, directory=directory, state=said, leases=ALL, records=ALL
        )
    told = from_json("checkpoints.state", text, _Described)
    return CheckpointRow(
        step=step,
        incarnation=incarnation,
        directory=directory,
        state=told.curriculum,
        leases=told.leases,
        records=told.records,
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
    kept = "hex(lease) NOT IN (SELECT value FROM json_each(?))"
    audited = json.dumps([lease.hex().upper() for lease in under_audit])
    db.execute(
        f"UPDATE records SET envelope = NULL WHERE envelope IS NOT NULL AND step <= ? AND {kept}", (oldest, audited)
    )
    db.execute(
        # Looked up for each payload that is left: those that were ever dropped are far more.
        f"UPDATE records SET envelope = NULL WHERE envelope IS NOT NULL AND step IS NULL AND {kept} AND EXISTS"
        " (SELECT 1 FROM dropped d WHERE d.step <= ? AND d.lease = coalesce("
        "(SELECT root FROM continuations c WHERE c.lease = records.lease), records.lease))",
        (audited, oldest),
    )
    db.execute(
        "UPDATE leases SET envelope = NULL WHERE envelope IS NOT NULL AND status <> 'open'"
        " AND NOT EXISTS (SELECT 1 FROM records r WHERE r.lease = leases.lease AND r.envelope IS NOT NULL)"
    )
