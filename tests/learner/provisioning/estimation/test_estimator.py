"""Estimate a swarm's times from its events."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from learner.provisioning.estimation import estimator as module
from learner.provisioning.estimation.estimator import BOAST, fit
from learner.provisioning.estimation.recording import Installed, Joined, Planned, Recorded, Withdrawn
from learner.provisioning.model.windows import Timings
from tests.support.observed_swarm import (
    BEGAN,
    batches,
    delivered,
    installed,
    joined,
    left,
    published,
    seen,
    stepped,
    timings,
)


def by_time(*parts: list[Recorded]) -> list[Recorded]:
    return sorted((event for part in parts for event in part), key=lambda event: event.at_s)


def test_before_anything_happened_nothing_is_known() -> None:
    swarm = seen()
    assert swarm.terms == BEGAN
    assert swarm.train_s is swarm.broadcast_s is swarm.generation_s is timings(swarm) is None
    assert swarm.candidates() == []


def test_a_step_is_its_work_and_its_share_of_a_publication() -> None:
    steps: list[Recorded] = [stepped(100 * k, 70 if k % 2 else 60, 10 if k % 2 else 0) for k in range(1, 21)]
    train = seen(*steps).train_s
    assert train is not None
    assert (train.low, train.value, train.high, train.count) == (65, 65, 65, 20)


def test_steps_of_which_a_few_are_long_take_what_they_take_in_the_mean() -> None:
    """R rollouts are taken in so long: by the median, 60 s, a plan would ask for a sixth more than is ever taken."""
    train = seen(*[stepped(100 * k, 60 if k % 4 else 100) for k in range(1, 33)]).train_s
    assert train is not None
    assert train.value == pytest.approx(70)
    assert train.low < 70 < train.high


def test_a_candidate_says_whether_it_may_be_faster() -> None:
    swarm = seen(
        *by_time(
            joined("abc"),
            [delivered(10 * k + 10, 10, "a", held_s=20) for k in range(8)],
            [delivered(30 * k + 10, 10, "b") for k in range(8)],
        )
    )
    assert {one.name: one.is_least for one in swarm.candidates()} == {"a": False, "b": True, "c": False}


def test_without_a_publication_a_step_is_its_work() -> None:
    train = seen(stepped(100, 60)).train_s
    assert train is not None
    assert (train.value, train.high) == (60, math.inf)


def test_what_is_dropped_for_teaching_nothing_is_not_supplied_by_anybody() -> None:
    """Half of all that is admitted; of the one more, of the other less, which is chance and not theirs."""
    events = by_time(
        joined("ab"),
        [replace(one, dropped=8) for one in batches("a", 10, took_s=4, every_s=4, leases=1)],
        batches("b", 10, took_s=4, every_s=4, leases=1),
    )
    swarm = seen(*events)
    assert swarm.kept == 0.5
    assert [one.rate for one in swarm.candidates()] == [pytest.approx(1.0)] * 2
    assert swarm.profiles()[0].rate() is not None
    assert seen(*batches("a", 10, took_s=4, every_s=4)).kept == 1.0


def test_a_plan_sets_the_period_and_who_is_on() -> None:
    swarm = seen(*joined("ab"), Planned(at_s=1, kappa=3, active=["b", "elsewhere"], price=0, reasons=[]))
    assert (swarm.kappa, swarm.active, swarm.present) == (3, {"b"}, {"a", "b"})


def test_only_active_peers_make_t_bcast() -> None:
    swarm = seen(
        *joined("ab"),
        Planned(at_s=1, kappa=2, active=["a"], price=0, reasons=[]),
        published(0, 10),
        installed("a", 0, 15),
        installed("b", 0, 100),
    )
    assert swarm.broadcast_s is not None
    assert swarm.broadcast_s.value == 5
    standing_by = swarm.profile("b")
    assert standing_by is not None
    assert standing_by.broadcast_s is not None
    assert standing_by.broadcast_s.value == 90


def test_t_gen_is_the_95th_percentile_of_what_active_peers_take() -> None:
    swarm = seen(
        *joined("ab"),
        Planned(at_s=0, kappa=2, active=["a"], price=0, reasons=[]),
        *[delivered(1000 + k, k) for k in range(1, 102)],
        delivered(2000, 900, "b"),
        delivered(2000, 800, "a", admitted=0, refused=8),
    )
    assert swarm.generation_s is not None
    assert swarm.generation_s.value == pytest.approx(96)
    assert swarm.generation_s.low < 96 < swarm.generation_s.high < 800


def test_timings_are_what_was_measured_and_what_stands_in_for_the_rest() -> None:
    swarm = seen(stepped(100, 60), *joined("a"), delivered(200, 12))
    assert timings(swarm) is None
    assert timings(swarm, train_s=1, broadcast_s=7, generation_s=1) == Timings(
        train_s=60, rollouts=64, broadcast_s=7, generation_s=12
    )


def test_a_newcomer_is_taken_to_be_as_the_others_are() -> None:
    swarm = seen(
        *by_time(joined("abc"), batches("a", 8, took_s=10, every_s=20), batches("b", 8, took_s=20, every_s=30)),
        published(0, 500),
        installed("a", 0, 510),
        installed("b", 0, 520),
        Joined(at_s=600, peer="new", price=0.5),
    )
    found = {one.name: one for one in swarm.candidates()}
    assert list(found) == ["a", "b", "c", "new"]
    assert found["new"].rate == pytest.approx((1.6 + 0.8) / 2, rel=0.02)  # less what stops cost
    assert (found["new"].broadcast_s, found["new"].generation_s, found["new"].price) == (15, 15, 0.5)
    assert found["new"].start_s == 515
    assert found["a"].start_s == 0  # it has a version, so it starts at once


def test_a_plan_reckons_with_what_a_batch_usually_takes() -> None:
    lengths = [10.0] * 16 + [40.0] * 2
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    swarm = seen(*joined("a"), *(delivered(end, took) for end, took in zip(ends, lengths, strict=True)))
    slow = swarm.generation_s
    assert slow is not None
    assert slow.value == pytest.approx(40)
    (one,) = swarm.candidates()
    assert (one.generation_s, one.batch_rollouts) == (10, 8)
    # It was 60 s of the 240 s at two batches, so at its rate a batch takes longer than usual: never longer than T_gen.
    assert one.supplier().lump_s == 10


def test_leases_that_overlap_are_small_batches() -> None:
    # Two leases at a time, each 10 s, one begun every 5 s: rollouts come twice as often as each of them takes.
    (one,) = seen(*joined("a"), *(delivered(5 * k + 10, 10) for k in range(40))).candidates()
    assert one.supplier().lump_s == pytest.approx(5, rel=0.05)


def test_a_newcomer_among_strangers_supplies_nothing_that_is_known() -> None:
    (one,) = seen(*joined("a")).candidates()
    assert (one.rate, one.broadcast_s, one.generation_s) == (0, 0, 0)


def test_a_claim_counts_for_little_more_than_the_best_has_shown() -> None:
    swarm = seen(*joined("a"), *batches("a", 8, took_s=10, every_s=20), *joined(["liar"], 500, rate=1e9))
    found = {one.name: one for one in swarm.candidates()}
    assert found["liar"].rate == pytest.approx(BOAST * found["a"].rate, rel=0.01)


def test_who_lets_leases_run_out_is_slower() -> None:
    swarm = seen(*joined("a"), *batches("a", 2, took_s=10, every_s=20))
    before = swarm.candidates()[0].rate
    swarm.handle(Withdrawn(at_s=300, peer="a", rollouts=16, status="lost"))
    assert swarm.candidates()[0].rate == pytest.approx(before, rel=0.001)
    swarm.handle(Withdrawn(at_s=300, peer="a", rollouts=16, status="expired"))
    assert swarm.candidates()[0].rate < 0.7 * before


def test_who_left_is_no_candidate_and_known_when_it_comes_back() -> None:
    swarm = seen(*joined("a"), *batches("a", 8, took_s=10, every_s=20), left("a", 500))
    assert swarm.candidates() == []
    swarm.handle(Joined(at_s=900, peer="a"))
    assert swarm.candidates()[0].rate == pytest.approx(1.6, rel=0.02)


def test_a_restart_is_nobodys_start() -> None:
    swarm = seen(*joined("a"), published(1, 10), installed("a", 1, 15), replace(BEGAN, at_s=100), *joined("ab", 101))
    for event in (published(2, 160), installed("a", 2, 165), installed("b", 2, 165)):
        swarm.handle(event)
    starts = [one.start_s for one in swarm.profiles()]
    assert [start.value for start in starts if start is not None] == [15, 64]


def test_a_restart_is_nobodys_stop() -> None:
    began_again = BEGAN.__class__(**{**{f: getattr(BEGAN, f) for f in BEGAN.__struct_fields__}, "at_s": 7200})
    swarm = seen(*joined("a"), stepped(100, 60), began_again)
    assert swarm.present == frozenset()
    assert swarm.train_s is not None
    swarm.handle(Joined(at_s=7300, peer="a"))
    profile = swarm.profile("a")
    assert profile is not None
    assert profile.stops_per_hour(7300) < 0.1


def test_a_clock_that_was_set_back_between_two_runs_hides_nothing() -> None:
    day = [replace(event, at_s=event.at_s + 90_000) for event in (BEGAN, *joined("a"))]
    before = [delivered(90_000 + 20 * k, 10) for k in range(1, 11)]
    swarm = seen(*day, *before, BEGAN, *joined("a"))
    profile = swarm.profile("a")
    assert profile is not None
    for k in range(1, 41):
        swarm.handle(delivered(20 * k, 20))  # half as fast as it was
    assert swarm.candidates()[0].rate == pytest.approx(0.4, rel=0.02)
    assert profile.stops_per_hour(800) > 0


def test_mean_length_is_of_what_was_admitted() -> None:
    swarm = seen(*joined("a"), delivered(100, 10), delivered(200, 10, admitted=4, refused=4))
    assert swarm.tokens_per_rollout == 100
    assert seen().tokens_per_rollout is None


def test_only_so_many_peers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEERS", 3)
    swarm = seen(*joined("abc"), left("b", 10), *joined("d", 20))
    assert swarm.profile("b") is None
    assert swarm.present == {"a", "c", "d"}
    swarm.handle(Joined(at_s=30, peer="e"))
    swarm.handle(delivered(40, 5, "e"))
    assert swarm.present == {"a", "c", "d"}


@st.composite
def runs(draw: st.DrawFn) -> list[Recorded]:
    """Whatever a run could record of three peers, in order of time."""
    at_s, version, events = 1000.0, 0, list[Recorded](joined("abc", 1000))
    for _ in range(draw(st.integers(0, 60))):
        at_s += draw(st.floats(0, 50))
        peer = draw(st.sampled_from("abc"))
        took_s = draw(st.floats(0, 900))
        match draw(st.sampled_from(["publish", "install", "deliver", "step", "leave", "join", "withdraw", "plan"])):
            case "publish":
                version += 1
                events.append(published(version, at_s))
            case "install":
                events.append(installed(peer, draw(st.integers(0, version)), at_s))
            case "deliver":
                events.append(delivered(at_s, took_s, peer, admitted=draw(st.integers(0, 8))))
            case "step":
                events.append(stepped(at_s, took_s + 1, draw(st.floats(0, 1))))
            case "leave":
                events.append(left(peer, at_s))
            case "join":
                until_s = draw(st.none() | st.floats(0, 5000))
                events.append(Joined(at_s=at_s, peer=peer, rate=draw(st.floats(0, 10)), until_s=until_s))
            case "withdraw":
                events.append(Withdrawn(at_s=at_s, peer=peer, rollouts=8, status="expired"))
            case _:
                events.append(Planned(at_s=at_s, kappa=2, active=[peer], price=0, reasons=[]))
    return events


@given(runs())
def test_every_figure_is_a_number_within_its_interval(events: list[Recorded]) -> None:
    swarm = seen(*events)
    profiles = swarm.profiles()
    estimates = [swarm.train_s, swarm.broadcast_s, swarm.generation_s]
    for one in profiles:
        estimates += [one.rate(), one.broadcast_s, one.generation_s, one.start_s, one.batch_rollouts]
        assert one.stops_per_hour(swarm.now_s) >= 0
    for estimate in estimates:
        assert estimate is None or 0 <= estimate.low <= estimate.value <= estimate.high
    candidates = swarm.candidates()
    assert {one.name for one in candidates} | swarm.resting(swarm.now_s) == swarm.present
    for candidate in candidates:
        assert candidate.remaining_s > 0
        assert all(
            math.isfinite(value) and value >= 0
            for name, value in dataclasses.asdict(candidate).items()
            if name not in ("name", "remaining_s")
        )


@given(runs())
def test_peers_that_are_renamed_are_the_same_swarm(events: list[Recorded]) -> None:
    names = {"a": "z", "b": "y", "c": "x"}

    def renamed(event: Recorded) -> Recorded:
        fields = {field: getattr(event, field) for field in event.__struct_fields__}
        if isinstance(event, Planned):
            fields["active"] = [names[peer] for peer in event.active]
        elif "peer" in fields:
            fields["peer"] = names[fields["peer"]]
        return type(event)(**fields)

    one, other = seen(*events), seen(*map(renamed, events))
    assert (one.train_s, one.broadcast_s, one.generation_s) == (other.train_s, other.broadcast_s, other.generation_s)
    assert {names[c.name]: dataclasses.replace(c, name="") for c in one.candidates()} == {
        c.name: dataclasses.replace(c, name="") for c in other.candidates()
    }


def test_an_arrival_from_nowhere_is_ignored() -> None:
    swarm = fit([BEGAN, published(0, 1), Installed(at_s=2, peer="ghost", version=0)])
    assert swarm.broadcast_s is None
    assert swarm.candidates() == []
