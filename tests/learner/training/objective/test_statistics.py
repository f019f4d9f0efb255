"""Report a step's statistics: sums by lag that add up over microbatches, and their means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.training.objective.objective_inputs import LOG_RATIO_LIMIT, Corrected, Terms
from learner.training.objective.statistics import Statistics


def terms(logprobs: list[float], behaviour: list[float], lags: list[int], offline: list[bool] | None = None) -> Terms:
    size = len(logprobs)
    return Terms(
        logprobs=torch.tensor(logprobs),
        behaviour=torch.tensor(behaviour),
        lags=torch.tensor(lags),
        offline=torch.tensor(offline or [False] * size),
        advantages=torch.ones(size),
        segments=torch.zeros(size, dtype=torch.int64),
        num_sequences=1,
    )


def corrected(clipped: list[bool], weights: list[float] | None = None) -> Corrected:
    """As a correction would tell it; weights are 1 if not given."""
    told = torch.tensor(weights) if weights else torch.ones(len(clipped))
    return Corrected(loss=torch.zeros(()), clipped=torch.tensor(clipped), weights=told)


def test_sums_over_two_microbatches() -> None:
    found = Statistics(0)
    found.add(terms([-1.0, -2.0], [-1.0, -1.0], [0, 0]), corrected([False, True], [1.0, 0.0]), torch.tensor([0.5, 1.5]))
    found.add(terms([-1.0], [-2.0], [0]), corrected([False], [2.0]), torch.tensor([1.0]))
    low, high = math.exp(-1), math.exp(1)
    assert found.tokens == 3
    assert found.metrics() == pytest.approx(
        {
            "clip_share": 1 / 3,
            "mean_ratio": (1 + low + high) / 3,
            "max_ratio": high,
            "max_log_ratio": 1.0,
            "mismatch_kl": ((low - 1 + 1) + (high - 1 - 1)) / 3,
            "entropy": 1.0,
            "reference_kl": 0.0,
            "teacher_kl": 0.0,
            "ess": (1 + low + high) ** 2 / (3 * (1 + low**2 + high**2)),
            "weight_ess": (1 + 0 + 2) ** 2 / (3 * (1 + 0 + 4)),
            "masked_share": 0.0,
        },
        rel=1e-5,
    )


def test_each_lag_is_told_apart_and_logs_from_all_of_them() -> None:
    found = Statistics(3)
    drawn = terms([-1.0, -2.0, -1.0, -3.0], [-1.0, -1.0, -2.0, -1.0], [0, 3, 3, 1], [False, False, False, True])
    found.add(drawn, corrected([False, True, False, True], [1.0, 0.0, 3.0, 1.0]), torch.tensor([0.5, 1.5, 2.5, 3.0]))
    by_lag = found.by_lag()
    assert {name: row["tokens"] for name, row in by_lag.items()} == {"0": 1, "3": 2, "offline": 1}
    assert by_lag["0"] == pytest.approx(
        {
            "tokens": 1,
            "ratio": 1,
            "kl": 0,
            "clip_share": 0,
            "entropy": 0.5,
            "reference_kl": 0,
            "ess": 1,
            "weight_ess": 1,
        }
    )
    low, high = math.exp(-1), math.exp(1)
    assert by_lag["3"]["ratio"] == pytest.approx((low + high) / 2)
    assert by_lag["3"]["kl"] == pytest.approx((low + high - 2) / 2)
    assert by_lag["3"]["ess"] == pytest.approx((low + high) ** 2 / (2 * (low**2 + high**2)))
    assert by_lag["3"]["weight_ess"] == 0.5, "one of two is left"
    assert (by_lag["3"]["clip_share"], by_lag["3"]["entropy"]) == (0.5, 2.0)
    assert by_lag["offline"]["clip_share"] == 1


@given(
    rows=st.lists(
        st.tuples(st.floats(-5, 0, width=32), st.floats(-5, 0, width=32), st.integers(0, 4), st.booleans()),
        min_size=2,
        max_size=20,
    ),
    cut=st.integers(1, 19),
)
def test_parts_add_up_to_the_whole(rows: list[tuple[float, float, int, bool]], cut: int) -> None:
    def counted(part: list[tuple[float, float, int, bool]]) -> Statistics:
        found = Statistics(4)
        if part:
            pi, mu, lags, offline = map(list, zip(*part, strict=True))
            size = len(part)  # sequences are whole in every part: each token is one
            several = {"segments": torch.arange(size), "num_sequences": size}
            found.add(
                Terms(**{**vars(terms(pi, mu, lags, offline)), **several}),
                corrected([one < -2 for one in pi], [abs(one) for one in mu]),
                torch.tensor(mu),
            )
        return found

    whole, parts = counted(rows), counted(rows[:cut])
    parts.merge(counted(rows[cut:]))
    assert parts.tokens == whole.tokens == len(rows)
    assert parts.metrics() == pytest.approx(whole.metrics(), rel=1e-9, abs=1e-9)
    assert parts.by_lag().keys() == whole.by_lag().keys()
    assert sum(row["tokens"] for row in whole.by_lag().values()) == len(rows)
    assert 0 < whole.metrics()["ess"] <= 1 + 1e-9


@given(st.lists(st.tuples(st.floats(-8, 0, width=32), st.floats(-(2**-10), 2**-10, width=32)), min_size=1, max_size=9))
def test_a_mismatch_of_roundings_alone_has_a_kl_that_is_small_and_not_below_zero(
    tokens: list[tuple[float, float]],
) -> None:
    """As with S = 0 in bfloat16: half the square of the difference, which float32 would lose in the ratio's 1."""
    drawn = terms([pi for pi, _ in tokens], [pi - apart for pi, apart in tokens], [0] * len(tokens))
    found = Statistics(0)
    found.add(drawn, corrected([False] * len(tokens)), torch.zeros(len(tokens)))
    apart = (drawn.logprobs.double() - drawn.behaviour.double()).tolist()
    literal = sum(one**2 / 2 + one**3 / 6 for one in apart) / len(apart)
    assert found.metrics()["mismatch_kl"] >= 0
    assert found.metrics()["mismatch_kl"] == pytest.approx(literal, rel=1e-3, abs=1e-15)


