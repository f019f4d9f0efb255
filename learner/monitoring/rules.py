"""The rules behind the alarms (`learner.monitoring.alarms`): what each measures, what is usual, and how far that is
apart.

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
"""The MAD of a normal distribution times this is its standard deviation."""

Steps = Sequence[Observation]
Rule = Callable[[Steps, Limits], Finding | None]


# The rules, each a function of the steps so far, oldest first


def entropy_leaves(steps: Steps, limits: Limits, sign: int, words: str) -> Finding | None:
    """Above its own course, or below where `sign` is negative."""
    course = _course([(s.step, s.entropy) for s in steps], limits)
    if course is None:
        return None
    now, led_to, before, spread = course
    # A course that flattens, as learning curves do, leads beyond: what has just been counts as usual, too.
    usual = max(sign * led_to, sign * before) * sign
    bound = max(limits.entropy_spreads * spread, limits.entropy_relative * abs(usual), limits.entropy_absolute)
    said = (
        f"The policy's entropy {words} its own course: {now:.3g} nats per token, where the {limits.window} steps "
        f"before led to {usual:.3g}, give or take {spread:.2g}."
    )
    return Finding(severity=sign * (now - usual) / bound, measured=now, usual=usual, said=said)


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
    borne = steps[-1].borne_kl or limits.kl_stale
    oldest = {lag: at.kl for lag, at in steps[-1].by_lag.items() if at.kl is not None}
    most = f", and {oldest[max(oldest)]:.2g} at lag {max(oldest)}" if len(oldest) > 1 else ""
    said = (
        f"What is trained on is far from the policy: a KL of {now:.2g} nats per token{most}, where up to "
        f"{borne:g} is borne."
    )
    return Finding(severity=now / borne, measured=now, usual=borne, said=said)


def _grows_with_lag(step: Observation, limits: Limits) -> bool:
    """Whether lag is what drives a step's KL: unless tokens without any show that it is there without. Where all are
    old, nothing does.
    """
    known = {lag: at.kl for lag, at in step.by_lag.items() if at.kl is not None and at.tokens > 0}
    if not known:
        return step.lag is None or step.lag > 0
    oldest = max(known)
    return oldest > 0 and (0 not in known or known[oldest] >= limits.growth * known[0])


def few_effective(steps: Steps, limits: Limits) -> Finding | None:
    """A few tokens would carry the batch, if no bound held them."""
    now = _recent(steps, limits, lambda s: s.effective)
    if now is None:
        return None
    least = steps[-1].borne_ess or limits.effective
    said = f"The ratios' effective sample size is {now:.0%} of the tokens, where {least:.0%} is little."
    return Finding(severity=(1 - now) / (1 - least), measured=now, usual=least, said=said)


def clipped(steps: Steps, limits: Limits) -> Finding | None:
    """Bounds decide about most tokens."""
    now = _recent(steps, limits, lambda s: s.clip_share)
    if now is None:
        return None
    said = f"A bound acts on {now:.0%} of the tokens (clipped, masked, truncated), where {limits.clipped:.0%} is much."
    return Finding(severity=now / limits.clipped, measured=now, usual=limits.clipped, said=said)


def gradient_spikes(steps: Steps, limits: Limits) -> Finding | None:
    """Gradients of another size than usual."""
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
    """The batches' own reward, by more than their problems are harder."""
    newest = limits.reward_recent
    past, now = _past(steps, limits, _reward, newest), _recent(steps, limits, _reward, newest)
    if past is None or now is None:
        return None
    usual, spread = past
    scale = _scale([s.reward for s in steps])
    # The median of few batches spreads less than one batch does.
    noise = _noise(steps, limits, spread) / math.sqrt(newest)
    bound = max(limits.reward_spreads * noise, limits.reward_absolute * scale)
    harder = _harder(steps, limits)
    said = f"The mean reward of the batches fell to {now:.3f}, where {usual:.3f} was usual."
    if harder > 0:
        said += f" Problems that are harder explain {harder:.3f} of it."
    return Finding(severity=(usual - now - harder) / bound, measured=now, usual=usual, said=said)


def _reward(step: Observation) -> float | None:
    return step.reward


def _noise(steps: Steps, limits: Limits, spread: float) -> float:
    """Standard deviation of one batch's mean reward, by chance alone: as the batches of before spread, and no less than
    what they and the newest tell of their own error.

    The spread alone is an estimate of few values, which is now and then far too small: in simulated runs of 1000 steps
    that learn, with 16 groups of 16, it raised a false alarm in one of four, and both together in none of 400; both
    told a reward that falls by 40 % within five steps in all of 150, seven steps after it began to.
    """
    newest = limits.reward_recent
    before = _values(steps[:-newest][-limits.window :], lambda s: s.reward_error)
    now = _values(steps[-newest:], lambda s: s.reward_error)
    if not before or not now:
        return limits.reward_unsure * spread
    return max(spread, *(math.sqrt(fmean(error**2 for error in errors)) for errors in (before, now)))


def _harder(steps: Steps, limits: Limits) -> float:
    """By how much the reward is expected to be lower than usual, for the problems alone; 0 where that is not known.

    Never below: what is known of a problem is the best that was seen of it, which only grows, so problems seem to
    become easier although the policy stays what it is.
    """
    newest = limits.reward_recent
    past = _past(steps, limits, lambda s: s.difficulty, newest)
    now = _recent(steps, limits, lambda s: s.difficulty, newest)
    return 0.0 if past is None or now is None else max(0.0, now - past[0])


