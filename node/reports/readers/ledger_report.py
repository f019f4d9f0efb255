"""The swarm's report, from the learner's ledger.

The file is opened read-only and read in one transaction, so that all figures are of one moment while the learner goes
on writing; nothing is ever created or changed. Sums are made by SQLite: memory does not grow with the number of
records.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from learner.artifacts.checkpoint_retention import checkpoints_of
from learner.ledger.reputation import observed_days
from learner.ledger.rows import TroubleRow
from learner.ledger.sqlite.column_values import from_json, version_from
from learner.ledger.sqlite.database import has_table, snapshot
from learner.ledger.troubles import ORDER
from learner.monitoring.fruitless_leases import ROUND_MS, ROUNDS, SPAN_MS, End, Loop
from learner.rollouts.buffer import UNINFORMATIVE
from node.reports.model.audits import PeerAudits
from node.reports.model.cost_allocation import Received, accounts_of
from node.reports.model.costs import CostTerms
from node.reports.model.objective_figures import changes_of
from node.reports.model.peer_rows import PeerFacts, in_order, peer_report
from node.reports.model.report import (
    Evaluation,
    Incarnation,
    KeptCheckpoint,
    LeaseCounts,
    Plan,
    Publication,
    Step,
    SwarmReport,
)
from node.reports.model.stays import PeerPresence
from node.reports.model.verdict_meanings import JUDGING
from node.reports.readers.audits import audits_by_peer
from node.reports.readers.ledger_history import read_history
from protocol.accounting.claims import EnergySource, Price
from protocol.accounting.reputation import DAY_MS, Reputation, reputation_of
from protocol.core.ids import PeerId, PolicyVersion, SwarmId
from protocol.trouble import TroubleKind
from protocol.versions.staleness import Chain, bases_of
from protocol.work import Rule

LAST_MOMENT = """
SELECT max(t) FROM (
    SELECT max(ended_ms) t FROM presence UNION ALL SELECT max(last_seen_ms) FROM peers
    UNION ALL SELECT max(issued_ms) FROM leases UNION ALL SELECT max(received_ms) FROM records
    UNION ALL SELECT max(published_ms) FROM versions UNION ALL SELECT max(at_ms) FROM evaluations
    UNION ALL SELECT max(began_ms) FROM incarnations
    UNION ALL SELECT max(began_ms + CAST(1000 * train_s AS INTEGER)) FROM steps
)"""

Row = tuple[Any, ...]


def swarm_report(
    path: Path, *, staleness: int | None = None, terms: CostTerms | None = None, with_history: bool = False
) -> SwarmReport:
    """Return the report of the ledger at `path`; `staleness` is the window S, and `terms` what costs are held against,
    which the ledger does not hold.

    The history, which only a page tells, is read if asked for: it goes through all records twice more.

    Raises LedgerError, naming the file and the next step, when it is missing, unreadable, or of another program.
    """
    with snapshot(path) as db:
        swarm = SwarmId(db.execute("SELECT value FROM meta WHERE key = 'swarm'").fetchone()[0])
        rows = db.execute("SELECT incarnation, base, began_ms FROM incarnations ORDER BY incarnation").fetchall()
        first_peer = db.execute("SELECT min(first_seen_ms) FROM peers").fetchone()[0]
        started_ms = _started_ms(db, int(rows[0][2] if rows else first_peer or 0))
        ended_ms = max(last_moment_ms(db), started_ms)
        incarnations = tuple(Incarnation(number=n, base=b, at_s=(t - started_ms) / 1000) for n, b, t in rows)
        steps = _steps(db, started_ms)
        chain = _chain(incarnations, steps)
        lags = dict(
            db.execute(
                "SELECT trained_lag, count(*) FROM records WHERE step IS NOT NULL AND rule = 'admitted'"
                " GROUP BY trained_lag ORDER BY trained_lag"
            )
        )
        trained = sum(lags.values())
        audits = audits_by_peer(db, started_ms)
        found = _peers(db, audits, reputations(db, ended_ms, audits))
        peers = in_order(peer_report(facts, trained=trained, started_ms=started_ms) for facts in found)
        versions = _versions(db, started_ms)
        evaluations = _evaluations(db, started_ms, chain)
        history = None
        if with_history:
            history = read_history(
                db, started_ms=started_ms, ended_ms=ended_ms, peers=peers, has_relays=has_table(db, "relayed")
            )
        return SwarmReport(
            swarm=swarm,
            started_ms=started_ms,
            ended_ms=ended_ms,
            staleness=staleness,
            peers=peers,
            incarnations=incarnations,
            versions=versions,
            steps=steps,
            evaluations=evaluations,
            plans=_plans(db, started_ms),
            lags=lags,
            uninformative=_uninformative(db),
            alarms=changes_of(steps, [score for score in evaluations if score.survives], _diverged(db)),
            later_turns=_later_turns(db),
            history=history,
            terms=terms or CostTerms(),
            engine_s=_engine_s(db),
            troubles=_troubles(db),
            fruitless=_fruitless(db),
            checkpoints=_checkpoints(db, started_ms, evaluations),
            accounts=accounts_of(
                peers,
                started_ms=started_ms,
                ended_ms=ended_ms,
                incarnations=incarnations,
                versions=versions,
                received=_received(db),
            ),
        )


def _started_ms(db: sqlite3.Connection, trained_ms: int) -> int:
    """When the learner was first there: it is paid, and heard by peers, before its trainer and engine are loaded at
    `trained_ms`."""
    rows = db.execute("SELECT min(began_ms) FROM presence JOIN peers USING (peer) WHERE role = 'learner'")
    here_ms = rows.fetchone()[0]
    return trained_ms if here_ms is None else min(trained_ms, int(here_ms))


def _engine_s(db: sqlite3.Connection) -> dict[str, float]:
    if not has_table(db, "engine_time"):
        return {}
    return dict(db.execute("SELECT what, seconds FROM engine_time ORDER BY what"))


def _troubles(db: sqlite3.Connection) -> tuple[TroubleRow, ...]:
    """Those of a peer in the order in which the first of them counts."""
    if not has_table(db, "troubles"):
        return ()
    rows = db.execute("SELECT peer, kind, version, times, reason, since_ms, ended_ms FROM troubles")
    found = [
        TroubleRow(
            peer=PeerId(peer), kind=kind, times=times, reason=reason, since_ms=since_ms, ended_ms=ended_ms,
            version=None if version is None else version_from("troubles.version", version),
        )
        for peer, kind, version, times, reason, since_ms, ended_ms in rows
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (row.peer, ORDER.index(TroubleKind(row.kind)))))


ENDS = {"returned": End.RETURNED, "expired": End.EXPIRED, "lost": End.LOST}


def _fruitless(db: sqlite3.Connection) -> Loop | None:
    """How leases ended since the last admitted record, if the learner's alarm would say that none brings one."""
    last_ms = db.execute("SELECT max(received_ms) FROM records WHERE rule = 'admitted'").fetchone()[0] or 0
    recalled = "AND lease NOT IN (SELECT lease FROM recalled)" if has_table(db, "recalled") else ""
    ended = f"FROM leases WHERE status IN ('returned', 'expired', 'lost') AND closed_ms > ? {recalled}"
    first_ms, end_ms, rounds = db.execute(
        f"SELECT min(closed_ms), max(closed_ms), count(DISTINCT closed_ms / {ROUND_MS}) {ended}", (last_ms,)
    ).fetchone()
    if rounds < ROUNDS or end_ms - first_ms < SPAN_MS:
        return None
    rows = db.execute(f"SELECT status, count(*) {ended} GROUP BY status", (last_ms,))
    ends = Counter({ENDS[status]: number for status, number in rows})
    return Loop(ends=ends, span_s=(end_ms - first_ms) / 1000)


