"""Write reports for programs, as JSON and CSV.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency` (and exactly in `cost_micros`). Times are in seconds; points in time are in
milliseconds since 1970, UTC. Shares are in [0, 1], sizes in bytes. A null means that the value is not known from here.

JSON of a swarm: format, kind ("swarm"), swarm (hex), started_ms, ended_ms, wall_s, mode, staleness_bound, totals
{admitted, rejected, verdicts {rule: count}, trained, dropped, uninformative, later_turns, tokens, bytes_up, bytes_down,
bytes_relayed, bytes_carried (over circuits through the learner), recalled_rollouts, costs {currency: amount},
learner_costs {currency: amount}, cents_per_1000_tokens {currency: cents}, kwh, versions_published, steps, incarnations,
weight_bytes, learner_utilisation (training over the time that the learner ran), learner_time {wall_s (how long it ran),
seconds by kind, which add up to that, utilisation, blocked (by publication and checkpoints), bubble}, bubble (ECHO-2's:
the share of the time of training steps in which the learner waited for rollouts), away_s (no learner ran, or none that
recorded its time), mean_train_s, mean_waited_s, mean_step_s, verifying_s {"audits", "choices": seconds of an engine},
verifying_share, banned, quarantined}, lag_histogram {lag: count}, incarnations [{incarnation, base, at_s}],
evaluations [{version, at_s, prompts, greedy, sampled, survives, samples, pass_at {k: share}, tasks {task: {metric:
value}}, named {reward: {metric: value}}}], versions [{version, at_s, total_bytes, new_bytes}], steps [{step,
incarnation, at_s, waited_s, train_s, rollouts, tokens, reward, metrics {name: figure, by_lag, rewards {name: mean}}}],
checkpoints (the kept ones, oldest first) [{step, incarnation, at_s, evaluated (the step of the version whose scores
follow), greedy, sampled}], plans [{at_s, kappa, active [peer], price_per_hour, reasons}], objective {recent {name:
figure}, by_lag {lag: {tokens, name: figure}}} of the last 32 steps, alarms [{alarm, began, ended, said}], nodes_unable
{text, nodes, of}, troubles [{peer, kind, version, times, reason, since_ms, ended_ms}] (what peers reported that they
cannot do), reach {text, nodes {kind: count}, pairs {way: count}} (how nodes are reached, and how pairs of them
connected, as they report), pairs [{one, other, way, by (the node that dialled, or null), since_ms, bytes_carried}],
fruitless {leases, span_s} or null (leases since the last record, if none of them brings one), cost_terms, accounts
{runs [account], days [account], versions [account]}, peers [peer].

An account: name (of a run: its incarnation; of a day: its date, UTC; of a version: its name; "before" is the time
before the first version), began_s, ended_s, hours_active, hours_standby, costs {currency: amount}, costs_micros
{currency: millionths}, learner_costs {currency: amount}, kwh, joules, electricity, bytes_up, bytes_down, tokens,
cents_per_1000_tokens {currency: cents}. An account of a version lasts from its publication to the next one. The learner
is included. The accounts of each kind add up to the totals.

cost_terms: currency, per_kwh, reference {name, per_hour, tokens_per_s, cents_per_1000_tokens} or null.

JSON of a node's own work: format, kind ("own"), peer, receipts, oldest, newest, refused [{lease, index, rule, detail,
at_ms}], traffic [{peer, bytes_up, bytes_down}] (chunks), sent_bytes, received_bytes (all data; null if the node
never counted it), reputed_ms (when the learner stated the node's reputation, or null),
cost_terms.

A peer: peer, name, role, engine, machine, leases {issued, open, delivered, in_time, late,
expired, returned, lost, recalled, recalled_rollouts}, admitted, rejected, verdicts {rule: count}, admitted_per_s,
tokens, trained, dropped, share, bytes_up, bytes_down, bytes_relayed, hours_active, hours_standby, engine_s,
price_per_hour, currency, cost, cost_micros, cost_per_1000_tokens, cents_per_1000_tokens (hundredths of the currency's
unit), share_of_reference, kwh, joules, energy {source: joules}, joules_disbelieved, electricity, first_seen_ms,
last_seen_ms, reputation {availability, timeliness, honesty, score, soundness, service, band, strikes [text]} (null for
a learner, which has none), reach {kind, verdict, why, since_s, learner (how it and the learner connected), dialled,
dialled_back, punched, over_circuit (neighbours by the way in which they connected), bytes_carried} (null if it reported
nothing), scored {groups, tokens, refused (groups)} of a teacher, else null.

CSV: a header and one row per peer, with the same names. Leases, verdicts, reputation and joules by source are spread
over columns. CSV of accounts (`--by`): a row for each account and currency, with `cost`, and `learner_cost` as a part
of it.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from msgspec import Struct

from node.reports.model.costs import Account, CostTerms, cents_by_currency, kwh_of
from node.reports.model.objective_figures import by_lag, recent, spells
from node.reports.model.report import OwnReport, PeerReport, SwarmReport
from node.reports.model.time_words import as_values
from node.reports.text import cost_table, peer_columns
from node.reports.text.columns import Column, Row, attribute
from node.runtime.formatting import plain_name
from protocol.accounting.claims import MICROS
from protocol.core.ids import PolicyVersion

FORMAT = "volery-report/2"
"""Format 1 divided training time by training and waiting alone, and called that utilisation."""

FORMULA_STARTS = ("=", "+", "-", "@")
"""A spreadsheet would run a cell with such a beginning as a formula, and strangers choose names."""


def as_json(report: SwarmReport | OwnReport) -> str:
    """Return the report as indented JSON, with the keys of the module's docstring."""
    match report:
        case SwarmReport():
            return json.dumps(plain(_swarm(report)), indent=2) + "\n"
        case OwnReport():
            return json.dumps(plain(_own(report)), indent=2) + "\n"


