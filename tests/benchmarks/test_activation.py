"""Test the markets in which planners are compared, what they pay there, and how pools become bars."""

from __future__ import annotations

import pytest

from benchmarks.activation import Run, bars, over_optimum, parser, rows
from benchmarks.market import trace as market
from benchmarks.market.ablation import Ablation, ablation
from benchmarks.market.loops import Account, Everybody, InOrder, Ours, loops, run
from benchmarks.market.shocks import reactions
from benchmarks.market.trace import CHURN_S, EXACT_S, QUIET_S, Moment, trace
from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.planner.constants import REVIEW_S
from learner.provisioning.planner.pool import Pool

CLOCK = Clockwork(train_s=100.0, rollouts=100, staleness=3, kappa=1)
SMALL = 7
"""A seed with a handful of machines."""


def machine(name: str, price: float, rate: float, **more: float) -> Candidate:
    return Candidate(name=name, price=price, rate=rate, broadcast_s=50.0, generation_s=10.0, **more)


def moment(at_s: float, *true: Candidate) -> Moment:
    known = {one.name: one for one in true}
    return Moment(at_s=at_s, true=true, measured=known, promised=known)


def account(per_step: float, *, flaps: int = 0) -> Account:
    return Account(paid=100 * per_step, steps=100, seconds=3600, quiet_flaps=flaps)


def run_of(ours: float = 1.0, random: float = 2.0, *, over: float | None = 0.005, took_s: float = 30.0) -> Run:
    return Run(
        machines=20,
        accounts={
            "ours": account(ours, flaps=1),
            "greedy": account(1.1),
            "random": account(random),
            "all on": account(9),
        },
        busy=dict.fromkeys(("ours", "greedy", "random", "all on"), 0.99),
        over=over,
        greedy_over=0.1,
        reactions={"half killed": took_s, "one becomes free": 900.0},
        paper=Ablation(full=8.0, no_p2p=8.4, no_cost=9.0, machines=9, machines_no_p2p=9),
    )


# The market


def test_a_seed_is_one_story() -> None:
    assert trace(SMALL) == trace(SMALL)
    assert trace(SMALL)[1][0] != trace(SMALL + 1)[1][0]


def test_after_the_churn_nothing_changes_and_in_the_end_all_is_known() -> None:
    _, moments = trace(SMALL)
    assert len(moments) == (CHURN_S + QUIET_S + EXACT_S) / REVIEW_S
    offers = [{(one.name, one.price, one.rate) for one in each.true} for each in moments if each.at_s >= CHURN_S]
    assert all(each == offers[0] for each in offers)
    assert {len(each.true) for each in moments} != {len(moments[0].true)}, (
        "the number of peers must change during the run"
    )
    noisy, exact = (next(each for each in moments if each.at_s >= at_s) for at_s in (CHURN_S, CHURN_S + QUIET_S))
    assert any(noisy.measured[one.name] != one for one in noisy.true)
    assert all(exact.measured[one.name] == one for one in exact.true)


def test_pools_are_of_all_sizes() -> None:
    low, high = market.MACHINES
    sizes = [len(trace(seed)[1][0].true) for seed in range(12)]
    assert min(sizes) >= low
    assert max(sizes) <= high
    assert max(sizes) > 4 * min(sizes)


# Who chooses, and what it costs


def test_a_step_costs_what_is_on_for_as_long_as_it_takes() -> None:
    pool = [machine("a", 3.6, 0.5), machine("b", 3.6, 0.5)]
    paid = run(Everybody(), CLOCK, [moment(number * REVIEW_S, *pool) for number in range(10)])
    assert paid.paid == pytest.approx(7.2 * 300 / 3600)
    assert paid.steps == pytest.approx(3.0)
    assert paid.per_step == pytest.approx(0.2)


def test_who_is_starting_is_paid_and_supplies_nothing() -> None:
    pool = [machine("a", 3.6, 1.0, start_s=2 * REVIEW_S)]
    paid = run(Everybody(), CLOCK, [moment(number * REVIEW_S, *pool) for number in range(4)])
    assert paid.paid == pytest.approx(3.6 * 120 / 3600)
    assert paid.steps == pytest.approx(0.6)