def _checkpoints(
    db: sqlite3.Connection, started_ms: int, evaluations: Sequence[Evaluation]
) -> tuple[KeptCheckpoint, ...]:
    rows = db.execute("SELECT step, incarnation, made_ms FROM checkpoints ORDER BY step").fetchall()
    scores = {score.version.version: score for score in evaluations if score.survives}
    near = {step: scores[mark] for mark, step in checkpoints_of([row[0] for row in rows], scores).items()}
    return tuple(
        KeptCheckpoint(
            step=step,
            incarnation=incarnation,
            at_s=(at_ms - started_ms) / 1000,
            evaluated=near[step].version.version if step in near else None,
            greedy=near[step].greedy if step in near else None,
            sampled=near[step].sampled if step in near else None,
        )
        for step, incarnation, at_ms in rows
    )


def last_moment_ms(db: sqlite3.Connection) -> int:
    """The last moment the ledger knows of."""
    return int(db.execute(LAST_MOMENT).fetchone()[0] or 0)


def _chain(incarnations: tuple[Incarnation, ...], steps: tuple[Step, ...]) -> Chain | None:
    """The surviving chain; the rows of steps that a restart cut off are gone, so the last one is its head."""
    if not incarnations:
        return None
    head = steps[-1].step if steps else incarnations[-1].base
    bases = bases_of((incarnation.number, incarnation.base) for incarnation in incarnations)
    return Chain(bases=bases, head=PolicyVersion(len(bases), head))


