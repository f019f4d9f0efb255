"""Reports for programs: JSON and CSV.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency` (and exactly in `cost_micros`), times in seconds (points in time: milliseconds
since 1970, UTC), shares in [0, 1], sizes in bytes; null is not known from here.

JSON of a swarm: format, kind ("swarm"), swarm (hex), started_ms, ended_ms, wall_s, mode, staleness_bound, totals
{admitted, rejected, verdicts {rule: count}, trained, dropped, uninformative, later_turns, tokens, bytes_up,
bytes_down, bytes_relayed, recalled_rollouts, costs {currency: amount}, learner_costs {currency: amount},
cents_per_1000_tokens {currency: cents}, kwh, versions_published, steps, incarnations,
weight_bytes, learner_utilisation, bubble, mean_train_s, mean_waited_s, mean_step_s, verifying_s {"audits", "choices":
seconds of an engine}, verifying_share, banned, quarantined}, lag_histogram {lag: count},
incarnations [{incarnation, base, at_s}], evaluations [{version, at_s, prompts, greedy, sampled, survives, samples,
pass_at {k: share}, tasks {task: {metric: value}}}], versions [{version, at_s, total_bytes, new_bytes}], steps [{step,
incarnation, at_s, waited_s, train_s, rollouts, tokens, reward, metrics {name: figure, by_lag}}], checkpoints (those
that are kept, from the oldest on) [{step, incarnation, at_s, evaluated (the step of the version whose scores follow),
greedy, sampled}], plans [{at_s, kappa, active [peer], price_per_hour, reasons}], objective {recent {name: figure},
by_lag {lag: {tokens, name: figure}}} of the last 32 steps, alarms [{alarm, began, ended, said}], nodes_unable {text,
nodes, of}, troubles [{peer, kind, version, times, reason, since_ms, ended_ms}] (what peers said that they cannot do),
fruitless {leases, span_s} or null (leases since the last record, where none brings one), cost_terms, accounts {runs
[account], days [account], versions [account]}, peers [peer].

An account: name (of a run: incarnation; of a day: its date, UTC; of a version: that, from its publication on, or
"before" the first), began_s, ended_s, hours_active, hours_standby, costs {currency: amount}, costs_micros {currency:
millionths}, learner_costs {currency: amount}, kwh, joules, electricity, bytes_up, bytes_down, tokens,
cents_per_1000_tokens {currency: cents}. The learner is counted in. Those of each kind add up to the totals.

cost_terms: currency, per_kwh, reference {name, per_hour, tokens_per_s, cents_per_1000_tokens} or null.

JSON of a node's own work: format, kind ("own"), peer, receipts, oldest, newest, refused [{lease, index, rule, detail,
at_ms}], traffic [{peer, bytes_up, bytes_down}], reputed_ms (when the learner said how it stands, or null),
cost_terms.

A peer: peer, name, role, engine, machine, leases {issued, open, delivered, in_time, late, expired, returned, lost,
recalled, recalled_rollouts}, admitted, rejected, verdicts {rule: count}, admitted_per_s, tokens, trained, dropped,
share, bytes_up, bytes_down, bytes_relayed, hours_active, hours_standby, engine_s, price_per_hour, currency, cost,
cost_micros, cost_per_1000_tokens, cents_per_1000_tokens (hundredths of the currency's unit), share_of_reference, kwh,
joules, energy {source: joules}, joules_disbelieved, electricity, first_seen_ms, last_seen_ms, reputation {availability,
timeliness, honesty, score, soundness, service, band, strikes [text]}, null of a learner, which has none.

CSV: a header and one row per peer, in the same words; leases, verdicts and reputation are spread over columns, and so
are joules by source. Of accounts (`--by`): a row for each and currency, with `cost`, `learner_cost` in it.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node.reports.model.audits import PeerAudits
from node.reports.model.costs import Account, CostTerms, cents_per_thousand, money_for
from node.reports.model.objective_figures import by_lag, recent, spells
from node.reports.model.report import OwnReport, PeerReport, Role, SwarmReport
from node.reports.model.verdict_meanings import REFUSALS
from node.reports.text.cost_table import KINDS, accounts
from node.runtime.formatting import plain_name
from protocol.accounting.claims import JOULES_PER_KWH, MICROS, EnergySource
from protocol.accounting.reputation import Reputation

FORMAT = "volery-report/1"
HOUR_MS = 3_600_000

LEASE_FATES = (
    "issued",
    "open",
    "delivered",
    "in_time",
    "late",
    "expired",
    "returned",
    "lost",
    "recalled",
    "recalled_rollouts",
)
SCORES = ("availability", "timeliness", "honesty", "score", "soundness", "service")

FORMULA_STARTS = ("=", "+", "-", "@")
"""A spreadsheet would run a cell that begins so as a formula, and names are chosen by strangers."""


def as_json(report: SwarmReport | OwnReport) -> str:
    """The report as indented JSON, keys as in the module's paragraph."""
    match report:
        case SwarmReport():
            return json.dumps(_swarm(report), indent=2) + "\n"
        case OwnReport():
            return json.dumps(_own(report), indent=2) + "\n"


