"""Which events of a node become notices, and what they say."""

from __future__ import annotations

from typing import get_args

from node.config.node_config import NodeNotice, NodeNotifySection
from node.notices.node_notices import AWAY_MS, SENTENCES, NodeNotices
from node.runtime.event_reference import LEARNER_EVENTS, NODE_EVENTS

GONE = {"reason": "nobody answers", "retry_s": 8.0}


def core() -> NodeNotices:
    return NodeNotices(source="attic in words", kinds=NodeNotifySection().events)


def test_a_learner_that_is_away_is_told_late_and_once() -> None:
    notices = core()
    assert notices.handle("learner_unreachable", GONE, 5) is None
    assert notices.handle("turned_away", GONE, AWAY_MS) is None
    told = notices.handle("learner_unreachable", GONE, AWAY_MS + 5)
    assert told is not None
    assert (told.title, told.text) == (
        "attic in words: no connection to the learner",
        "For 10 minutes: nobody answers. The node keeps trying.",
    )
    assert notices.handle("learner_unreachable", GONE, 9 * AWAY_MS) is None
    back = notices.handle("joined", {"newest": "1.4"}, 9 * AWAY_MS)
    assert back is not None
    assert back.title == "attic in words: connected to the learner again"
    assert notices.handle("joined", {}, 9 * AWAY_MS) is None


def test_a_short_absence_is_no_news() -> None:
    notices = core()
    for second in range(1, 50):
        assert notices.handle("learner_unreachable", GONE, second * 1000) is None
    assert notices.handle("joined", {}, 60_000) is None
    assert notices.handle("learner_unreachable", GONE, 60_000 + AWAY_MS - 1) is None, "each absence counts for itself"


def test_how_a_node_ends() -> None:
    ended = core().handle("ended", {"text": "Drained: all is delivered."}, 0)
    failed = core().handle("failed", {"text": "The learner refused this node: banned"}, 0)
    assert ended is not None
    assert failed is not None
    assert (ended.title, ended.text, ended.is_urgent) == (
        "attic in words: the node has ended",
        "Drained: all is delivered.",
        False,
    )
    assert ended.fields == {"text": "Drained: all is delivered."}
    assert (failed.title, failed.is_urgent) == ("attic in words: the node ended with an error", True)


def test_sentences_are_of_events_with_fields_that_they_have() -> None:
    assert {said.kind for said in SENTENCES.values()} == set(get_args(NodeNotice))
    for event, said in SENTENCES.items():
        if event in ("ended", "failed"):
            continue
        explained = NODE_EVENTS.get(event) or LEARNER_EVENTS[event]
        for part in (said.title, said.text):
            for name in [piece.split("}")[0] for piece in part.split("{")[1:]]:
                assert f"`{name}`" in explained or name == "minutes", (event, name)
