"""Define the objectives by name: which advantage, importance correction, aggregation and bounds each consists of.

Formulas, papers and how to add one: docs/explain/objectives.md. No torch: the node shows what the trainer will do.

Invariants:

- The objective in force depends only on the hyperparameters (`recipe_of`).
- A part or a bound that the hyperparameters give replaces the preset's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from learner.trainer_api.requests import Hyperparameters

PresetName = Literal[
    "topr",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce",
    "decoupled",
    "tis",
    "mis",
    "ppo",
    "dpo",
    "distill",
]
AdvantageName = Literal[
    "group_mean", "group_mean_std", "leave_one_out", "batch_mean", "gdpo", "gae", "preference", "none"
]
CorrectionName = Literal[
    "uncorrected",
    "clipped_ratio",
    "sequence_ratio",
    "cispo",
    "truncated_weight",
    "masked_weight",
    "tapered_weight",
    "truncated_sequence",
    "masked_sequence",
    "decoupled",
]
AggregationName = Literal["per_token", "per_sequence", "per_constant", "per_group"]
SequenceRatioName = Literal["product", "geometric"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a correction's ratios or weights: from 1 - `clip_low` to 1 + `clip_high`; `weight_cap` for weights
    that have a separate cap.
    """

    clip_low: float
    clip_high: float
    weight_cap: float


@dataclass(frozen=True, kw_only=True)
class SequenceMask:
    """Leave out whole sequences whose ratio to the behaviour policy is below `low` or above `high`. The ratio is the
    product of the token ratios, or their geometric mean.
    """

    ratio: SequenceRatioName
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Preset:
    """An objective's three parts by name, its bounds where they differ from those of its correction, and the weight of
    the teacher's log ratio."""

    advantage: AdvantageName
    correction: CorrectionName
    aggregation: AggregationName
    clip_low: float | None = None
    clip_high: float | None = None
    teacher: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The objective in force: the parts by name, their bounds, a mask over sequences, the weights of the KL term and of
    the teacher's log ratio, and the terms of a critic."""

    advantage: AdvantageName
    correction: CorrectionName
    aggregation: AggregationName
    bounds: Bounds
    kl: float
    value_coefficient: float
    value_clip: float
    updates_per_step: int
    mask: SequenceMask | None = None
    teacher: float = 0.0

    @property
    def needs_teacher(self) -> bool:
        """Return whether a batch must hold a teacher's log probabilities."""
        return self.teacher > 0

    @property
    def needs_reference(self) -> bool:
        """Return whether the weights that the run began with must be kept."""
        return self.kl > 0 or self.advantage == "preference"

    @property
    def needs_proximal(self) -> bool:
        """Return whether log probabilities under the weights at the step's start must be computed first. If a step has
        one update, they are those of the update itself.
        """
        return (self.correction == "decoupled" and self.updates_per_step > 1) or self.advantage == "preference"

    @property
    def needs_critic(self) -> bool:
        """Return whether a value head is trained beside the policy."""
        return self.advantage == "gae"

    @property
    def teaches_always(self) -> bool:
        """Return whether even a sequence without an advantage has a gradient."""
        return self.kl > 0 or self.needs_critic or self.needs_teacher


PRESETS: Mapping[PresetName, Preset] = MappingProxyType(
    {
        "topr": Preset(advantage="group_mean", correction="tapered_weight", aggregation="per_constant"),
        "grpo": Preset(advantage="group_mean_std", correction="clipped_ratio", aggregation="per_sequence"),
        "dr_grpo": Preset(advantage="group_mean", correction="clipped_ratio", aggregation="per_constant"),
        "dapo": Preset(advantage="group_mean_std", correction="clipped_ratio", aggregation="per_token", clip_high=0.28),
        "gspo": Preset(advantage="group_mean_std", correction="sequence_ratio", aggregation="per_sequence"),
        "cispo": Preset(advantage="group_mean_std", correction="cispo", aggregation="per_token"),
        "rloo": Preset(advantage="leave_one_out", correction="clipped_ratio", aggregation="per_constant"),
        "reinforce": Preset(advantage="batch_mean", correction="uncorrected", aggregation="per_constant"),
        "decoupled": Preset(advantage="group_mean", correction="decoupled", aggregation="per_token"),
        "tis": Preset(advantage="group_mean", correction="truncated_weight", aggregation="per_constant"),
        "mis": Preset(advantage="group_mean", correction="masked_sequence", aggregation="per_constant"),
        "ppo": Preset(advantage="gae", correction="clipped_ratio", aggregation="per_token"),
        "dpo": Preset(advantage="preference", correction="uncorrected", aggregation="per_group"),
        "distill": Preset(advantage="none", correction="tapered_weight", aggregation="per_token", teacher=1.0),
    }
)

BOUNDS: Mapping[CorrectionName, Bounds] = MappingProxyType(
    {
        # Nothing is bounded.
        "uncorrected": Bounds(clip_low=1.0, clip_high=1.0, weight_cap=1.0),
        # PPO's range, also TRL's; verl caps the weight of negative advantages at 3.
        "clipped_ratio": Bounds(clip_low=0.2, clip_high=0.2, weight_cap=math.inf),
        # GSPO, section 5.1: means of log ratios over a sequence are three orders of magnitude closer to 0.
        "sequence_ratio": Bounds(clip_low=3e-4, clip_high=4e-4, weight_cap=math.inf),
        # No lower end, and weights up to 5, as ScaleRL (arXiv 2510.13786) found and TRL recommends.
        "cispo": Bounds(clip_low=1.0, clip_high=4.0, weight_cap=1.0),
        "truncated_weight": Bounds(clip_low=1.0, clip_high=1.0, weight_cap=2.0),
        # IcePop's [0.5, 5].
        "masked_weight": Bounds(clip_low=0.5, clip_high=4.0, weight_cap=1.0),
        # Positive advantages weigh at least 0.5, so that they always pull, and at most 1.5; negative ones at most 1.
        "tapered_weight": Bounds(clip_low=0.5, clip_high=0.5, weight_cap=1.0),
        # TRL's [0, 3] for both; verl caps at 2. A lower end would leave out most long sequences.
        "truncated_sequence": Bounds(clip_low=1.0, clip_high=1.0, weight_cap=3.0),
        "masked_sequence": Bounds(clip_low=1.0, clip_high=2.0, weight_cap=1.0),
        # PPO's range around the proximal policy; AReaL's cap on the weight of that policy against the behaviour policy.
        "decoupled": Bounds(clip_low=0.2, clip_high=0.2, weight_cap=5.0),
    }
)
"""The bounds of each correction, unless the preset or the hyperparameters give others."""


