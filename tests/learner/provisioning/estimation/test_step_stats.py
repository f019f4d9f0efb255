"""Compare the statistics of steps with counts by hand."""

from __future__ import annotations

import pytest

from learner.provisioning.estimation.recording import Began, Installed, Stepped
from learner.provisioning.estimation.step_stats import seconds, steady, steps_of


def began(at_s: float, staleness: int = 1) -> Began:
    return Began(
        at_s=at_s, swarm="s", mode="async", rollouts=8, group_size=4, staleness=staleness, kappa=1, currency="USD"
    )


def stepped(number: int, waited_s: float = 1.0, busy_s: float = 3.0, stale: int = 0) -> Stepped:
    return Stepped(
        at_s=4.0 * number, step=number, waited_s=waited_s, busy_s=busy_s, rollouts=8, lags={0: 2, 2: 6}, stale=stale
    )


def test_shares_and_means() -> None:
    steps = steps_of([stepped(1, stale=4), stepped(2, waited_s=0.0, busy_s=4.0)])
    assert (steps.count, steps.lags) == (2, {0: 4, 2: 12})
    assert steps.bubble == pytest.approx(1 / 8)
    assert steps.train_s == pytest.approx(3.5)
    assert steps.lag == pytest.approx(1.5)
    assert steps.stale_share == pytest.approx(4 / 20)


def test_no_steps_are_no_shares() -> None:
    steps = steps_of([])
    assert (steps.bubble, steps.lag, steps.stale_share, steps.train_s) == (0, 0, 0, 0)


def test_the_first_window_of_every_start_is_left_out() -> None:
    one = [stepped(number) for number in range(1, 11)]
    kept, left_out = steady([began(0), *one, began(50), *one])
    assert [step.step for step in kept] == [3, 4, 5, 6, 7, 8, 9, 10] * 2
    assert left_out == 4


def test_but_not_where_little_would_remain() -> None:
    events = [began(0, staleness=3), *(stepped(number) for number in range(1, 8))]
    kept, left_out = steady(events)
    assert (len(kept), left_out) == (7, 0)


def test_pauses_between_starts_do_not_count() -> None:
    assert seconds([began(10), stepped(5), began(100), Installed(at_s=130, peer="a", version=1)]) == 40
    assert seconds([]) == 0
