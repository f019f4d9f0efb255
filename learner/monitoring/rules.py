"""Measure what each alarm is about (`learner.monitoring.alarms`), what is usual, and how far the two are apart.

Pure functions of the newest steps, with the thresholds of `learner.monitoring.thresholds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from statistics import fmean, median

from learner.monitoring.thresholds import MEDIAN_VARIANCE, SCORES, Alarm, Finding, Limits, Observation

SIGMA_PER_MAD = 1.4826
"""The standard deviation of a normal distribution, in units of its MAD."""

Steps = Sequence[Observation]
Rule = Callable[[Steps, Limits], Finding | None]


# Rules: each is a function of the steps so far, oldest first


def entropy_leaves(steps: Steps, limits: Limits, sign: int, words: str) -> Finding | None:
    """Compare the entropy with its own trend: is it above, or below if `sign` is negative?"""
    course = _course([(s.step, s.entropy) for s in steps], limits)
    if course is None:
        return None
    now, led_to, before, spread = course
    # A trend that flattens, as learning curves do, overshoots, so the newest values before count as usual, too.
    usual = max(sign * led_to, sign * before) * sign
    bound = max(limits.entropy_spreads * spread, limits.entropy_relative * abs(usual), limits.entropy_absolute)
    said = (
        f"The policy's entropy {words} its own trend: {now:.3g} nats per token, where the trend of the "
        f"{limits.window} steps before gives {usual:.3g} (spread {spread:.2g})."
    )
    return Finding(severity=sign * (now - usual) / bound, measured=now, usual=usual, said=said)


def engine_mismatch(steps: Steps, limits: Limits) -> Finding | None:
    """Compare the engines' log probabilities with the trainer's, for tokens that the newest weights made."""
    fresh = [s.by_lag[0].kl for s in steps[-limits.recent :] if 0 in s.by_lag]
    known = [kl for kl in fresh if kl is not None]
    if not known:
        return None
    now = median(known)
    said = (
        f"Engines and trainer disagree about tokens that the newest version made: a KL of {now:.2g} nats per token "
        f"at lag 0, where rounding explains at most {limits.kl_fresh:g}."
    )
    return Finding(severity=now / limits.kl_fresh, measured=now, usual=limits.kl_fresh, said=said)


def too_stale(steps: Steps, limits: Limits) -> Finding | None:
    """Measure how far tokens are from the policy, if that grows with their lag."""
    now = _recent(steps, limits, lambda s: s.kl if _grows_with_lag(s, limits) else 0.0)
    if now is None or len(steps) < limits.least:
        return None
    borne = steps[-1].borne_kl or limits.kl_stale
    oldest = {lag: at.kl for lag, at in steps[-1].by_lag.items() if at.kl is not None}
    most = f", and {oldest[max(oldest)]:.2g} at lag {max(oldest)}" if len(oldest) > 1 else ""
    said = (
        f"The training data are far from the policy: a KL of {now:.2g} nats per token{most}, where the objective "
        f"tolerates up to {borne:g}."
    )
    return Finding(severity=now / borne, measured=now, usual=borne, said=said)


def _grows_with_lag(step: Observation, limits: Limits) -> bool:
    """Return whether lag drives a step's KL. It does unless tokens of lag 0 have nearly the same KL. If all tokens have
    a lag, nothing speaks against it."""
    known = {lag: at.kl for lag, at in step.by_lag.items() if at.kl is not None and at.tokens > 0}
    if not known:
        return step.lag is None or step.lag > 0
    oldest = max(known)
    return oldest > 0 and (0 not in known or known[oldest] >= limits.growth * known[0])


def few_effective(steps: Steps, limits: Limits) -> Finding | None:
    """Measure whether a few tokens would carry the batch, if no bound held them."""
    now = _recent(steps, limits, lambda s: s.effective)
    if now is None:
        return None
    least = steps[-1].borne_ess or limits.effective
    said = f"The effective sample size of the importance ratios is {now:.0%} of the tokens; {least:.0%} is too little."
    return Finding(severity=(1 - now) / (1 - least), measured=now, usual=least, said=said)


def clipped(steps: Steps, limits: Limits) -> Finding | None:
    """Measure whether bounds decide about most tokens."""
    now = _recent(steps, limits, lambda s: s.clip_share)
    if now is None:
        return None
    said = f"A bound acts on {now:.0%} of the tokens (clipped, masked, truncated); {limits.clipped:.0%} is too many."
    return Finding(severity=now / limits.clipped, measured=now, usual=limits.clipped, said=said)


def gradient_spikes(steps: Steps, limits: Limits) -> Finding | None:
    """Compare the gradient's norm with the usual one."""
    past, now = _past(steps, limits, _log_norm), _log_norm(steps[-1])
    if past is None or now is None:
        return None
    usual, spread = past
    bound = max(limits.gradient_spreads * spread, math.log(limits.gradient_relative))
    measured, norm = math.exp(now), math.exp(usual)
    said = f"The gradient's norm is {measured:.3g} before clipping, where {norm:.3g} is usual."
    return Finding(severity=(now - usual) / bound, measured=measured, usual=norm, said=said)