def test_a_forged_logprob_makes_no_kl_negative() -> None:
    found = Statistics(0)
    found.add(terms([-1.0], [-3e38], [0]), corrected([False]), torch.zeros(1))
    found.add(terms([-3e38], [-1.0], [0]), corrected([False]), torch.zeros(1))
    assert 0 < found.metrics()["mismatch_kl"] < math.inf
    assert found.metrics()["max_log_ratio"] == pytest.approx(3e38)


def test_the_reference_is_told_of_where_there_is_one() -> None:
    found = Statistics(0)
    drawn = terms([-1.0, -2.0], [-1.0, -2.0], [0, 0])
    far = Terms(**{**vars(drawn), "reference": torch.tensor([-1.0, -1.0])})
    found.add(far, corrected([False, False]), torch.zeros(2))
    assert found.metrics()["reference_kl"] == pytest.approx((math.exp(1) - 2) / 2)


def test_the_teacher_is_told_of_where_there_is_one() -> None:
    found, seen = Statistics(0), terms([-1.0, -2.0, -1.0], [-1.0, -1.0, -1.0], [0, 0, 0])
    taught = replace(seen, teacher=torch.tensor([-3.0, -1.5, -100.0]))
    found.add(taught, corrected([False] * 3), torch.zeros(3))
    assert found.metrics()["teacher_kl"] == pytest.approx((2.0 - 0.5 + LOG_RATIO_LIMIT) / 3)


def test_metrics_of_an_empty_batch_are_zero() -> None:
    assert set(Statistics(3).metrics().values()) == {0.0}
    assert Statistics(3).by_lag() == {}


def test_a_sequence_is_masked_when_a_bound_left_none_of_its_tokens_a_weight() -> None:
    found = Statistics(0)
    drawn = terms([-1.0] * 6, [-1.0] * 6, [0] * 6)
    several = Terms(**{**vars(drawn), "segments": torch.tensor([0, 0, 1, 1, 2, 3]), "num_sequences": 4})
    # Whole; half of it; one whose ratio has vanished by itself; one that was capped.
    clipped, weights = [True, True, True, False, False, True], [0.0, 0.0, 0.0, 1.0, 0.0, 2.0]
    found.add(several, corrected(clipped, weights), torch.zeros(6))
    assert found.metrics()["masked_share"] == 0.25
    found.merge(found)
    assert found.metrics()["masked_share"] == 0.25
