"""Which events of a learner become notices, and what they say."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from node.config.swarm_config import LearnerNotice, LearnerNotifySection
from node.notices.learner_notices import DAY_MS, SENTENCES, LearnerNotices
from node.runtime.event_reference import LEARNER_EVENTS


def core(*kinds: str) -> LearnerNotices:
    return LearnerNotices(source="words", kinds=kinds or LearnerNotifySection().events)


SAID: list[tuple[str, dict[str, Any], str, str, bool]] = [
    (
        "alarm_raised",
        {"alarm": "clipped", "step": 5, "text": "A bound acts on half of the tokens."},
        "words: ALARM clipped",
        "At step 5: A bound acts on half of the tokens.",
        True,
    ),
    (
        "alarm_cleared",
        {"alarm": "clipped", "step": 9, "text": "usual again"},
        "words: clipped is over",
        "At step 9: usual again",
        False,
    ),
    (
        "peer_banned",
        {"peer": "12D3KooX", "reason": "its tokens are another model's"},
        "words: a peer is banned",
        "12D3KooX: its tokens are another model's. To undo: volery pardon 12D3KooX",
        False,
    ),
    ("standing_still", {"text": "No peer is here."}, "words: no training step", "No peer is here.", True),
    ("nodes_unable", {"text": "2 of 3.", "everyone": False}, "words: nodes cannot work", "2 of 3.", False),
    ("nodes_unable", {"text": "3 of 3.", "everyone": True}, "words: nodes cannot work", "3 of 3.", True),
    ("certificate_ends", {"text": "It ends."}, "words: the certificate ends", "It ends.", True),
    (
        "checkpoint_failed",
        {"directory": "/state/3", "reason": "No space left."},
        "words: a checkpoint could not be written",
        "No space left. The next version tries again. (/state/3)",
        True,
    ),
    (
        "child_abandoned",
        {"child": "trainer"},
        "words: the trainer process is not started again",
        "It died too often. The event child_died says why.",
        True,
    ),
    ("finished", {"steps": 40}, "words: finished", "All 40 training steps are done.", False),
    ("failed", {"text": "The disk is full."}, "words: ended with an error", "The disk is full.", True),
]


@pytest.mark.parametrize(("event", "fields", "title", "text", "urgent"), SAID)
def test_what_a_notice_says(event: str, fields: dict[str, Any], title: str, text: str, urgent: bool) -> None:
    notice = core().handle(event, fields, 7)
    assert notice is not None
    assert (notice.title, notice.text, notice.is_urgent, notice.at_ms) == (title, text, urgent, 7)
    assert notice.fields == fields


def test_sentences_are_of_events_with_fields_that_they_have() -> None:
    for event, said in SENTENCES.items():
        if event in ("stopped", "failed"):
            continue
        explained = LEARNER_EVENTS[event]
        for part in (said.title, said.text):
            for name in [piece.split("}")[0] for piece in part.split("{")[1:]]:
                assert f"`{name}`" in explained, (event, name)


def test_every_kind_that_can_be_asked_for_has_a_sentence() -> None:
    assert {said.kind for said in SENTENCES.values()} == set(get_args(LearnerNotice))


def test_kinds_that_are_not_wanted_are_no_notices() -> None:
    assert core("ban").handle("finished", {"steps": 3}, 0) is None
    assert core("ban").handle("peer_banned", {"peer": "p", "reason": "r"}, 0) is not None
    assert core().handle("heartbeat", {"peer": "p"}, 0) is None


def test_nodes_that_cannot_work_are_told_when_it_changes() -> None:
    notices = core()
    said = [
        notices.handle(event, {"text": "?", "everyone": everyone, "of": 3}, 0) is not None
        for event, everyone in (
            ("nodes_able", False),
            ("nodes_unable", False),
            ("nodes_unable", False),
            ("nodes_unable", True),
            ("nodes_unable", True),
            ("nodes_able", False),
            ("nodes_able", False),
        )
    ]
    assert said == [False, True, False, True, False, True, False]


def test_a_certificate_is_told_once_a_day_and_its_renewal_only_then() -> None:
    notices = core()
    assert notices.handle("certificate_renewed", {"until": "2027"}, 0) is None
    assert notices.handle("certificate_ends", {"text": "soon"}, 0) is not None
    assert notices.handle("certificate_ends", {"text": "soon"}, DAY_MS - 1) is None
    assert notices.handle("certificate_ends", {"text": "soon"}, DAY_MS) is not None
    assert notices.handle("certificate_renewed", {"until": "2027"}, DAY_MS) is not None
