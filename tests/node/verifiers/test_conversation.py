"""Problems and answers as JSON are read as written; other input raises what the pool catches."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import Answer, ChatMessage, Tool, ToolCall
from node.verifiers.conversation import read_conversation, read_tools, write_conversation, write_tools

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=OBJECT), max_size=2).map(tuple)
MESSAGES = st.lists(
    st.builds(ChatMessage, role=TEXT, content=TEXT, name=TEXT, tool_call_id=TEXT, tool_calls=CALLS), max_size=3
).map(tuple)
TOOLS = st.lists(st.builds(Tool, name=TEXT, description=TEXT, parameters=OBJECT | TEXT), max_size=3).map(tuple)


def carried(told: Any) -> Any:
    return json.loads(json.dumps(told))


@given(conversation=TEXT | MESSAGES)
def test_a_conversation_comes_back(conversation: Answer) -> None:
    assert read_conversation(carried(write_conversation(conversation))) == conversation


@given(tools=TOOLS)
def test_tools_come_back(tools: tuple[Tool, ...]) -> None:
    assert read_tools(carried(write_tools(tools))) == tools


def test_a_plain_message_is_two_texts() -> None:
    assert write_conversation((ChatMessage(role="user", content="Hi"),)) == [["user", "Hi"]]


@given(told=JSON)
def test_what_is_none_raises_what_is_caught(told: Any) -> None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        read_conversation(told)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        read_tools(told)
