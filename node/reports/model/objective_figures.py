"""Derive the objective's numbers from a run's steps: the latest values, the same by lag, and the alarms. Pure.

Invariants:

- Means over steps are weighted by tokens.
- A value that no step has is left out, as in ledgers from before it was measured.
- Alarms follow the rules of a running learner (`learner.monitoring.alarms`), computed again from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learner.monitoring.alarms import Change, alarms
from node.reports.model.report import Evaluation, Step

RECENT = 32
"""Number of steps that count as recent: the alarms' own window."""

ALARM_STEPS = 10_000
"""Newest steps that are searched for alarms, which takes a second and a half."""

FIGURES = ("entropy", "mismatch_kl", "ess", "weight_ess", "clip_share", "grad_norm", "mean_ratio", "max_log_ratio")
"""Metrics of a step that a report shows, in this order."""

AT_LAG = ("ratio", "kl", "clip_share", "ess", "entropy")
"""Metrics of one lag, weighted by its tokens."""


@dataclass(frozen=True, kw_only=True)
class Spell:
    """An alarm, from the step that raised it to the step that cleared it; None while it is active."""

    alarm: str
    began: int
    ended: int | None
    said: str


def recent(steps: Sequence[Step]) -> dict[str, float]:
    """Return the means of FIGURES over the last RECENT steps, weighted by trained tokens; missing ones are left out."""
    return _means((step.metrics, _number(step.metrics, "trained_tokens")) for step in steps[-RECENT:])


def by_lag(steps: Sequence[Step]) -> dict[str, dict[str, float]]:
    """Return by lag, in order: `tokens` of the last RECENT steps, the means of AT_LAG, and the mean `reward`."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps[-RECENT:]:
        for lag, figures in step.metrics.get("by_lag", {}).items():
            rows.setdefault(lag, []).append(figures)
    found = {}
    for lag in sorted(rows, key=lambda lag: (not lag.isdecimal(), int(lag) if lag.isdecimal() else 0)):
        weighed = [(figures, _number(figures, "tokens")) for figures in rows[lag]]
        rewards = [figures["reward"] for figures in rows[lag] if "reward" in figures]
        mean_reward = {"reward": sum(rewards) / len(rewards)} if rewards else {}
        found[lag] = {"tokens": sum(tokens for _, tokens in weighed), **_means(weighed, AT_LAG), **mean_reward}
    return found


def _means(rows: Iterable[tuple[Mapping[str, Any], float]], names: Sequence[str] = FIGURES) -> dict[str, float]:
    kept = list(rows)
    found = {}
    for name in names:
        values = [(row[name], weight) for row, weight in kept if isinstance(row.get(name), int | float)]
        if weight := sum(weight for _, weight in values):
            found[name] = sum(value * weight for value, weight in values) / weight
    return found


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def changes_of(steps: Sequence[Step], scores: Sequence[Evaluation], diverged: Mapping[int, int]) -> tuple[Change, ...]:
    """Return the alarms of a run. `diverged`: batches dropped before each step because their loss was infinite."""
    left = list(scores)
    rows = []
    for step in steps[-ALARM_STEPS:]:
        row = {**step.metrics, "step": step.step, "reward": step.reward}
        row["diverged"] = int(row.get("diverged", 0)) + diverged.get(step.step, 0)
        while left and left[0].at_s <= step.at_s:
            score = left.pop(0)
            row |= {"evaluation": score.sampled, "evaluated_on": score.prompts * score.samples}
        rows.append(row)
    return tuple(alarms(rows))


def spells(changes: Sequence[Change]) -> list[Spell]:
    """Return alarms with their beginnings and ends, oldest first."""
    found: list[Spell] = []
    for number, change in enumerate(changes):
        if change.raised:
            rest = changes[number + 1 :]
            ended = next((later.step for later in rest if later.alarm is change.alarm and not later.raised), None)
            found.append(Spell(alarm=change.alarm.value, began=change.step, ended=ended, said=change.said))
    return found
