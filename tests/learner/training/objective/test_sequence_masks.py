"""A sequence too far from the policy that made it is left out as a whole, whatever the correction."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.presets import BOUNDS, CorrectionName, SequenceMask, SequenceRatioName
from learner.training.objective.aggregations import AGGREGATIONS
from learner.training.objective.corrections import CORRECTIONS
from learner.training.objective.loss import Objective, reference_kl
from learner.training.objective.objective_inputs import LOG_RATIO_LIMIT, Terms, Totals
from learner.training.objective.sequence_masks import SEQUENCE_RATIOS, without_far_sequences

LENGTHS = [3, 1, 2, 2]
LOG_RATIOS = [0.3, -0.1, 0.4, 0.05, -0.9, 0.5, 0.0, 0.9]
PRODUCTS = [math.exp(0.6), math.exp(0.05), math.exp(-0.4), math.exp(0.9)]
MEANS = [math.exp(0.2), math.exp(0.05), math.exp(-0.2), math.exp(0.45)]


def drawn(log_ratios: list[float] = LOG_RATIOS) -> Terms:
    apart = torch.tensor(log_ratios, dtype=torch.float64)
    behaviour = torch.linspace(-2, -1, len(apart), dtype=torch.float64)
    segments = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
    return Terms(
        logprobs=(behaviour + apart).requires_grad_(),
        behaviour=behaviour,
        lags=torch.zeros(len(apart), dtype=torch.int64),
        offline=torch.zeros(len(apart), dtype=torch.bool),
        advantages=torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)[segments],
        segments=segments,
        num_sequences=4,
        reference=behaviour,
    )


@pytest.mark.parametrize(("ratio", "literal"), [("product", PRODUCTS), ("geometric", MEANS)])
def test_ratios_of_sequences_equal_the_literal_ones(ratio: SequenceRatioName, literal: list[float]) -> None:
    assert SEQUENCE_RATIOS[ratio](drawn()).tolist() == pytest.approx(literal)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    ("mask", "left_out"),
    [
        (SequenceMask(ratio="product", low=0.0, high=2.0), [3]),
        (SequenceMask(ratio="product", low=0.7, high=2.0), [2, 3]),
        (SequenceMask(ratio="geometric", low=0.9, high=1.1), [0, 2, 3]),
    ],
)
def test_what_is_outside_has_neither_weight_nor_gradient_and_the_rest_is_as_it_was(
    correction: CorrectionName, mask: SequenceMask, left_out: list[int]
) -> None:
    terms = drawn()
    plain = CORRECTIONS[correction](terms, BOUNDS[correction])
    found = without_far_sequences(plain, terms, mask)
    outside = torch.isin(terms.segments, torch.tensor(left_out))
    (gradient,) = torch.autograd.grad(found.loss.sum(), terms.logprobs, retain_graph=True)
    (before,) = torch.autograd.grad(plain.loss[~outside].sum(), terms.logprobs)
    assert torch.equal(gradient, before)
    assert not found.loss[outside].any()
    assert not found.weights[outside].any()
    assert found.clipped[outside].all()
    for name in ("loss", "weights", "clipped"):
        assert torch.equal(getattr(found, name)[~outside], getattr(plain, name)[~outside])


def test_what_is_left_out_counts_in_the_divisor_and_keeps_its_kl() -> None:
    totals = Totals(sequences=4, groups=2, tokens=8, max_new_tokens=4)
    objective = Objective(
        correction=CORRECTIONS["uncorrected"],
        aggregation=AGGREGATIONS["per_token"],
        bounds=BOUNDS["uncorrected"],
        kl=0.5,
        mask=SequenceMask(ratio="product", low=0.0, high=0.1),
    )
    terms = drawn()
    assert objective(terms, totals).loss.item() == pytest.approx(0.5 * reference_kl(terms).sum().item() / 8)


@pytest.mark.parametrize("ratio", SEQUENCE_RATIOS)
@pytest.mark.parametrize("claimed", [-1e4, -3e38])
def test_a_forged_logprob_leaves_its_own_sequence_out_and_nothing_infinite(
    ratio: SequenceRatioName, claimed: float
) -> None:
    terms = drawn()
    behaviour = terms.behaviour.clone()
    behaviour[0] = claimed
    forged = replace(terms, behaviour=behaviour)
    assert SEQUENCE_RATIOS[ratio](forged).max().item() <= math.exp(LOG_RATIO_LIMIT) * (1 + 1e-9)
    mask = SequenceMask(ratio=ratio, low=0.0, high=3.0)
    found = without_far_sequences(CORRECTIONS["uncorrected"](forged, BOUNDS["uncorrected"]), forged, mask)
    assert found.clipped.tolist() == [True] * 3 + [False] * 5
    assert torch.isfinite(found.loss).all()


@given(st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8), st.sampled_from(sorted(SEQUENCE_RATIOS)))
def test_microbatches_of_whole_sequences_leave_out_the_same(log_ratios: list[float], ratio: SequenceRatioName) -> None:
    mask = SequenceMask(ratio=ratio, low=0.5, high=2.0)
    whole = drawn(log_ratios)
    found = without_far_sequences(CORRECTIONS["uncorrected"](whole, BOUNDS["uncorrected"]), whole, mask)
    first = 4  # tokens of the first two sequences
    for tokens, begins in ((slice(0, first), 0), (slice(first, 8), 2)):
        columns = ("logprobs", "behaviour", "lags", "offline", "advantages")
        part = Terms(
            **{name: getattr(whole, name)[tokens] for name in columns},
            segments=whole.segments[tokens] - begins,
            num_sequences=2,
        )
        alone = without_far_sequences(CORRECTIONS["uncorrected"](part, BOUNDS["uncorrected"]), part, mask)
        assert torch.equal(alone.clipped, found.clipped[tokens])
