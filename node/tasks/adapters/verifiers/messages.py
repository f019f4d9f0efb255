"""Read and write messages and tools in the form of the package `verifiers`.

They are pydantic objects or mappings with the same fields. This module imports nothing of the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from node.tasks.api.interface import ChatMessage, Spoken, TaskError, Tool, ToolCall


def read_messages(found: object, where: str) -> tuple[ChatMessage, ...]:
    """Return the messages of a conversation. Raises TaskError for a picture, a sound, or something else."""
    if isinstance(found, str):
        return (ChatMessage(role="text", content=found),)
    if not isinstance(found, Sequence):
        raise TaskError(f"{where} holds something of type {type(found).__name__} instead of messages.")
    messages: list[ChatMessage] = []
    tool_names: dict[str, str] = {}
    for one in found:
        message = _message(one, where, tool_names)
        tool_names.update({call.id: call.name for call in message.tool_calls})
        messages.append(message)
    return tuple(messages)


def read_prompt(found: object, where: str) -> str | tuple[ChatMessage, ...]:
    """Return a prompt: text if it is plain text, else messages. Raises TaskError."""
    messages = read_messages(found, where)
    if not messages:
        raise TaskError(f"{where} has no message.")
    if len(messages) == 1 and messages[0].role == "text":
        return messages[0].content
    return messages


def read_tools(found: object, where: str) -> tuple[Tool, ...]:
    """Return tools in the form of `verifiers` or of OpenAI. Raises TaskError."""
    tools = []
    for one in found if isinstance(found, Sequence) else ():
        told = _field(one, "function") or one
        name, parameters = _field(told, "name"), _field(told, "parameters")
        if not isinstance(name, str):
            raise TaskError(f"{where} has a tool without a name.")
        schema = parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}}
        tools.append(Tool(name=name, description=_field(told, "description") or "", parameters=schema))
    return tuple(tools)


def message_of(spoken: Spoken) -> ChatMessage:
    """Return what the policy said, as a message."""
    return ChatMessage(role="assistant", content=spoken.content, tool_calls=spoken.calls)


def write_call(call: ToolCall) -> dict[str, str]:
    """Return a call in the form of `verifiers`, whose arguments are text."""
    return {"id": call.id, "name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}


def _message(one: object, where: str, tool_names: Mapping[str, str]) -> ChatMessage:
    role = _field(one, "role")
    if not isinstance(role, str):
        raise TaskError(f"{where} holds something of type {type(one).__name__} instead of a message.")
    answers = _field(one, "tool_call_id") or ""
    return ChatMessage(
        role=role,
        content=_content(_field(one, "content"), where),
        name=tool_names.get(answers, ""),
        tool_call_id=answers,
        tool_calls=tuple(_call(call, where) for call in _field(one, "tool_calls") or ()),
    )


def _content(found: object, where: str) -> str:
    if found is None:
        return ""
    if isinstance(found, str):
        return found
    parts = []
    for part in found if isinstance(found, Sequence) else ():
        text = _field(part, "text")
        if not isinstance(text, str):
            raise TaskError(
                f"{where} holds a part of type {_field(part, 'type')!r} in a message. The policy reads only text: "
                "environments with pictures or sounds cannot be used."
            )
        parts.append(text)
    return "".join(parts)


def _call(found: object, where: str) -> ToolCall:
    told = _field(found, "function") or found
    arguments = _field(told, "arguments")
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        read = None
    if not isinstance(read, Mapping):
        raise TaskError(f"{where} holds a tool call whose arguments are not a JSON object: {arguments!r}.")
    return ToolCall(id=str(_field(found, "id")), name=str(_field(told, "name")), arguments=dict(read))


def _field(found: object, name: str) -> Any:
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
