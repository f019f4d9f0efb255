"""The rules behind the alarms (`learner.alarms`): what each measures, what is usual, from where on it is an alarm, and
what to do then.

Pure functions of the newest steps. Every threshold is in `Limits`, with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

SIGMA_PER_MAD = 1.4826
"""The MAD of a normal distribution times this is its standard deviation."""


class Alarm(Enum):
    """What may be wrong. The value is its name in events, metrics and reports."""

    ENTROPY_FALLS = "entropy_falls"
    ENTROPY_RISES = "entropy_rises"
    ENGINE_MISMATCH = "engine_mismatch"
    TOO_STALE = "too_stale"
    FEW_EFFECTIVE = "few_effective_tokens"
    CLIPPED = "clipped"
    GRADIENT_SPIKES = "gradient_spikes"
    REWARD_FALLS = "reward_falls"
    HIDDEN_FALL = "hidden_fall"
    BATCHES_DROPPED = "batches_dropped"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every threshold. Spreads are in MAD-based standard deviations; `relative` ones in shares of what is usual."""

    confirm: int = 2
    """One bad step is a bad batch; at two in a row a run that collapses still has most of its reward."""

    calm: int = 8
    """Steps below half before an alarm is cleared: longer than the medians remember."""

    recent: int = 4
    """The newest steps, whose median is compared with the course of those before them."""

    window: int = 32
    """Steps that a course is read from: long against a batch's noise, short against a learning curve."""

    least: int = 12
    """Nothing is usual before so many steps: the first ones are the steepest of a run."""

    entropy_spreads: float = 6.0
    entropy_relative: float = 0.3
    """A learning policy narrows along its course; a third away from it within a window is another course."""

    kl_fresh: float = 0.01
    """Nats per token at lag 0, where engine and trainer hold the same weights: bfloat16 weights and kernels of another
    kind gave 1e-5 to 1e-3, a wrong temperature or a stale engine 0.02 and more."""

    kl_stale: float = 0.08
    """Nats per token: at this the ratio's standard deviation is 0.4, more than the clip range. Of 137 runs of small
    models under a dozen corrections, S from 0 to 11, it was raised in all 41 whose accuracy ever fell by 15 points or
    more, in 36 of them before that; in 31 of 33 that fell by 5 to 15 points, in 11 of 34 that held at S = 6 or 11, and
    in none of 29 at S = 0."""

    growth: float = 2.0
    """The KL of the oldest tokens is at least so many times that of the freshest where lag is what drives it."""

    effective: float = 0.5
    """Of a batch's tokens, by their weights: (sum w)^2 / (n sum w^2). Below, two tokens teach as much as one; small
    models that learned at S = 6 had 0.98 and more."""

    clipped: float = 0.5
    """Of the tokens: beyond, most of a batch teaches nothing, and what does is one-sided."""

    gradient_spreads: float = 10.0
    gradient_relative: float = 4.0
    """Times the usual norm before clipping. Single spikes are clipped and harmless, hence `confirm`."""

    reward_spreads: float = 5.0
    reward_absolute: float = 0.05
    """Of the reward's own range: batches of 128 rollouts differ by 0.04."""

    hidden: float = 0.1
    """Of the reward's own range, between the freshest measure of the policy and what its older rollouts still earn."""


LIMITS = Limits()

SCORES = 3
"""Held-out scores whose median the newest is compared with: one of 128 prompts is off by 0.04."""


@dataclass(frozen=True, kw_only=True)
class AtLag:
    """One lag's tokens in a step: how many, k3 estimate of KL(behaviour || policy) in nats per token, and the mean
    reward of the rollouts whose oldest token is of that lag, if known."""

    tokens: float = 0.0
    kl: float | None = None
    reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One training step; None is not measured.

    `reward` is the mean over the batch, `kl` and `lag` over its tokens, `evaluation` the score of the newest version
    evaluated since the step before; `effective` the effective sample size as a share of the tokens; `diverged` counts
    batches, and updates, that were left out since the step before because their loss was not finite.
    """

    step: int
    reward: float | None = None
    evaluation: float | None = None
    entropy: float | None = None
    kl: float | None = None
    lag: float | None = None
    effective: float | None = None
    clip_share: float | None = None
    grad_norm: float | None = None
    by_lag: Mapping[int, AtLag] = field(default_factory=dict)
    diverged: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule measured: at a `severity` of 1 it is an alarm. `usual` is what it was compared with."""

    severity: float
    measured: float
    usual: float
    said: str


