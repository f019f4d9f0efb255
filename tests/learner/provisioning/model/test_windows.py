"""Every window, for pools at large and for the paper's own figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.provisioning.model.echo2 import GAMMA, greedily, printed
from learner.provisioning.model.machine_selection import MARGIN, Candidate, Choice, cheapest
from learner.provisioning.model.what_if import remedies
from learner.provisioning.model.windows import Infeasible, Outcome, Setting, Shown, Timings, Windows
from tests.support.capacity_condition import never_waits
from tests.support.examples import examples

PRINTED = Timings(train_s=1631.2, rollouts=2048, broadcast_s=1437.0)


def alike(count: int, rate: float, price: float = 0.35, broadcast_s: float = 1437.0) -> tuple[Candidate, ...]:
    return tuple(Candidate(name=f"m{i:03}", price=price, rate=rate, broadcast_s=broadcast_s) for i in range(count))


def setting(candidates: tuple[Candidate, ...], timings: Timings = PRINTED, **more: object) -> Setting:
    return Setting(timings=timings, source_s=timings.broadcast_s, candidates=candidates, **more)  # type: ignore[arg-type]


def outcome(answer: Outcome | Infeasible) -> Outcome:
    assert isinstance(answer, Outcome), answer
    return answer


@pytest.mark.parametrize(
    ("staleness", "kappa", "over_balance", "bound", "papers", "ours"),
    [(3, 2, 1.787, 3, 25, 14), (4, 3, 1.416, 4, 20, 14), (6, 5, 1.214, 6, 17, 14), (11, 10, 1.097, 11, 16, 14)],
)
def test_the_worked_table(staleness: int, kappa: int, over_balance: float, bound: int, papers: int, ours: int) -> None:
    windows = Windows(setting(alike(40, 0.1)))
    window, papers_window = windows.window(staleness), printed(windows, staleness)
    paper = papers_window.outcome
    assert paper is not None
    assert (paper.kappa, paper.lag_bound, len(paper.choice.chosen)) == (kappa, bound, papers)
    assert paper.over_balance == pytest.approx(over_balance, abs=5e-4)
    assert paper.asked == pytest.approx(GAMMA * papers_window.mu_min)
    mine = outcome(window.ours)
    assert (mine.kappa, mine.kappas[-1], len(mine.choice.chosen)) == (kappa, kappa, ours)
    assert mine.over_balance == pytest.approx(1)
    assert mine.bubble == pytest.approx(0)
    assert mine.cost_per_step == pytest.approx(ours * 0.35 * 1631.2 / 3600)


def test_a_period_that_takes_more_volunteers_is_not_as_good() -> None:
    """They cost nothing, so the price alone would let kappa be S, for which twice as many are needed."""
    timings = Timings(train_s=60.0, rollouts=256, broadcast_s=30.0)
    mine = outcome(Windows(setting(alike(20, 0.5, price=0.0, broadcast_s=30.0), timings)).ours(3))
    assert (mine.kappas, len(mine.choice.chosen)) == ((1, 2), 9)


def test_turns_by_machines_alike_take_what_the_formula_says() -> None:
    timings = Timings(train_s=100.0, rollouts=50, broadcast_s=30.0, generation_s=20.0)
    pool = tuple(Candidate(name=str(i), price=1.0, rate=0.25, broadcast_s=30.0, generation_s=20.0) for i in range(4))
    turns = outcome(Windows(setting(pool, timings)).window(0).ours)
    assert turns.period_s == pytest.approx(100 + 30 + 20 + 50 / 1.0)
    assert (turns.lag, turns.lag_bound) == (0, 0)
    assert turns.cost_per_step == pytest.approx(4 * 200 / 3600)


def test_turns_with_a_dear_learner_take_more_machines_than_with_a_cheap_one() -> None:
    timings = Timings(train_s=100.0, rollouts=50, broadcast_s=30.0)
    pool = alike(20, 0.25, broadcast_s=30.0)
    cheap, dear = (
        outcome(Windows(setting(pool, timings, learner_price=price)).window(0).ours) for price in (0.1, 100.0)
    )
    assert len(cheap.choice.chosen) < len(dear.choice.chosen) == 20
    for some in range(1, 21):
        assert Windows(setting(pool, timings, learner_price=0.1)).in_turns(pool[:some]).cost_per_step >= (
            cheap.cost_per_step * (1 - 1e-12)
        )


def test_a_given_period_binds_both_rules_as_far_as_the_window_lets_it() -> None:
    windows = Windows(setting(alike(200, 0.1), kappa=2))
    for staleness, kappa in ((1, 1), (2, 2), (5, 2)):
        answer = windows.window(staleness)
        assert printed(windows, staleness).kappa == kappa
        assert isinstance(answer.ours, Infeasible) or answer.ours.kappa == kappa


def test_versions_that_overtake_each_other_are_said_to() -> None:
    timings = Timings(train_s=100.0, rollouts=50, broadcast_s=250.0)
    windows = Windows(setting(alike(50, 0.1, broadcast_s=250.0), timings))
    two, three = windows.ours(2), windows.ours(5)
    assert isinstance(two, Infeasible)
    assert two.is_overtaken
    assert windows.share(2) == 0
    assert outcome(three).kappa >= 3


def test_all_machines_are_judged_under_the_period_that_was_given() -> None:
    """With kappa = 1 they would keep the learner busy; with kappa = S the first batch of a version waits for it."""
    timings = Timings(train_s=10.0, rollouts=100, broadcast_s=3.0, generation_s=2.0)
    pool = tuple(replace(one, broadcast_s=3.0, generation_s=2.0) for one in alike(2, 6.0))
    assert isinstance(Windows(setting(pool, timings, kappa=1)).window(2).ours, Outcome)
    window = Windows(setting(pool, timings, kappa=2)).window(2)
    assert isinstance(window.ours, Infeasible)
    assert window.everyone is not None
    assert (window.everyone.kappa, window.everyone.wait_s) == (2, pytest.approx(10 / 6))


def test_what_all_machines_make_of_a_window_for_which_they_are_too_few() -> None:
    window = Windows(setting(alike(10, 0.1))).window(3)
    assert isinstance(window.ours, Infeasible)
    assert window.ours.share == pytest.approx(10 * 0.1 * 1631.2 / 2048 / MARGIN)
    assert window.everyone is not None
    assert window.everyone.period_s == pytest.approx(2048 / 1.0)
    assert Windows(setting(alike(40, 0.1))).window(3).everyone is None


@pytest.mark.parametrize("delays", [{"broadcast_s": math.inf}, {"generation_s": math.inf}])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_machines_that_no_version_reaches_are_none(staleness: int, delays: dict[str, float]) -> None:
    few = alike(10, 0.1)
    lost = tuple(replace(one, name=f"lost {one.name}", **delays) for one in alike(2, 0.1))
    without, with_them = (Windows(setting(pool)).window(staleness) for pool in (few, (*few, *lost)))
    for answer, other in ((without.ours, with_them.ours), (without.everyone, with_them.everyone)):
        if isinstance(answer, Outcome):
            assert isinstance(other, Outcome)
            assert (other.period_s, other.lag) == (answer.period_s, answer.lag)
        else:
            assert type(other) is type(answer)


def test_slack_beyond_the_slowest_delay_buys_nothing() -> None:
    """The values that `Windows` reuses for wider windows equal those that it would compute again."""
    timings = Timings(train_s=100.0, rollouts=100, broadcast_s=150.0)
    pool = tuple(Candidate(name=str(i), price=1.0 + i % 5, rate=0.2 + 0.03 * i, broadcast_s=30.0 * i) for i in range(8))
    windows = Windows(setting(pool, timings))
    wide = [outcome(windows.ours(staleness)) for staleness in range(4, 9)]
    assert len({answer.price for answer in wide}) == 1
    for staleness, answer in enumerate(wide, start=4):
        fresh = Windows(setting(pool, timings))
        found = fresh.requirement(staleness - answer.kappa)
        best = cheapest(found, stands_s=fresh.setting.stands_s)
        assert isinstance(best, Choice)
        assert best.price == pytest.approx(answer.price, rel=1e-3)


def test_starts_are_charged_over_the_time_that_machines_are_kept() -> None:
    timings = Timings(train_s=100.0, rollouts=100, broadcast_s=10.0)
    ready = Candidate(name="ready", price=1.0, rate=2.0, broadcast_s=10.0)
    cheap = replace(ready, name="cheap", price=0.9, start_s=1200.0)
    for hours, name in ((1, "ready"), (24, "cheap")):
        windows = Windows(setting((ready, cheap), timings, stands_s=hours * 3600.0))
        assert [one.name for one in outcome(windows.ours(3)).choice.chosen] == [name]


pools = st.lists(
    st.builds(
        Candidate,
        name=st.integers(0, 1 << 40).map(str),
        price=st.floats(0, 5),
        rate=st.floats(0.1, 2),
        broadcast_s=st.floats(0, 180),
        generation_s=st.floats(0, 60),
    ),
    min_size=1,
    max_size=7,
    unique_by=lambda one: one.name,
).map(tuple)


@settings(deadline=None, max_examples=examples(40))
@given(pools, st.floats(0, 250))
def test_ours_never_waits_and_no_wider_window_is_dearer(pool: tuple[Candidate, ...], source_s: float) -> None:
    timings = Timings(train_s=100.0, rollouts=100, broadcast_s=90.0)
    windows = Windows(Setting(timings=timings, source_s=source_s, candidates=pool, ahead=math.inf))
    before = math.inf
    for staleness in range(1, 6):
        answer = windows.ours(staleness)
        if isinstance(answer, Infeasible):
            assert before == math.inf
            assert windows.share(staleness) < 1
            continue
        suppliers = [one.supplier() for one in answer.choice.chosen]
        assert never_waits(windows.setting.clock(staleness, answer.kappa, suppliers), suppliers)
        assert answer.bubble == pytest.approx(0, abs=1e-9)
        assert answer.price <= before * 1.002 + 1e-4, "a thousandth for a longer period, and the solver's gap"
        simple = greedily(windows, staleness, answer.kappa)
        assert simple is not None
        assert simple.price >= answer.price * (1 - 1e-3) - 1e-4
        before = answer.price


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_s": 0.0},
        {"train_s": -1.0},
        {"train_s": math.nan},
        {"rollouts": 0},
        {"broadcast_s": -0.1},
        {"generation_s": math.inf},
    ],
)
def test_times_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="number"):
        Timings(**({"train_s": 1.0, "rollouts": 1, "broadcast_s": 0.0} | wrong))  # type: ignore[arg-type]


# Machines that a run has shown to be enough.

SHORT = Timings(train_s=60.0, rollouts=256, broadcast_s=30.0)


def shown(names: list[str], *, staleness: int = 2, bubble: float = 0.012) -> Shown:
    return Shown(names=frozenset(names), staleness=staleness, kappa=1, bubble=bubble)


def test_machines_that_were_enough_are_enough() -> None:
    """By their rates they give 0.94 of R / T_train, less than the plan asks for even without its reserve."""
    pool = alike(8, 0.5, broadcast_s=30.0)
    assert isinstance(Windows(setting(pool, SHORT)).ours(2), Infeasible)
    windows = Windows(setting(pool, SHORT, shown=shown([one.name for one in pool])))
    for staleness in (2, 3, 5):
        mine = outcome(windows.ours(staleness))
        assert (len(mine.choice.chosen), mine.kappa, mine.is_shown) == (8, 1, True)
        assert mine.bubble == pytest.approx(0.012)
    assert isinstance(windows.ours(1), Infeasible)


def test_a_narrower_window_s_remedy_is_the_one_that_was_shown() -> None:
    pool = alike(8, 0.5, broadcast_s=30.0)
    known = setting(pool, SHORT, shown=shown([one.name for one in pool], staleness=7))
    assert remedies(known, 1).staleness == 7


def test_no_more_machines_are_asked_for_than_were_enough() -> None:
    """Nine of ten equal machines would be wanted; the run had eight, and two on standby."""
    pool = alike(10, 0.5, broadcast_s=30.0)
    assert len(outcome(Windows(setting(pool, SHORT)).ours(3)).choice.chosen) == 9
    mine = outcome(Windows(setting(pool, SHORT, shown=shown(["m000"] + [f"m{i:03}" for i in range(2, 9)]))).ours(3))
    assert len(mine.choice.chosen) == 8
    assert "m001" not in {one.name for one in mine.choice.chosen}


def test_fewer_machines_than_were_there_are_asked_for_where_fewer_do() -> None:
    pool = alike(20, 0.5, broadcast_s=30.0)
    mine = outcome(Windows(setting(pool, SHORT, shown=shown([one.name for one in pool]))).ours(3))
    assert (len(mine.choice.chosen), mine.is_shown) == (9, False)


@given(
    st.lists(st.tuples(st.floats(0.05, 3), st.floats(0, 2), st.floats(0, 200)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=examples(200), deadline=None)
def test_what_was_shown_bounds_every_plan_for_its_window_and_wider_ones(
    machines: list[tuple[float, float, float]], staleness: int, data: st.DataObject
) -> None:
    pool = tuple(
        Candidate(name=f"m{i}", rate=rate, price=price, broadcast_s=broadcast_s)
        for i, (rate, price, broadcast_s) in enumerate(machines)
    )
    names = data.draw(st.lists(st.sampled_from([one.name for one in pool]), min_size=1, unique=True))
    known = shown(names, staleness=staleness)
    price = math.fsum(one.running_price for one in pool if one.name in names)
    windows = Windows(setting(pool, SHORT, shown=known))
    for window in range(staleness, staleness + 3):
        assert outcome(windows.ours(window)).choice.price <= price * 1.002 + 1e-6
        assert windows.suffices(window)
    without = Windows(setting(pool, SHORT))
    for window in range(1, staleness):
        assert windows.ours(window) == without.ours(window)