def hidden_fall(steps: Steps, limits: Limits) -> Finding | None:
    """The policy falls while rollouts of its better past still earn well. A score that was just measured says it of the
    policy itself; an old one says nothing of the steps since, but stands where lags say no more.
    """
    scores, lags = _fall_of_scores(steps, limits), _fall_by_lag(steps, limits)
    if scores is None or lags is None:
        return scores or lags
    is_fresh = any(step.evaluation is not None for step in steps[-limits.recent :])
    return scores if is_fresh or scores.severity >= lags.severity else lags


def _fall_of_scores(steps: Steps, limits: Limits) -> Finding | None:
    """By held-out scores: by how much more than the batches' reward they fell since the scores before."""
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
    """Standard error of the difference between a score and the median of `earlier` ones before it, were the policy the
    same; 0 where nobody told over how many completions they are means.

    sqrt(p (1 - p) / n) with the p of both: prompts are the same every time, so chance is in the sampling alone, and of
    rewards between 0 and 1 none vary more than those of right and wrong. Rewards of a wider range are as wide as the
    scores show.
    """
    if not completions:
        return 0.0
    low, high = min(0.0, now, usual), max(1.0, now, usual)
    both = (now + usual) / 2
    variance = (high - both) * (both - low) / min(completions)
    return math.sqrt(variance * (1 + MEDIAN_VARIANCE[earlier - 1]))


def _fall_by_lag(steps: Steps, limits: Limits) -> Finding | None:
    """By how much more than usual the oldest rollouts of a step earn beyond its freshest, in the newest steps. What is
    usual may be more than nothing: slow peers, whose rollouts are old, are given the short prompts.
    """
    past, now = _past(steps, limits, _lead), _recent(steps, limits, _lead)
    if past is None or now is None or len(steps) < limits.window:  # its noise is more than the rewards' own
        return None
    rewards = _by_lag(steps[-1])
    low, high = min(rewards), max(rewards)
    said = (
        f"Rollouts of lag {high} earn {now:.3f} more than those of lag {low}, where {past[0]:.3f} is usual (median of "
        f"{limits.recent} steps): newer versions are worse."
    )
    usual, spread = past
    # A lag may have but a group or two in a step, whose prompts are easy or hard by chance.
    noise = limits.reward_spreads * spread / math.sqrt(limits.recent)
    bound = max(limits.hidden * _scale([s.reward for s in steps]), noise)
    return Finding(severity=(now - max(0.0, usual)) / bound, measured=now, usual=usual, said=said)


def _lead(step: Observation) -> float | None:
    """What the oldest rollouts of a step earn beyond its freshest; None where all are of one lag."""
    rewards = _by_lag(step)
    return rewards[max(rewards)] - rewards[min(rewards)] if len(rewards) > 1 else None


def _by_lag(step: Observation) -> dict[int, float]:
    return {lag: at.reward for lag, at in step.by_lag.items() if at.reward is not None}


def batches_dropped(steps: Steps, limits: Limits) -> Finding | None:
    """A loss was not finite."""
    del limits
    number = steps[-1].diverged
    said = f"{number} {'batch' if number == 1 else 'batches'} made the loss infinite and had to be dropped."
    return Finding(severity=float(number), measured=number, usual=0.0, said=said)


def nothing_learnt(steps: Steps, limits: Limits) -> Finding | None:
    """No completion was better than another, step after step, or the gradient was 0 all the same."""
    barren = list(takewhile(lambda step: step.taught == 0 or step.grad_norm == 0, reversed(steps)))
    if not barren and steps[-1].taught is None and steps[-1].grad_norm is None:
        return None
    said = f"In each of the last {len(barren)} training steps the gradient was 0: nothing is learnt."
    if all(step.taught == 0 for step in barren):
        said = (
            f"In the last {len(barren)} training steps no completion had an advantage, since those that are compared "
            f"were rewarded alike (mean reward {_told(barren)}): nothing can be learnt from them."
        )
    return Finding(severity=len(barren) / limits.barren, measured=len(barren), usual=0.0, said=said)


def _told(steps: Iterable[Observation]) -> str:
    """The rewards of some steps: one figure where they are one."""
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
    """The median over the `newest` steps, `limits.recent` unless told otherwise; None until there are so many."""
    count = newest or limits.recent
    values = _values(steps[-count:], of)
    return median(values) if len(values) >= count else None


def _past(
    steps: Steps, limits: Limits, of: Callable[[Observation], float | None], newest: int | None = None
) -> tuple[float, float] | None:
    """Median and spread over the window before the `newest` steps; None while that is too short."""
    values = _values(steps[: -(newest or limits.recent)], of)[-limits.window :]
    if len(values) < limits.least:
        return None
    middle = median(values)
    return middle, SIGMA_PER_MAD * median(abs(value - middle) for value in values)


def _course(points: Sequence[tuple[int, float | None]], limits: Limits) -> tuple[float, float, float, float] | None:
    """(median of the newest, where the straight course of those before leads, median of the last of those, spread).

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
    last = median(value for _, value in before[-2 * limits.recent :])
    return median(value for _, value in newest), level + slope * at, last, spread


def _slopes(points: Sequence[tuple[int, float]]) -> Iterator[float]:
    for (step, value), (later, then) in zip(points, points[len(points) // 2 :], strict=False):
        yield (then - value) / max(1, later - step)


def _scale(rewards: Iterable[float | None]) -> float:
    """How far rewards go, at least 1: a task of right and wrong has 0 to 1."""
    known = [reward for reward in rewards if reward is not None]
    return max(1.0, max(known) - min(known)) if known else 1.0
