"""Requests of OpenAI's API: the fields that are read or refused, and that no bytes do harm."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.serve.api_error import ApiError
from node.commands.serve.limits import MAX_MESSAGES, MAX_N, MAX_NEW_TOKENS, MAX_STOPS
from node.commands.serve.requests import parse_chat, parse_text
from node.tasks.api.interface import ChatMessage, Tool, ToolCall

HELLO = {"role": "user", "content": "hello"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [HELLO], **fields}).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hello", **fields}).encode()


def test_a_conversation_is_read() -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": " + 1"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "abc", "name": "add"},
    ]
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    read = parse_chat(
        chat(
            messages=messages,
            tools=[tool],
            max_tokens=3,
            max_completion_tokens=5,
            temperature=0,
            seed=-1,
            n=2,
            stop="x",
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_p=1,
            user="somebody",
            store=False,
        )
    )
    assert read.messages == (
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", content="1 + 1"),
        ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="abc", name="add", arguments={"a": 1}),)),
        ChatMessage(role="tool", content="2", tool_call_id="abc", name="add"),
    )
    assert read.tools == (Tool(name="add", parameters={"type": "object"}),)
    assert read.logprobs
    sampling = read.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.n) == (5, 0, (1 << 64) - 1, 2)
    assert (sampling.stops, sampling.stream, sampling.include_usage) == (("x",), True, True)


def test_what_is_not_said_has_defaults() -> None:
    sampling = parse_chat(chat()).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.n) == (None, 1.0, None, 1)
    assert (sampling.stops, sampling.stream, sampling.include_usage) == ((), False, False)
    assert parse_chat(chat(tools=[{"function": {"name": "f"}}], tool_choice="none")).tools == ()


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))],
    ids=["text", "list of one", "ids", "list of ids"],
)
def test_a_prompt_is_one_text_or_its_ids(prompt: Any, read: Any) -> None:
    assert parse_text(text(prompt=prompt)).prompt == read


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [-1], [1.5], [True], [1 << 40], [[1], [2]], [["a"]], 7, None])
def test_another_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse_text(text(prompt=prompt))
    assert (refused.value.status, refused.value.param) == (400, "prompt")


WRONG: dict[str, dict[str, Any]] = {
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 5},
    "frequency_penalty": {"frequency_penalty": 0.1},
    "logit_bias": {"logit_bias": {"5": 1}},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "response_format": {"response_format": {"type": "json_object"}},
    "tool_choice": {"tool_choice": "required"},
    "functions": {"functions": [{"name": "f"}]},
    "temperature": {"temperature": 2.5},
    "max_tokens": {"max_tokens": 0},
    "max_completion_tokens": {"max_completion_tokens": MAX_NEW_TOKENS + 1},
    "n": {"n": MAX_N + 1},
    "seed": {"seed": 1 << 64},
    "stop": {"stop": ["x"] * (MAX_STOPS + 1)},
    "tools": {"tools": [{"type": "web", "function": {"name": "f"}}]},
    "messages": {"messages": [HELLO] * (MAX_MESSAGES + 1)},
    "messages[0].role": {"messages": [{"role": "robot", "content": ""}]},
    "messages[0].content": {"messages": [{"role": "user", "content": None}]},
    "messages[1].content": {"messages": [HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
    "messages[0].tool_calls": {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]
    },
    "stream_options.include_usage": {"stream_options": {"include_usage": "yes"}},
    "messages[0].role ": {"messages": [{"content": "hello"}]},
    "model": {"model": 3},
}


@pytest.mark.parametrize("field", WRONG)
def test_what_cannot_be_done_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(chat(**WRONG[field]))
    error = refused.value.body["error"]
    assert (refused.value.status, error["param"], error["type"]) == (400, field.strip(), "invalid_request_error")
    assert error["message"].startswith(field.strip())
    assert error["message"].endswith(".")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud800", "messages": []}', b"[" * 100_000, b'{"a":' * 100_000, b"NaN"],
    ids=["empty", "half", "a list", "no UTF-8", "half a surrogate", "deep lists", "deep objects", "NaN"],
)
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    for parse in (parse_chat, parse_text):
        with pytest.raises(ApiError) as refused:
            parse(body)
        assert refused.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("messages", "model", "n", "stop", "tools", "seed", "temperature", "tool_choice", "top_p", "logit_bias")


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_no_value_raises_anything_else(fields: dict[str, Any]) -> None:
    with suppress(ApiError):
        parse_chat(chat(**fields))
