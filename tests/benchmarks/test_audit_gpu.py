"""The benchmark of GPUs judges their completions by the learner's margins; that it runs is tested without a GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from benchmarks.audit_gpu import Model, bars_of, detection, held, keep, kept
from benchmarks.audits.cards import (
    FOUR_BITS,
    LAG,
    OTHER,
    SHAPES,
    Amounts,
    Card,
    Passed,
    cards,
    engines_of,
    passed_round,
    rounding,
    teach_and_train,
)
from benchmarks.audits.evidence import Pool
from benchmarks.audits.policies import GROUP, LINE
from benchmarks.audits.recording import HONEST
from learner.trust.ban_evidence import Margin
from learner.trust.margins import MEDIUM

SMALL = Amounts(honest=2, by_processor=1, cheat=1)
FLOAT32, TF32, BFLOAT16, PROCESSOR = cards("cuda")


def pool(rate: float, *, groups: int = 200, size: int = 256, seed: int = 0) -> Pool:
    """Return a pool in which `rate` of the draws that lead by a nat differ."""
    gaps = (np.random.default_rng(seed).random(groups * size) < rate).astype(float)
    quiet, starts = np.zeros_like(gaps), np.arange(groups + 1) * size
    return Pool(gaps=gaps, apart=quiet, leads=np.ones_like(gaps), contexts=np.arange(len(gaps)), starts=starts)


def model(honest: float = 0.0, four_bits: float = 0.01, exact: float = 0.0) -> Model:
    """`exact`: of pairs that compute in float32."""
    found: Passed = {
        (FLOAT32, HONEST, FLOAT32): pool(exact),
        (TF32, HONEST, PROCESSOR): pool(exact, seed=1),
        (BFLOAT16, HONEST, FLOAT32): pool(honest, seed=2),
    }
    for number, maker in enumerate((FLOAT32, BFLOAT16)):
        for deed, rate in ((OTHER, 0.5), (FOUR_BITS, four_bits), (LAG, 0.02)):
            found[maker, deed, FLOAT32] = pool(rate, groups=40, seed=10 + number)
    return Model(51_000_000, found)


def missed(one: Model) -> set[str]:
    found = {("51 M", strict): detection(one, strict, 0) for strict in (False, True)}
    return {bar.name for bar in bars_of({"51 M": one}, found) if not bar.met}


def test_what_holds_and_what_is_found() -> None:
    assert missed(model()) == set()


def test_bars_are_missed_by_what_they_are_about() -> None:
    assert missed(model(four_bits=0.0)) == {"detect_4bit"}
    assert missed(model(honest=1e-3)) == {"margin_rates_held", "false_positive_max"}
    assert missed(model(exact=1e-3)) == {"margin_rates_held", "float32_rates_held", "false_positive_max"}


def test_which_pair_is_closest_to_which_margin_is_said() -> None:
    worst, where = held([model(honest=1e-3)], lambda one: one.margins, strict=False)
    assert worst > 1
    assert where.startswith("GPU bf16 to GPU fp32, ")
    assert held([model(honest=1e-3)], lambda one: one.strict, strict=True)[0] < 1, "no pair of float32"
    assert model().margins == MEDIUM


def test_rates_of_a_pair_are_those_of_all_models_together() -> None:
    def lax(_: Model) -> tuple[Margin, ...]:
        return tuple(replace(margin, rate=0.5) for margin in MEDIUM)

    one, two = (held([model()] * count, lax, strict=False)[0] for count in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.01), "no token is beyond, and there are twice as many"


def test_what_was_found_is_kept_and_judged_again(tmp_path: Path) -> None:
    keep(tmp_path, "51 M", model(honest=1e-3))
    again = kept(tmp_path, "51 M")
    assert again is not None
    assert missed(again) == missed(model(honest=1e-3))
    assert again.found.keys() == model().found.keys()
    for key, before in model(honest=1e-3).found.items():
        after = again.found[key]
        for figure in ("gaps", "apart", "leads", "contexts", "starts"):
            assert np.array_equal(getattr(before, figure), getattr(after, figure)), (key, figure)
    assert kept(tmp_path, "0.5 M") is None


def test_cards_are_told_apart_and_only_one_rounds_as_its_owner_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(card) for card in cards("cuda")] == ["GPU fp32", "GPU TF32", "GPU bf16", "CPU fp32"]
    monkeypatch.delenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", raising=False)
    with rounding(tf32=True):
        assert environment() == "1"
        with rounding(tf32=False):
            assert environment() == "0"
        assert environment() == "1"
    assert environment() is None


def environment() -> str | None:
    return os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


@pytest.mark.slow
def test_it_runs_on_a_processor(tmp_path: Path) -> None:
    """The same bits whoever looks, on one machine in one number format."""
    shape = replace(SHAPES["0.5 M"], examples=4, amounts=SMALL)
    wanted = [Card(engine="CPU", device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16")]

    async def run() -> Passed:
        async with engines_of(wanted) as engines:
            deeds, loss = await teach_and_train(tmp_path, shape, "cpu", engines[wanted[0]], 0)
            assert 0 < loss < 8
            assert [deed.name for deed in deeds] == [HONEST, OTHER, FOUR_BITS, LAG]
            assert {deed.claimed for deed in deeds} == {deeds[0].weights}
            return await passed_round(engines, deeds, shape, SMALL, 0)

    found = trio.run(run)
    assert set(found) == {(maker, HONEST, looker) for maker in wanted for looker in wanted}
    assert all(pool.tokens == GROUP * LINE for pool in found.values()), "a processor makes and looks at its share"
    for card in wanted:
        assert found[card, HONEST, card].gaps.max() == 0
    assert found[wanted[1], HONEST, wanted[0]].apart.max() > 1e-3