def as_csv(report: SwarmReport | OwnReport) -> str:
    """Return one row per peer below a header, as RFC 4180 has it."""
    return _table(_peer_columns(report), report.peers)


def accounts_as_csv(report: SwarmReport, kind: str) -> str:
    """Return one row per account of this kind (a key of `Accounts.kinds`) and currency, below a header. If no peer asks
    for money, the row is of the first currency."""
    rows = [
        replace(one, costs={currency: one.costs.get(currency, 0)}, learners={currency: one.learners.get(currency, 0)})
        for one in report.accounts.kinds[kind]
        for currency in one.costs or (report.terms.currency,)
    ]
    return _table(_account_columns(report), rows)


def _peer_columns(report: SwarmReport | OwnReport) -> list[Column[PeerReport]]:
    return [one for one in peer_columns.peer_columns(report) if one.key not in peer_columns.ONLY_TABLES]


def _account_columns(report: SwarmReport) -> list[Column[Account]]:
    return [one for one in cost_table.account_columns(report) if one.key not in cost_table.ONLY_TABLES]


def _table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=[header for column in columns for header in _cells(column, None)])
    writer.writeheader()
    writer.writerows({key: cell for column in columns for key, cell in _cells(column, row).items()} for row in rows)
    return out.getvalue()


def _cells(column: Column[Row], row: Row | None) -> dict[str, Any]:
    """Return the cells of CSV that a column fills for a row, by header."""
    value = None if row is None else plain(column.of(row))
    if column.spread is not None:
        return {header: _inert(cell) for header, cell in column.spread(value or {}).items()}
    header = column.key.replace(".", "_") if column.header is None else column.header
    return {header: _inert(value)} if header else {}


def _inert(value: Any) -> Any:
    """Return `value` so that a spreadsheet shows it and does not run it: text on one line, no control characters."""
    if not isinstance(value, str):
        return value
    text = plain_name(value, len(value) + 1)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _object(columns: Sequence[Column[Row]], row: Row) -> dict[str, Any]:
    """Return a row of JSON. An object within it is null if the row has none."""
    told: dict[str, Any] = {}
    for column in columns:
        group, _, name = column.key.rpartition(".")
        if not group:
            told[name] = column.of(row)
        elif attribute(row, group) is None:
            told[group] = None
        else:
            told.setdefault(group, {})[name] = column.of(row)
    return told


