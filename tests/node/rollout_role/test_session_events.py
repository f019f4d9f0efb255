"""A node reports on its connection to the learner once: differing clocks, and a refusal."""

from __future__ import annotations

import pytest

from node.rollout_role.session_events import CLOCK_TOLERATED_MS, session_event_handler
from node.runtime.events import EventLog, Field
from protocol.work import Window
from swarm.work.client import Connected, Disconnected
from tests.support.swarm_fixture import NOW_MS, peer_of, welcome_with


def said_of(here_ms: int, *events: Connected | Disconnected | Window) -> list[tuple[str, dict[str, Field]]]:
    """The events of the log that such events of the line become."""
    said: list[tuple[str, dict[str, Field]]] = []
    log = EventLog()
    log.listen(lambda name, fields: said.append((name, fields)))
    report = session_event_handler(log, lambda _: None, lambda _: None, lambda _: None, now_ms=lambda: here_ms)
    for event in events:
        report(event)
    return said


UP = Connected(learner=peer_of("learner"), welcome=welcome_with())


@pytest.mark.parametrize(("ahead_ms", "words"), [(-172_800_000, "2.0 days behind"), (7_200_000, "2.0 hours ahead of")])
def test_a_clock_that_differs_is_said_once(ahead_ms: int, words: str) -> None:
    said = said_of(NOW_MS + ahead_ms, UP, UP)
    assert [name for name, _ in said] == ["clock_differs", "joined", "joined"]
    assert words in str(said[0][1]["text"])
    assert said[0][1]["offset_s"] == -ahead_ms // 1000


@pytest.mark.parametrize("ahead_ms", [0, CLOCK_TOLERATED_MS, -CLOCK_TOLERATED_MS])
def test_what_clocks_usually_differ_by_is_not_said(ahead_ms: int) -> None:
    assert [name for name, _ in said_of(NOW_MS + ahead_ms, UP)] == ["joined"]


def test_a_learner_that_answers_and_wants_us_later_is_not_one_that_cannot_be_reached() -> None:
    away = Disconnected(reason="no answer", pause_s=0.5)
    later = Disconnected(reason="your key is in use", pause_s=6.0, refused=True)
    assert said_of(NOW_MS, away, later) == [
        ("learner_unreachable", {"reason": "no answer", "retry_s": 0.5}),
        ("turned_away", {"reason": "your key is in use", "retry_s": 6.0}),
    ]


def test_a_change_of_the_window_is_an_event() -> None:
    assert said_of(NOW_MS, Window(staleness=5)) == [("window_changed", {"staleness": 5})]
