"""Define the alarms, every threshold with its reason, what a step shows, what a rule finds, and the advice.

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
    """Steps in a row that raise an alarm. One bad step is a bad batch. After two, a run that collapses still has most
    of its reward."""

    calm: int = 8
    """Steps below half before an alarm is cleared: longer than the medians remember."""

    recent: int = 4
    """The newest steps, whose median is compared with the trend of those before them."""

    window: int = 32
    """Steps from which a trend is read: long against a batch's noise, short against a learning curve."""

    least: int = 12
    """Steps before anything counts as usual: the first ones are the steepest of a run."""

    entropy_spreads: float = 6.0
    entropy_relative: float = 0.3
    entropy_absolute: float = 0.05
    """The entropy of a policy that learns falls along a trend; a third away from it within a window is another trend.
    Below 0.05 nats, a few tokens make up the training data, and which ones they are changes from step to step."""

    kl_fresh: float = 0.01
    """Nats per token at lag 0, where engine and trainer have the same weights. bfloat16 weights and other kernels gave
    1e-5 to 1e-3; a wrong temperature or a stale engine gave 0.02 and more."""

    kl_stale: float = Borne().kl
    """Nats per token, if a step does not report what its objective tolerates. At this KL the ratio's standard deviation
    is 0.4, more than the clip range.

    It was tried on 137 runs of small models with a dozen corrections and S from 0 to 11. The alarm was raised in all 41
    runs whose accuracy ever fell by 15 points or more, in 36 of them before the fall. It was raised in 31 of 33 that
    fell by 5 to 15 points, in 11 of 34 that held at S = 6 or 11, and in none of 29 at S = 0.
    """

    growth: float = 2.0
    """If lag drives the KL, that of the oldest tokens is at least this many times that of tokens of lag 0."""

    effective: float = Borne().ess
    """Share of a batch's tokens, by their ratios before any bound, if a step does not report what its objective
    tolerates: (sum r)^2 / (n sum r^2). Below it, two tokens say as much of the policy as one of its own. Small models
    that learned at S = 6 had 0.98 and more."""

    clipped: float = 0.5
    """Share of the tokens. Beyond it, bounds decide about most of a batch, and the rest that a mask or a clip leaves is
    one-sided."""

    gradient_spreads: float = 5.0
    gradient_relative: float = 4.0
    """Multiple of the usual norm before clipping; `gradient_spreads` is in spreads of its logarithm. Norms vary by
    factors, by ten and more if a policy is nearly always right, so that one or two groups of a batch decide. In twelve
    recorded runs the severity never exceeded 0.9 of an alarm. A limit of ten spreads of the norms themselves raised one
    at a reward of 0.98, for two norms of 0.15 and 0.22 where 0.02 was usual. Single spikes are clipped and harmless,
    hence `confirm`."""

    reward_spreads: float = 5.0
    reward_absolute: float = 0.05
    """Share of the reward's own range: batches of 128 rollouts differ by 0.04."""

    reward_recent: int = 8
    """The newest steps, whose median reward counts. The next updates mend one bad update, but it affects as many
    batches as the window is wide.

    Fifteen recorded runs learned (four demos, and small models on rollouts of lag 0, 3 and 6). A median of four steps
    raised a false alarm in one, and reached 0.93 of an alarm or more in five others. A median of eight, with
    `reward_error`, reached 0.82 at most. This alarm noticed six of eight runs that fell, and before this change four.
    Where both noticed the fall, the new one came two or three steps later, and fourteen in a run that did not report
    its error.
    """

    reward_unsure: float = 1.4
    """Factor on the spread of the batches, if no batch reports its own error. The MAD of 32 values is off by a fifth
    either way, and over a run the window with the smallest one decides."""

    hidden: float = 0.1
    """Share of the reward's own range, between the freshest measure of the policy and the reward of its older rollouts.
    By lag, this is beyond the usual difference, and `reward_spreads` of it: a lag may have one group in a step."""

    barren: int = 12
    """Steps in a row in which no completion had an advantage. If one group in ten has one, batches of 16 groups have
    none once in five steps, and 12 in a row once in 10^8."""

    score_errors: float = 3.3
    """Standard errors by which a held-out score must also be below those before. Chance alone does that to 0.8 in a
    thousand scores, for any share of right completions and 8 to 2048 completions. With 128 completions most falls of
    0.2 are noticed at once, with 256 nearly all."""


