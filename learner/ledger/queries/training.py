"""Read what a ledger has of training: incarnations, steps, versions, evaluations, checkpoints and plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from learner.ledger.rows import CheckpointRow, PlanRow, StepRow, TimeRow
from learner.ledger.sqlite.column_values import from_json
from learner.ledger.sqlite.files import Queries, Row
from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind, read_time, summed
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion, SwarmId

ALL = 1 << 62
"""More leases or records than any ledger has."""

TASK_NAMES = "task_names"
"""Key under which the ledger has what people call the tasks, by the names that leases have."""

STEPS = "SELECT step, incarnation, began_ms, waited_s, train_s, rollouts, tokens, reward, metrics FROM steps"

TIME = "SELECT from_ms, until_ms, step, seconds FROM learner_time ORDER BY id"

BEFORE_TIME = "SELECT count(*), sum(train_s), sum(waited_s) FROM steps WHERE began_ms < ?"

LAST_MOMENT = """
SELECT max(t) FROM (
    SELECT max(ended_ms) t FROM presence UNION ALL SELECT max(last_seen_ms) FROM peers
    UNION ALL SELECT max(issued_ms) FROM leases UNION ALL SELECT max(received_ms) FROM records
    UNION ALL SELECT max(published_ms) FROM versions UNION ALL SELECT max(at_ms) FROM evaluations
    UNION ALL SELECT max(began_ms) FROM incarnations
    UNION ALL SELECT max(began_ms + CAST(1000 * train_s AS INTEGER)) FROM steps
)"""

STARTED = """
SELECT min(coalesce(here, trained, seen, 0), coalesce(trained, seen, 0)) FROM
    (SELECT min(began_ms) here FROM presence JOIN peers USING (peer) WHERE role = 'learner'),
    (SELECT (SELECT began_ms FROM incarnations ORDER BY incarnation LIMIT 1) trained),
    (SELECT min(first_seen_ms) seen FROM peers)