def _steps(db: sqlite3.Connection, started_ms: int) -> tuple[Step, ...]:
    rows = db.execute(
        "SELECT step, incarnation, began_ms, waited_s, train_s, rollouts, tokens, reward, metrics FROM steps"
        " ORDER BY step"
    )
    return tuple(
        Step(
            step=step, incarnation=incarnation, at_s=(began_ms - started_ms) / 1000 + train_s, waited_s=waited_s,
            train_s=train_s, rollouts=rollouts, tokens=tokens, reward=reward,
            metrics=from_json("steps.metrics", metrics, dict[str, Any]),
        )
        for step, incarnation, began_ms, waited_s, train_s, rollouts, tokens, reward, metrics in rows
    )  # fmt: skip


def _versions(db: sqlite3.Connection, started_ms: int) -> tuple[Publication, ...]:
    rows = db.execute(
        "SELECT incarnation, version, published_ms, total_bytes, new_bytes FROM versions ORDER BY incarnation, version"
    )
    return tuple(
        Publication(version=PolicyVersion(i, v), at_s=(t - started_ms) / 1000, total_bytes=total, new_bytes=new)
        for i, v, t, total, new in rows
    )


def _evaluations(db: sqlite3.Connection, started_ms: int, chain: Chain | None) -> tuple[Evaluation, ...]:
    rows = db.execute(
        "SELECT incarnation, version, at_ms, prompts, greedy, sampled FROM evaluations"
        " ORDER BY at_ms, incarnation, version"
    )
    more = _scores(db)
    return tuple(
        Evaluation(
            version=PolicyVersion(i, v), at_s=(t - started_ms) / 1000, prompts=prompts, greedy=greedy, sampled=sampled,
            survives=chain is None or chain.contains(PolicyVersion(i, v)), **_more(more[i, v]),
        )
        for i, v, t, prompts, greedy, sampled in rows
    )  # fmt: skip


def _scores(db: sqlite3.Connection) -> defaultdict[tuple[int, int], dict[str, dict[str, float]]]:
    """What else was found of a version, by task and metric."""
    found: defaultdict[tuple[int, int], dict[str, dict[str, float]]] = defaultdict(dict)
    if has_table(db, "evaluation_scores"):
        rows = db.execute("SELECT incarnation, version, task, metric, value FROM evaluation_scores ORDER BY rowid")
        for incarnation, version, task, metric, value in rows:
            found[incarnation, version].setdefault(task, {})[metric] = value
    return found