Steps = Sequence[Observation]
Rule = Callable[[Steps, Limits], Finding | None]


# The rules, each a function of the steps so far, oldest first


def entropy_falls(steps: Steps, limits: Limits) -> Finding | None:
    """Below its own course."""
    return _entropy(steps, limits, -1, "falls below")


def entropy_rises(steps: Steps, limits: Limits) -> Finding | None:
    """Above its own course."""
    return _entropy(steps, limits, 1, "rises above")


def _entropy(steps: Steps, limits: Limits, sign: int, words: str) -> Finding | None:
    course = _course([(s.step, s.entropy) for s in steps], limits)
    if course is None:
        return None
    now, led_to, spread = course
    bound = max(limits.entropy_spreads * spread, limits.entropy_relative * abs(led_to), 1e-3)
    said = (
        f"The policy's entropy {words} its own course: {now:.3g} nats per token, where the {limits.window} steps "
        f"before led to {led_to:.3g}, give or take {spread:.2g}."
    )
    return Finding(severity=sign * (now - led_to) / bound, measured=now, usual=led_to, said=said)


def engine_mismatch(steps: Steps, limits: Limits) -> Finding | None:
    """Tokens that the newest weights made differ from what the trainer makes of them."""
    fresh = [s.by_lag[0].kl for s in steps[-limits.recent :] if 0 in s.by_lag]
    known = [kl for kl in fresh if kl is not None]
    if not known:
        return None
    now = median(known)
    said = (
        f"Engines and trainer disagree about tokens that the newest version made: a KL of {now:.2g} nats per token "
        f"at lag 0, where at most {limits.kl_fresh:g} is rounding."
    )
    return Finding(severity=now / limits.kl_fresh, measured=now, usual=limits.kl_fresh, said=said)


def too_stale(steps: Steps, limits: Limits) -> Finding | None:
    """Tokens differ, and the more so the older they are."""
    now = _recent(steps, limits, lambda s: s.kl if _grows_with_lag(s, limits) else 0.0)
    if now is None or len(steps) < limits.least:
        return None
    oldest = {lag: at.kl for lag, at in steps[-1].by_lag.items() if at.kl is not None}
    most = f", and {oldest[max(oldest)]:.2g} at lag {max(oldest)}" if len(oldest) > 1 else ""
    said = (
        f"What is trained on is far from the policy: a KL of {now:.2g} nats per token{most}, where up to "
        f"{limits.kl_stale:g} is borne."
    )
    return Finding(severity=now / limits.kl_stale, measured=now, usual=limits.kl_stale, said=said)


def _grows_with_lag(step: Observation, limits: Limits) -> bool:
    """Whether lag is what drives a step's KL, as far as that is told."""
    known = {lag: at.kl for lag, at in step.by_lag.items() if at.kl is not None and at.tokens > 0}
    if not known:
        return bool(step.lag)
    oldest, freshest = max(known), min(known)
    return oldest > 0 and (oldest == freshest or known[oldest] >= limits.growth * known[freshest])


def few_effective(steps: Steps, limits: Limits) -> Finding | None:
    """A few tokens carry the batch."""
    now = _recent(steps, limits, lambda s: s.effective)
    if now is None:
        return None
    said = f"The effective sample size is {now:.0%} of the tokens, where {limits.effective:.0%} is little."
    return Finding(
        severity=limits.effective / max(now, 1e-9) if now < 2 * limits.effective else 0.0,
        measured=now, usual=limits.effective, said=said,
    )  # fmt: skip