def _log_norm(step: Observation) -> float | None:
    return math.log(step.grad_norm) if step.grad_norm else None


def reward_falls(steps: Steps, limits: Limits) -> Finding | None:
    """Measure whether the batches' own reward falls by more than harder problems explain."""
    newest = limits.reward_recent
    past, now = _past(steps, limits, _reward, newest), _recent(steps, limits, _reward, newest)
    if past is None or now is None:
        return None
    usual, spread = past
    scale = _scale([s.reward for s in steps])
    # The median of several batches varies less than one batch does.
    noise = _noise(steps, limits, spread) / math.sqrt(newest)
    bound = max(limits.reward_spreads * noise, limits.reward_absolute * scale)
    harder = _harder(steps, limits)
    said = f"The mean reward of the batches fell to {now:.3f}, where {usual:.3f} was usual."
    if harder > 0:
        said += f" Harder problems explain {harder:.3f} of it."
    return Finding(severity=(usual - now - harder) / bound, measured=now, usual=usual, said=said)


def _reward(step: Observation) -> float | None:
    return step.reward


def _noise(steps: Steps, limits: Limits, spread: float) -> float:
    """Return the standard deviation of one batch's mean reward by chance alone: the spread of the batches before, but
    no less than the errors that they and the newest batches report.

    The spread alone is an estimate from few values, and is sometimes far too small. In simulated runs of 1000 steps
    that learn, with 16 groups of 16, it raised a false alarm in one run out of four, and both together in none of 400.
    Both noticed a reward that falls by 40 % within five steps in all of 150 runs, seven steps after the fall began.
    """
    newest = limits.reward_recent
    before = _values(steps[:-newest][-limits.window :], lambda s: s.reward_error)
    now = _values(steps[-newest:], lambda s: s.reward_error)
    if not before or not now:
        return limits.reward_unsure * spread
    return max(spread, *(math.sqrt(fmean(error**2 for error in errors)) for errors in (before, now)))


def _harder(steps: Steps, limits: Limits) -> float:
    """Return by how much the reward is expected to be lower than usual because of the problems alone; 0 if that is not
    known.

    It is never below 0: the difficulty of a problem follows from its best reward so far, which only grows, so problems
    seem to become easier although the policy does not change.
    """
    newest = limits.reward_recent
    past = _past(steps, limits, lambda s: s.difficulty, newest)
    now = _recent(steps, limits, lambda s: s.difficulty, newest)
    return 0.0 if past is None or now is None else max(0.0, now - past[0])


def hidden_fall(steps: Steps, limits: Limits) -> Finding | None:
    """Measure whether the policy falls while rollouts of its better past still earn well. A fresh held-out score says
    this of the policy itself. An old one says nothing of the steps since, but stands unless the lags show more."""
    scores, lags = _fall_of_scores(steps, limits), _fall_by_lag(steps, limits)
    if scores is None or lags is None:
        return scores or lags
    is_fresh = any(step.evaluation is not None for step in steps[-limits.recent :])
    return scores if is_fresh or scores.severity >= lags.severity else lags