def as_csv(report: SwarmReport | OwnReport) -> str:
    """One row per peer below a header, RFC 4180."""
    return _table(CSV_COLUMNS, [_flat(peer, report.terms) for peer in report.peers])


def accounts_as_csv(report: SwarmReport, kind: str) -> str:
    """One row per account of this kind (of `node.reports.text.cost_table.KINDS`) and currency, below a header."""
    rows = [row for account in accounts(report, kind) for row in _flat_account(account, report.terms)]
    return _table(ACCOUNT_COLUMNS, rows)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=columns)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _swarm(report: SwarmReport) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "swarm",
        "swarm": report.swarm.hex(),
        "started_ms": report.started_ms,
        "ended_ms": report.ended_ms,
        "wall_s": report.wall_s,
        "mode": report.mode,
        "staleness_bound": report.staleness,
        "totals": {
            "admitted": report.admitted,
            "rejected": report.rejected,
            "verdicts": {rule.value: number for rule, number in report.verdicts.items()},
            "trained": report.trained,
            "dropped": report.dropped,
            "uninformative": report.uninformative,
            "later_turns": report.later_turns,
            "tokens": report.tokens,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "bytes_relayed": report.bytes_relayed,
            "recalled_rollouts": report.recalled_rollouts,
            "costs": _whole(report.costs),
            "learner_costs": _whole(
                {peer.price.currency: peer.cost_micros for peer in report.peers if peer.role is Role.LEARNER}
            ),
            "cents_per_1000_tokens": {
                currency: cents_per_thousand(micros, report.tokens) for currency, micros in report.costs.items()
            },
            "kwh": _kwh(report.joules),
            "versions_published": len(report.versions),
            "steps": len(report.steps),
            "incarnations": len(report.incarnations),
            "weight_bytes": report.weight_bytes,
            "learner_utilisation": report.utilisation,
            "bubble": report.bubble,
            "mean_train_s": report.mean_train_s,
            "mean_waited_s": report.mean_waited_s,
            "mean_step_s": report.mean_step_s,
            "verifying_s": report.engine_s,
            "verifying_share": report.verifying_share,
            "banned": len(report.banned),
            "quarantined": report.num_quarantined,
        },
        "lag_histogram": {str(lag): number for lag, number in report.lags.items()},
        "incarnations": [{"incarnation": i.number, "base": i.base, "at_s": i.at_s} for i in report.incarnations],
        "evaluations": [
            {
                "version": str(e.version), "at_s": e.at_s, "prompts": e.prompts, "greedy": e.greedy,
                "sampled": e.sampled, "survives": e.survives, "samples": e.samples,
                "pass_at": {str(k): value for k, value in e.pass_at.items()}, "tasks": e.tasks,
            }
            for e in report.evaluations
        ],
        "versions": [
            {"version": str(v.version), "at_s": v.at_s, "total_bytes": v.total_bytes, "new_bytes": v.new_bytes}
            for v in report.versions
        ],
        "steps": [
            {
                "step": s.step, "incarnation": s.incarnation, "at_s": s.at_s, "waited_s": s.waited_s,
                "train_s": s.train_s, "rollouts": s.rollouts, "tokens": s.tokens, "reward": s.reward,
                "metrics": _finite(s.metrics),
            }
            for s in report.steps
        ],
        "checkpoints": [
            {
                "step": c.step, "incarnation": c.incarnation, "at_s": c.at_s, "evaluated": c.evaluated,
                "greedy": c.greedy, "sampled": c.sampled,
            }
            for c in report.checkpoints
        ],
        "plans": [
            {
                "at_s": p.at_s, "kappa": p.kappa, "active": list(p.active),
                "price_per_hour": p.micros_per_hour / MICROS, "reasons": list(p.reasons),
            }
            for p in report.plans
        ],
        "objective": {"recent": recent(report.steps), "by_lag": by_lag(report.steps)},
        "alarms": [
            {"alarm": spell.alarm, "began": spell.began, "ended": spell.ended, "said": spell.said}
            for spell in spells(report.alarms)
        ],
        "nodes_unable": {"text": report.unable.text, "nodes": report.unable.nodes, "of": report.unable.of},
        "troubles": [
            {
                "peer": row.peer, "kind": row.kind, "version": None if row.version is None else str(row.version),
                "times": row.times, "reason": row.reason, "since_ms": row.since_ms, "ended_ms": row.ended_ms,
            }
            for row in report.troubles
        ],
        "fruitless": None
        if report.fruitless is None
        else {"leases": report.fruitless.leases, "span_s": report.fruitless.span_s},
        "cost_terms": _terms(report.terms),
        "accounts": {f"{kind}s": [_account(one, report.terms) for one in accounts(report, kind)] for kind in KINDS},
        "peers": [_peer(peer, report.terms) for peer in report.peers],
    }  # fmt: skip