def _more(by_task: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    whole = dict(by_task.get("", {}))
    return {
        "samples": int(whole.pop("samples", 1)),
        "pass_at": {int(metric.removeprefix("pass@")): value for metric, value in whole.items()},
        "tasks": {task: figures for task, figures in by_task.items() if task},
    }


def _diverged(db: sqlite3.Connection) -> dict[int, int]:
    """Batches dropped because of an infinite loss, by the step to be taken; several before one count as one."""
    return dict.fromkeys((step for (step,) in db.execute("SELECT step FROM dropped WHERE reason = 'diverged'")), 1)


def _plans(db: sqlite3.Connection, started_ms: int) -> tuple[Plan, ...]:
    if not has_table(db, "plans"):
        return ()
    rows = db.execute("SELECT at_ms, kappa, active, micros_per_hour, reasons FROM plans ORDER BY id")
    return tuple(
        Plan(
            at_s=(at_ms - started_ms) / 1000, kappa=kappa,
            active=tuple(map(PeerId, from_json("plans.active", active, list[str]))),
            micros_per_hour=micros, reasons=tuple(from_json("plans.reasons", reasons, list[str])),
        )
        for at_ms, kappa, active, micros, reasons in rows
    )  # fmt: skip


def _standby(db: sqlite3.Connection) -> dict[int, float]:
    """Seconds stood by, by stay."""
    return dict(db.execute("SELECT presence, seconds FROM standby")) if has_table(db, "standby") else {}


def _energy(db: sqlite3.Connection) -> defaultdict[int, dict[EnergySource, float]]:
    """Joules by stay and source."""
    found: defaultdict[int, dict[EnergySource, float]] = defaultdict(dict)
    for presence, source, joules in db.execute("SELECT * FROM energy") if has_table(db, "energy") else ():
        found[presence][EnergySource(source)] = joules
    return found


def _received(db: sqlite3.Connection) -> list[Received]:
    """When which tokens that count came; those that a restart orphaned, when their lease was delivered."""
    rows = db.execute("SELECT received_ms, sum(tokens) FROM records WHERE rule = 'admitted' GROUP BY received_ms")
    found = [(at_ms, tokens) for at_ms, tokens in rows]
    if has_table(db, "orphans"):
        closed = "SELECT coalesce(l.closed_ms, l.issued_ms), o.tokens FROM orphans o JOIN leases l USING (lease)"
        found += db.execute(closed).fetchall()
    return found


def reputations(
    db: sqlite3.Connection, ended_ms: int, audits: Mapping[PeerId, PeerAudits]
) -> defaultdict[str, Reputation]:
    """Of everybody, as of the day of `ended_ms`."""
    today = ended_ms // DAY_MS
    found: defaultdict[str, Reputation] = defaultdict(lambda: reputation_of((), today))
    days = observed_days(db, ended_ms, JUDGING)
    for peer in days.keys() | audits.keys():
        banned = peer in audits and bool(audits[peer].banned)
        found[peer] = reputation_of(days.get(peer, ()), today, banned=banned)
    return found


def _peers(
    db: sqlite3.Connection, audits: Mapping[PeerId, PeerAudits], reputed: defaultdict[str, Reputation]
) -> list[PeerFacts]:
    presences, leases, late, recalled = _presences(db), _leases(db), _late(db), _recalled(db)
    verdicts, work, relayed = _verdicts(db), _work(db), _relayed(db)
    rows = db.execute(
        "SELECT peer, name, role, engine, machine, micros_per_hour, currency, engine_s, first_seen_ms, last_seen_ms"
        " FROM peers"
    )
    return [
        PeerFacts(
            peer=PeerId(peer), name=name, role=role, engine=engine, machine=machine, engine_s=engine_s,
            price=Price(micros_per_hour=micros, currency=currency), first_seen_ms=first_seen_ms,
            last_seen_ms=last_seen_ms, presences=tuple(presences[peer]),
            leases=_counts(leases[peer], late.get(peer, 0), *recalled.get(peer, (0, 0))),
            verdicts=verdicts[peer], tokens=work[peer][0], trained=work[peer][1], dropped=work[peer][2],
            bytes_relayed=relayed.get(peer, 0), reputation=reputed[peer], audits=audits.get(PeerId(peer)),
        )
        for peer, name, role, engine, machine, micros, currency, engine_s, first_seen_ms, last_seen_ms in rows
    ]  # fmt: skip


def _presences(db: sqlite3.Connection) -> defaultdict[str, list[PeerPresence]]:
    found: defaultdict[str, list[PeerPresence]] = defaultdict(list)
    standby, energy = _standby(db), _energy(db)
    for stay, peer, began_ms, ended_ms, up, down in db.execute(
        "SELECT id, peer, began_ms, ended_ms, bytes_up, bytes_down FROM presence"
    ):
        found[peer].append(
            PeerPresence(
                began_ms=began_ms,
                ended_ms=ended_ms,
                bytes_up=up,
                bytes_down=down,
                standby_s=standby.get(stay, 0.0),
                energy=energy[stay],
            )
        )
    return found


def _leases(db: sqlite3.Connection) -> defaultdict[str, dict[str, int]]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for peer, status, number in db.execute("SELECT peer, status, count(*) FROM leases GROUP BY peer, status"):
        found[peer][status] = number
    return found


def _counts(ended: Mapping[str, int], late: int, recalled: int, recalled_rollouts: int) -> LeaseCounts:
    counts = LeaseCounts(
        issued=sum(ended.values()), late=late, recalled=recalled, recalled_rollouts=recalled_rollouts, **ended
    )
    return replace(counts, returned=counts.returned - recalled)


def _recalled(db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """Leases by peer that were returned because they had been recalled, and their rollouts."""
    if not has_table(db, "recalled"):
        return {}
    rows = db.execute("SELECT peer, count(*), sum(rollouts) FROM recalled JOIN leases USING (lease) GROUP BY peer")
    return {peer: (leases, rollouts) for peer, leases, rollouts in rows}


def _late(db: sqlite3.Connection) -> dict[str, int]:
    """Delivered leases by peer that came after their deadline, or after they had been withdrawn."""
    return dict(
        db.execute(
            "SELECT l.peer, count(DISTINCT r.lease) FROM records r JOIN leases l USING (lease)"
            " WHERE r.rule IN (?, ?) AND l.status = 'delivered' AND l.peer = r.peer GROUP BY l.peer",
            (Rule.LATE.value, Rule.UNKNOWN_LEASE.value),
        )
    )


def _verdicts(db: sqlite3.Connection) -> defaultdict[str, dict[Rule, int]]:
    found: defaultdict[str, dict[Rule, int]] = defaultdict(dict)
    for peer, rule, number in db.execute("SELECT peer, rule, count(*) FROM records GROUP BY peer, rule"):
        found[peer][Rule(rule)] = found[peer].get(Rule(rule), 0) + number
    return found


def _relayed(db: sqlite3.Connection) -> dict[str, int]:
    """Credited bytes by relay."""
    if not has_table(db, "relayed"):
        return {}
    return dict(db.execute("SELECT relay, sum(bytes) FROM relayed GROUP BY relay"))


def _fates(db: sqlite3.Connection) -> str:
    """What of `records r` was dropped, `d`; of an episode all turns were, in the name of its group's first lease."""
    if not has_table(db, "continuations"):
        return "LEFT JOIN dropped d USING (lease)"
    return "LEFT JOIN continuations c USING (lease) LEFT JOIN dropped d ON d.lease = coalesce(c.root, r.lease)"


def _later_turns(db: sqlite3.Connection) -> int:
    """Admitted records that went on with an episode."""
    if not has_table(db, "continuations"):
        return 0
    rows = db.execute("SELECT count(*) FROM records JOIN continuations USING (lease) WHERE rule = 'admitted'")
    return int(rows.fetchone()[0])


def _uninformative(db: sqlite3.Connection) -> int:
    """Admitted records whose group was dropped since it teaches nothing."""
    (count,) = db.execute(
        f"SELECT count(*) FROM records r {_fates(db)} WHERE r.rule = 'admitted' AND d.reason = ?",
        (UNINFORMATIVE,),
    ).fetchone()
    return int(count)


def _work(db: sqlite3.Connection) -> defaultdict[str, Row]:
    """By peer: tokens that count for it, records trained on, and records that were dropped."""
    found: defaultdict[str, Row] = defaultdict(lambda: (0, 0, 0))
    for peer, *sums in db.execute(
        "SELECT r.peer, sum(r.tokens), sum(r.step IS NOT NULL), sum(d.lease IS NOT NULL)"
        f" FROM records r {_fates(db)} WHERE r.rule = 'admitted' GROUP BY r.peer"
    ):
        found[peer] = tuple(sums)
    for peer, tokens in _orphaned(db).items():
        admitted, *rest = found[peer]
        found[peer] = (admitted + tokens, *rest)
    return found


def _orphaned(db: sqlite3.Connection) -> dict[str, int]:
    """Tokens by peer that count although a restart of the learner orphaned them."""
    if not has_table(db, "orphans"):
        return {}
    return dict(db.execute("SELECT l.peer, sum(o.tokens) FROM orphans o JOIN leases l USING (lease) GROUP BY l.peer"))
