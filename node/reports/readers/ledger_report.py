"""Read the swarm's report from the learner's ledger.

All numbers are of one moment, while the learner goes on writing. Nothing is ever created or changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from learner.artifacts.checkpoint_retention import checkpoints_of
from learner.ledger.queries.peers import PeerPresence
from learner.ledger.queries.reader import LedgerReader, read_ledger
from learner.ledger.reach import Reaches
from learner.monitoring.eval_scores import GREEDY_OF, SAMPLED_OF
from node.reports.model.cost_allocation import accounts_of
from node.reports.model.costs import CostTerms
from node.reports.model.objective_figures import changes_of
from node.reports.model.peer_rows import in_order, peer_report
from node.reports.model.report import (
    Evaluation,
    Incarnation,
    KeptCheckpoint,
    LeaseCounts,
    PeerReport,
    Plan,
    Publication,
    Step,
    Stretch,
    SwarmReport,
)
from node.reports.model.verdict_meanings import JUDGING
from node.reports.readers.audits import audits_by_peer
from node.reports.readers.ledger_history import read_history
from node.reports.readers.reach import pairs_of, reach_by_peer, read_reach
from protocol.accounting.reputation import DAY_MS, Reputation, reputation_of
from protocol.core.ids import PeerId, PolicyVersion
from protocol.versions.staleness import Chain, bases_of


def swarm_report(
    path: Path, *, staleness: int | None = None, terms: CostTerms | None = None, with_history: bool = False
) -> SwarmReport:
    """Return the report of the ledger at `path`. `staleness` (the window S) and `terms` (what costs are compared with)
    are not in the ledger.

    The history, which only a page shows, is read on request: this goes through all records twice more.

    Raises LedgerError, with the file and the next step, if it is missing, unreadable, or of another program.
    """
    with read_ledger(path) as ledger:
        report = _report(ledger, staleness, terms or CostTerms())
        report = replace(report, accounts=accounts_of(report, ledger.work.received()))
        return replace(report, history=read_history(ledger, report)) if with_history else report


def _report(ledger: LedgerReader, staleness: int | None, terms: CostTerms) -> SwarmReport:
    """Return the report without accounts and history, which are made from it."""
    started_ms = ledger.training.started_ms()
    ended_ms = max(ledger.training.last_moment_ms(), started_ms)

    def since_start(at_ms: int) -> float:
        return (at_ms - started_ms) / 1000

    incarnations = tuple(
        Incarnation(number=one.incarnation, base=one.base, at_s=since_start(one.began_ms))
        for one in ledger.training.incarnations()
    )
    steps, lags = _steps(ledger, started_ms), ledger.work.lags()
    evaluations = _evaluations(ledger, started_ms, _chain(incarnations, steps))
    reaches = read_reach(ledger)
    diverged = dict.fromkeys(ledger.training.diverged(), 1)  # several before one step count as one
    return SwarmReport(
        swarm=ledger.training.swarm(),
        started_ms=started_ms,
        ended_ms=ended_ms,
        staleness=staleness,
        peers=_peers(ledger, reaches, trained=sum(lags.values()), started_ms=started_ms, ended_ms=ended_ms),
        incarnations=incarnations,
        versions=tuple(
            Publication(
                version=PolicyVersion(one.incarnation, one.version), at_s=since_start(one.published_ms),
                total_bytes=one.total_bytes, new_bytes=one.new_bytes,
            )
            for one in ledger.training.versions()
        ),
        steps=steps,
        evaluations=evaluations,
        plans=tuple(
            Plan(
                at_s=since_start(one.at_ms), kappa=one.kappa, active=one.active, micros_per_hour=one.micros_per_hour,
                reasons=one.reasons,
            )
            for one in ledger.training.plans()
        ),
        lags=lags,
        uninformative=ledger.work.uninformative(),
        stretches=tuple(
            Stretch(until_s=since_start(row.until_ms), time=row.time)
            for row in ledger.training.learner_time()
        ),
        alarms=changes_of(steps, [score for score in evaluations if score.survives], diverged),
        later_turns=ledger.work.later_turns(),
        terms=terms,
        engine_s=ledger.training.engine_s(),
        troubles=tuple(ledger.peers.troubles()),
        fruitless=ledger.work.fruitless(),
        checkpoints=_checkpoints(ledger, started_ms, evaluations),
        reach=reaches.figures,
        pairs=pairs_of(reaches, ledger),
        bytes_carried=sum(row.num_bytes for row in ledger.peers.carried()),
    )  # fmt: skip


def _checkpoints(
    ledger: LedgerReader, started_ms: int, evaluations: Sequence[Evaluation]
) -> tuple[KeptCheckpoint, ...]:
    rows = ledger.training.checkpoints_made()
    scores = {score.version.version: score for score in evaluations if score.survives}
    near = {step: scores[mark] for mark, step in checkpoints_of([row.step for row in rows], scores).items()}
    return tuple(
        KeptCheckpoint(
            step=row.step,
            incarnation=row.incarnation,
            at_s=(row.made_ms - started_ms) / 1000,
            evaluated=near[row.step].version.version if row.step in near else None,
            greedy=near[row.step].greedy if row.step in near else None,
            sampled=near[row.step].sampled if row.step in near else None,
        )
        for row in rows
    )


def _chain(incarnations: tuple[Incarnation, ...], steps: tuple[Step, ...]) -> Chain | None:
    """Return the surviving chain. Rows of steps that a restart removed are gone, so the last step is its head."""
    if not incarnations:
        return None
    head = steps[-1].step if steps else incarnations[-1].base
    bases = bases_of((incarnation.number, incarnation.base) for incarnation in incarnations)
    return Chain(bases=bases, head=PolicyVersion(len(bases), head))


def _steps(ledger: LedgerReader, started_ms: int) -> tuple[Step, ...]:
    return tuple(
        Step(
            step=row.step, incarnation=row.incarnation, at_s=(row.began_ms - started_ms) / 1000 + row.train_s,
            waited_s=row.waited_s, train_s=row.train_s, rollouts=row.rollouts, tokens=row.tokens, reward=row.reward,
            metrics=row.metrics,
        )
        for row in ledger.training.steps()
    )  # fmt: skip


def _evaluations(ledger: LedgerReader, started_ms: int, chain: Chain | None) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(
            version=row.version, at_s=(row.at_ms - started_ms) / 1000, prompts=row.prompts, greedy=row.greedy,
            sampled=row.sampled, survives=chain is None or chain.contains(row.version), **_more(row.scores),
        )
        for row in ledger.training.evaluations()
    )  # fmt: skip


PASS = "pass@"
"""The prefix of k among the metrics of an evaluation."""


def _more(by_task: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    whole = dict(by_task.get("", {}))
    passes = {metric: value for metric, value in whole.items() if metric.startswith(PASS)}
    return {
        "samples": int(whole.pop("samples", 1)),
        "pass_at": {int(metric.removeprefix(PASS)): value for metric, value in passes.items()},
        "named": _named(whole),
        "tasks": {task: figures for task, figures in by_task.items() if task},
    }


def _named(figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the scores of each reward that has a name, by metric."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for said, value in figures.items():
        for beginning, metric in ((GREEDY_OF, "greedy"), (SAMPLED_OF, "sampled")):
            if said.startswith(beginning):
                found[said.removeprefix(beginning)][metric] = value
    return dict(found)


def reputations(ledger: LedgerReader, ended_ms: int, banned: Mapping[PeerId, str]) -> defaultdict[str, Reputation]:
    """Return all reputations, as of the day of `ended_ms`. `banned`: the reason by peer, "" if it is not banned."""
    today = ended_ms // DAY_MS
    found: defaultdict[str, Reputation] = defaultdict(lambda: reputation_of((), today))
    days = ledger.observed_days(ended_ms, JUDGING)
    for peer in days.keys() | banned.keys():
        found[peer] = reputation_of(days.get(peer, ()), today, banned=bool(banned.get(peer)))
    return found


def _peers(
    ledger: LedgerReader, reaches: Reaches, *, trained: int, started_ms: int, ended_ms: int
) -> tuple[PeerReport, ...]:
    """Return the peers' rows. `trained`: records of all peers that were trained on."""
    audits = audits_by_peer(ledger, started_ms)
    reputed = reputations(ledger, ended_ms, {peer: one.banned for peer, one in audits.items()})
    presences, relayed = defaultdict[str, list[PeerPresence]](list), Counter[str]()
    for presence in ledger.peers.presences():
        presences[presence.peer].append(presence)
    for one in ledger.peers.relayed():
        relayed[one.relay] += one.num_bytes
    reached = reach_by_peer(reaches, ledger, started_ms)
    leases, late, recalled = ledger.work.leases_by_peer(), ledger.work.late_by_peer(), ledger.work.recalled_by_peer()
    verdicts, work = ledger.work.verdicts_by_peer(), ledger.work.work_by_peer()
    scored = {row.peer: row for row in ledger.work.teachers()}
    return in_order(
        peer_report(
            known,
            presences[known.peer],
            leases=_counts(leases[known.peer], late.get(known.peer, 0), *recalled.get(known.peer, (0, 0))),
            verdicts=verdicts[known.peer],
            work=work[known.peer],
            bytes_relayed=relayed[known.peer],
            reputation=reputed[known.peer],
            audits=audits.get(known.peer),
            reach=reached.get(known.peer),
            scored=scored.get(known.peer),
            trained=trained,
            started_ms=started_ms,
        )
        for known in ledger.peers.all()
    )


def _counts(ended: Mapping[str, int], late: int, recalled: int, recalled_rollouts: int) -> LeaseCounts:
    counts = LeaseCounts(
        issued=sum(ended.values()), late=late, recalled=recalled, recalled_rollouts=recalled_rollouts, **ended
    )
    return replace(counts, returned=counts.returned - recalled)
