"""Messages and tools as the package verifiers has them, of mappings and of objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from node.tasks.adapters.verifiers.messages import read_messages, read_prompt, read_tools, write_call
from node.tasks.api.interface import ChatMessage, TaskError, Tool, ToolCall

CALL = ToolCall(id="abc", name="add", arguments={"a": 1})
AS_MAPPING = {"id": "abc", "name": "add", "arguments": '{"a": 1}'}
AS_OPENAI = {"id": "abc", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
AS_OBJECT = SimpleNamespace(**AS_MAPPING)


@pytest.mark.parametrize("call", [AS_MAPPING, AS_OPENAI, AS_OBJECT], ids=["mapping", "openai", "object"])
def test_a_call_and_its_result(call: Any) -> None:
    found = read_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            SimpleNamespace(role="tool", content="1", tool_call_id="abc"),
        ],
        "a request",
    )
    assert found == (
        ChatMessage(role="assistant", content="", tool_calls=(CALL,)),
        ChatMessage(role="tool", content="1", name="add", tool_call_id="abc"),
    )


def test_a_call_that_is_written_is_read_again() -> None:
    (message,) = read_messages([{"role": "assistant", "content": "", "tool_calls": [write_call(CALL)]}], "a request")
    assert message.tool_calls == (CALL,)


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, SimpleNamespace(type="text", text="b")]
    assert read_prompt([{"role": "user", "content": parts}], "a row") == (ChatMessage(role="user", content="ab"),)


def test_a_prompt_of_text_is_text() -> None:
    assert read_prompt("once", "a row") == "once"
    assert read_prompt([{"role": "text", "content": "once"}], "a row") == "once"


WRONG: dict[str, tuple[Any, str]] = {
    "a number": (3, "something of type int instead of messages"),
    "words": ([3], "something of type int instead of a message"),
    "nothing": ([], "has no message"),
    "a picture": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}],
        "a part of type 'image_url'",
    ),
    "arguments": (
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "f", "arguments": "{"}]}],
        "not a JSON object: '{'",
    ),
}


@pytest.mark.parametrize(("found", "told"), WRONG.values(), ids=WRONG)
def test_what_is_no_conversation_is_refused(found: Any, told: str) -> None:
    with pytest.raises(TaskError) as refused:
        read_prompt(found, "row 3")
    assert told in str(refused.value)
    assert "row 3 " in str(refused.value)


def test_tools_in_either_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = Tool(name="add", description="Add.", parameters=schema)
    own = {"name": "add", "description": "Add.", "parameters": schema}
    for one in (own, {"type": "function", "function": own}, SimpleNamespace(**own)):
        assert read_tools([one], "a row") == (tool,)
    with pytest.raises(TaskError, match="a tool without a name"):
        read_tools([{"description": "Add."}], "a row")
