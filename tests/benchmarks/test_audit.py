"""The benchmark of audits judges as the learner does, and its own parts do what their names say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from benchmarks.audit import CHEATS, LAGGED, bars_of, bytes_for_audits
from benchmarks.audits.evidence import (
    Floats,
    Ints,
    Pool,
    detected,
    exceeding,
    lower_bound,
    means,
    pool_of,
    thresholds,
    tokens_needed,
    tokens_until,
    upper_bound,
)
from benchmarks.audits.picture import draw
from benchmarks.audits.policies import language, reward
from benchmarks.audits.quantise import QUANTISERS, fp8, int4, int8, quantised
from benchmarks.audits.recording import (
    BARRED,
    HONEST,
    OWN,
    PEERS,
    PLAIN,
    VERIFIERS,
    Recorded,
)
from benchmarks.audits.verdict import (
    BAN,
    EVIDENCE,
    JUDGED,
    LOGPROBS,
    STRICT,
    SUSPECT,
    Judged,
    held_by_pair,
    held_together,
    judge,
)
from learner.training.model.loading import make_model
from learner.trust.audit_history import SUSPECT_EVIDENCE
from learner.trust.ban_evidence import (
    TEST_ERROR,
    Audited,
    Counted,
    Found,
    History,
    Margin,
    Measure,
    count_above,
    log_evidence,
    with_audit,
)
from learner.trust.margins import SMALL

MARGINS = (
    Margin(above=0.01, rate=0.01, measure=Measure.GAP),
    Margin(above=0.1, rate=0.2, measure=Measure.LOGPROB),
    Margin(above=0.15, rate=0.3, measure=Measure.MEAN),
)


def pool(rate: float, *, apart: float = 0.0, groups: int = 40, size: int = 64, seed: int = 0) -> Pool:
    """Groups of `size` tokens, of which `rate` are others than draws that lead by a nat."""
    chance = np.random.default_rng(seed)
    gaps = (chance.random(groups * size) < rate).astype(float)
    starts = np.arange(groups + 1) * size
    return pool_from(gaps, np.full_like(gaps, apart), starts)


def pool_from(gaps: Floats, apart: Floats, starts: Ints) -> Pool:
    """Return a pool of draws that lead by a nat."""
    return Pool(gaps=gaps, apart=apart, leads=np.ones_like(gaps), contexts=np.arange(len(gaps)), starts=starts)


def test_pools_keep_completions_of_a_group_together() -> None:
    given = [([0.0, 1.0], [0.1, 0.2]), ([2.0], [0.3]), ([3.0, 4.0], [0.4, 0.5]), ([5.0, *[0.0] * 5], [0.6] * 6)]
    contexts = [(1, 2), (1,), (1, 4), (1, 2, 5, 6, 7, 8)]
    made = pool_of(
        [
            [
                Found(gap=gap, lead=gap / 2, apart=apart, context=place)
                for gap, apart, place in zip(*one, places, strict=True)
            ]
            for one, places in zip(given, contexts, strict=True)
        ],
        2,
    )
    assert made.starts.tolist() == [0, 3, 11]
    assert made.sums(made.gaps).tolist() == [3.0, 12.0]
    assert made.half(1).gaps.tolist() == [3.0, 4.0, 5.0, *[0.0] * 5]
    assert made.half(0).apart.tolist() == [0.1, 0.2, 0.3]
    assert made.relabelled().apart.max() == 0.0
    assert made.half(1).leads.tolist() == [1.5, 2.0, 2.5, *[0.0] * 5]

    def counted(margin: Margin) -> list[list[float]]:
        return [one.tolist() for one in made.counted([margin])[0]]

    far = Margin(above=0.25, rate=0.1, measure=Measure.LOGPROB)
    assert counted(far) == [[1, 7], [2, 7]], "each context once"
    assert counted(replace(far, measure=Measure.MEAN)) == [[0, 1], [0, 1]], "no group of 3 tokens can be judged"
    band = replace(far, over=0.25, upto=2.0, measure=Measure.GAP)
    assert counted(band) == [[2, 2], [2, 2]], "only draws that lead by as much must count"
    with pytest.raises(ValueError, match="groups of 2"):
        pool_of([[Found(gap=0.0, lead=1.0)]], 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.7, math.inf]),
            st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.3, 1.0, math.inf]),
            st.floats(0, 2),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_what_is_counted_of_a_pool_is_what_learners_count(tokens: list[tuple[float, float, float, int]]) -> None:
    found = [Found(gap=gap, lead=lead, apart=apart, context=context) for gap, lead, apart, context in tokens]
    expected = count_above(found, SMALL).counts
    counted = pool_of([found], 1).counted(SMALL)
    assert [(int(above[0]), int(trials[0])) for above, trials in counted] == [
        (one.above, one.trials) for one in expected
    ]


def evidence_of(audits: Sequence[Audited]) -> list[float]:
    """After each audit, by the code that learners run."""
    history, found = History(), []
    for audited in audits:
        history = with_audit(history, audited, MARGINS)
        found.append(log_evidence(history))
    return found


def test_evidence_is_the_learners() -> None:
    # All groups are alike, so that what is drawn does not matter: 3 of 50 tokens have a gap, 10 a wrong logprob.
    gaps = np.tile(np.repeat([1.0, 0.0], [3, 47]), 4)
    apart = np.tile(np.repeat([1.0, 0.0], [10, 40]), 4)
    alike = pool_from(gaps, apart, np.arange(5) * 50)
    counts = tuple(Counted(above=above, trials=trials) for above, trials in ((3, 50), (10, 50), (1, 1)))
    expected = evidence_of([Audited(tokens=50, counts=counts)] * 200)
    for level in (2.0, 100.0, 1e6):
        audits = next(number for number, value in enumerate(expected, 1) if value >= math.log(level))
        [reached] = tokens_until(alike, MARGINS, [level], sets=3, longest=10_000, seed=0)
        assert reached.tolist() == [50.0 * audits] * 3


def test_what_is_honest_is_left_alone_and_what_is_not_is_found() -> None:
    honest, cheat = (
        tokens_until(pool(rate), MARGINS, (SUSPECT, BAN), sets=100, longest=20_000, seed=1) for rate in (0.005, 0.2)
    )
    assert detected(honest[0], [20_000]) == [0.0]
    assert detected(cheat[1], [63, 8192]) == [0.0, 1.0]
    assert (cheat[0] <= cheat[1]).all()
    # Beyond the longest set nothing counts.
    assert np.isinf(tokens_until(pool(0.2), MARGINS, [BAN], sets=10, longest=63, seed=1)).all()


def test_levels_are_those_at_which_learners_act() -> None:
    assert pytest.approx(math.exp(SUSPECT_EVIDENCE)) == SUSPECT == pytest.approx(100)
    assert pytest.approx(1 / TEST_ERROR) == BAN


def test_thresholds_leave_one_in_a_hundred_of_the_worst_kind() -> None:
    sizes = (64, 6400)
    kinds = [means(pool(rate, seed=3), pool(rate, seed=3).gaps, sizes, sets=400, seed=2) for rate in (0.01, 0.1)]
    limits = thresholds(kinds, 0.01)
    assert exceeding(kinds[0], limits) == [0.0, 0.0]
    assert all(share <= 0.01 for share in exceeding(kinds[1], limits))
    assert limits[0] > limits[1], "long sets scatter less"
    found = means(pool(0.3), pool(0.3).gaps, sizes, sets=400, seed=2)
    assert exceeding(found, limits)[1] == 1.0


def test_a_threshold_allows_for_what_a_small_pool_does_not_know() -> None:
    small = pool(0.05, groups=10)
    narrow, wide = (means(small, small.gaps, (64_000,), sets=400, seed=5, wide=wide).std() for wide in (False, True))
    assert wide > 5 * narrow


def test_tokens_needed_are_those_from_which_on_it_is_found() -> None:
    assert tokens_needed((1, 2, 4, 8), (0.95, 0.5, 0.9, 1.0)) == 4.0
    assert tokens_needed((1, 2), (0.95, 0.5)) is None


def test_bounds_of_rates() -> None:
    assert upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000))  # the rule of three
    assert upper_bound(5, 5) == 1.0
    assert lower_bound(0, 1000) == 0.0
    assert lower_bound(5, 5) == pytest.approx(0.05 ** (1 / 5))
    assert lower_bound(50, 1000) < 0.05 < upper_bound(50, 1000)


# Weights


def test_quantisers_round_to_as_many_steps_as_they_have() -> None:
    torch.manual_seed(0)
    weights = torch.randn(6, 70)
    for quantiser, steps in ((int4, 15), (int8, 255)):
        rounded = quantiser(weights)
        first = rounded[0, :32] if quantiser is int4 else rounded[0]
        grid = first / first.abs().max() * (steps // 2)
        assert torch.allclose(grid, grid.round(), atol=1e-3)
        assert (rounded - weights).abs().max() <= weights.abs().max() / (steps - 1) * 1.01
    errors = [float((quantiser(weights) - weights).pow(2).mean()) for quantiser in (int8, fp8, int4)]
    assert errors == sorted(errors)
    assert int4(weights).shape == weights.shape
    for quantiser in QUANTISERS.values():
        assert quantiser(torch.zeros(2, 40)).abs().max() == 0.0


def test_a_quantised_model_keeps_its_embeddings(tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    make_model(tmp_path / "model", {**shape, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32}, 0)
    made = quantised(tmp_path / "model", tmp_path / "rounded", "4-bit")
    assert {path.name for path in made.iterdir()} == {path.name for path in (tmp_path / "model").iterdir()}
    before, after = (load_file(path / "model.safetensors") for path in (tmp_path / "model", made))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("proj" in name for name in changed)


def test_the_language_is_the_same_for_the_same_seed() -> None:
    one, same = (language(3, 1000).lines(4, 50, np.random.default_rng(1)) for _ in range(2))
    assert (one == same).all()
    assert len(np.unique(language(3, 1000).lines(400, 50, np.random.default_rng(1)))) <= 256
    assert (reward([2, 4, 5, 8]), reward([2, 4, 5, 7])) == (1.0, 0.0)


# The verdict


def recorded(cheats: dict[str, float], honest: float = 1e-3) -> Recorded:
    """A model of which every deed has gaps at its rate, 0.3 where none is given."""
    found = Recorded()
    for number, (peer, dtype) in enumerate((peer, dtype) for peer in PEERS for dtype in VERIFIERS):
        found.pools[peer, HONEST, dtype] = pool(honest, groups=100, seed=number)
        for deed in CHEATS if peer == PLAIN else BARRED:
            rate = cheats.get(deed, 0.3)
            found.pools[peer, deed, dtype] = pool(rate, apart=1.0 if rate > 0.1 else 0.0, seed=50 + number)
    return found


MODEST = (
    Margin(above=0.001, rate=4e-3, measure=Measure.GAP),
    Margin(above=0.15, rate=4e-3, measure=Measure.LOGPROB),
)


def judged(
    cheats: dict[str, float], honest: float = 1e-3, strict: Sequence[Margin] = MODEST, exact: float = 1e-3
) -> Judged:
    """`exact`: the rate of honest gaps where peer and verifier compute in float32."""
    found = recorded(cheats, honest)
    for number, peer in enumerate(peer for peer in PEERS if peer.dtype == "float32"):
        found.pools[peer, HONEST, "float32"] = pool(exact, groups=100, seed=90 + number)
    return judge(found, None, MODEST, strict, 0, sets=40, longest=20_000)


def test_margins_for_float32_are_asked_of_float32_alone_and_held_by_all_models_together() -> None:
    strict = tuple(replace(margin, rate=4e-4) for margin in MODEST)
    exact = judged({"lag 1, 5e-4": 2e-3}, strict=strict, exact=0.0)
    assert {(row.peer.dtype, row.dtype) for row in exact.curves[STRICT]} == {("float32", "float32")}
    alike = [row for row in exact.curves[STRICT] if (row.deed, row.claims) == (LAGGED[0], OWN)]
    assert alike
    for row in alike:
        assert exact.curves[STRICT][row].at(JUDGED) >= exact.curves[EVIDENCE][row].at(JUDGED)
    one, two = held_together([exact]), held_together([exact, exact])
    assert one is not None
    assert two is not None
    assert one == pytest.approx(2 * two, rel=0.01), "no token is beyond, and there are twice as many"
    loose = held_together([judged({}, strict=strict, exact=2e-3)])
    assert loose is not None
    assert loose > 1


def test_rates_of_draws_are_held_by_all_models_together() -> None:
    """A policy that is certain has few close draws, too few to say anything alone."""
    exact = judged({}, honest=0.0, exact=0.0)
    assert {margin.measure for _, margin in exact.rates} == {Measure.LOGPROB}
    assert exact.margins == MODEST
    one, two = held_by_pair([exact]), held_by_pair([exact, exact])
    assert one is not None
    assert two is not None
    assert one == pytest.approx(2 * two, rel=0.01)
    loose = held_by_pair([judged({}, honest=0.02), *[exact] * 50])
    assert loose is not None
    assert loose > 1, "however many others have none"


def test_a_model_of_which_everything_is_found() -> None:
    good = judged({"fp8": 0.0})
    assert {bar.name for bar in bars_of({"tiny": good}, 0.0) if not bar.met} == set()
    assert good.worst(EVIDENCE, ["fp8"], "own") == 0.0
    assert good.worst(LOGPROBS, ["other"], "own") == 1.0
    assert good.worst(LOGPROBS, ["other"], "relabelled") == 0.0, "there is nothing else for it to see"
    assert good.worst(EVIDENCE, ["nothing of the kind"], "own") is None
    assert max(good.bans.values()) == 0.0


@pytest.mark.parametrize(
    ("bad", "missed"),
    [
        ({"4-bit": 0.002}, {"detect_4bit", "detect_relabelled"}),
        ({"smaller": 0.002}, {"detect_other"}),
        ({LAGGED[2]: 0.002}, {"detect_lag1", "detect_relabelled"}),
    ],
)
@pytest.mark.rest
def test_a_model_of_which_something_is_not(bad: dict[str, float], missed: set[str]) -> None:
    models = {"tiny": judged({}), "50 M": judged(bad)}
    assert {bar.name for bar in bars_of(models, 0.0) if not bar.met} == missed


@pytest.mark.rest
def test_a_policy_late_in_its_run_is_shown_and_its_cheats_not_judged() -> None:
    models = {"tiny": judged({}), "tiny, later": judged({"4-bit": 0.002})}
    assert {bar.name for bar in bars_of(models, 0.0) if not bar.met} == set()
    assert {bar.name for bar in bars_of({"tiny, later": judged({}, honest=0.03)}, 0.0) if bar.value is None} == {
        *("detect_other", "detect_4bit", "detect_lag1", "detect_relabelled")
    }


def test_honest_work_beyond_its_margins_is_a_miss() -> None:
    missed = {bar.name for bar in bars_of({"tiny": judged({}, honest=0.03)}, 4.0) if not bar.met}
    assert missed == {"false_positive_max", "margin_rates_held", "bytes_per_token"}


def test_audits_need_nothing_that_training_does_not_read() -> None:
    assert bytes_for_audits() == 0.0


def test_the_picture(tmp_path: Path) -> None:
    draw({"tiny": judged({})}, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_shipped_margins_are_few_enough_for_a_ledger() -> None:
    assert len(SMALL) == 8
    assert JUDGED == 8192