def _whole(micros: Mapping[str, int]) -> dict[str, float]:
    return {currency: amount / MICROS for currency, amount in micros.items()}


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / JOULES_PER_KWH


def _terms(terms: CostTerms) -> dict[str, Any]:
    reference = terms.reference
    return {
        "currency": terms.currency,
        "per_kwh": terms.per_kwh,
        "reference": None
        if reference is None
        else {
            "name": reference.name,
            "per_hour": reference.per_hour,
            "tokens_per_s": reference.tokens_per_s,
            "cents_per_1000_tokens": 100 * reference.per_1000_tokens,
        },
    }


def _account(account: Account, terms: CostTerms) -> dict[str, Any]:
    return {
        "name": account.name,
        "began_s": account.began_s,
        "ended_s": account.ended_s,
        "hours_active": account.active_ms / HOUR_MS,
        "hours_standby": account.standby_ms / HOUR_MS,
        "costs": _whole(account.costs),
        "costs_micros": dict(account.costs),
        "learner_costs": _whole(account.learners),
        "kwh": _kwh(account.joules),
        "joules": account.joules,
        "electricity": money_for(account.joules, terms.per_kwh),
        "bytes_up": account.bytes_up,
        "bytes_down": account.bytes_down,
        "tokens": account.tokens,
        "cents_per_1000_tokens": dict(account.cents_per_1000_tokens),
    }


