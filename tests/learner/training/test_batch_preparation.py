"""Prepare a batch before the first update: GAE and DPO's weights against literal references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.advantages import gdpo
from learner.trainer_api.presets import recipe_of
from learner.trainer_api.requests import Hyperparameters
from learner.training.batch_preparation import Score, explained_variance, gae, preference, prepare, with_advantage
from learner.training.batches.sequences import Arrays, BadBatch, Flags, Ragged, Rollouts, rollout_batch
from learner.training.objective.objective_inputs import TEACHER_LIMIT
from learner.training.reference_policy import Reference

VOCABULARY = 30


def batch_of(lengths: list[int], rewards: list[float], groups: list[int], changed: Arrays | None = None) -> Rollouts:
    """Sequences of a prompt of two tokens and so many generated ones."""
    total = sum(lengths)
    arrays = {
        "tokens": np.arange(total + 2 * len(lengths), dtype=np.int32) % VOCABULARY,
        "lengths": np.array(lengths, np.int32) + 2,
        "mask": np.concatenate([[0, 0] + [1] * length for length in lengths]).astype(np.uint8),
        "behaviour_logprobs": -np.ones(total, np.float32),
        "lags": np.arange(total, dtype=np.int32),
        "rewards": np.array(rewards, np.float32),
        "group_sizes": np.array(groups, np.int32),
        "origins": np.zeros(len(lengths), np.uint8),
    }
    return rollout_batch({**arrays, **(changed or {})}, VOCABULARY)


# Rewards with names

PARTS = np.array([[1, 0.5], [0, 0.5], [0, 30.0], [0, 10.0], [np.nan, np.nan], [1, np.nan]], np.float32)
WEIGHTS = np.tile(np.array([1.0, 0.25], np.float32), (6, 1))
NAMED: Arrays = {"parts": PARTS, "part_weights": WEIGHTS}


def no_scores(sequences: Ragged, keep: Flags) -> dict[str, Any]:
    raise AssertionError("nothing is to be scored")


def per_sequence(batch: Rollouts, advantage: str) -> list[float]:
    h = Hyperparameters(objective="topr", advantage=advantage, max_new_tokens=8)  # type: ignore[arg-type]
    prepared, _ = prepare(batch, recipe_of(h), h, no_scores, None)
    return [float(value) for value in prepared.columns["advantages"]]


def test_gdpo_compares_each_reward_with_a_name_by_itself() -> None:
    batch = batch_of([1] * 6, [9.0] * 6, [2, 2, 2], NAMED)
    expected = gdpo(PARTS, [1.0, 0.25], [2, 2, 2])
    assert per_sequence(batch, "gdpo") == pytest.approx(expected.tolist(), rel=1e-6)
    assert expected.nonzero()[0].tolist() == [0, 1, 2, 3], "one of the last two has an unknown reward"


def test_other_advantages_know_the_sum_alone() -> None:
    batch = batch_of([1] * 4, [2.0, 0.0, 1.0, 1.0], [2, 2], {name: rows[:4] for name, rows in NAMED.items()})
    assert per_sequence(batch, "group_mean") == [1.0, -1.0, 0.0, 0.0]


def test_weights_may_differ_by_task() -> None:
    weights = WEIGHTS[:4].copy()
    weights[:2] *= 2
    found = per_sequence(batch_of([1] * 4, [0.0] * 4, [2, 2], {"parts": PARTS[:4], "part_weights": weights}), "gdpo")
    assert found[0] / found[2] == pytest.approx(8.0, rel=1e-3), "twice 1.0 against 0.25, each of one deviation"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parts": PARTS}, "'part_weights' must be float32 with a row for each of 6 sequences; it is missing"),
        ({**NAMED, "parts": PARTS[:5]}, "'parts' must be float32 with a row for each of 6 sequences"),
        ({**NAMED, "parts": PARTS.astype(np.float64)}, "it is float64"),
        ({**NAMED, "parts": PARTS[:, :1]}, "must have the same shape"),
        ({**NAMED, "parts": np.full_like(PARTS, np.inf)}, "hold no infinite value"),
        ({**NAMED, "part_weights": np.full_like(PARTS, np.nan)}, "hold no infinite value"),
    ],
    ids=range(6),
)
def test_rewards_with_names_that_do_not_fit_are_refused(changed: Arrays, says: str) -> None:
    with pytest.raises(BadBatch, match=says):
        batch_of([1] * 6, [0.0] * 6, [2, 2, 2], changed)


# Generalised advantage estimation


def literal_gae(rewards: list[float], values: list[list[float]], gamma: float, lam: float) -> list[float]:
    """Equation 16 of arXiv 1506.02438 as a double sum, sequence after sequence."""
    found = []
    for reward, told in zip(rewards, values, strict=True):
        steps = len(told)
        following = [*told[1:], 0.0]
        earned = [0.0] * (steps - 1) + [reward]
        deltas = [earned[t] + gamma * following[t] - told[t] for t in range(steps)]
        found += [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, steps)) for t in range(steps)]
    return found


numbers = st.floats(-2, 2, width=32)


@given(
    sequences=st.lists(st.tuples(numbers, st.lists(numbers, min_size=1, max_size=6)), min_size=1, max_size=5),
    gamma=st.floats(0.5, 1.0),
    lam=st.floats(0.0, 1.0),
)
def test_gae_equals_the_literal_sum(sequences: list[tuple[float, list[float]]], gamma: float, lam: float) -> None:
    rewards, values = [reward for reward, _ in sequences], [told for _, told in sequences]
    batch = batch_of([len(told) for told in values], rewards, [len(values)])
    white, returns = gae(batch, np.concatenate(values).astype(np.float32), gamma, lam)
    literal = literal_gae(rewards, values, gamma, lam)
    told = [value for row in values for value in row]
    assert returns == pytest.approx(np.array(literal) + np.array(told), abs=1e-4)
    mean = sum(literal) / len(literal)
    spread = math.sqrt(sum((one - mean) ** 2 for one in literal) / len(literal) + 1e-8)
    assert white == pytest.approx([(one - mean) / spread for one in literal], abs=1e-4)


def test_with_lambda_one_and_no_discount_a_return_is_the_reward() -> None:
    batch = batch_of([3, 2], [1.0, -1.0], [2])
    _, returns = gae(batch, np.array([0.3, -0.2, 0.9, 0.1, 0.4], np.float32), 1.0, 1.0)
    assert returns == pytest.approx([1, 1, 1, -1, -1])


def test_what_an_environment_said_is_no_step() -> None:
    """Two turns with a tool's words between them: the reward passes over those undiscounted."""
    plain = batch_of([3, 1], [1.0, 0.0], [2])
    spoken = {
        "tokens": np.zeros(10, np.int32),
        "lengths": np.array([7, 3], np.int32),
        "mask": np.array([0, 0, 1, 0, 0, 1, 1, 0, 0, 1], np.uint8),
    }
    turns = batch_of([3, 1], [1.0, 0.0], [2], spoken)
    values = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    for one, other in zip(gae(plain, values, 0.9, 0.8), gae(turns, values, 0.9, 0.8), strict=True):
        assert np.array_equal(one, other)


