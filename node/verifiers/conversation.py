"""Write and read conversations and tools as JSON, which nodes and verifiers exchange for problems and answers.

    text                                        a conversation that is plain text
    [[role, content], [role, content, more]]    messages; `more` has the fields that are not empty:
                                                {"name", "tool_call_id", "tool_calls": [[id, name, arguments]]}
    [[name, description, parameters]]           tools

Invariants:

- For each value that passes `node.tasks.gate`, reading what was written gives the same value.
- JSON that is neither raises KeyError, TypeError or ValueError, and no other error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from node.tasks.api.interface import Answer, ChatMessage, Tool, ToolCall

JSON = Any
"""A value that a frame's header may hold."""


def write_conversation(conversation: Answer) -> JSON:
    """Return a text, or messages, as JSON."""
    return conversation if isinstance(conversation, str) else [_write_message(message) for message in conversation]


def read_conversation(told: JSON) -> Answer:
    """Return the text, or the messages. Raises KeyError, TypeError or ValueError if `told` is neither."""
    return tuple(map(_read_message, told)) if isinstance(told, list) else str(told)


def write_tools(tools: Sequence[Tool]) -> JSON:
    """Return tools as JSON."""
    return [[tool.name, tool.description, _plain(tool.parameters)] for tool in tools]


def read_tools(told: JSON) -> tuple[Tool, ...]:
    """Return the tools. Raises KeyError, TypeError or ValueError if `told` is no list of tools."""
    return tuple(
        Tool(name=str(name), description=str(description), parameters=_schema(parameters))
        for name, description, parameters in told
    )


def _write_message(message: ChatMessage) -> JSON:
    calls = [[call.id, call.name, dict(call.arguments)] for call in message.tool_calls]
    more = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": calls}
    more = {key: value for key, value in more.items() if value}
    return [message.role, message.content, *([more] if more else [])]


def _read_message(told: JSON) -> ChatMessage:
    role, content, *rest = told
    [more] = rest or [{}]
    return ChatMessage(
        role=str(role),
        content=str(content),
        name=str(_object(more).get("name", "")),
        tool_call_id=str(more.get("tool_call_id", "")),
        tool_calls=tuple(
            ToolCall(id=str(number), name=str(name), arguments=_object(arguments))
            for number, name, arguments in more.get("tool_calls", ())
        ),
    )


def _plain(parameters: str | Mapping[str, Any]) -> JSON:
    return parameters if isinstance(parameters, str) else dict(parameters)


def _schema(told: JSON) -> str | dict[str, Any]:
    return told if isinstance(told, str) else _object(told)


def _object(told: JSON) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise TypeError(f"{type(told).__name__} where an object belongs")
    return told
