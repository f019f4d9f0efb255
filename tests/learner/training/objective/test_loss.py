"""Compare every part of an objective with a slow literal reference.

The reference has Python loops over the papers' formulas, and gradients by hand, in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.presets import BOUNDS, CAPPING, CLIPPING, AggregationName, CorrectionName
from learner.training.objective.aggregations import AGGREGATIONS
from learner.training.objective.corrections import CORRECTIONS
from learner.training.objective.loss import Objective, reference_kl, teacher_reward, value_loss
from learner.training.objective.objective_inputs import LOG_RATIO_LIMIT, TEACHER_LIMIT, Bounds, Terms, Totals

LENGTHS = [7, 1, 12, 3]
TOTALS = Totals(sequences=6, groups=3, tokens=23 + 4, max_new_tokens=16)
"""Two sequences of two tokens taught nothing and are not in the microbatch."""

TIGHT = {
    **BOUNDS,
    # As wide as the means over sequences of what `draw` draws, which is further apart than GSPO's would be.
    "sequence_ratio": Bounds(clip_low=0.2, clip_high=0.15, weight_cap=1.2),
    "clipped_ratio": Bounds(clip_low=0.2, clip_high=0.28, weight_cap=1.5),
    "cispo": Bounds(clip_low=0.3, clip_high=0.5, weight_cap=1.0),
    "truncated_weight": Bounds(clip_low=1.0, clip_high=1.0, weight_cap=1.3),
    "masked_weight": Bounds(clip_low=0.3, clip_high=0.5, weight_cap=1.0),
    "tapered_weight": Bounds(clip_low=0.3, clip_high=0.5, weight_cap=1.0),
    "truncated_sequence": Bounds(clip_low=1.0, clip_high=1.0, weight_cap=1.3),
    "masked_sequence": Bounds(clip_low=0.5, clip_high=0.5, weight_cap=1.0),
    "decoupled": Bounds(clip_low=0.2, clip_high=0.28, weight_cap=1.2),
}


def draw(seed: int, lengths: list[int] = LENGTHS) -> Terms:
    """Logprobs far enough from behaviour, and from the weights in between, that bounds act on both sides."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(lengths)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    behaviour = -3 * torch.rand(size, generator=generator, dtype=torch.float64) - 1
    proximal = behaviour + normal(0.4)
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return Terms(
        logprobs=(proximal + normal(0.4)).requires_grad_(),
        behaviour=behaviour,
        lags=torch.zeros(size, dtype=torch.int64),
        offline=torch.zeros(size, dtype=torch.bool),
        advantages=torch.randn(len(lengths), generator=generator, dtype=torch.float64)[segments],
        segments=segments,
        num_sequences=len(lengths),
        proximal=proximal,
        reference=behaviour + normal(0.5),
    )


Lists = list[list[float]]
Literal = Callable[[list[float], list[float], list[float], list[float], Bounds], tuple[list[float], Lists, list[bool]]]
"""logprobs, behaviour, proximal and advantages of one sequence to each token's loss, the derivatives of each token's
loss by each logprob, and where a bound acted."""


def by_token(rule: Callable[[float, float, float, float, Bounds], tuple[float, float, bool]]) -> Literal:
    """A sequence by a rule for one token, whose loss depends on its own logprob alone."""

    def literal(
        pi: list[float], mu: list[float], prox: list[float], advantages: list[float], bounds: Bounds
    ) -> tuple[list[float], Lists, list[bool]]:
        found = [rule(*one, bounds) for one in zip(pi, mu, prox, advantages, strict=True)]
        derivatives = [[d if i == j else 0.0 for j in range(len(pi))] for i, (_, d, _) in enumerate(found)]
        return [loss for loss, _, _ in found], derivatives, [acted for _, _, acted in found]

    return literal


