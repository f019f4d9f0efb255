from __future__ import annotations

import json
from typing import Any

import pytest

from node.tasks.adapters.openenv.actions import (
    ACT,
    MAX_CALLS,
    Fields,
    Tools,
    Words,
    choose_ways,
    read_answer,
    read_result,
)
from node.tasks.adapters.openenv.messages import ServerFault
from node.tasks.api.interface import ChatMessage, Spoken, TaskError, Tool, ToolCall

METADATA = {"type": "object"}


def schema(*required: str, **properties: str) -> dict[str, Any]:
    fields = {"metadata": METADATA, **{name: {"type": kind} for name, kind in properties.items()}}
    return {"type": "object", "properties": fields, "required": list(required)}


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="abcdefghi", name=name, arguments=arguments)


def test_one_field_of_text_takes_the_words() -> None:
    assert choose_ways(None, schema("message", message="string"), "") == Words(name="message")
    assert choose_ways(None, schema("message", message="string", hint="string"), "") == Words(name="message")
    assert choose_ways(None, schema(message="string"), "") == Words(name="message")
    moves = Words(name="message").moves(Spoken(content=" hello\n"))
    assert [(move.action, move.call) for move in moves] == [({"message": "hello"}, None)]


def test_several_fields_are_the_arguments_of_a_tool() -> None:
    told = schema("row", "column", row="integer", column="integer")
    ways = choose_ways(None, told, "")
    assert isinstance(ways, Fields)
    [tool] = ways.tools
    assert tool.name == ACT
    assert isinstance(tool.parameters, dict)
    assert set(tool.parameters["properties"]) == {"row", "column"}
    [move] = ways.moves(Spoken(content="", calls=(call(ACT, row=1, column=2),)))
    assert move.action == {"row": 1, "column": 2}
    assert isinstance(choose_ways(None, schema("size", size="integer"), ""), Fields)


def test_tools_of_mcp_come_first_unless_a_field_is_named() -> None:
    tools = [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}, {"name": "stop"}]
    ways = choose_ways(tools, schema("message", message="string"), "")
    assert isinstance(ways, Tools)
    assert ways.tools[0] == Tool(name="add", description="Add.", parameters={"type": "object"})
    assert choose_ways(tools, schema("message", message="string"), "message") == Words(name="message")
    [move] = ways.moves(Spoken(content="", calls=(call("add", a=1),)))
    assert move.action == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
    many = Spoken(content="", calls=(call("add"),) * (MAX_CALLS + 3))
    assert len(ways.moves(many)) == MAX_CALLS


def test_a_field_that_is_not_there_and_a_server_that_does_not_say() -> None:
    with pytest.raises(TaskError, match="field=text: the server's actions have message"):
        choose_ways(None, schema("message", message="string"), "text")
    assert choose_ways(None, None, "text") == Words(name="text")
    for told in (None, {}, schema(), {"properties": 3}):
        with pytest.raises(TaskError, match="field=NAME"):
            choose_ways(None, told, "")
    with pytest.raises(ServerFault, match="without name or schema"):
        choose_ways([{"description": "odd"}], None, "")


@pytest.mark.parametrize(
    ("fields", "path", "read"),
    [
        ({"text": "hi"}, "", "hi"),
        ({"text": "hi", "size": 2}, "", '{"text": "hi", "size": 2}'),
        ({"text": "hi", "size": 2}, "text", "hi"),
        ({"size": 2}, "", "2"),
        ({"board": {"now": "xo"}}, "board.now", "xo"),
        ({"board": None}, "board", ""),
        ({"umlaut": "ä", "n": 1}, "", '{"umlaut": "ä", "n": 1}'),
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            "messages",
            (ChatMessage(role="user", content="hi"),),
        ),
        ({"messages": [{"content": "hi"}]}, "messages", '[{"content": "hi"}]'),
        ({"messages": []}, "messages", "[]"),
        ({}, "", "{}"),
    ],
    ids=[f"case{number}" for number in range(11)],
)
def test_what_is_read(fields: dict[str, Any], path: str, read: object) -> None:
    assert read_answer(fields, path) == read


def test_a_path_that_leads_nowhere_names_the_fields() -> None:
    with pytest.raises(TaskError, match=r"observe=board\.now: the observation has text, size"):
        read_answer({"text": "", "size": 2}, "board.now")
    with pytest.raises(TaskError, match="no fields, but 3"):
        read_answer({"board": 3}, "board.now")


def test_results_of_tools() -> None:
    content = [{"type": "text", "text": "3"}, {"type": "text", "text": "done"}]
    assert read_result({"tool_name": "add", "result": {"content": content}, "error": None}, "add") == "3\ndone"
    assert read_result({"tool_name": "add", "result": "3", "error": None}, "add") == "3"
    assert read_result({"tool_name": "add", "result": [1], "error": None}, "add") == "[1]"
    image = {"content": [{"type": "image", "data": "AAAA"}]}
    assert read_result({"tool_name": "add", "result": image}, "add") == json.dumps(image)
    broken = {"tool_name": "add", "result": None, "error": {"message": "no such tool"}}
    assert read_result(broken, "add") == "error: no such tool"
    assert read_result({"text": "plain"}, "add") == "plain"
    with pytest.raises(ServerFault, match="answered for the tool 'sub' instead of 'add'"):
        read_result({"tool_name": "sub", "result": "3"}, "add")