def _finite(value: Any) -> Any:
    """`value` without numbers that JSON has none of."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _own(report: OwnReport) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "own",
        "peer": _peer(report.peer, report.terms),
        "cost_terms": _terms(report.terms),
        "receipts": report.receipts,
        "oldest": None if report.oldest is None else str(report.oldest),
        "newest": None if report.newest is None else str(report.newest),
        "reputed_ms": report.reputed_ms,
        "refused": [
            {"lease": r.lease.hex(), "index": r.index, "rule": r.rule.value, "detail": r.detail, "at_ms": r.at_ms}
            for r in report.refused
        ],
        "traffic": [{"peer": t.peer, "bytes_up": t.bytes_up, "bytes_down": t.bytes_down} for t in report.traffic],
    }


def _peer(peer: PeerReport, terms: CostTerms) -> dict[str, Any]:
    return {
        "peer": peer.peer,
        "name": peer.name,
        "role": peer.role.value,
        "engine": peer.engine,
        "machine": peer.machine,
        "leases": {fate: getattr(peer.leases, fate) for fate in LEASE_FATES},
        "admitted": peer.admitted,
        "rejected": peer.rejected,
        "verdicts": {rule.value: number for rule, number in peer.verdicts.items()},
        "admitted_per_s": peer.admitted_per_s,
        "tokens": peer.tokens,
        "trained": peer.trained,
        "dropped": peer.dropped,
        "share": peer.share,
        "bytes_up": peer.bytes_up,
        "bytes_down": peer.bytes_down,
        "bytes_relayed": peer.bytes_relayed,
        "hours_active": peer.hours_active,
        "hours_standby": peer.standby_s / 3600,
        "engine_s": peer.engine_s,
        "price_per_hour": peer.price_per_hour,
        "currency": peer.price.currency,
        "cost": peer.cost,
        "cost_micros": peer.cost_micros,
        "cost_per_1000_tokens": peer.cost_per_1000_tokens,
        "cents_per_1000_tokens": peer.cents_per_1000_tokens,
        "share_of_reference": peer.against(terms.reference, terms.currency),
        "kwh": _kwh(peer.joules),
        "joules": peer.joules,
        "energy": {source.value: joules for source, joules in peer.energy.items()},
        "joules_disbelieved": peer.joules_disbelieved,
        "electricity": money_for(peer.joules, terms.per_kwh),
        "first_seen_ms": peer.first_seen_ms,
        "last_seen_ms": peer.last_seen_ms,
        "audits": None if peer.audits is None else _audits(peer.audits),
        "reputation": None if peer.reputation is None else _reputation(peer.reputation),
    }


def _reputation(found: Reputation) -> dict[str, Any]:
    return {share: getattr(found, share) for share in SCORES} | {
        "band": found.band.value,
        "strikes": [strike.value for strike in found.strikes],
    }


def _audits(audits: PeerAudits) -> dict[str, Any]:
    return {
        "standing": audits.standing.value,
        "audits": audits.audits,
        "failed": audits.failed,
        "tokens": audits.tokens,
        "worst": audits.worst,
        "evidence": audits.evidence,
        "banned": audits.banned,
        "banned_by": None if audits.banned_by is None else audits.banned_by.value,
        "banned_at_s": audits.banned_at_s,
        "unseen": audits.unseen,
    }


CSV_COLUMNS = (
    "peer", "name", "role", "engine", "machine",
    *(f"leases_{fate}" for fate in LEASE_FATES),
    "admitted", "rejected", *(f"rejected_{rule.value}" for rule in REFUSALS),
    "admitted_per_s", "tokens", "trained", "dropped", "share", "bytes_up", "bytes_down", "bytes_relayed",
    "hours_active", "hours_standby", "engine_s", "price_per_hour", "currency",
    "cost", "cost_micros", "cost_per_1000_tokens", "cents_per_1000_tokens", "share_of_reference",
    "kwh", "joules", *(f"joules_{source.value}" for source in EnergySource), "joules_disbelieved", "electricity",
    "first_seen_ms", "last_seen_ms", "standing", "audits", "audits_failed",
    *SCORES, "band",
)  # fmt: skip


ACCOUNT_COLUMNS = (
    "name", "began_s", "ended_s", "hours_active", "hours_standby", "currency", "cost", "cost_micros", "learner_cost",
    "kwh", "joules", "electricity", "bytes_up", "bytes_down", "tokens", "cents_per_1000_tokens",
)  # fmt: skip


def _flat_account(account: Account, terms: CostTerms) -> Iterator[dict[str, Any]]:
    """A row for each currency that anybody asks for, the first where nobody asks for any."""
    row = _account(account, terms)
    for currency in account.costs or (terms.currency,):
        amounts = {
            "currency": currency,
            "cost": account.costs.get(currency, 0) / MICROS,
            "cost_micros": account.costs.get(currency, 0),
            "learner_cost": account.learners.get(currency, 0) / MICROS,
            "cents_per_1000_tokens": cents_per_thousand(account.costs.get(currency, 0), account.tokens),
        }
        yield {column: _inert((row | amounts)[column]) for column in ACCOUNT_COLUMNS}


def _flat(peer: PeerReport, terms: CostTerms) -> dict[str, Any]:
    row = _peer(peer, terms)
    row |= {f"joules_{source}": joules for source, joules in row.pop("energy").items()}
    leases, verdicts, reputation = row.pop("leases"), row.pop("verdicts"), row.pop("reputation") or {}
    if audits := row.pop("audits"):
        row |= {"standing": audits["standing"], "audits": audits["audits"], "audits_failed": audits["failed"]}
    row |= {f"leases_{fate}": number for fate, number in leases.items()} | reputation
    row |= {f"rejected_{rule.value}": verdicts.get(rule.value, 0) for rule in REFUSALS}
    return {column: _inert(row.get(column)) for column in CSV_COLUMNS}


def _inert(value: Any) -> Any:
    """`value` as a spreadsheet shows it rather than runs it; text on one line, without control characters."""
    if not isinstance(value, str):
        return value
    text = plain_name(value, len(value) + 1)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
