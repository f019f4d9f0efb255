"""Change one thing at a time; remedies are enough, and a little less is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.model.what_if import changes, quickened, remedies
from learner.provisioning.model.windows import Infeasible, Outcome, Setting, Timings, Windows
from tests.support.examples import examples

TIMINGS = Timings(train_s=100.0, rollouts=100, broadcast_s=120.0, generation_s=10.0)


def pool(count: int, rate: float = 0.25) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(name=f"m{i}", price=1.0 + i, rate=rate, broadcast_s=120.0, generation_s=10.0) for i in range(count)
    )


def setting(candidates: tuple[Candidate, ...]) -> Setting:
    return Setting(timings=TIMINGS, source_s=TIMINGS.broadcast_s, candidates=candidates)


def test_each_change_is_one_thing() -> None:
    windows = Windows(setting(pool(8)))
    planned = windows.ours(4)
    assert isinstance(planned, Outcome)
    assert [one.name for one in planned.choice.chosen] == ["m0", "m1", "m2", "m3", "m4"]
    more, less, half, wider = changes(windows, planned)
    assert (more.machine, less.machine, half.machine, wider.what) == ("m5", "m4", "", "S = 5")
    for change in (more, less, half, wider):
        assert isinstance(change.outcome, Outcome)
    assert isinstance(more.outcome, Outcome)
    assert more.outcome.price == pytest.approx(planned.price + 6)
    assert isinstance(less.outcome, Outcome)
    assert less.outcome.price == pytest.approx(planned.price - 5)
    assert less.outcome.bubble == pytest.approx(0, abs=1e-9), "the margin covers it at 1.05"
    assert isinstance(half.outcome, Outcome)
    assert half.outcome.kappa == 3, "versions that travel for 60 s leave room for a longer period"


def test_who_has_all_machines_on_can_add_none_and_who_has_one_cannot_do_without() -> None:
    windows = Windows(setting(pool(1, rate=2.0)))
    planned = windows.ours(4)
    assert isinstance(planned, Outcome)
    assert [change.what for change in changes(windows, planned)] == ["half the T_bcast", "S = 5"]


def test_quicker_versions_are_quicker_for_all() -> None:
    quick = quickened(setting(pool(2)), 0.5)
    assert (quick.timings.broadcast_s, quick.source_s, quick.candidates[1].broadcast_s) == (60, 60, 60)
    assert quick.candidates[1].generation_s == 10


pools = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 500), st.floats(0, 100)), min_size=1, max_size=6).map(
    lambda rows: tuple(
        Candidate(name=str(i), price=1.0, rate=rate, broadcast_s=b, generation_s=g)
        for i, (rate, b, g) in enumerate(rows)
    )
)


@settings(deadline=None, max_examples=examples(60))
@given(pools, st.floats(0, 400), st.integers(1, 6))
def test_every_remedy_is_enough_and_a_little_less_is_not(
    candidates: tuple[Candidate, ...], source_s: float, staleness: int
) -> None:
    asked = replace(setting(candidates), source_s=source_s)
    assume(isinstance(Windows(asked).ours(staleness), Infeasible))
    found = remedies(asked, staleness)

    def share(changed: Setting, window: int = staleness) -> float:
        return Windows(changed).share(window)

    if found.times is not None:
        for factor, enough in ((1.0001, True), (0.999, False)):
            more = tuple(replace(one, rate=one.rate * found.times * factor) for one in candidates)
            assert (share(replace(asked, candidates=more)) >= 1) is enough
    if found.rollouts is not None:
        for rollouts, enough in ((found.rollouts, True), (found.rollouts + 1, False)):
            fewer = replace(asked, timings=replace(asked.timings, rollouts=rollouts))
            assert (share(fewer) >= 1 - 1e-9) is enough
    if found.train_s is not None:
        for factor, enough in ((1.0001, True), (0.999, False)):
            longer = replace(asked, timings=replace(asked.timings, train_s=found.train_s * factor))
            assert (share(longer) >= 1) is enough
    if found.broadcast is not None:
        assert share(quickened(asked, found.broadcast * 0.9999)) >= 1
        assert share(quickened(asked, min(1.0, found.broadcast + 0.001))) < 1
    if found.staleness is not None:
        assert share(asked, found.staleness) >= 1
        assert share(asked, found.staleness - 1) < 1
    else:
        assert share(asked, 200) < 1
