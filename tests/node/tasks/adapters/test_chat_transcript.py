"""Conversations that only grow: what is new is found, and what was rewritten is named."""

from __future__ import annotations

import pytest

from node.tasks.adapters.chat_transcript import ChatTranscript
from node.tasks.api.interface import ChatMessage, TaskError, ToolCall


def user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def said(content: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=content)


CALLED = ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="a", name="f", arguments={"x": 1}),))
RESULT = ChatMessage(role="tool", content="2", name="f", tool_call_id="a")
PROMPT = (ChatMessage(role="system", content="be brief"), user("hello"))


def begun(*then: ChatMessage) -> ChatTranscript:
    """A transcript after its first request, and what the policy said then."""
    transcript = ChatTranscript(prompt=PROMPT, who="environment 'x'")
    assert transcript.read(PROMPT) is None
    for message in then:
        transcript.say(message)
    return transcript


def test_what_is_new_is_handed_on_once() -> None:
    transcript = begun(said("hi"))
    assert transcript.read([*PROMPT, said("hi"), user("and"), user("more")]) == (user("and"), user("more"))
    transcript.say(said("yes"))
    known = [*PROMPT, said("hi"), user("and"), user("more"), said("yes")]
    assert transcript.read([*known, user("last")]) == (user("last"),)


def test_results_of_tools_are_new_messages_and_names_may_be_missing() -> None:
    transcript = begun(CALLED)
    assert transcript.read([*PROMPT, CALLED, RESULT]) == (RESULT,)
    transcript.say(said("2"))
    nameless = ChatMessage(role="tool", content="2", tool_call_id="a")
    assert transcript.read([*PROMPT, CALLED, nameless, said("2"), user("thanks")]) == (user("thanks"),)


def test_plain_text_stays_text() -> None:
    transcript = ChatTranscript(prompt="once", who="environment 'x'")
    first = ChatMessage(role="text", content="once")
    assert transcript.read([first]) is None
    transcript.say(said(" upon"))
    answered = ChatMessage(role="text", content=" a time")
    assert transcript.read([first, said(" upon"), answered]) == " a time"


REFUSED = {
    "another message": ([*PROMPT[:1], user("bye"), said("hi"), user("x")], "has rewritten the conversation: message 2"),
    "another role": ([user("be brief"), PROMPT[1], said("hi"), user("x")], "message 1 was a message of role 'system'"),
    "words of the policy": ([*PROMPT, said("ho"), user("x")], "message 3 was a message of role 'assistant' ('hi')"),
    "a call of the policy": ([*PROMPT, CALLED, user("x")], "calling f"),
    "fewer messages": ([*PROMPT], "has left out message 3"),
    "none": ([], "has left out message 1"),
    "nothing new": ([*PROMPT, said("hi")], "asks again without a new message"),
    "words for the policy": ([*PROMPT, said("hi"), said("ho")], "answers with a message of role 'assistant'"),
    "orders": ([*PROMPT, said("hi"), ChatMessage(role="system", content="x")], "of these roles are allowed: user,"),
}


@pytest.mark.parametrize(("messages", "told"), REFUSED.values(), ids=REFUSED)
def test_other_conversations_are_refused_with_the_message(messages: list[ChatMessage], told: str) -> None:
    with pytest.raises(TaskError) as refused:
        begun(said("hi")).read(messages)
    assert told in str(refused.value)
    assert str(refused.value).startswith("environment 'x' ")


def test_a_first_request_is_the_prompt_and_nothing_else() -> None:
    transcript = ChatTranscript(prompt=PROMPT, who="environment 'x'")
    with pytest.raises(TaskError, match="adds a message of role 'user'"):
        transcript.read([*PROMPT, user("a word more")])
    with pytest.raises(TaskError, match="begins unlike its data set: message 2"):
        transcript.read([PROMPT[0], user("bye")])


def test_long_messages_are_shown_in_part() -> None:
    with pytest.raises(TaskError) as refused:
        begun(said("hi")).read([PROMPT[0], user("x" * 5000), said("hi")])
    assert len(str(refused.value)) < 500
