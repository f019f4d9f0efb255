"""Export a plan as JSON, for programs.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency`, times are in seconds, rates in admitted rollouts per second, and shares in
[0, 1]. A null means that there is no value.

format, currency, feasible, staleness, terms {train_s, rollouts, broadcast_s, broadcast_from, generation_s, source_s,
learner_price, kappa, margin, ahead, stands_s}, pool [{name, count, price, rate, rate_at_least, broadcast_s,
generation_s, rho}], windows [{staleness, ours, everyone}], changes [{what, machine, outcome}],
remedies {times, rollouts, train_s, broadcast, staleness}, measured. With --compare-echo2 also greedy, and paper in each
of the windows.

An outcome (`ours`, `greedy`, `everyone`, `paper.outcome`): kappa, kappas, machines {name: count}, exact, rate, asked,
over_balance, price, cost_per_step, period_s, wait_s, bubble, lag, lag_bound, shown_by_run (the measured run had these
machines and hardly waited; by their rates they would be too few, or others would cost more). `ours` where machines are
too few: share, rate, needed, is_overtaken. `paper`: kappa, mu_min, target, outcome.

`measured`, null without --from: source, mode, runs, seconds, staleness, kappa, train_s, broadcast_s, generation_s,
peers [{name, price, rate, rate_at_least, broadcast_s, generation_s}], silent, last_step (the last training step that
ended while a peer was connected; the run was read up to it), steps_alone (steps after that one), steps, steps_left_out,
bubble, lag, lags {lag: count}, stale_share, run {wall_s, a number for each kind in seconds, utilisation, blocked,
bubble} (of the whole recording, start and end included), late_steps, late_bubble, late_lag (of the last steps, for
which the prediction is made), predicted_bubble, predicted_lag. An estimate: value, low, high (null: open), count.
`rate_at_least`: the machine may be faster than `rate`, because the run never kept it busy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from learner.provisioning.model.windows import Infeasible, Outcome, Window
from node.commands.plan.measured_run import Measured
from node.commands.plan.plan import Plan
from node.reports.machine_formats import named, plain
from node.reports.model.time_words import as_values

FORMAT = "volery-plan/1"


def as_json(plan: Plan) -> str:
    """Return the plan as indented JSON, with the keys that the docstring above lists."""
    return json.dumps(plain(_plan(plan)), indent=2) + "\n"


def _plan(plan: Plan) -> dict[str, Any]:
    comparison = plan.comparison
    found = {
        "format": FORMAT,
        "currency": plan.terms.currency,
        "feasible": plan.is_feasible,
        "staleness": plan.terms.staleness,
        "terms": _terms(plan),
        "pool": list(_pool(plan)),
        "windows": [_window(plan, window) for window in plan.windows],
        "changes": [
            {
                "what": change.what,
                "machine": plan.terms.kinds.get(change.machine),
                "outcome": _outcome(plan, change.outcome),
            }
            for change in plan.changes
        ],
        "remedies": plan.remedies,
        "measured": _measured(plan.measured) if plan.measured else None,
    }
    return found if comparison is None else found | {"greedy": _outcome(plan, comparison.greedy)}


def _terms(plan: Plan) -> dict[str, Any]:
    setting = plan.terms.setting
    others = named(setting, "source_s learner_price kappa margin ahead stands_s")
    return asdict(setting.timings) | {"broadcast_from": plan.terms.broadcast} | others


def _pool(plan: Plan) -> Iterator[dict[str, Any]]:
    first = {plan.terms.kinds[one.name]: one for one in reversed(plan.terms.setting.candidates)}
    for name, count in plan.pool.items():
        yield {
            "name": name,
            "count": count,
            "price": first[name].running_price,
            "rate": first[name].usable_rate,
            "rate_at_least": first[name].is_least,
            **named(first[name], "broadcast_s generation_s rho"),
        }


def _window(plan: Plan, window: Window) -> dict[str, Any]:
    found = {
        "staleness": window.staleness,
        "ours": _outcome(plan, window.ours),
        "everyone": _outcome(plan, window.everyone),
    }
    if plan.comparison is None:
        return found
    paper = plan.comparison.windows[window.staleness]
    told = paper and named(paper, "kappa mu_min target") | {"outcome": _outcome(plan, paper.outcome)}
    return found | {"paper": told}


def _outcome(plan: Plan, outcome: Outcome | Infeasible | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    if isinstance(outcome, Infeasible):
        return named(outcome, "share rate needed is_overtaken")
    return {
        "kappa": outcome.kappa,
        "kappas": outcome.kappas,
        "machines": plan.kinds(outcome.choice),
        "exact": outcome.choice.exact,
        "rate": outcome.choice.rate,
        **named(outcome, "asked over_balance price cost_per_step period_s wait_s"),
        **named(outcome, "bubble lag lag_bound"),
        "shown_by_run": outcome.is_shown,
    }


def _measured(measured: Measured) -> dict[str, Any]:
    steady, late, predicted = measured.steady, measured.late, measured.predicted
    return {
        **named(measured, "source runs seconds kappa silent"),
        "mode": measured.began.mode,
        "staleness": measured.began.staleness,
        "last_step": measured.step,
        "steps_alone": measured.alone,
        **named(measured, "train_s broadcast_s generation_s"),
        "peers": [
            named(one, "name price rate broadcast_s generation_s") | {"rate_at_least": one.is_rate_least}
            for one in measured.peers
        ],
        "steps": steady.count,
        "steps_left_out": measured.left_out,
        "run": as_values(measured.time),
        "late_steps": late.count,
        "late_bubble": late.bubble,
        "late_lag": late.lag,
        **named(steady, "bubble lag lags stale_share"),
        "predicted_bubble": predicted and predicted.bubble,
        "predicted_lag": predicted and predicted.lag,
    }