LIMITS = Limits()

SCORES = 3
"""Held-out scores whose median the newest is compared with: a score over 128 problems is off by 0.04."""

MEDIAN_VARIANCE = (1.0, 0.5, 0.449)
"""Variance of the median of one, two, three normal values, relative to the variance of one."""


@dataclass(frozen=True, kw_only=True)
class AtLag:
    """One lag's tokens in a step: how many, their k3 estimate of KL(behaviour || policy) in nats per token, and the
    mean reward of the rollouts whose oldest token has that lag, if known."""

    tokens: float = 0.0
    kl: float | None = None
    reward: float | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One training step; None means not measured.

    - `reward`: mean over the batch; `reward_error`: its standard error, from the spread of the groups' own means.
    - `taught`: share of the batch's completions that had an advantage.
    - `difficulty`: by how much the problems' rewards were expected to be below 1, from earlier rewards.
    - `evaluation`: score of the newest version evaluated since the step before, a mean over `evaluated_on` completions.
    - `kl`, `lag`: means over the batch's tokens.
    - `effective`: effective sample size of the ratios, as a share of 1.
    - `borne_kl`, `borne_ess`: the limits of `kl` and `effective` that the objective tolerates.
    - `diverged`: batches, and updates, left out since the step before because their loss was not finite.
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
    """The measurement of a rule: at a `severity` of 1 it is an alarm. `usual` is the value that it was compared
    with."""

    severity: float
    measured: float
    usual: float
    said: str


ADVICE: Mapping[Alarm, str] = {
    Alarm.ENTROPY_FALLS: "The policy will soon try nothing new: lower [trainer] learning_rate, raise clip_high, or "
    "raise [learn] temperature.",
    Alarm.ENTROPY_RISES: "The policy forgets what it learned: lower [trainer] learning_rate or [learn] staleness, and "
    "look at samples with `volery samples`.",
    Alarm.ENGINE_MISMATCH: "Lag is not the cause: check that engines load the newest version, and check compute_dtype "
    'and [model] weights_dtype = "float32".',
    Alarm.TOO_STALE: "Lag is the cause: lower [learn] staleness or [trainer] learning_rate, or use an objective that "
    "masks.",
    Alarm.FEW_EFFECTIVE: "Only bounds keep a few tokens from deciding a step: lower [learn] staleness or "
    "[trainer] learning_rate.",
    Alarm.CLIPPED: "Lower [trainer] learning_rate or [learn] staleness.",
    Alarm.GRADIENT_SPIKES: "Lower [trainer] learning_rate or grad_clip, and look at the step's samples with "
    "`volery samples`.",
    Alarm.REWARD_FALLS: "The known difficulty of the problems (`difficulty`) does not explain it. Unless there are new "
    "problems of unknown difficulty (the event `curriculum` shows levels and passes), stop, lower [trainer] "
    "learning_rate or [learn] staleness, and continue from a checkpoint before the fall (`volery learn --fork-from`). "
    "`volery report` lists the checkpoints that are kept; [learn] keep_every keeps more.",
    Alarm.HIDDEN_FALL: "The batches' reward will fall too within [learn] staleness steps: lower learning_rate or "
    "staleness now.",
    Alarm.NOTHING_LEARNT: "If rewards are at their lowest, look at completions with `volery samples`, check that the "
    "task rewards a right completion, check whether [learn] max_new_tokens cuts completions off, and use easier "
    "problems, a model that solves some of them, or a larger [learn] group_size. If rewards are at their highest, "
    "the task is learnt: end the run, or use harder problems.",
    Alarm.BATCHES_DROPPED: "Lower [trainer] learning_rate. If one peer's records caused it, `volery report` names the "
    "peer.",
}
"""The advice that goes with each alarm."""