def test_switching_on_again_counts_as_a_flap_unless_it_had_left() -> None:
    class Nervous:
        def review(self, now_s: float, candidates: object, unproven: object) -> frozenset[str]:
            return frozenset({"a"} if now_s != REVIEW_S else ())

    a = machine("a", 1.0, 1.0)
    assert run(Nervous(), CLOCK, [moment(number * REVIEW_S, a) for number in range(4)]).churn_flaps == 1
    gone = [moment(0.0, a), moment(REVIEW_S), moment(2 * REVIEW_S, a)]
    assert run(Nervous(), CLOCK, gone).churn_flaps == 0


def test_the_papers_loop_adds_in_order_and_releases_from_its_end() -> None:
    pool = [machine("a", 0.1, 0.5), machine("b", 0.2, 0.5), machine("c", 0.3, 0.5)]
    loop = InOrder(CLOCK, lambda one: one.rho)
    assert loop.review(0.0, pool, set()) == {"a", "b", "c"}
    quicker = [machine(one.name, one.price, 0.8) for one in pool]
    for number in range(1, 20):
        active = loop.review(number * REVIEW_S, quicker, set())
    assert active == {"a", "b"}
    assert loop.review(600.0, quicker[1:], set()) == {"b", "c"}


def test_the_planner_pays_less_than_any_order_and_everybody() -> None:
    clock, moments = trace(SMALL)
    paid = {name: run(loop, clock, moments).per_step for name, loop in loops(clock, SMALL).items()}
    assert paid["ours"] < paid["random"]
    assert paid["ours"] < paid["all on"]


def test_shocks_are_met_in_time() -> None:
    clock, moments = trace(0)
    ours = Ours(clock)
    run(ours, clock, moments)
    took = reactions(ours, clock, moments[-1].at_s, moments[-1].true, 0)
    assert took
    assert took.get("half killed", REVIEW_S) == REVIEW_S


# The optimum


def test_the_optimum_is_that_of_the_margin_that_is_supplied() -> None:
    pool = [machine("a", 1.0, 1.1), machine("b", 1.0, 0.55), machine("c", 0.6, 1.02)]
    now = moment(0.0, *pool)
    assert over_optimum(CLOCK, now, frozenset({"a"})) == pytest.approx(0.0, abs=1e-6)
    assert over_optimum(CLOCK, now, frozenset({"a", "b"})) == pytest.approx(1.0)
    assert over_optimum(CLOCK, now, frozenset({"c"})) == pytest.approx(0.0, abs=1e-6)
    assert over_optimum(CLOCK, now, frozenset()) is None


# The paper's ablation


def test_without_peer_to_peer_or_prices_the_paper_pays_more() -> None:
    found = [ablation(seed) for seed in range(20)]
    assert sum(one.no_p2p > one.full for one in found) > 10, (
        "the other samples have more peers than they need, by chance"
    )
    assert all(one.no_p2p >= one.full * (1 - 1e-9) for one in found if one.machines > 7)
    assert sum(one.no_cost > one.full for one in found) > 15
    assert all(7 <= one.machines <= 12 for one in found)


# Bars


def test_bars_are_met_by_good_pools_and_missed_by_bad_ones() -> None:
    assert all(bar.met for bar in bars([run_of(), run_of()]))
    missed = {bar.name for bar in bars([run_of(ours=1.9, over=0.02, took_s=180.0)]) if not bar.met}
    assert missed == {"over_optimum_pct", "vs_random", "reaction_s"}


def test_a_shock_that_was_never_met_is_a_miss() -> None:
    found = {bar.name: bar for bar in bars([run_of(took_s=float("inf"))])}
    assert found["reaction_s"].value is None
    assert not found["reaction_s"].met


def test_pools_where_the_optimum_is_free_say_nothing_of_what_is_above_it() -> None:
    found = {bar.name: bar.value for bar in bars([run_of(over=None), run_of(over=0.004)])}
    assert found["over_optimum_pct"] == pytest.approx(0.4)


def test_a_row_for_each_size_that_there_is_and_one_for_all() -> None:
    assert [row[0] for row in rows([run_of()])] == ["11 to 40", "3 to 200"]


def test_options() -> None:
    assert parser().parse_args([]).reps == 200


def test_everybody_would_do_at_first() -> None:
    for seed in range(4):
        clock, moments = trace(seed)
        everybody = Pool(clock, moments[0].true)
        assert everybody.share(everybody.names) > 1
