"""Every objective against a slow literal reference: one Python loop, tokens one by one, gradients by hand."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.objective import AGGREGATIONS, CORRECTIONS, OBJECTIVES, Bounds, MismatchSums, Objective, Terms, Totals

BOUNDS = Bounds(clip_low=0.2, clip_high=0.28, weight_cap=2.0)
LENGTHS = [3, 1, 5, 2]
TOTALS = Totals(sequences=6, tokens=sum(LENGTHS) + 4, max_new_tokens=8)  # two sequences of two tokens were dropped

Loss = tuple[float, float]
"""A token's loss and its derivative by the token's logprob."""


def literal_clipped(logprob: float, behaviour: float, advantage: float) -> Loss:
    ratio = math.exp(logprob - behaviour)
    clipped = min(max(ratio, 0.8), 1.28)
    if ratio * advantage <= clipped * advantage:
        return -ratio * advantage, -ratio * advantage
    return -clipped * advantage, 0.0


def literal_truncated(logprob: float, behaviour: float, advantage: float) -> Loss:
    weight = min(math.exp(logprob - behaviour), 2.0)
    return -weight * advantage * logprob, -weight * advantage


def literal_uncorrected(logprob: float, behaviour: float, advantage: float) -> Loss:
    return -advantage * logprob, -advantage


LITERAL: dict[str, Callable[[float, float, float], Loss]] = {
    "clipped_ratio": literal_clipped,
    "truncated_weight": literal_truncated,
    "uncorrected": literal_uncorrected,
}


def literal_weight(aggregation: str, length: int) -> float:
    match aggregation:
        case "per_constant":
            return 1 / (6 * 8)
        case "per_token":
            return 1 / (11 + 4)
        case "per_sequence":
            return 1 / (6 * length)
    raise AssertionError(aggregation)


def draw(seed: int, lengths: list[int] = LENGTHS) -> Terms:
    """Logprobs far enough from behaviour that ratios leave the clip range on both sides."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(lengths)
    behaviour = -3 * torch.rand(size, generator=generator, dtype=torch.float64) - 1
    logprobs = (behaviour + 0.5 * torch.randn(size, generator=generator, dtype=torch.float64)).requires_grad_()
    per_sequence = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return Terms(
        logprobs=logprobs,
        behaviour=behaviour,
        lags=torch.zeros(size, dtype=torch.int64),
        advantages=per_sequence[segments],
        segments=segments,
        num_sequences=len(lengths),
    )


@pytest.mark.parametrize(("correction", "aggregation"), list(itertools.product(CORRECTIONS, AGGREGATIONS)))
def test_value_and_gradient_equal_the_literal_reference(correction: str, aggregation: str) -> None:
    terms = draw(1)
    found = Objective(correction=CORRECTIONS[correction], aggregation=AGGREGATIONS[aggregation])(terms, BOUNDS, TOTALS)
    found.loss.backward()

    loss, gradient = 0.0, []
    columns = (terms.logprobs.tolist(), terms.behaviour.tolist(), terms.advantages.tolist(), terms.segments.tolist())
    for logprob, behaviour, advantage, segment in zip(*columns, strict=True):
        weight = literal_weight(aggregation, LENGTHS[segment])
        token_loss, token_gradient = LITERAL[correction](logprob, behaviour, advantage)
        loss += weight * token_loss
        gradient.append(weight * token_gradient)
    assert found.loss.item() == pytest.approx(loss, abs=1e-12)
    assert terms.logprobs.grad is not None
    assert terms.logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_muted_tokens_are_those_without_a_gradient(name: str) -> None:
    terms = draw(2, [40, 40])
    found = OBJECTIVES[name](terms, BOUNDS, TOTALS)
    found.loss.backward()
    assert terms.logprobs.grad is not None
    assert torch.equal(found.muted, terms.logprobs.grad == 0)
    assert found.muted.any() == (name == "grpo")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(cut=st.integers(1, 3), seed=st.integers(0, 1000))
def test_losses_of_microbatches_add_up(aggregation: str, cut: int, seed: int) -> None:
    objective = Objective(correction=CORRECTIONS["clipped_ratio"], aggregation=AGGREGATIONS[aggregation])
    whole = draw(seed)
    parts = [whole.segments < cut, whole.segments >= cut]
    total = sum(
        objective(
            Terms(
                logprobs=whole.logprobs[part],
                behaviour=whole.behaviour[part],
                lags=whole.lags[part],
                advantages=whole.advantages[part],
                segments=whole.segments[part] - first,
                num_sequences=count,
            ),
            BOUNDS,
            TOTALS,
        ).loss.item()
        for part, first, count in zip(parts, [0, cut], [cut, 4 - cut], strict=True)
    )
    assert total == pytest.approx(objective(whole, BOUNDS, TOTALS).loss.item(), abs=1e-12)


def test_mismatch_sums_over_two_microbatches() -> None:
    def terms(logprobs: list[float], behaviour: list[float]) -> Terms:
        size = len(logprobs)
        return Terms(
            logprobs=torch.tensor(logprobs),
            behaviour=torch.tensor(behaviour),
            lags=torch.zeros(size, dtype=torch.int64),
            advantages=torch.ones(size),
            segments=torch.zeros(size, dtype=torch.int64),
            num_sequences=1,
        )

    sums = MismatchSums()
    sums.add(terms([-1.0, -2.0], [-1.0, -1.0]), torch.tensor([False, True]), torch.tensor([0.5, 1.5]))
    sums.add(terms([-1.0], [-2.0]), torch.tensor([False]), torch.tensor([1.0]))
    low, high = math.exp(-1), math.exp(1)
    assert sums.metrics() == pytest.approx(
        {
            "clip_share": 1 / 3,
            "mean_ratio": (1 + low + high) / 3,
            "max_ratio": high,
            "max_log_ratio": 1.0,
            "mismatch_kl": ((low - 1 + 1) + (high - 1 - 1)) / 3,
            "entropy": 1.0,
        },
        rel=1e-5,
    )


def test_metrics_of_an_empty_batch_are_zero() -> None:
    assert set(MismatchSums().metrics().values()) == {0.0}
