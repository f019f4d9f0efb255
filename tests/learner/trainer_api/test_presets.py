"""Hyperparameters select a preset, and override single values of it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from learner.trainer_api.advantages import ADVANTAGES
from learner.trainer_api.presets import (
    BOUNDS,
    PRESETS,
    SEQUENCE_MASKS,
    AdvantageName,
    AggregationName,
    Bounds,
    CorrectionName,
    NothingToLearn,
    PresetName,
    Recipe,
    SequenceMask,
    SequenceRatioName,
    UnknownName,
    recipe_of,
)
from learner.trainer_api.requests import Hyperparameters
from learner.training.objective.aggregations import AGGREGATIONS
from learner.training.objective.corrections import CORRECTIONS
from learner.training.objective.sequence_masks import SEQUENCE_RATIOS


def recipe(**given: Any) -> Recipe:
    return recipe_of(Hyperparameters(max_new_tokens=8, **given))


def test_every_name_has_its_function() -> None:
    assert set(PRESETS) == set(get_args(PresetName))
    assert set(CORRECTIONS) == set(BOUNDS) == set(get_args(CorrectionName))
    assert set(AGGREGATIONS) == set(get_args(AggregationName))
    assert {*ADVANTAGES, "gae", "preference"} == set(get_args(AdvantageName))
    assert set(SEQUENCE_MASKS) == set(SEQUENCE_RATIOS) == set(get_args(SequenceRatioName))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("grpo", 0.2, 0.2), ("dr_grpo", 0.2, 0.2), ("dapo", 0.2, 0.28), ("gspo", 3e-4, 4e-4), ("cispo", 1.0, 4.0)],
)
def test_a_preset_has_the_bounds_of_its_paper(name: str, low: float, high: float) -> None:
    bounds = recipe(objective=name).bounds
    assert (bounds.clip_low, bounds.clip_high) == (low, high)


def test_what_is_given_replaces_the_presets_own() -> None:
    found = recipe(objective="dapo", clip_low=0.1, aggregation="per_sequence", kl=0.5)
    assert (found.bounds.clip_low, found.bounds.clip_high) == (0.1, 0.28)
    assert (found.advantage, found.correction, found.aggregation) == ("group_mean_std", "clipped_ratio", "per_sequence")
    assert found.kl == 0.5


def test_by_default_what_was_good_keeps_its_pull() -> None:
    found = recipe()
    assert (found.advantage, found.correction, found.aggregation) == ("group_mean", "tapered_weight", "per_constant")
    assert found.bounds == Bounds(clip_low=0.5, clip_high=0.5, weight_cap=1.0)


def test_another_correction_brings_its_own_bounds() -> None:
    found = recipe(objective="dapo", correction="masked_weight", weight_cap=3.0)
    assert found.bounds == Bounds(clip_low=0.5, clip_high=4.0, weight_cap=3.0)


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({"objective": "dr_grpo"}, set()),
        ({"objective": "decoupled"}, set()),
        ({"objective": "decoupled", "updates_per_step": 2}, {"proximal"}),
        ({"objective": "dr_grpo", "kl": 0.1}, {"reference"}),
        ({"objective": "dpo"}, {"proximal", "reference"}),
        ({"objective": "ppo"}, {"critic"}),
        ({"objective": "distill"}, {"teacher"}),
        ({"objective": "grpo", "teacher": 0.5}, {"teacher"}),
        ({"objective": "ppo", "correction": "decoupled", "updates_per_step": 2}, {"critic", "proximal"}),
    ],
)
def test_only_what_is_needed_is_prepared(given: dict[str, Any], needs: set[str]) -> None:
    found = recipe(**given)
    assert {name for name in ("proximal", "reference", "critic", "teacher") if getattr(found, f"needs_{name}")} == needs


def test_a_teacher_adds_to_rewards_or_stands_alone() -> None:
    alone, both = recipe(objective="distill"), recipe(teacher=0.25)
    assert (alone.advantage, alone.aggregation, alone.teacher) == ("none", "per_token", 1.0)
    assert (both.advantage, both.aggregation, both.teacher) == ("group_mean", "per_constant", 0.25)
    assert recipe().teacher == 0.0
    assert alone.teaches_always
    assert both.teaches_always


@pytest.mark.parametrize(
    "given", [{"objective": "distill", "teacher": 0.0}, {"advantage": "none"}, {"objective": "dpo", "teacher": 1.0}]
)
def test_what_would_learn_from_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(NothingToLearn, match="teacher"):
        recipe(**given)


def test_a_mask_over_sequences_has_its_own_bounds_unless_others_are_given() -> None:
    assert recipe().mask is None
    assert recipe(sequence_mask="product").mask == SequenceMask(ratio="product", low=0.0, high=3.0)
    found = recipe(objective="mis", sequence_mask="geometric", mask_low=0.5)
    assert found.mask == SequenceMask(ratio="geometric", low=0.5, high=1.1)
    assert found.bounds == Bounds(clip_low=1.0, clip_high=2.0, weight_cap=1.0)


@pytest.mark.parametrize("field", ["objective", "advantage", "correction", "aggregation", "sequence_mask"])
def test_an_unknown_name_is_told_with_those_there_are(field: str) -> None:
    with pytest.raises(UnknownName, match=rf"{field}: 'magic' is none of .*\w+, \w+"):
        recipe(**{field: "magic"})
