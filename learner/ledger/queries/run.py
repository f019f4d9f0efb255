"""What a ledger says of its run: incarnations, steps, versions, evaluations, checkpoints and plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from learner.ledger.rows import PlanRow, StepRow
from learner.ledger.sqlite.column_values import from_json
from learner.ledger.sqlite.files import Queries, Row
from learner.ledger.training import STEPS, step_row
from protocol.core.ids import PeerId, PolicyVersion, SwarmId

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
    """A version, when it was published, its bytes, and those of its chunks that were not in the version before it."""

    incarnation: int
    version: int
    published_ms: int
    total_bytes: int
    new_bytes: int


class MadeCheckpoint(Row, frozen=True):
    """A durable state, and when it was made."""

    step: int
    incarnation: int
    made_ms: int


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """How well a version did on `prompts` held-out prompts; `scores` are the other figures, by task ("" is all
    together) and metric."""

    version: PolicyVersion
    at_ms: int
    prompts: int
    greedy: float
    sampled: float
    scores: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RunQueries:
    """See the module's paragraph."""

    db: Queries

    def swarm(self) -> SwarmId:
        ((swarm,),) = self.db.query("SELECT value FROM meta WHERE key = 'swarm'")
        return SwarmId(swarm)

    def started_ms(self) -> int:
        """When the learner was first there: it is paid, and heard by peers, before its trainer and engine are loaded
        and its first incarnation begins."""
        return int(self.db.query(STARTED)[0][0])

    def last_moment_ms(self) -> int:
        """The last moment the ledger knows of."""
        return int(self.db.query(LAST_MOMENT)[0][0] or 0)

    def incarnations(self) -> list[BegunIncarnation]:
        """In order."""
        return self.db.rows(BegunIncarnation, "FROM incarnations ORDER BY incarnation")

    def steps(self) -> list[StepRow]:
        """The surviving chain, in order."""
        return [step_row(row) for row in self.db.query(f"{STEPS} ORDER BY step")]

    def rollouts(self) -> dict[int, int]:
        """How many each step was trained on."""
        return dict(self.db.query("SELECT step, rollouts FROM steps"))

    def trained_on(self, version: PolicyVersion) -> tuple[int, float] | None:
        """Rollouts, and their mean reward, of the step that made a version; None if a restart cut it off."""
        sql = "SELECT rollouts, reward FROM steps WHERE incarnation = ? AND step = ?"
        rows = self.db.query(sql, (version.incarnation, version.version))
        return rows[0] if rows else None

    def versions(self) -> list[PublishedVersion]:
        """In order."""
        return self.db.rows(PublishedVersion, "FROM versions ORDER BY incarnation, version")

    def evaluations(self) -> list[EvaluationRow]:
        """In the order of time, also those that a restart cut off."""
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
        """Greedy and sampled, of the newest version that was evaluated; 0 before any was."""
        rows = self.db.query("SELECT greedy, sampled FROM evaluations ORDER BY incarnation DESC, version DESC LIMIT 1")
        return rows[0] if rows else (0.0, 0.0)

    def checkpoints(self) -> list[MadeCheckpoint]:
        """In order."""
        return self.db.rows(MadeCheckpoint, "FROM checkpoints ORDER BY step")

    def diverged(self) -> set[int]:
        """The steps before which a batch was dropped because of an infinite loss."""
        return {step for (step,) in self.db.query("SELECT step FROM dropped WHERE reason = 'diverged'")}

    def plans(self) -> list[PlanRow]:
        """In order."""
        rows = self.db.query("SELECT at_ms, kappa, active, micros_per_hour, reasons FROM plans ORDER BY id", of="plans")
        return [
            PlanRow(
                at_ms=at_ms, kappa=kappa, micros_per_hour=micros,
                active=tuple(map(PeerId, from_json("plans.active", active, list[str]))),
                reasons=tuple(from_json("plans.reasons", reasons, list[str])),
            )
            for at_ms, kappa, active, micros, reasons in rows
        ]  # fmt: skip

    def engine_s(self) -> dict[str, float]:
        """For how long the learner's engine was used for what."""
        return dict(self.db.query("SELECT what, seconds FROM engine_time ORDER BY what", of="engine_time"))