def clipped(steps: Steps, limits: Limits) -> Finding | None:
    """Most tokens are muted."""
    now = _recent(steps, limits, lambda s: s.clip_share)
    if now is None:
        return None
    said = f"{now:.0%} of the tokens are clipped or masked and teach nothing, where {limits.clipped:.0%} is much."
    return Finding(severity=now / limits.clipped, measured=now, usual=limits.clipped, said=said)


def gradient_spikes(steps: Steps, limits: Limits) -> Finding | None:
    """Gradients of another size than usual."""
    past = _past(steps, limits, lambda s: s.grad_norm)
    now = steps[-1].grad_norm
    if past is None or now is None:
        return None
    usual, spread = past
    bound = usual + max(limits.gradient_spreads * spread, (limits.gradient_relative - 1) * usual)
    said = f"The gradient's norm is {now:.3g} before clipping, where {usual:.3g} is usual."
    return Finding(severity=now / bound if bound else 0.0, measured=now, usual=usual, said=said)


def reward_falls(steps: Steps, limits: Limits) -> Finding | None:
    """The batches' own reward."""
    past, now = _past(steps, limits, lambda s: s.reward), _recent(steps, limits, lambda s: s.reward)
    if past is None or now is None:
        return None
    usual, spread = past
    scale = _scale([s.reward for s in steps])
    # The median of few batches spreads less than one batch does.
    bound = max(limits.reward_spreads * spread / math.sqrt(limits.recent), limits.reward_absolute * scale)
    said = f"The mean reward of the batches fell to {now:.3f}, where {usual:.3f} was usual."
    return Finding(severity=(usual - now) / bound, measured=now, usual=usual, said=said)


def hidden_fall(steps: Steps, limits: Limits) -> Finding | None:
    """The policy falls while rollouts of its better past still earn well."""
    return _fall_of_scores(steps, limits) or _fall_by_lag(steps, limits)


def _fall_of_scores(steps: Steps, limits: Limits) -> Finding | None:
    """By held-out scores: by how much more than the batches' reward they fell since the scores before."""
    scored = [(s.evaluation, s.reward) for s in steps if s.evaluation is not None and s.reward is not None]
    reward = _recent(steps, limits, lambda s: s.reward)
    if len(scored) < 2 or reward is None:
        return None
    earlier = scored[-1 - SCORES : -1]
    now, usual = scored[-1][0], median(score for score, _ in earlier)
    fall = (usual - now) - max(0.0, median(earned for _, earned in earlier) - reward)
    said = (
        f"The held-out score fell from {usual:.3f} to {now:.3f}, while the batches, made by earlier versions, still "
        f"earn {reward:.3f}."
    )
    severity = fall / (limits.hidden * _scale([s.reward for s in steps]))
    return Finding(severity=severity, measured=now, usual=usual, said=said)


def _fall_by_lag(steps: Steps, limits: Limits) -> Finding | None:
    """By the rewards of rollouts of several lags, in each of the newest steps."""
    rows = [s.by_lag for s in steps[-limits.recent :]]
    by_lag = [{lag: at.reward for lag, at in row.items() if at.reward is not None} for row in rows]
    if not all(len(row) > 1 for row in by_lag):
        return None
    fresh, old = (median(row[end(row)] for row in by_lag) for end in (min, max))
    low, high = min(by_lag[-1]), max(by_lag[-1])
    said = (
        f"Rollouts of lag {low} earn {fresh:.3f}, while those of lag {high} earn {old:.3f}: newer versions are worse."
    )
    severity = (old - fresh) / (limits.hidden * _scale([s.reward for s in steps]))
    return Finding(severity=severity, measured=fresh, usual=old, said=said)


def batches_dropped(steps: Steps, limits: Limits) -> Finding | None:
    """A loss was not finite."""
    del limits
    number = steps[-1].diverged
    said = f"{number} {'batch' if number == 1 else 'batches'} made the loss infinite and had to be dropped."
    return Finding(severity=float(number), measured=number, usual=0.0, said=said)