def test_explained_variance_is_one_for_a_seer_and_zero_for_a_constant() -> None:
    returns = np.array([1.0, 0.0, 3.0], np.float32)
    assert explained_variance(returns, returns) == 1
    assert explained_variance(np.full(3, 0.5, np.float32), returns) == pytest.approx(0)
    assert explained_variance(-returns, returns) < 0
    assert explained_variance(returns, np.ones(3, np.float32)) == 0


# Preferences


def literal_dpo(batch: Rollouts, logprobs: torch.Tensor, reference: list[float], beta: float) -> torch.Tensor:
    """Equation 7 of arXiv 2305.18290, pair after pair, better one by its reward."""
    ends = np.cumsum(batch.sequences.target_counts).tolist()
    starts = [0, *ends[:-1]]
    losses = []
    for first in range(0, len(ends), 2):
        better, worse = (first, first + 1) if batch.rewards[first] > batch.rewards[first + 1] else (first + 1, first)
        terms = [
            sum((logprobs[t] - reference[t] for t in range(starts[one], ends[one])), torch.zeros(()))
            for one in (better, worse)
        ]
        losses.append(-torch.nn.functional.logsigmoid(beta * terms[0] - beta * terms[1]))
    return sum(losses, torch.zeros(())) / len(losses)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=6).filter(lambda found: len(found) % 2 == 0),
    beta=st.floats(0.05, 2.0),
    seed=st.integers(0, 1000),
)
def test_the_policy_gradient_under_preferences_is_dpos(lengths: list[int], beta: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rewards = np.tile([1.0, 0.0], len(lengths) // 2).reshape(-1, 2)
    batch = batch_of(lengths, generator.permuted(rewards, axis=1).ravel().tolist(), [2] * (len(lengths) // 2))
    now, reference = generator.normal(size=(2, sum(lengths)))
    logprobs = torch.tensor(now, requires_grad=True)
    loss = literal_dpo(batch, logprobs, reference.tolist(), beta)
    loss.backward()

    weights, told = preference(batch, (now - reference).astype(np.float32), beta)
    per_token = -np.repeat(weights, lengths) / (len(lengths) // 2)
    assert logprobs.grad is not None
    assert per_token == pytest.approx(logprobs.grad.numpy(), abs=1e-5)
    assert told["preference_loss"] == pytest.approx(loss.item(), abs=1e-5)


def test_metrics_of_preferences() -> None:
    batch = batch_of([1, 1, 1, 1], [1.0, 0.0, 0.0, 1.0], [2, 2])
    _, told = preference(batch, np.array([1.0, 0.0, 1.0, 0.5], np.float32), 2.0)
    assert told["preference_accuracy"] == 0.5
    assert told["preference_margin"] == pytest.approx((2.0 - 1.0) / 2)


def test_a_pair_that_was_found_equal_teaches_nothing() -> None:
    batch = batch_of([1, 2, 2, 1], [0.5, 0.5, 1.0, 0.0], [2, 2])
    weights, told = preference(batch, np.array([9.0, 0, 0, 0.1, 0.1, 0.2], np.float32), 0.1)
    assert weights[:2].tolist() == [0, 0]
    assert weights[2] == -weights[3] > 0
    assert told["preference_accuracy"] == 0
    none, told = preference(batch_of([1, 1], [0.0, 0.0], [2]), np.ones(2, np.float32), 0.1)
    assert not none.any()
    assert set(told.values()) == {0.0}


def test_a_group_that_is_no_pair_is_refused() -> None:
    with pytest.raises(BadBatch, match="group_sizes holds 3, but preferences are learnt from pairs"):
        preference(batch_of([1] * 5, [1, 0, 1, 0, 0], [2, 3]), np.zeros(5, np.float32), 0.1)


# The results that are computed, and those that are not


class Scorer:
    """Remembers what it was asked for. Logprobs are those of `weight`."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[bool], float]] = []
        self.weight = torch.tensor([-1.0])

    def __call__(self, sequences: Ragged, keep: Flags) -> dict[str, Any]:
        self.asked.append((keep.tolist(), self.weight.item()))
        found = np.full(int(sequences.targets.sum()), self.weight.item(), np.float32)
        return {"logprobs": found, "values": 0 * found}


def prepared(objective: str, **given: Any) -> tuple[Scorer, dict[str, Any], dict[str, float]]:
    """What is found for two groups, the first of which got one reward."""
    batch = batch_of([2, 1, 1, 3], [1.0, 1.0, 0.0, 1.0], [2, 2])
    scorer = Scorer()
    reference = Reference([scorer.weight])
    scorer.weight.fill_(-2.0)  # trained since
    h = Hyperparameters(objective=objective, max_new_tokens=4, **given)
    score: Score = scorer
    found, told = prepare(batch, recipe_of(h), h, score, reference)
    assert scorer.weight.item() == -2.0, "the policy is itself again"
    return scorer, dict(found.columns), told


def test_most_objectives_need_no_pass_before_the_first_update() -> None:
    scorer, columns, told = prepared("dr_grpo")
    assert scorer.asked == []
    assert set(columns) == {"behaviour", "lags", "offline", "advantages"}
    assert columns["advantages"].tolist() == [0, 0, 0, -0.5, 0.5, 0.5, 0.5]
    assert told == {}


def test_the_decoupled_objective_asks_the_weights_at_the_steps_start_about_what_teaches() -> None:
    scorer, columns, _ = prepared("decoupled", updates_per_step=2)
    assert scorer.asked == [([False, False, True, True], -2.0)]
    assert columns["proximal"].tolist() == [-2.0] * 7


def test_a_kl_asks_the_reference_about_everything() -> None:
    scorer, columns, _ = prepared("grpo", kl=0.1)
    assert scorer.asked == [([True] * 4, -1.0)]
    assert columns["reference"].tolist() == [-1.0] * 7


def test_a_teacher_says_something_of_every_token() -> None:
    told = {"teacher_logprobs": np.linspace(-3, 0, 7).astype(np.float32)}
    batch = batch_of([2, 1, 1, 3], [1.0, 1.0, 0.0, 1.0], [2, 2], told)
    recipe = recipe_of(h := Hyperparameters(objective="distill", max_new_tokens=4))
    found, _ = prepare(batch, recipe, h, Scorer(), None)
    assert found.columns["teacher"].tolist() == told["teacher_logprobs"].tolist()
    assert not found.columns["advantages"].any(), "rewards teach nothing"
    assert found.columns["teacher_mean"] == pytest.approx([-2 / 7] * 7), (
        "the mean of -1, -1, -1, -0.5, 0, 0.5 and 1 is -2/7"
    )
    assert with_advantage(batch, recipe) == 1.0
    plain = Hyperparameters(objective="grpo", max_new_tokens=4)
    assert "teacher" not in prepare(batch, recipe_of(plain), plain, Scorer(), None)[0].columns


def test_what_is_not_trained_on_or_claimed_beyond_the_limit_hardly_moves_a_teachers_mean() -> None:
    told = {"teacher_logprobs": np.array([-1, -1, -50, -1, -1, -1, -3e38], np.float32)}
    batch = batch_of([2, 1, 1, 3], [1.0, 1.0, 0.0, 1.0], [2, 2], {**told, **UNTRAINED})
    h = Hyperparameters(objective="distill", max_new_tokens=4)
    found, _ = prepare(batch, recipe_of(h), h, Scorer(), None)
    assert found.columns["teacher_mean"] == pytest.approx([-TEACHER_LIMIT / 6] * 7)


def test_without_a_teachers_word_nothing_is_distilled() -> None:
    h = Hyperparameters(objective="grpo", teacher=0.5, max_new_tokens=4)
    with pytest.raises(BadBatch, match="'teacher_logprobs' is missing"):
        prepare(batch_of([2, 1], [1.0, 0.0], [2]), recipe_of(h), h, Scorer(), None)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (np.zeros(6, np.float32), "6 values for 7"),
        (np.full(7, 0.5, np.float32), "above 0"),
        (np.full(7, np.nan, np.float32), "not finite"),
        (np.zeros(7), "must be float32"),
    ],
)
def test_a_teachers_word_that_is_none_is_refused(word: Any, says: str) -> None:
    with pytest.raises(BadBatch, match=says):
        batch_of([2, 1, 1, 3], [1.0, 1.0, 0.0, 1.0], [2, 2], {"teacher_logprobs": word})


def test_ppo_asks_the_critic_once() -> None:
    scorer, columns, told = prepared("ppo")
    assert scorer.asked == [([True] * 4, -2.0)]
    assert set(columns) >= {"old_values", "returns", "advantages"}
    assert told == {"explained_variance": 0.0}


def test_dpo_asks_policy_and_reference() -> None:
    scorer, columns, told = prepared("dpo")
    assert scorer.asked == [([True] * 4, -2.0), ([True] * 4, -1.0)]
    assert columns["advantages"][:3].tolist() == [0, 0, 0]
    assert told["preference_accuracy"] == 0.0, "the longer one was made less likely than by the reference"


@pytest.mark.parametrize(
    ("objective", "rewards", "share"),
    [
        ("topr", [1.0, 1.0, 0.0, 1.0], 0.5),
        ("topr", [1.0, 1.0, 0.0, 0.0], 0.0),
        ("grpo", [0.1, 0.1, 0.1, 0.1], 0.0),
        ("rloo", [0.0, 1.0, 2.0, 1.0], 1.0),
        ("reinforce", [1.0, 1.0, 0.0, 0.0], 1.0),  # its rivals are the whole batch
        ("reinforce", [0.1, 0.1, 0.1, 0.1], 0.0),
        ("ppo", [1.0, 1.0, 0.0, 0.0], 1.0),
        ("ppo", [0.0, 0.0, 0.0, 0.0], 0.0),  # though its advantages are not 0: the critic is off
        ("dpo", [1.0, 1.0, 0.0, 1.0], 0.5),
        ("dpo", [0.0, 0.0, 0.0, 0.0], 0.0),
    ],
)
def test_how_many_completions_have_an_advantage(objective: str, rewards: list[float], share: float) -> None:
    recipe = recipe_of(Hyperparameters(objective=objective, max_new_tokens=4))
    assert with_advantage(batch_of([2, 1, 1, 3], rewards, [2, 2]), recipe) == share


UNTRAINED = {"trained": np.array([1, 0, 1, 1], np.uint8)}


@pytest.mark.parametrize("objective", ["topr", "grpo", "rloo", "reinforce"])
def test_what_is_not_trained_on_counts_among_its_siblings(objective: str) -> None:
    h = Hyperparameters(objective=objective, max_new_tokens=4)
    recipe, rewards = recipe_of(h), [1.0, 0.0, 0.0, 1.0]
    whole, partly = (batch_of([2, 1, 1, 3], rewards, [2, 2], changed) for changed in (None, UNTRAINED))
    (plain, _), (found, _) = (prepare(batch, recipe, h, Scorer(), None) for batch in (whole, partly))
    assert plain.columns["advantages"].all()
    expected = [*plain.columns["advantages"][:2], 0, *plain.columns["advantages"][3:]]
    assert found.columns["advantages"].tolist() == expected
    assert found.teaches.tolist() == found.trained.tolist() == [True, False, True, True]
    assert (plain.trained_tokens, found.trained_tokens) == (7, 6)
    assert with_advantage(partly, recipe) == 0.75


@pytest.mark.parametrize(("objective", "kl"), [("grpo", 0.1), ("ppo", 0.0)])
def test_what_always_teaches_is_not_asked_about_what_is_not_trained_on(objective: str, kl: float) -> None:
    scorer = Scorer()
    h = Hyperparameters(objective=objective, kl=kl, max_new_tokens=4)
    batch = batch_of([2, 1, 1, 3], [1.0, 1.0, 0.0, 1.0], [2, 2], UNTRAINED)
    found, _ = prepare(batch, recipe_of(h), h, scorer, Reference([scorer.weight]))
    assert [keep for keep, _ in scorer.asked] == [[True, False, True, True]]
    assert found.columns["advantages"][2] == 0


def test_gae_is_whitened_over_what_is_trained_on() -> None:
    batch = batch_of([2, 1, 1, 3], [1.0, 9.0, 0.0, 1.0], [2, 2], UNTRAINED)
    values = np.linspace(-1, 1, 7).astype(np.float32)
    white, returns = gae(batch, values, 0.9, 0.8)
    heard = np.arange(7) != 2
    kept = batch_of([2, 1, 3], [1.0, 0.0, 1.0], [3])
    alone, told = gae(kept, values[heard], 0.9, 0.8)
    assert white[heard] == pytest.approx(alone)
    assert returns[heard] == pytest.approx(told)
    assert (white[2], returns[2]) == (0, 0)


@pytest.mark.parametrize("objective", ["topr", "grpo", "ppo"])
def test_a_batch_of_which_nothing_is_trained_on_teaches_nothing(objective: str) -> None:
    nothing = {"trained": np.zeros(4, np.uint8)}
    batch, scorer = batch_of([2, 1, 1, 3], [1.0, 0.0, 0.0, 1.0], [2, 2], nothing), Scorer()
    h = Hyperparameters(objective=objective, max_new_tokens=4)
    found, _ = prepare(batch, recipe_of(h), h, scorer, None)
    assert scorer.asked == []
    assert not found.teaches.any()
    assert with_advantage(batch, recipe_of(h)) == 0


def test_preferences_need_both_of_a_pair() -> None:
    h = Hyperparameters(objective="dpo", max_new_tokens=4)
    batch = batch_of([2, 1, 1, 3], [1.0, 0.0, 0.0, 1.0], [2, 2], UNTRAINED)
    with pytest.raises(BadBatch, match="both completions of a pair"):
        prepare(batch, recipe_of(h), h, Scorer(), None)


def test_a_batch_that_teaches_nothing_is_not_asked_about() -> None:
    batch, scorer = batch_of([2, 1], [1.0, 1.0], [2]), Scorer()
    h = Hyperparameters(objective="decoupled", max_new_tokens=4, updates_per_step=2)
    prepare(batch, recipe_of(h), h, scorer, None)
    assert scorer.asked == []


def test_the_reference_comes_back_to_the_bit_whatever_happens_inside() -> None:
    weights = [torch.randn(5), torch.randn(2, 3)]
    reference = Reference(weights)
    for one in weights:
        one.mul_(1.1)
    before = [one.clone() for one in weights]

    def fail() -> None:
        with reference.in_force():
            assert not torch.equal(weights[0], before[0])
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