def surrogate(ratio: float, advantage: float, bounds: Bounds, cap: float) -> tuple[float, bool]:
    """-min(r A, clip(r) A), where A < 0 -max(that, C A); and whether r A is none of it."""
    clipped = min(max(ratio, 1 - bounds.clip_low), 1 + bounds.clip_high)
    chosen = min(ratio * advantage, clipped * advantage)
    if advantage < 0 and cap < math.inf:
        chosen = max(chosen, cap * advantage)
    return -chosen, chosen != ratio * advantage


def literal_uncorrected(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    return -a * pi, -a, False


def literal_clipped(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    ratio = math.exp(pi - mu)
    loss, acted = surrogate(ratio, a, bounds, bounds.weight_cap)
    return loss, 0.0 if acted else -ratio * a, acted


def literal_cispo(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    ratio = math.exp(pi - mu)
    weight = min(max(ratio, 1 - bounds.clip_low), 1 + bounds.clip_high)
    return -weight * a * pi, -weight * a, abs(weight - ratio) > 0.1


def literal_truncated(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    ratio = math.exp(pi - mu)
    weight = min(ratio, bounds.weight_cap)
    return -weight * a * pi, -weight * a, abs(weight - ratio) > 0.1


def literal_masked(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    ratio = math.exp(pi - mu)
    inside = 1 - bounds.clip_low <= ratio <= 1 + bounds.clip_high
    weight = ratio if inside else 0.0
    return -weight * a * pi, -weight * a, not inside


def literal_tapered(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    ratio = math.exp(pi - mu)
    good = min(max(ratio, 1 - bounds.clip_low), 1 + bounds.clip_high)
    weight = good if a > 0 else min(ratio, bounds.weight_cap)
    return -weight * a * pi, -weight * a, abs(weight - ratio) > 0.1


def literal_decoupled(pi: float, mu: float, prox: float, a: float, bounds: Bounds) -> tuple[float, float, bool]:
    share, ratio = math.exp(prox - mu), math.exp(pi - prox)
    weight = min(share, bounds.weight_cap)
    loss, acted = surrogate(ratio, a, bounds, math.inf)
    return weight * loss, 0.0 if acted else -weight * ratio * a, acted or share - weight > 0.1


def literal_sequence(
    pi: list[float], mu: list[float], prox: list[float], advantages: list[float], bounds: Bounds
) -> tuple[list[float], Lists, list[bool]]:
    product = 1.0
    for one, other in zip(pi, mu, strict=True):
        product *= math.exp(one) / math.exp(other)
    ratio = product ** (1 / len(pi))
    losses, derivatives, clipped = [], [], []
    for a in advantages:
        loss, acted = surrogate(ratio, a, bounds, bounds.weight_cap)
        losses.append(loss)
        clipped.append(acted)
        derivatives.append([0.0 if acted else -a * ratio / len(pi)] * len(pi))
    return losses, derivatives, clipped


def literal_truncated_sequence(
    pi: list[float], mu: list[float], prox: list[float], advantages: list[float], bounds: Bounds
) -> tuple[list[float], Lists, list[bool]]:
    product = math.prod(math.exp(one) / math.exp(other) for one, other in zip(pi, mu, strict=True))
    weight = min(product, bounds.weight_cap)
    return weighted_alike(pi, advantages, weight, abs(weight - product) > 0.1)


def literal_masked_sequence(
    pi: list[float], mu: list[float], prox: list[float], advantages: list[float], bounds: Bounds
) -> tuple[list[float], Lists, list[bool]]:
    product = math.prod(math.exp(one) / math.exp(other) for one, other in zip(pi, mu, strict=True))
    inside = 1 - bounds.clip_low <= product <= 1 + bounds.clip_high
    return weighted_alike(pi, advantages, product if inside else 0.0, not inside)


def weighted_alike(
    pi: list[float], advantages: list[float], weight: float, acted: bool
) -> tuple[list[float], Lists, list[bool]]:
    """Every token of a sequence with one weight, which has no gradient."""
    losses = [-weight * a * one for one, a in zip(pi, advantages, strict=True)]
    derivatives = [[-weight * a if i == j else 0.0 for j in range(len(pi))] for i, a in enumerate(advantages)]
    return losses, derivatives, [acted] * len(pi)


LITERAL: dict[CorrectionName, Literal] = {
    "uncorrected": by_token(literal_uncorrected),
    "clipped_ratio": by_token(literal_clipped),
    "sequence_ratio": literal_sequence,
    "cispo": by_token(literal_cispo),
    "truncated_weight": by_token(literal_truncated),
    "masked_weight": by_token(literal_masked),
    "tapered_weight": by_token(literal_tapered),
    "truncated_sequence": literal_truncated_sequence,
    "masked_sequence": literal_masked_sequence,
    "decoupled": by_token(literal_decoupled),
}


def literal_weight(aggregation: AggregationName, length: int) -> float:
    """Return the weight of a token's loss in the loss of the batch."""
    match aggregation:
        case "per_token":
            return 1 / (23 + 4)
        case "per_sequence":
            return 1 / (6 * length)
        case "per_constant":
            return 1 / (6 * 16)
        case "per_group":
            return 1 / 3


def sequences_of(terms: Terms) -> list[list[list[float]]]:
    """logprobs, behaviour, proximal and advantages of each sequence."""
    assert terms.proximal is not None
    columns = (terms.logprobs, terms.behaviour, terms.proximal, terms.advantages)
    return [[column[terms.segments == s].tolist() for column in columns] for s in range(terms.num_sequences)]


@pytest.mark.parametrize(("correction", "aggregation"), list(itertools.product(CORRECTIONS, AGGREGATIONS)))
def test_value_and_gradient_equal_the_literal_reference(
    correction: CorrectionName, aggregation: AggregationName
) -> None:
    terms, bounds = draw(11), TIGHT[correction]
    objective = Objective(correction=CORRECTIONS[correction], aggregation=AGGREGATIONS[aggregation], bounds=bounds)
    found = objective(terms, TOTALS)
    found.loss.backward()

    loss, gradient, clipped = 0.0, [], []
    for length, sequence in zip(LENGTHS, sequences_of(terms), strict=True):
        pi, mu, prox, advantages = sequence
        losses, derivatives, acted = LITERAL[correction](pi, mu, prox, advantages, bounds)
        weight = literal_weight(aggregation, length)
        loss += weight * sum(losses)
        gradient += [weight * sum(row[j] for row in derivatives) for j in range(length)]
        clipped += acted
    assert found.loss.item() == pytest.approx(loss, abs=1e-12)
    assert terms.logprobs.grad is not None
    assert terms.logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-12)
    assert found.clipped.tolist() == clipped


@pytest.mark.parametrize("correction", sorted(set(CORRECTIONS) - {"uncorrected"}))
def test_every_bound_acts_on_every_side_it_has(correction: CorrectionName) -> None:
    """Otherwise the comparison above would compare less than it seems."""
    terms = draw(11)
    clipped = CORRECTIONS[correction](terms, TIGHT[correction]).clipped
    assert clipped.any()
    assert not clipped.all()
    if correction not in ("truncated_weight", "decoupled"):
        assert (terms.advantages[clipped] > 0).any()
        assert (terms.advantages[clipped] < 0).any()
    if correction not in ("truncated_weight", "decoupled", "sequence_ratio"):
        ratio = torch.exp(terms.logprobs.detach() - terms.behaviour)
        assert (ratio[clipped] < 1).any()
        assert (ratio[clipped] > 1).any()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_bounds_that_each_is_said_to_heed_are_those_it_heeds(correction: CorrectionName) -> None:
    """A configuration may not set a bound that would change nothing."""

    def heeds(**changed: float) -> bool:
        pairs = (
            [CORRECTIONS[correction](terms, bounds).loss for bounds in (some, replace(some, **changed))]
            for terms in map(draw, range(20))
        )
        return not all(torch.equal(*pair) for pair in pairs)

    some = Bounds(clip_low=0.2, clip_high=0.2, weight_cap=1.5)
    clips = correction in CLIPPING
    assert (heeds(clip_low=0.1), heeds(clip_high=0.1), heeds(weight_cap=1.1)) == (clips, clips, correction in CAPPING)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_on_policy_each_is_the_policy_gradient(correction: CorrectionName) -> None:
    drawn = draw(3)
    logprobs = drawn.behaviour.clone().requires_grad_()
    terms = replace(drawn, logprobs=logprobs, proximal=drawn.behaviour)
    CORRECTIONS[correction](terms, BOUNDS[correction]).loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx((-terms.advantages).tolist())


@pytest.mark.parametrize("correction", sorted(set(CORRECTIONS) - {"sequence_ratio"}))
def test_the_weight_that_is_told_is_the_one_in_the_gradient(correction: CorrectionName) -> None:
    terms = draw(12)
    found = CORRECTIONS[correction](terms, TIGHT[correction])
    found.loss.sum().backward()
    assert terms.logprobs.grad is not None
    assert not found.weights.requires_grad
    assert torch.allclose(-found.weights * terms.advantages, terms.logprobs.grad)


def test_the_weight_of_a_sequence_is_that_of_each_of_its_tokens() -> None:
    terms = draw(11)
    found = CORRECTIONS["sequence_ratio"](terms, TIGHT["sequence_ratio"])
    found.loss.sum().backward()
    assert terms.logprobs.grad is not None
    for s in range(terms.num_sequences):
        mine = terms.segments == s
        assert -(found.weights * terms.advantages)[mine].mean() == pytest.approx(
            terms.logprobs.grad[mine].mean().item()
        )
    assert (found.weights == 0).any()


@pytest.mark.parametrize("correction", ["cispo", "truncated_weight", "tapered_weight", "decoupled"])
def test_a_cap_of_one_is_not_said_to_act_on_what_an_engine_rounds(correction: CorrectionName) -> None:
    drawn = draw(2)
    apart = torch.linspace(-0.05, 0.05, sum(LENGTHS), dtype=torch.float64)
    terms = replace(drawn, logprobs=drawn.behaviour + apart, proximal=drawn.behaviour + apart)
    bounds = replace(BOUNDS[correction], clip_high=0.01, weight_cap=1.0)
    assert not CORRECTIONS[correction](terms, bounds).clipped.any()


@pytest.mark.parametrize("correction", ["clipped_ratio", "sequence_ratio"])
def test_a_forged_logprob_of_what_was_bad_weighs_no_more_than_the_cap(correction: CorrectionName) -> None:
    drawn = draw(4)
    bad = -torch.ones(sum(LENGTHS), dtype=torch.float64)
    told = []
    for cap in (3.0, math.inf):
        logprobs = drawn.logprobs.detach().requires_grad_()
        forged = replace(drawn, logprobs=logprobs, behaviour=drawn.behaviour - 10, advantages=bad)
        found = CORRECTIONS[correction](forged, replace(BOUNDS[correction], weight_cap=cap))
        found.loss.sum().backward()
        assert logprobs.grad is not None
        told.append((found.loss.max().item(), logprobs.grad.abs().max().item()))
    assert told[0] == (3.0, 0.0)
    assert min(told[1]) > math.exp(8), "as PPO has it"


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_forged_logprobs_leave_loss_and_gradient_finite(correction: CorrectionName) -> None:
    drawn = draw(4)
    forged = replace(drawn, behaviour=torch.full_like(drawn.behaviour, -1e4))
    found = CORRECTIONS[correction](forged, BOUNDS[correction])
    found.loss.sum().backward()
    assert drawn.logprobs.grad is not None
    assert torch.isfinite(found.loss).all()
    assert torch.isfinite(drawn.logprobs.grad).all()


def test_in_a_steps_first_update_the_decoupled_objective_is_a_truncated_weight() -> None:
    drawn, bounds = draw(1), TIGHT["decoupled"]
    gradients = []
    for name in ("decoupled", "truncated_weight"):
        terms = replace(drawn, logprobs=drawn.logprobs.detach().requires_grad_(), proximal=None)
        CORRECTIONS[name](terms, bounds).loss.sum().backward()
        gradients.append(terms.logprobs.grad)
    assert torch.allclose(*gradients)


def part_of(whole: Terms, part: torch.Tensor, first: int, count: int) -> Terms:
    columns = {name: getattr(whole, name) for name in ("logprobs", "behaviour", "lags", "offline", "advantages")}
    columns |= {name: getattr(whole, name) for name in ("proximal", "reference")}
    return Terms(
        **{name: column[part] for name, column in columns.items()},
        segments=whole.segments[part] - first,
        num_sequences=count,
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("correction", ["clipped_ratio", "sequence_ratio"])
@given(cut=st.integers(1, 3), seed=st.integers(0, 1000))
def test_losses_of_microbatches_add_up(
    correction: CorrectionName, aggregation: AggregationName, cut: int, seed: int
) -> None:
    objective = Objective(
        correction=CORRECTIONS[correction], aggregation=AGGREGATIONS[aggregation], bounds=TIGHT[correction], kl=0.3
    )
    whole = draw(seed)
    parts = [whole.segments < cut, whole.segments >= cut]
    total = sum(
        objective(part_of(whole, part, first, count), TOTALS).loss.item()
        for part, first, count in zip(parts, [0, cut], [cut, 4 - cut], strict=True)
    )
    assert total == pytest.approx(objective(whole, TOTALS).loss.item(), abs=1e-12)


# What is added to a token's loss.


def test_the_kl_to_the_reference_equals_the_literal_one() -> None:
    terms = draw(5)
    assert terms.reference is not None
    found = reference_kl(terms)
    found.sum().backward()
    for number, (pi, other) in enumerate(zip(terms.logprobs.tolist(), terms.reference.tolist(), strict=True)):
        ratio = math.exp(other) / math.exp(pi)
        assert found[number].item() == pytest.approx(ratio - math.log(ratio) - 1)
        assert terms.logprobs.grad is not None
        assert terms.logprobs.grad[number].item() == pytest.approx(1 - ratio)


def test_the_kl_is_weighed_and_aggregated_like_the_rest() -> None:
    terms = draw(6)
    plain, both = (
        Objective(
            correction=CORRECTIONS["uncorrected"],
            aggregation=AGGREGATIONS["per_sequence"],
            bounds=BOUNDS["uncorrected"],
            kl=kl,
        )(terms, TOTALS).loss
        for kl in (0.0, 0.25)
    )
    kls = reference_kl(terms)
    literal = sum(kls[terms.segments == s].mean().item() for s in range(4)) / 6
    assert (both - plain).item() == pytest.approx(0.25 * literal)


def test_the_kl_to_a_reference_near_by_is_not_lost_in_rounding() -> None:
    apart = torch.tensor([1e-4, -1e-4, 3e-5])
    near = replace(draw(7, [3]), logprobs=-apart, reference=torch.zeros(3))
    assert reference_kl(near).tolist() == pytest.approx([5e-9, 5e-9, 4.5e-10], rel=1e-2)


def test_the_kl_never_overflows() -> None:
    far = replace(draw(7), reference=torch.zeros(sum(LENGTHS), dtype=torch.float64))
    far = replace(far, logprobs=torch.full_like(far.behaviour, -1e4).requires_grad_())
    assert reference_kl(far).max().item() == pytest.approx(math.exp(LOG_RATIO_LIMIT) - 1 - LOG_RATIO_LIMIT)


def literal_teacher(pi: float, teacher: float) -> float:
    return max(-TEACHER_LIMIT, min(TEACHER_LIMIT, teacher - pi))


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_what_a_teacher_says_is_added_to_the_advantage_of_each_token(correction: CorrectionName, weight: float) -> None:
    """The loss is that of advantages that hold the teacher's word already, and its gradient knows nothing of how that
    word follows from the weights."""
    seen = draw(9)
    teacher = seen.behaviour + 0.7 * torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(1)).double()
    teacher[3], teacher[11] = -200.0, 0.0
    taught = [
        a + weight * (literal_teacher(pi, t) + 0.25)
        for a, pi, t in zip(seen.advantages.tolist(), seen.logprobs.tolist(), teacher.tolist(), strict=True)
    ]
    told = torch.tensor(taught, dtype=torch.float64)
    plain = Objective(
        correction=CORRECTIONS[correction], aggregation=AGGREGATIONS["per_token"], bounds=TIGHT[correction]
    )
    expected = plain(replace(seen, advantages=told), TOTALS)
    [derivative] = torch.autograd.grad(expected.loss, seen.logprobs)
    mean = torch.full_like(teacher, -0.25)
    found = replace(plain, teacher=weight)(replace(seen, teacher=teacher, teacher_mean=mean), TOTALS)
    [gradient] = torch.autograd.grad(found.loss, seen.logprobs)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-12)
    assert gradient.tolist() == pytest.approx(derivative.tolist(), abs=1e-12)


def test_on_policy_the_gradient_is_that_of_the_reverse_kl() -> None:
    """Over every token there is, weighed by the policy itself, the expected gradient is the exact one of KL(pi||pi_T)
    at this position, where the two are within the limit everywhere."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    apart = 0.3 * torch.randn(5, generator=generator, dtype=torch.float64)
    teacher = torch.log_softmax(logits.detach() + apart, 0)
    logprobs = torch.log_softmax(logits, 0)
    [exact] = torch.autograd.grad((logprobs.exp() * (logprobs - teacher)).sum(), logits, retain_graph=True)
    terms = replace(draw(1, [1] * 5), logprobs=logprobs, teacher=teacher, advantages=torch.zeros(5).double())
    rewards = teacher_reward(terms)
    assert not rewards.requires_grad
    [sampled] = torch.autograd.grad(-(logprobs.detach().exp() * rewards * logprobs).sum(), logits)
    assert sampled.tolist() == pytest.approx(exact.tolist(), abs=1e-12)


def test_a_teacher_that_lies_moves_a_token_by_no_more_than_the_limit() -> None:
    seen = draw(2)
    for claim in (-3e38, 0.0):
        taught = teacher_reward(replace(seen, teacher=torch.full_like(seen.behaviour, claim)))
        assert taught.abs().max().item() <= TEACHER_LIMIT


def test_a_teacher_that_says_nothing_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="under the teacher"):
        teacher_reward(draw(2))


@given(value=st.floats(-3, 3), old=st.floats(-3, 3), wanted=st.floats(-3, 3), clip=st.floats(0.05, 1.0))
def test_the_critics_error_equals_the_literal_one(value: float, old: float, wanted: float, clip: float) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    terms = replace(
        draw(8, [1]),
        values=values,
        old_values=torch.tensor([old], dtype=torch.float64),
        returns=torch.tensor([wanted], dtype=torch.float64),
    )
    held = min(max(value, old - clip), old + clip)
    literal = max((value - wanted) ** 2, (held - wanted) ** 2) / 2
    assert value_loss(terms, clip).item() == pytest.approx(literal, abs=1e-12)


def test_a_critic_that_was_moved_far_towards_the_return_moves_no_further() -> None:
    values = torch.tensor([0.9], dtype=torch.float64, requires_grad=True)
    column = torch.zeros(1, dtype=torch.float64)
    terms = replace(draw(9, [1]), values=values, old_values=column, returns=column + 1)
    value_loss(terms, 0.2).sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 0.0


@pytest.mark.parametrize("missing", ["values", "old_values", "returns"])
def test_the_critics_error_needs_all_three(missing: str) -> None:
    column = torch.zeros(1, dtype=torch.float64)
    terms = replace(draw(9, [1]), values=column, old_values=column, returns=column)
    with pytest.raises(ValueError, match="old values and returns"):
        value_loss(replace(terms, **{missing: None}), 0.2)
