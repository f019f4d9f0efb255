"""Raise and clear alarms about training before it collapses, from the numbers of training steps.

A pure core. Importance ratios spread before the reward falls, and the reward of lagged rollouts hides the fall: arXiv
2510.01161 (M2PO), 2503.14476 (DAPO, section 3.1: entropy).

    for change in alarms(rows): print(change.step, change.said)        # rows: mappings, as a learner's `steps` hold

Invariants:

- It reads only the trainer's own numbers and rewards, which every run has.
- It learns what is usual from the run itself, by medians and the median absolute deviation (MAD), so one odd step
  changes nothing.
- An alarm is raised when its rule holds for `confirm` measured steps in a row. It is cleared after `calm` steps below
  half of what raises it, so it does not flap.
- HISTORY bounds the memory.
- It never changes training. It tells people what to do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from learner.monitoring.rules import RULES
from learner.monitoring.thresholds import ADVICE, LIMITS, Alarm, AtLag, Finding, Limits, Observation

HISTORY = 64
"""Steps remembered: twice the window from which a trend is read."""


COUNTED = frozenset({Alarm.BATCHES_DROPPED, Alarm.NOTHING_LEARNT})
"""Alarms that count something and estimate nothing, so that one step is enough to raise them."""

OF_TOKENS = frozenset(
    {
        *("clip_share", "mean_ratio", "max_ratio", "max_log_ratio", "mismatch_kl", "entropy", "reference_kl", "ess"),
        *("weight_ess", "masked_share", "loss", "grad_norm"),
    }
)
"""Numbers of a step that are over its trained tokens. If there were none, a trainer reports 0."""


OF_A_LAG = frozenset({"tokens", "kl", "clip_share", "ratio", "ess"})
"""Numbers of one lag from which those of several lags are computed."""


AS_CALLED = (
    *("reward", "reward_error", "difficulty", "evaluation", "evaluated_on", "entropy", "clip_share", "grad_norm"),
    *("borne_kl", "borne_ess"),
)
"""Numbers that have the same name in an observation and in a step."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """An alarm was raised at `step`, or cleared. `said` is one paragraph: what was measured, what is usual, what to
    do."""

    step: int
    alarm: Alarm
    raised: bool
    measured: float
    usual: float
    said: str


@dataclass(kw_only=True)
class AlarmMonitor:
    """The alarms of one run. `raised` has those that stand, in the order in which they were raised."""

    limits: Limits = LIMITS
    raised: dict[Alarm, Change] = field(default_factory=dict)
    _steps: deque[Observation] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _bad: dict[Alarm, int] = field(default_factory=dict)
    _calm: dict[Alarm, int] = field(default_factory=dict)

    def handle(self, seen: Observation) -> list[Change]:
        """Take in one step; return the alarms that it raised or cleared."""
        self._steps.append(seen)
        steps = tuple(self._steps)
        return [change for alarm, rule in RULES.items() if (change := self._judge(alarm, rule(steps, self.limits)))]

    def without_a_step(self, step: int, batches: float, reward: float | None) -> list[Change]:
        """Raise an alarm if, since training step `step`, groups for so many `batches` arrived that teach nothing. No
        batch takes such groups, so there is no step that could show it. `reward` is the newest mean reward. Return what
        changed.

        Like every alarm, it is cleared by steps.
        """
        if batches < self.limits.barren or Alarm.NOTHING_LEARNT in self.raised:
            return []
        mean = "unknown" if reward is None else f"{reward:.3f}"
        said = (
            f"Groups for {batches:.0f} batches arrived in a row in which all rewards of a group were equal "
            f"(mean reward {mean} in the newest), so no batch takes them: nothing can be learnt from them."
        )
        self._calm[Alarm.NOTHING_LEARNT] = 0
        return [self._raise(step, Alarm.NOTHING_LEARNT, batches, 0.0, said)]

    def _judge(self, alarm: Alarm, found: Finding | None) -> Change | None:
        severity = 0.0 if found is None else found.severity
        if found is not None:  # a step without a measurement does not break a row
            self._bad[alarm] = self._bad.get(alarm, 0) + 1 if severity >= 1 else 0
        self._calm[alarm] = self._calm.get(alarm, 0) + 1 if severity < 0.5 else 0
        confirm = 1 if alarm in COUNTED else self.limits.confirm
        if alarm not in self.raised and found is not None and self._bad[alarm] >= confirm:
            return self._raise(self._steps[-1].step, alarm, found.measured, found.usual, found.said)
        if alarm in self.raised and self._calm[alarm] >= self.limits.calm:
            over = f"{alarm.value.replace('_', ' ')}: for {self.limits.calm} steps at less than half of what raises it."
            return replace(self.raised.pop(alarm), step=self._steps[-1].step, raised=False, said=over)
        return None

    def _raise(self, step: int, alarm: Alarm, measured: float, usual: float, said: str) -> Change:
        self.raised[alarm] = change = Change(
            step=step, alarm=alarm, raised=True, measured=measured, usual=usual, said=f"{said} {ADVICE[alarm]}"
        )
        return change


def alarms(rows: Iterable[Mapping[str, Any]], limits: Limits = LIMITS) -> list[Change]:
    """Return all changes over recorded steps, oldest first. Each row is as `observation` takes it."""
    watchman = AlarmMonitor(limits=limits)
    return [change for row in rows for change in watchman.handle(observation(row))]


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's numbers, without those over tokens if there was no token. An `ess` of 0 means the same, since
    weights of any tokens have an effective size."""
    is_empty = row.get("trained_tokens") == 0 or row.get("ess") == 0
    return {name: value for name, value in row.items() if not (is_empty and name in OF_TOKENS)}