def _fall_of_scores(steps: Steps, limits: Limits) -> Finding | None:
    """Measure by how much more than the batches' reward the held-out score fell since the scores before."""
    scored = [s for s in steps if s.evaluation is not None and s.reward is not None]
    reward = _recent(steps, limits, lambda s: s.reward)
    if len(scored) < 2 or reward is None:
        return None
    earlier = scored[-1 - SCORES : -1]
    scores = _values(earlier, lambda s: s.evaluation)
    now, usual = _values(scored[-1:], lambda s: s.evaluation)[0], median(scores)
    fall = (usual - now) - max(0.0, median(_values(earlier, lambda s: s.reward)) - reward)
    error = _error_of_fall(now, usual, _values(scored[-1 - SCORES :], lambda s: s.evaluated_on), len(earlier))
    said = (
        f"The held-out score fell from {usual:.3f} to {now:.3f}, while the batches, made by earlier versions, still "
        f"earn {reward:.3f}."
    )
    bound = max(limits.hidden * _scale([s.reward for s in steps]), limits.score_errors * error)
    return Finding(severity=fall / bound, measured=now, usual=usual, said=said)


def _error_of_fall(now: float, usual: float, completions: Sequence[float], earlier: int) -> float:
    """Return the standard error of the difference between a score and the median of `earlier` scores before it, if the
    policy did not change. Return 0 if no step says how many completions the scores are means of.

    It is sqrt(p (1 - p) / n) with the p of both. The problems are the same every time, so chance is in the sampling
    alone, and no rewards between 0 and 1 vary more than those that are 0 or 1. Rewards with a wider range are taken to
    be as wide as the scores show.
    """
    if not completions:
        return 0.0
    low, high = min(0.0, now, usual), max(1.0, now, usual)
    both = (now + usual) / 2
    variance = (high - both) * (both - low) / min(completions)
    return math.sqrt(variance * (1 + MEDIAN_VARIANCE[earlier - 1]))


def _fall_by_lag(steps: Steps, limits: Limits) -> Finding | None:
    """Measure by how much more than usual the oldest rollouts of the newest steps earn beyond the freshest. The usual
    lead may be above 0: slow peers, whose rollouts are old, get the short prompts."""
    past, now = _past(steps, limits, _lead), _recent(steps, limits, _lead)
    if past is None or now is None or len(steps) < limits.window:  # its noise is larger than that of the rewards
        return None
    rewards = _by_lag(steps[-1])
    low, high = min(rewards), max(rewards)
    said = (
        f"Rollouts of lag {high} earn {now:.3f} more than those of lag {low}, where {past[0]:.3f} is usual (median of "
        f"{limits.recent} steps): newer versions are worse."
    )
    usual, spread = past
    # A lag may have only one or two groups in a step, whose prompts are easy or hard by chance.
    noise = limits.reward_spreads * spread / math.sqrt(limits.recent)
    bound = max(limits.hidden * _scale([s.reward for s in steps]), noise)
    return Finding(severity=(now - max(0.0, usual)) / bound, measured=now, usual=usual, said=said)


def _lead(step: Observation) -> float | None:
    """Return how much more the oldest rollouts of a step earn than its freshest; None if all have one lag."""
    rewards = _by_lag(step)
    return rewards[max(rewards)] - rewards[min(rewards)] if len(rewards) > 1 else None


def _by_lag(step: Observation) -> dict[int, float]:
    return {lag: at.reward for lag, at in step.by_lag.items() if at.reward is not None}


def batches_dropped(steps: Steps, limits: Limits) -> Finding | None:
    """Count batches with a loss that was not finite."""
    del limits
    number = steps[-1].diverged
    said = f"{number} {'batch' if number == 1 else 'batches'} made the loss infinite and had to be dropped."
    return Finding(severity=float(number), measured=number, usual=0.0, said=said)


