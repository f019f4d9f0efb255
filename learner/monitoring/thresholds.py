"""What alarms are about, as values: which there are, every threshold with its reason, what a step shows, what a rule
finds, and what to do then.

Pure. The rules are in `learner.monitoring.rules`, raising and clearing in `learner.monitoring.alarms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from learner.trainer_api.presets import Borne


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
    NOTHING_LEARNT = "nothing_learnt"


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
    entropy_absolute: float = 0.05
    """A learning policy narrows along its course; a third away from it within a window is another course. Below 0.05
    nats what is trained on is a few tokens, and which they are changes from step to step."""

    kl_fresh: float = 0.01
    """Nats per token at lag 0, where engine and trainer hold the same weights: bfloat16 weights and kernels of another
    kind gave 1e-5 to 1e-3, a wrong temperature or a stale engine 0.02 and more."""

    kl_stale: float = Borne().kl
    """Nats per token, where a step does not tell what its objective bears: at this the ratio's standard deviation is
    0.4, more than the clip range. Of 137 runs of small models under a dozen corrections, S from 0 to 11, it was raised
    in all 41 whose accuracy ever fell by 15 points or more, in 36 of them before that; in 31 of 33 that fell by 5 to 15
    points, in 11 of 34 that held at S = 6 or 11, and in none of 29 at S = 0."""

    growth: float = 2.0
    """The KL of the oldest tokens is at least so many times that of tokens of lag 0 where lag is what drives it."""

    effective: float = Borne().ess
    """Of a batch's tokens, by their ratios before any bound, where a step does not tell what its objective bears:
    (sum r)^2 / (n sum r^2). Below, two tokens say as much of the policy as one of its own; small models that learned at
    S = 6 had 0.98 and more."""

    clipped: float = 0.5
    """Of the tokens: beyond, bounds decide about most of a batch, and what a mask or a clip leaves is one-sided."""

    gradient_spreads: float = 5.0
    gradient_relative: float = 4.0
    """Times the usual norm before clipping, and spreads of its logarithm: norms vary by factors, by ten and more
    where a policy is nearly always right and one group or two of a batch say all. Of twelve recorded runs none came to
    more than 0.9 of an alarm; ten spreads of the norms themselves raised one at a reward of 0.98, for two norms of 0.15
    and 0.22 where 0.02 was usual. Single spikes are clipped and harmless, hence `confirm`."""

    reward_spreads: float = 5.0
    reward_absolute: float = 0.05
    """Of the reward's own range: batches of 128 rollouts differ by 0.04."""

    reward_recent: int = 8
    """The newest steps, whose median reward counts. One bad update is mended by the next ones, but stands in as many
    batches as the window is wide. Of fifteen recorded runs that learned (four demos, and small models on rollouts of
    lag 0, 3 and 6) a median of four steps raised a false alarm in one, and came to 0.93 or more in five others; one of
    eight, with `reward_error`, to 0.82 at most. Of eight runs that fell the reward's own alarm told six, and four
    before; where both did it came two or three steps later, and fourteen in one that did not tell its error."""

    reward_unsure: float = 1.4
    """So many times the spread of the batches, where no batch tells its own error: the MAD of 32 values is off by a
    fifth either way, and of all the windows of a run the least counts."""

    hidden: float = 0.1
    """Of the reward's own range, between the freshest measure of the policy and what its older rollouts still earn. By
    lag, beyond what that usually is, and `reward_spreads` of it: a lag may have one group in a step."""

    barren: int = 12
    """Steps in a row in which no completion had an advantage. Where one group in ten says anything, batches of 16
    groups have none once in five steps, and 12 in a row once in 10^8."""

    score_errors: float = 3.3
    """Standard errors by which a held-out score must be lower than those before, too. Of scores that only chance moves
    0.8 in a thousand are, for any share that is right and 8 to 2048 completions; 128 tell most falls of 0.2 at once,
    256 nearly all."""


LIMITS = Limits()

SCORES = 3
"""Held-out scores whose median the newest is compared with: one of 128 prompts is off by 0.04."""

MEDIAN_VARIANCE = (1.0, 0.5, 0.449)
"""Of the median of one, two, three normal values, in terms of the variance of one."""


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
    evaluated since the step before, a mean over `evaluated_on` completions; `borne_kl` and `borne_ess` what the
    objective bears of `kl` and `effective`; `reward_error` the standard error of `reward`, as the groups' own means
    spread; `taught` the share of the batch's completions that had an advantage; `difficulty` is what its problems
    were expected to miss of a reward of 1, by what was known of them before; `effective` the effective sample size of
    the ratios, a share of 1; `diverged` counts batches, and updates, that were left out since the step before because
    their loss was not finite.
    """

    step: int
    reward: float | None = None
    reward_error: float | None = None
    taught: float | None = None
    difficulty: float | None = None
    evaluation: float | None = None
    evaluated_on: float | None = None
    entropy: float | None = None
    kl: float | None = None
    lag: float | None = None
    effective: float | None = None
    clip_share: float | None = None
    grad_norm: float | None = None
    borne_kl: float | None = None
    borne_ess: float | None = None
    by_lag: Mapping[int, AtLag] = field(default_factory=dict)
    diverged: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule measured: at a `severity` of 1 it is an alarm. `usual` is what it was compared with."""

    severity: float
    measured: float
    usual: float
    said: str


ADVICE: Mapping[Alarm, str] = {
    Alarm.ENTROPY_FALLS: "It soon tries nothing new: lower [trainer] learning_rate, raise clip_high, or raise [learn] "
    "temperature.",
    Alarm.ENTROPY_RISES: "It unlearns: lower [trainer] learning_rate or [learn] staleness, and look at samples with "
    "`volery samples`.",
    Alarm.ENGINE_MISMATCH: "Lag does not explain it: check that engines load the newest version, compute_dtype, and "
    '[model] weights_dtype = "float32".',
    Alarm.TOO_STALE: "It is lag: lower [learn] staleness or [trainer] learning_rate, or take an objective that masks.",
    Alarm.FEW_EFFECTIVE: "Bounds must hold what a few tokens weigh: lower [learn] staleness or [trainer] "
    "learning_rate.",
    Alarm.CLIPPED: "Lower [trainer] learning_rate or [learn] staleness.",
    Alarm.GRADIENT_SPIKES: "Lower [trainer] learning_rate or grad_clip, and look at the step's samples with "
    "`volery samples`.",
    Alarm.REWARD_FALLS: "What is known of the problems (`difficulty`) does not explain it. Unless problems have come "
    "of which nothing is known (the event `curriculum` tells levels and passes): stop, lower [trainer] "
    "learning_rate or [learn] staleness, and go on from a checkpoint of before the fall (`volery learn --fork-from`): "
    "`volery report` lists those that are kept, and [learn] keep_every keeps more.",
    Alarm.HIDDEN_FALL: "The batches' reward will follow within [learn] staleness steps: lower learning_rate or "
    "staleness now.",
    Alarm.NOTHING_LEARNT: "Where rewards are at their lowest: look at what is written with `volery samples`, let the "
    "task judge an answer that is right, see whether [learn] max_new_tokens cuts answers off, and take easier "
    "problems, a model that gets some of them right, or a larger [learn] group_size. Where they are at their highest, "
    "the task is learnt: end the run, or take harder problems.",
    Alarm.BATCHES_DROPPED: "Lower [trainer] learning_rate; if one peer's records did it, `volery report` shows whose.",
}
"""What to do, said with each alarm."""