"""


class BegunIncarnation(Row, frozen=True):
    """A start of the learner: its number, the step it began at, and when."""

    incarnation: int
    base: int
    began_ms: int


class PublishedVersion(Row, frozen=True):
    """A version, when it was published, its bytes, and the bytes of chunks that the version before it did not have."""

    incarnation: int
    version: int
    manifest: ManifestHash
    published_ms: int
    total_bytes: int
    new_bytes: int


class MadeCheckpoint(Row, frozen=True):
    """A checkpoint, and when it was made."""

    step: int
    incarnation: int
    made_ms: int


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """How well a version did on `prompts` held-out problems. `scores` are other results, by task ("" is all together)
    and metric."""

    version: PolicyVersion
    at_ms: int
    prompts: int
    greedy: float
    sampled: float
    scores: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class TrainingQueries:
    """The queries about training."""

    db: Queries

    def swarm(self) -> SwarmId:
        ((swarm,),) = self.db.query("SELECT value FROM meta WHERE key = 'swarm'")
        return SwarmId(swarm)

    def started_ms(self) -> int:
        """Return when the learner first appeared: peers hear it, and its machine is paid, before its trainer and engine
        are loaded and its first incarnation begins."""
        return int(self.db.query(STARTED)[0][0])

    def last_moment_ms(self) -> int:
        """Return the last moment that the ledger knows of."""
        told = self.db.query("SELECT max(until_ms) FROM learner_time", of="learner_time")
        return max(int(rows[0][0] or 0) for rows in (self.db.query(LAST_MOMENT), told) if rows)

    def incarnations(self) -> list[BegunIncarnation]:
        """Return all incarnations, in order."""
        return self.db.rows(BegunIncarnation, "FROM incarnations ORDER BY incarnation")

    def begun(self) -> list[tuple[int, int]]:
        """Return (incarnation, the step it began at), in order."""
        return [(one.incarnation, one.base) for one in self.incarnations()]

    def steps(self) -> list[StepRow]:
        """Return the steps of the surviving chain, in order."""
        return self.newest_steps(-1)

    def learner_time(self) -> list[TimeRow]:
        """Return the learner's use of its time, in order. The time of an older program, which did not record kinds, is
        the first row, of step 0. It has the steps' training and waiting times, and the rest as untold.

        In a gap, no learner ran, or it was killed before it recorded that time.
        """
        told = [
            TimeRow(from_ms=row[0], until_ms=row[1], step=row[2], time=_time(row[3]))
            for row in self.db.query(TIME, of="learner_time")
        ]
        started_ms, until_ms = self.started_ms(), told[0].from_ms if told else self.last_moment_ms()
        ((number, train_s, waited_s),) = self.db.query(BEFORE_TIME, (until_ms,))
        if not number:
            return told
        kinds = {TimeKind.TRAINING: train_s, TimeKind.WAITING: waited_s}
        rest_s = (until_ms - started_ms) / 1000 - sum(kinds.values())
        if rest_s > 0:
            kinds[TimeKind.UNTOLD] = rest_s
        return [TimeRow(from_ms=started_ms, until_ms=until_ms, step=0, time=LearnerTime(kinds)), *told]

    def time_so_far(self) -> LearnerTime:
        """Return the sum of all of the learner's time."""
        return summed(row.time for row in self.learner_time())

    def newest_steps(self, count: int) -> list[StepRow]:
        """Return the last `count` steps of the surviving chain, in order; all if `count` is below 0."""
        rows = self.db.query(f"{STEPS} ORDER BY step DESC LIMIT ?", (count,))
        return [
            StepRow(
                step=row[0], incarnation=row[1], began_ms=row[2], waited_s=row[3], train_s=row[4], rollouts=row[5],
                tokens=row[6], reward=row[7], metrics=from_json("steps.metrics", row[8], dict[str, Any]),
            )
            for row in reversed(rows)
        ]  # fmt: skip

    def rollouts(self) -> dict[int, int]:
        """Return how many rollouts each step was trained on."""
        return dict(self.db.query("SELECT step, rollouts FROM steps"))

    def trained_on(self, version: PolicyVersion) -> tuple[int, float] | None:
        """Return the rollouts of the step that made a version, and their mean reward; None if a restart cut it off."""
        sql = "SELECT rollouts, reward FROM steps WHERE incarnation = ? AND step = ?"
        rows = self.db.query(sql, (version.incarnation, version.version))
        return rows[0] if rows else None

    def versions(self) -> list[PublishedVersion]:
        """Return all published versions, in order."""
        return self.db.rows(PublishedVersion, "FROM versions ORDER BY incarnation, version")

    def manifests(self) -> list[tuple[PolicyVersion, ManifestHash]]:
        """Return published versions with the hashes of their manifests, oldest first."""
        return [(PolicyVersion(one.incarnation, one.version), one.manifest) for one in self.versions()]

    def published(self, version: PolicyVersion, manifest: ManifestHash) -> bool:
        """Return whether this version was published, with this manifest."""
        rows = self.db.query(
            "SELECT 1 FROM versions WHERE incarnation = ? AND version = ? AND manifest = ?",
            (version.incarnation, version.version, manifest),
        )
        return bool(rows)

    def newest_manifest(self) -> ManifestHash | None:
        """Return the hash of the newest version's manifest; None before the first."""
        rows = self.db.query("SELECT manifest FROM versions ORDER BY incarnation DESC, version DESC LIMIT 1")
        return ManifestHash(rows[0][0]) if rows else None

    def evaluations(self) -> list[EvaluationRow]:
        """Return all evaluations by time, including those that a restart cut off."""
        scores: defaultdict[tuple[int, int], dict[str, dict[str, float]]] = defaultdict(dict)
        for incarnation, version, task, metric, value in self.db.query(
            "SELECT incarnation, version, task, metric, value FROM evaluation_scores ORDER BY rowid",
            of="evaluation_scores",
        ):
            scores[incarnation, version].setdefault(task, {})[metric] = value
        return [
            EvaluationRow(
                version=PolicyVersion(i, v), at_ms=at_ms, prompts=prompts, greedy=greedy, sampled=sampled,
                scores=scores[i, v],
            )
            for i, v, at_ms, prompts, greedy, sampled in self.db.query(
                "SELECT incarnation, version, at_ms, prompts, greedy, sampled FROM evaluations"
                " ORDER BY at_ms, incarnation, version"
            )
        ]  # fmt: skip

    def newest_accuracy(self) -> tuple[float, float]:
        """Return the greedy and the sampled accuracy of the newest version that was evaluated; 0 before the first
        evaluation."""
        rows = self.db.query("SELECT greedy, sampled FROM evaluations ORDER BY incarnation DESC, version DESC LIMIT 1")
        return rows[0] if rows else (0.0, 0.0)

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all checkpoints, newest first."""
        rows = self.db.query("SELECT step, incarnation, directory, state FROM checkpoints ORDER BY step DESC")
        return [_checkpoint_row(*row) for row in rows]

    def checkpoints_made(self) -> list[MadeCheckpoint]:
        """Return all checkpoints and when they were made, in order."""
        return self.db.rows(MadeCheckpoint, "FROM checkpoints ORDER BY step")

    def diverged(self) -> set[int]:
        """Return the steps before which a batch was dropped because of an infinite loss."""
        return {step for (step,) in self.db.query("SELECT step FROM dropped WHERE reason = 'diverged'")}

    def plans(self) -> list[PlanRow]:
        """Return all plans, in order."""
        rows = self.db.query("SELECT at_ms, kappa, active, micros_per_hour, reasons FROM plans ORDER BY id", of="plans")
        plans: list[PlanRow] = []
        active: tuple[PeerId, ...] = ()
        for at_ms, kappa, written, micros, reasons in rows:
            change = from_json("plans.active", written, list[str] | dict[str, list[str]])
            if isinstance(change, dict):
                off = set(change.get("off", ()))
                active = tuple(sorted({peer for peer in active if peer not in off}.union(change.get("on", ()))))
            else:
                active = tuple(map(PeerId, change))
            plans.append(
                PlanRow(
                    at_ms=at_ms, kappa=kappa, micros_per_hour=micros, active=active,
                    reasons=tuple(from_json("plans.reasons", reasons, list[str])),
                )
            )  # fmt: skip
        return plans

    def engine_s(self) -> dict[str, float]:
        """Return the seconds that the learner's engine was used, by purpose."""
        return dict(self.db.query("SELECT what, seconds FROM engine_time ORDER BY what", of="engine_time"))

    def incarnations_seen(self) -> int:
        """Return the highest number that was given to `TrainingLedger.incarnation_seen`, 0 before that."""
        return int(self._meta("incarnation_seen", int, 0))

    def base_model(self) -> dict[str, str]:
        """Return a digest of each file, by name, of the model that the run began with; empty if none was recorded."""
        return dict(self._meta("base_model", dict[str, str], {}))

    def settings(self) -> dict[str, Any]:
        """Return the settings that are fixed for the run, by name; empty if none were recorded."""
        return dict(self._meta("settings", dict[str, Any], {}))

    def task_known_as(self, name: str) -> str:
        """Return what people call the task that leases call `name`."""
        return str(self._meta(TASK_NAMES, dict[str, str], {}).get(name, name))

    def _meta(self, key: str, kind: Any, otherwise: Any) -> Any:
        """Return the JSON of type `kind` under `key`, or `otherwise` if there is none."""
        rows = self.db.query("SELECT value FROM meta WHERE key = ?", (key,))
        return from_json(f"meta.{key}", rows[0][0], kind) if rows else otherwise


def _time(text: str) -> LearnerTime:
    return read_time(from_json("learner_time.seconds", text, dict[str, float]))


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint's column `state`."""

    curriculum: dict[str, Any]
    leases: int
    records: int


def _checkpoint_row(step: int, incarnation: int, directory: str, text: str) -> CheckpointRow:
    """Return the row as it was written. A row from before counts were kept counts everything."""
    said = from_json("checkpoints.state", text, dict[str, Any])
    if "curriculum" in said:
        told = from_json("checkpoints.state", text, _Described)
    else:
        told = _Described(curriculum=said, leases=ALL, records=ALL)
    return CheckpointRow(
        step=step, incarnation=incarnation, directory=directory, state=told.curriculum, leases=told.leases,
        records=told.records,
    )  # fmt: skip