def nothing_learnt(steps: Steps, limits: Limits) -> Finding | None:
    """Count the newest steps in which no completion was better than another, or the gradient was 0 for another
    reason."""
    barren = list(takewhile(lambda step: step.taught == 0 or step.grad_norm == 0, reversed(steps)))
    if not barren and steps[-1].taught is None and steps[-1].grad_norm is None:
        return None
    said = f"In each of the last {len(barren)} training steps the gradient was 0: nothing is learnt."
    if all(step.taught == 0 for step in barren):
        said = (
            f"In the last {len(barren)} training steps no completion had an advantage, since all of a group had the "
            f"same reward (mean reward {_reward_range(barren)}): nothing can be learnt from them."
        )
    return Finding(severity=len(barren) / limits.barren, measured=len(barren), usual=0.0, said=said)


def _reward_range(steps: Iterable[Observation]) -> str:
    """Return the range of the rewards of some steps in words, as one number if they are all equal."""
    rewards = sorted(_values(steps, _reward))
    ends = list(dict.fromkeys(f"{reward:.3f}" for reward in (*rewards[:1], *rewards[-1:])))
    return " to ".join(ends) or "unknown"


RULES: Mapping[Alarm, Rule] = {
    Alarm.ENTROPY_FALLS: partial(entropy_leaves, sign=-1, words="falls below"),
    Alarm.ENTROPY_RISES: partial(entropy_leaves, sign=1, words="rises above"),
    Alarm.ENGINE_MISMATCH: engine_mismatch,
    Alarm.TOO_STALE: too_stale,
    Alarm.FEW_EFFECTIVE: few_effective,
    Alarm.CLIPPED: clipped,
    Alarm.GRADIENT_SPIKES: gradient_spikes,
    Alarm.REWARD_FALLS: reward_falls,
    Alarm.HIDDEN_FALL: hidden_fall,
    Alarm.BATCHES_DROPPED: batches_dropped,
    Alarm.NOTHING_LEARNT: nothing_learnt,
}


# Statistics


def _values(steps: Iterable[Observation], of: Callable[[Observation], float | None]) -> list[float]:
    return [value for step in steps if (value := of(step)) is not None]


def _recent(
    steps: Steps, limits: Limits, of: Callable[[Observation], float | None], newest: int | None = None
) -> float | None:
    """Return the median over the `newest` steps (default: `limits.recent`); None until there are so many."""
    count = newest or limits.recent
    values = _values(steps[-count:], of)
    return median(values) if len(values) >= count else None


def _past(
    steps: Steps, limits: Limits, of: Callable[[Observation], float | None], newest: int | None = None
) -> tuple[float, float] | None:
    """Return the median and the spread over the window before the `newest` steps; None while that is too short."""
    values = _values(steps[: -(newest or limits.recent)], of)[-limits.window :]
    if len(values) < limits.least:
        return None
    middle = median(values)
    return middle, SIGMA_PER_MAD * median(abs(value - middle) for value in values)


def _course(points: Sequence[tuple[int, float | None]], limits: Limits) -> tuple[float, float, float, float] | None:
    """Return (median of the newest, where the linear trend of those before leads, median of the last of those, spread).

    The line is Theil and Sen's over pairs half a window apart: the median of their slopes, so it does not move if a
    quarter of the points are wild.
    """
    known = [(step, value) for step, value in points if value is not None]
    before, newest = known[: -limits.recent][-limits.window :], known[-limits.recent :]
    if len(before) < limits.least:
        return None
    slope = median(_slopes(before))
    level = median(value - slope * step for step, value in before)
    spread = SIGMA_PER_MAD * median(abs(value - slope * step - level) for step, value in before)
    at = median(step for step, _ in newest)
    last = median(value for _, value in before[-2 * limits.recent :])
    return median(value for _, value in newest), level + slope * at, last, spread


def _slopes(points: Sequence[tuple[int, float]]) -> Iterator[float]:
    for (step, value), (later, then) in zip(points, points[len(points) // 2 :], strict=False):
        yield (then - value) / max(1, later - step)


def _scale(rewards: Iterable[float | None]) -> float:
    """Return the range of the rewards, at least 1: a task of right and wrong answers has 0 to 1."""
    known = [reward for reward in rewards if reward is not None]
    return max(1.0, max(known) - min(known)) if known else 1.0