def plain(value: Any) -> Any:
    """Return `value` as JSON: fields of a dataclass or struct in their order, names of enums, bytes in hex, and null
    for numbers that JSON does not have."""
    match value:
        case Enum():
            return plain(value.value)
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case PolicyVersion():
            return str(value)
        case Mapping():
            return {key.value if isinstance(key, Enum) else key: plain(one) for key, one in value.items()}
        case tuple() | list():
            return [plain(one) for one in value]
        case Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case _ if is_dataclass(value):
            return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def named(value: Any, names: str) -> dict[str, Any]:
    """Return the attributes of these names, by name."""
    return {name: attribute(value, name) for name in names.split()}


def _swarm(report: SwarmReport) -> dict[str, Any]:
    peers, accounts = _peer_columns(report), _account_columns(report)
    return {
        "format": FORMAT,
        "kind": "swarm",
        **named(report, "swarm started_ms ended_ms wall_s mode"),
        "staleness_bound": report.staleness,
        "totals": _totals(report),
        "lag_histogram": report.lags,
        "incarnations": [
            {"incarnation": one.number, "base": one.base, "at_s": one.at_s} for one in report.incarnations
        ],
        **named(report, "evaluations versions steps checkpoints"),
        "plans": [
            {**named(one, "at_s kappa active"), "price_per_hour": one.micros_per_hour / MICROS, "reasons": one.reasons}
            for one in report.plans
        ],
        "objective": {"recent": recent(report.steps), "by_lag": by_lag(report.steps)},
        "alarms": spells(report.alarms),
        "nodes_unable": named(report.unable, "text nodes of"),
        "troubles": report.troubles,
        "reach": {"text": report.reach.text, "nodes": report.reach.kinds, "pairs": report.reach.ways},
        "pairs": report.pairs,
        "fruitless": None if report.fruitless is None else named(report.fruitless, "leases span_s"),
        "cost_terms": _terms(report.terms),
        "accounts": {
            f"{kind}s": [_object(accounts, one) for one in rows] for kind, rows in report.accounts.kinds.items()
        },
        "peers": [_object(peers, peer) for peer in report.peers],
    }


def _totals(report: SwarmReport) -> dict[str, Any]:
    return {
        **named(report, "admitted rejected verdicts trained dropped uninformative later_turns tokens"),
        **named(report, "bytes_up bytes_down bytes_relayed bytes_carried recalled_rollouts"),
        "costs": cost_table.whole(report.costs),
        "learner_costs": cost_table.whole(report.learner_costs),
        "cents_per_1000_tokens": cents_by_currency(report.costs, report.tokens),
        "kwh": kwh_of(report.joules),
        "versions_published": len(report.versions),
        "steps": len(report.steps),
        "incarnations": len(report.incarnations),
        "weight_bytes": report.weight_bytes,
        "learner_utilisation": report.utilisation,
        "learner_time": as_values(report.learner_time),
        **named(report, "bubble away_s mean_train_s mean_waited_s mean_step_s"),
        "verifying_s": report.engine_s,
        "verifying_share": report.verifying_share,
        "banned": len(report.banned),
        "quarantined": report.num_quarantined,
    }


def _terms(terms: CostTerms) -> dict[str, Any]:
    reference = terms.reference
    return {
        **named(terms, "currency per_kwh"),
        "reference": None
        if reference is None
        else {
            **named(reference, "name per_hour tokens_per_s"),
            "cents_per_1000_tokens": 100 * reference.per_1000_tokens,
        },
    }


def _own(report: OwnReport) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "own",
        "peer": _object(_peer_columns(report), report.peer),
        "cost_terms": _terms(report.terms),
        **named(report, "receipts oldest newest reputed_ms refused traffic sent_bytes received_bytes"),
    }