RULES: Mapping[Alarm, Rule] = {
    Alarm.ENTROPY_FALLS: entropy_falls,
    Alarm.ENTROPY_RISES: entropy_rises,
    Alarm.ENGINE_MISMATCH: engine_mismatch,
    Alarm.TOO_STALE: too_stale,
    Alarm.FEW_EFFECTIVE: few_effective,
    Alarm.CLIPPED: clipped,
    Alarm.GRADIENT_SPIKES: gradient_spikes,
    Alarm.REWARD_FALLS: reward_falls,
    Alarm.HIDDEN_FALL: hidden_fall,
    Alarm.BATCHES_DROPPED: batches_dropped,
}

ADVICE: Mapping[Alarm, str] = {
    Alarm.ENTROPY_FALLS: "It soon tries nothing new: lower [trainer] learning_rate, raise clip_high, or raise [learn] "
    "temperature.",
    Alarm.ENTROPY_RISES: "It unlearns: lower [trainer] learning_rate or [learn] staleness, and look at samples with "
    "`volery show`.",
    Alarm.ENGINE_MISMATCH: "Lag does not explain it: check that engines load the newest version, compute_dtype, and "
    '[model] weights_dtype = "float32".',
    Alarm.TOO_STALE: "It is lag: lower [learn] staleness or [trainer] learning_rate, or take an objective that masks.",
    Alarm.FEW_EFFECTIVE: "Steps grow noisy: lower [learn] staleness or [trainer] learning_rate, or cap the weights "
    "lower.",
    Alarm.CLIPPED: "Lower [trainer] learning_rate or [learn] staleness.",
    Alarm.GRADIENT_SPIKES: "Lower [trainer] learning_rate or grad_clip, and look at the step's samples with "
    "`volery show`.",
    Alarm.REWARD_FALLS: "Stop, lower [trainer] learning_rate or [learn] staleness, and go on from a checkpoint of "
    "before.",
    Alarm.HIDDEN_FALL: "The batches' reward will follow within [learn] staleness steps: lower learning_rate or "
    "staleness now.",
    Alarm.BATCHES_DROPPED: "Lower [trainer] learning_rate; if one peer's records did it, `volery report` shows whose.",
}
"""What to do, said with each alarm."""


# Statistics


def _values(steps: Iterable[Observation], of: Callable[[Observation], float | None]) -> list[float]:
    return [value for step in steps if (value := of(step)) is not None]


def _recent(steps: Steps, limits: Limits, of: Callable[[Observation], float | None]) -> float | None:
    """The median over the newest steps; None until there are so many."""
    values = _values(steps[-limits.recent :], of)
    return median(values) if len(values) >= limits.recent else None


def _past(steps: Steps, limits: Limits, of: Callable[[Observation], float | None]) -> tuple[float, float] | None:
    """Median and spread over the window before the newest steps; None while that is too short."""
    values = _values(steps[: -limits.recent], of)[-limits.window :]
    if len(values) < limits.least:
        return None
    middle = median(values)
    return middle, SIGMA_PER_MAD * median(abs(value - middle) for value in values)


def _course(points: Sequence[tuple[int, float | None]], limits: Limits) -> tuple[float, float, float] | None:
    """(median of the newest, where the straight course of those before leads, spread around it).

    The line is Theil and Sen's over pairs half a window apart: the median of their slopes, so a quarter of wild points
    moves nothing.
    """
    known = [(step, value) for step, value in points if value is not None]
    before, newest = known[: -limits.recent][-limits.window :], known[-limits.recent :]
    if len(before) < limits.least:
        return None
    slope = median(_slopes(before))
    level = median(value - slope * step for step, value in before)
    spread = SIGMA_PER_MAD * median(abs(value - slope * step - level) for step, value in before)
    at = median(step for step, _ in newest)
    return median(value for _, value in newest), level + slope * at, spread


def _slopes(points: Sequence[tuple[int, float]]) -> Iterator[float]:
    for (step, value), (later, then) in zip(points, points[len(points) // 2 :], strict=False):
        yield (then - value) / max(1, later - step)


def _scale(rewards: Iterable[float | None]) -> float:
    """How far rewards go, at least 1: a task of right and wrong has 0 to 1."""
    known = [reward for reward in rewards if reward is not None]
    return max(1.0, max(known) - min(known)) if known else 1.0
