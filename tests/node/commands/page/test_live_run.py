"""What events tell: the state in a word, the pace, the time left; and that an earlier start does not count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from node.commands.page import live_run as module
from node.commands.page.event_tail import Logged
from node.commands.page.live_run import LiveRun, State
from node.reports.model.report import Role
from node.ui.live_view import ViewState

BEGAN = 1000.0


def run_of(role: Role = Role.LEARNER, **view: Any) -> LiveRun:
    return LiveRun(view=ViewState(role=role, **view), began_at=BEGAN)


def at(seconds: float, event: str, **fields: Any) -> Logged:
    return Logged(at=BEGAN + seconds, event=event, fields=fields)


def steps(*moments: float, first: int = 1) -> Iterator[Logged]:
    for place, moment in enumerate(moments):
        yield at(moment, "step", step=first + place, buffered=0, reward=0.5)


OPEN = (at(1, "version_published", version="1.0"), at(2, "peer_joined", peer="p", name="atlas"))


def test_the_state_of_a_learner_follows_its_events() -> None:
    run = run_of(batch=4)
    assert run.state is State.STARTING
    told = [
        (at(1, "starting", doing="loading the model"), State.STARTING),
        (at(2, "version_published", version="1.0"), State.WAITING),
        (at(3, "peer_joined", peer="p", name="atlas"), State.RUNNING),
        (at(4, "alarm_raised", alarm="too_stale", step=3, text="x"), State.ALARM),
        (at(5, "alarm_cleared", alarm="too_stale", text="x"), State.RUNNING),
        (at(6, "nodes_unable", text="x", everyone=True), State.ALARM),
        (at(7, "nodes_able"), State.RUNNING),
        (at(8, "peer_left", peer="p", reason="left"), State.WAITING),
        (at(9, "trainer_restarted"), State.STARTING),
        (at(10, "version_published", version="1.0"), State.WAITING),
        (at(11, "finished", steps=3), State.FINISHED),
    ]
    for event, state in told:
        run.take([event])
        assert run.state is state, event
    run.is_over = True
    assert run.state is State.FINISHED


def test_a_program_that_ended_before_its_last_step_was_stopped() -> None:
    run = run_of()
    run.take(OPEN)
    run.is_over = True
    assert run.state is State.STOPPED


def test_a_node_rests_and_works() -> None:
    run = run_of(Role.ROLLOUT)
    for event, state in (
        (at(1, "joined", newest="1.4"), State.RUNNING),
        (at(2, "paused", why="paused by its owner"), State.RESTING),
        (at(3, "resumed"), State.RUNNING),
        (at(4, "drain_began", leases=1), State.RESTING),
    ):
        run.take([event])
        assert run.state is state
    assert run.view.newest == "1.4"


def test_the_pace_is_the_median_and_the_time_left_follows() -> None:
    run = run_of(steps=100)
    run.take([*OPEN, *steps(10)])
    assert run.view.pace.step_s is None
    assert run.view.left_s is None
    run.take(steps(12, 14, 94, 96, first=2))  # an evaluation held up one step
    assert run.view.pace.step_s == 2
    assert run.view.left_s == 2 * 95


def test_without_a_last_step_nothing_is_left_to_tell() -> None:
    run = run_of()
    run.take([*OPEN, *steps(10, 12, 14)])
    assert run.view.left_s is None


def test_steps_that_are_taken_again_do_not_spoil_the_pace() -> None:
    run = run_of(steps=10)
    run.take([*OPEN, *steps(10, 12, 14)])
    run.take([at(500, "incarnation_began", incarnation=2, step=1)])
    run.take(steps(502, first=2))
    assert run.view.pace.step_s is None
    run.take(steps(503, first=3))
    assert run.view.pace.step_s == 1
    run.take(steps(600, 603, first=2))
    assert run.view.pace.step_s == 3, "also if the restart is not told"


def test_an_earlier_start_of_the_program_does_not_count() -> None:
    """The same log tells of it: a run that had finished, a node that had drained, alarms, peers, rollouts."""
    run = run_of(batch=4, steps=100)
    before = [
        *OPEN,
        *steps(10, 12),
        at(13, "evaluated", version="1.2", greedy=0.75, sampled=0.5),
        at(14, "delivery_judged", peer="p", admitted=7, refused=0, tokens=70, lag=0),
        at(15, "alarm_raised", alarm="too_stale", step=2, text="x"),
        at(16, "finished", steps=2),
    ]
    run.take(Logged(at=one.at - BEGAN, event=one.event, fields=one.fields) for one in before)
    assert run.state is State.FINISHED
    run.tick(BEGAN + 0.5)
    assert run.state is State.STARTING
    assert (run.view.admitted, run.view.present, run.view.alarms) == (0, [], {})
    assert run.view.pace.step_s is None
    assert (run.view.step, run.view.steps, run.view.newest, run.view.greedy) == (2, 100, "1.0", 0.75)
    assert list(run.view.rewards) == [0.5, 0.5]
    assert any("finished after 2 steps" in notice.text for notice in run.view.notices)
    run.take(OPEN)
    run.tick(BEGAN + 3)
    assert run.state is State.RUNNING, "the beginning is told once"


def test_a_drained_node_that_starts_again_is_at_work() -> None:
    run = run_of(Role.ROLLOUT)
    run.take([at(-9, "joined", newest="1.4"), at(-8, "drain_began", leases=0), at(1, "joined", newest="1.5")])
    assert run.state is State.RUNNING


def test_notices_have_the_time_of_the_clock() -> None:
    run = run_of()
    run.take([at(5, "starting", doing="x"), at(65.5, "trouble", text="look here")])
    (notice,) = run.view.notices
    assert run.clock_of(notice.at_s) == pytest.approx(BEGAN + 65.5)
    run.tick(BEGAN + 3)
    assert run.clock_of(run.view.now_s) == pytest.approx(BEGAN + 65.5), "a clock that is set back moves nothing back"


def test_rates_are_those_of_the_last_half_minute() -> None:
    run = run_of(Role.ROLLOUT)
    for second in range(60):
        run.take([at(second, "receipt", lease="x", admitted=2, refused=0, tokens=30, reason="", detail="")])
        run.tick(BEGAN + second)
    assert run.view.token_rate.per_s == pytest.approx(30, rel=0.05)
    assert run.view.rate.per_s == pytest.approx(2, rel=0.05)


def test_a_day_of_events_and_peers_that_come_and_go_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PEERS", 50)
    run = run_of(batch=4, steps=10**6)
    run.take([OPEN[0]])
    for number in range(400):
        run.take([
            at(number, "peer_joined", peer=f"p{number}", name="x"),
            at(number, "trouble", text="x" * 5000),
            *steps(number + 0.5, first=number),
        ])  # fmt: skip
        run.take([at(number + 0.6, "peer_left", peer=f"p{number}", reason="left")] if number else [])
    run.tick(BEGAN + 10**5)
    assert len(run.view.peers) <= 51
    assert [peer.peer for peer in run.view.present] == ["p0"], "who is here is remembered"
    assert len(run.view.notices) == 200
    assert max(len(notice.text) for notice in run.view.notices) <= 1024


def test_fields_that_are_missing_change_nothing() -> None:
    run = run_of()
    run.take([at(1, "step"), at(2, "peer_joined"), at(3, "alarm_raised"), at(4, "finished"), at(5, "no_such_event")])
    assert run.view.step == 0


def test_a_change_of_an_earlier_start_holds_no_more() -> None:
    run = run_of(staleness=3)
    run.take([at(-9, "setting_changed", key="staleness", value=2, by="the live page")])
    assert run.view.staleness == 2
    run.take([at(1, "starting", doing="loading the model")])
    assert run.view.staleness == 3, "the new start has read swarm.toml again"


def test_versions_that_are_held_back_are_no_standstill_without_a_word() -> None:
    run = run_of(batch=4)
    run.take([*OPEN, at(3, "setting_changed", key="publish", value=0, by="the live page")])
    assert run.state is State.RUNNING
    assert run.view.activity == "at work, new versions are held back"
    run.take([at(4, "setting_changed", key="publish", value=1, by="the live page")])
    assert run.view.activity == "at work"
    assert [notice.text for notice in run.view.notices][-2:] == [
        "from now on new versions are held back, by order through the live page",
        "from now on new versions are published, by order through the live page",
    ]
