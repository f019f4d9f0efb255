"""A notice is one visible line, whoever wrote the fields."""

from __future__ import annotations

from node.notices.notice import MAX_TEXT_CHARS, MAX_TITLE_CHARS, Sentence, make_notice

SAID = Sentence("trouble", "{peer} is unwell", "It says: {reason}")


def test_text_of_peers_is_made_harmless() -> None:
    notice = make_notice(SAID, "x", {"peer": "a\x1b[2J", "reason": "one\n\u202etwo"}, source="swarm", at_ms=0)
    assert notice.title == "swarm: a\\x1b[2J is unwell"
    assert notice.text == "It says: one \\u202etwo"


def test_long_texts_are_cut_and_missing_fields_are_question_marks() -> None:
    notice = make_notice(SAID, "x", {"peer": "p" * 999}, source="s" * 128, at_ms=0)
    assert len(notice.title) == MAX_TITLE_CHARS
    assert notice.text == "It says: ?"
    notice = make_notice(SAID, "x", {"peer": "p", "reason": "r" * 5000}, source="s", at_ms=0)
    assert len(notice.text) == MAX_TEXT_CHARS
    assert len(notice.fields["reason"]) == MAX_TEXT_CHARS


def test_braces_of_peers_are_no_fields() -> None:
    notice = make_notice(SAID, "x", {"peer": "{reason}", "reason": "{peer.__class__}"}, source="{0}", at_ms=0)
    assert (notice.title, notice.text) == ("{0}: {reason} is unwell", "It says: {peer.__class__}")