def without_logs(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a step's numbers, with `mismatch_kl`, `clip_share` and `ess` over the swarm's tokens only. How far logged
    tokens are from the policy depends neither on lag nor on an engine."""
    by_lag = row.get("by_lag", {})
    if "offline" not in by_lag:
        return row
    own = [told for lag, told in by_lag.items() if lag.isdecimal() and told.keys() >= OF_A_LAG and told["tokens"] > 0]
    rest = {name: value for name, value in row.items() if name not in ("mismatch_kl", "clip_share", "ess")}
    if not own:
        return rest
    tokens = sum(told["tokens"] for told in own)
    kl, clip_share, ratio = (
        sum(told["tokens"] * told[name] for told in own) / tokens for name in ("kl", "clip_share", "ratio")
    )
    # The effective size is mean(r)^2 / mean(r^2), for each lag and over all of them.
    squares = sum(told["tokens"] * told["ratio"] ** 2 / told["ess"] for told in own if told["ess"] > 0) / tokens
    return {**rest, "mismatch_kl": kl, "clip_share": clip_share, "ess": ratio**2 / squares if squares else 0.0}


def observation(row: Mapping[str, Any]) -> Observation:
    """Return the observation of a step's numbers. These are as the trainer reports them, with `step` and `reward`, and
    with `evaluation`, its number of completions (`evaluated_on`) and `diverged` if there are any.

    Missing keys, and numbers that are not finite, count as not measured.
    """
    taught = _taught(row)
    row = without_logs(known(row))
    return Observation(
        step=int(row.get("step", row.get("steps", 0))),
        taught=taught,
        kl=_figure(row, "mismatch_kl"),
        lag=_figure(row, "mean_lag"),
        effective=_figure(row, "ess"),
        by_lag={int(lag): _at_lag(told) for lag, told in row.get("by_lag", {}).items() if lag.isdecimal()},
        diverged=int(row.get("diverged", 0)),
        **{name: _figure(row, name) for name in AS_CALLED},
    )


def _taught(row: Mapping[str, Any]) -> float | None:
    """Return the share of the completions that had an advantage. For a step that does not report it, return 0 if it
    trained on no token."""
    told = _figure(row, "with_advantage")
    return 0.0 if told is None and row.get("trained_tokens") == 0 else told


def _at_lag(told: Mapping[str, Any]) -> AtLag:
    return AtLag(tokens=_figure(told, "tokens") or 0.0, kl=_figure(told, "kl"), reward=_figure(told, "reward"))


def _figure(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
