"""Plain lines: each notice once, and the state now and then."""

from __future__ import annotations

import pytest

from learner.monitoring.thresholds import ADVICE, Alarm
from node.reports.model.report import Role
from node.ui.live_view import MAX_NOTICES, ViewState
from node.ui.plain_lines import PlainLines, status_line
from node.ui.view_updates import apply
from tests.support.views import busy_learner


def test_each_notice_is_printed_once_and_the_status_every_few_seconds() -> None:
    state, written = ViewState(role=Role.LEARNER), list[str]()
    lines = PlainLines(write=written.extend, every_s=5.0)
    for second in range(11):
        state.tick(float(second))
        if second == 3:
            state.note("a peer joined")
        lines.update(state)
    assert [line for line in written if "a peer joined" in line] == ["00:03 a peer joined"]
    assert [line[:5] for line in written if "starting, peers 0" in line] == ["00:00", "00:05", "00:10"]
    assert not any("\n" in line for line in written)


def test_more_notices_than_are_kept_lose_the_oldest_only() -> None:
    state, written = ViewState(role=Role.LEARNER), list[str]()
    for number in range(MAX_NOTICES + 50):
        state.note(f"notice {number}")
    PlainLines(write=written.extend).update(state)
    assert written[0] == "00:00 notice 50"
    assert f"00:00 notice {MAX_NOTICES + 49}" in written


@pytest.mark.parametrize("alarm", list(ADVICE))
def test_the_advice_of_an_alarm_is_printed_to_its_end(alarm: Alarm) -> None:
    state, written = ViewState(role=Role.LEARNER), list[str]()
    text = f"{'What was measured, with its figures. ' * 10}{ADVICE[alarm]}"
    apply(state, "alarm_raised", {"alarm": alarm.value, "step": 177, "text": text})
    PlainLines(write=written.extend).update(state)
    assert written[0] == f"00:00 ALARM at step 177: {text}"


def test_the_line_of_a_learner_has_the_time_left() -> None:
    line = status_line(busy_learner(num_peers=2))
    assert line.startswith("step 75, version 1.75, reward 0.575, entropy 0.625, greedy 0.750, sampled 0.500")
    assert "time left 17 min 30 s" in line
    assert "ALARM entropy_falls" in line