SEQUENCE_MASKS: Mapping[SequenceRatioName, SequenceMask] = MappingProxyType(
    {
        # As for the correction "masked_sequence".
        "product": SequenceMask(ratio="product", low=0.0, high=3.0),
        # Just beyond the mean of 0.08 nats a token that corrections were seen to tolerate (`Borne`). SkyRL's example of
        # asynchronous training takes [0.99, 1.01]; prime-rl's [0.1, 10] acts only on broken log probabilities.
        "geometric": SequenceMask(ratio="geometric", low=0.9, high=1.1),
    }
)
"""The bounds of each mask over sequences, unless the hyperparameters give others."""


@dataclass(frozen=True, kw_only=True)
class Borne:
    """How far the data may be from the policy before a correction was seen to fail: a KL of `kl` nats per token, and an
    effective sample size of the ratios, before any bound, of the fraction `ess`."""

    kl: float = 0.08
    ess: float = 0.5


TAPERED = Borne(kl=0.5, ess=0.25)
"""Measured on 15 runs of small models with the default objective at S = 3, 6, 11: 12 with the default learning rate
schedule, and 3 whose learning rate never fell. `too_stale` was raised in all 3 of these, which lost 10 to 47 points
against S = 0. Among the others it was raised in 1 of 8 at S = 3 and 6, and in 2 of 4 at S = 11, and none of these lost
more than 4 points. At 0.08, the bound of the other corrections, it was raised for 38 to 92 % of the steps of every run.
"""

BORNE: Mapping[str, Borne] = MappingProxyType({"tapered_weight": TAPERED})
"""By correction; one that is not named tolerates what `Borne` says. A KL of 0.08 nats is a standard deviation of the
ratio of 0.4, more than a clip range."""

CLIPPING: frozenset[CorrectionName] = frozenset(
    {"clipped_ratio", "sequence_ratio", "cispo", "masked_weight", "tapered_weight", "masked_sequence", "decoupled"}
)
CAPPING: frozenset[CorrectionName] = frozenset(
    {"clipped_ratio", "sequence_ratio", "truncated_weight", "tapered_weight", "truncated_sequence", "decoupled"}
)
"""The corrections that use `clip_low` and `clip_high`, and those that use `weight_cap`."""


class UnknownName(ValueError):
    """A hyperparameter names an objective, or a part of one, that does not exist."""

    kind = "bad_request"


class NothingToLearn(ValueError):
    """The parts that the hyperparameters name do not fit together: the policy would learn nothing."""

    kind = "bad_request"


def recipe_of(hyperparameters: Hyperparameters) -> Recipe:
    """Return the objective that `hyperparameters` put in force. Raises UnknownName and NothingToLearn."""
    h = hyperparameters
    _require("objective", h.objective, PresetName)
    preset = PRESETS[h.objective]  # type: ignore[index]
    parts = dict[str, str]()
    for part, names in (("advantage", AdvantageName), ("correction", CorrectionName), ("aggregation", AggregationName)):
        wanted = getattr(h, part)
        parts[part] = getattr(preset, part) if wanted is None else wanted
        if wanted is not None:
            _require(part, wanted, names)
    own = BOUNDS[parts["correction"]]  # type: ignore[index]
    # A preset's bounds were chosen for its own correction.
    low, high = (preset.clip_low, preset.clip_high) if parts["correction"] == preset.correction else (None, None)
    bounds = Bounds(
        clip_low=_first(h.clip_low, low, own.clip_low),
        clip_high=_first(h.clip_high, high, own.clip_high),
        weight_cap=_first(h.weight_cap, own.weight_cap),
    )
    teacher = _first(h.teacher, preset.teacher)
    if parts["advantage"] == "none" and teacher == 0:
        raise NothingToLearn('advantage "none" leaves rewards out and teacher is 0: nothing is left to learn from')
    if parts["advantage"] == "preference" and teacher > 0:
        raise NothingToLearn('advantage "preference" learns from pairs alone: teacher must be 0')
    return Recipe(
        **parts,  # type: ignore[arg-type]
        bounds=bounds,
        kl=h.kl,
        value_coefficient=h.value_coefficient,
        value_clip=h.value_clip,
        updates_per_step=h.updates_per_step,
        mask=_mask_of(h),
        teacher=teacher,
    )


def _mask_of(h: Hyperparameters) -> SequenceMask | None:
    if h.sequence_mask is None:
        return None
    _require("sequence_mask", h.sequence_mask, SequenceRatioName)
    own = SEQUENCE_MASKS[h.sequence_mask]  # type: ignore[index]
    return SequenceMask(ratio=own.ratio, low=_first(h.mask_low, own.low), high=_first(h.mask_high, own.high))


def _require(field: str, name: str, names: object) -> None:
    if name not in get_args(names):
        raise UnknownName(f"{field}: {name!r} is none of {', '.join(get_args(names))}")


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
