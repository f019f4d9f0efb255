"""Interpret the lines of a chat, and choose the part of a conversation that is sent."""

from __future__ import annotations

import pytest

from node.commands.chat.conversation import Ask, Conversation, End, Tell, TellVersion
from node.tasks.api.interface import ChatMessage


def said(step: object) -> list[tuple[str, str]]:
    assert isinstance(step, Ask)
    return [(message.role, message.content) for message in step.messages]


def test_what_was_said_before_is_asked_with_the_next() -> None:
    talk = Conversation(system="be brief")
    first = talk.take(" hello \n")
    assert said(first) == [("system", "be brief"), ("user", "hello")]
    assert isinstance(first, Ask)
    talk.answered(first, "hi")
    assert said(talk.take("and?")) == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "and?"),
    ]


def test_what_was_not_answered_is_forgotten() -> None:
    talk = Conversation()
    first = talk.take("hello")
    assert isinstance(first, Ask)
    talk.answered(first, "")
    assert said(talk.take("again")) == [("user", "again")]


def test_commands() -> None:
    talk = Conversation(system="be brief")
    first = Ask(messages=(ChatMessage(role="user", content="hello"),))
    talk.answered(first, "hi")
    assert isinstance(talk.take("/reset"), Tell)
    assert said(talk.take("x")) == [("system", "be brief"), ("user", "x")]
    talk.answered(first, "hi")
    assert isinstance(talk.take("/system  be long "), Tell)
    assert said(talk.take("x")) == [("system", "be long"), ("user", "x")]
    assert isinstance(talk.take("/system"), Tell)
    assert said(talk.take("//x")) == [("user", "/x")]
    assert talk.take("/version") == TellVersion()
    assert talk.take("/quit") == End()
    assert "//TEXT" in str(talk.take("/help"))
    assert "no command /nope" in str(talk.take("/nope"))


@pytest.mark.parametrize("line", ["", "  \n"])
def test_nothing_says_nothing(line: str) -> None:
    assert Conversation().take(line) is None


def test_a_model_without_a_template_is_asked_for_each_text_alone() -> None:
    talk = Conversation(system="be brief", remembers=False)
    first = talk.take("hello")
    assert isinstance(first, Ask)
    talk.answered(first, "hi")
    assert said(talk.take("again")) == [("user", "again")]
    assert "no chat template" in str(talk.take("/system x"))
