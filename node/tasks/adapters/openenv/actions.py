"""Turn what a policy says into actions for an OpenEnv server, and the server's replies into what the policy reads.

The server's schema and tools decide which of three ways to act applies:

- The text of the policy fills one field of the action.
- The fields of the action are the arguments of one tool, `act`.
- The server has MCP tools, and each call of the policy is a call there.

Pure, so it can be tested without a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.tasks.adapters.openenv.messages import ServerFault, short_form
from node.tasks.api.interface import Answer, ChatMessage, Spoken, TaskError, Tool, ToolCall

ACT = "act"
"""The tool whose arguments are the fields of an action."""

MAX_CALLS = 16
"""Maximum actions in one turn. The policy is told that further calls were not made."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One action, and the tool call that it comes from, if any."""

    action: Mapping[str, Any]
    call: ToolCall | None = None


@dataclass(frozen=True, kw_only=True)
class Words:
    """The text of the policy fills the field called `name`."""

    name: str
    tools: tuple[Tool, ...] = ()

    def moves(self, spoken: Spoken) -> Sequence[Move]:
        """Return the actions of a turn."""
        return [Move(action={self.name: spoken.content.strip()})]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The arguments of a call of ACT are the fields of the action. `schema`: of the action."""

    schema: Mapping[str, Any]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call."""
        return (Tool(name=ACT, description="Act in the environment.", parameters=self.schema),)

    def moves(self, spoken: Spoken) -> Sequence[Move]:
        """Return the actions of a turn."""
        return [Move(action=dict(call.arguments), call=call) for call in spoken.calls[:MAX_CALLS]]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Calls of MCP tools. Each is sent as the action `call_tool`, because then the server gives a reward for it."""

    tools: tuple[Tool, ...]

    def moves(self, spoken: Spoken) -> Sequence[Move]:
        """Return the actions of a turn."""
        return [
            Move(
                action={"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)},
                call=call,
            )
            for call in spoken.calls[:MAX_CALLS]
        ]


Ways = Words | Fields | Tools
"""How a policy acts on a server."""


def choose_ways(mcp_tools: Sequence[Mapping[str, Any]] | None, schema: Mapping[str, Any] | None, field: str) -> Ways:
    """Return how a policy acts on a server with these tools and this schema of actions. Raises TaskError.

    `field`: from the spec, the field that takes what the policy says; "" to decide by tools and schema.
    """
    properties = _properties(schema)
    if field:
        if properties and field not in properties:
            raise TaskError(f"field={field}: the server's actions have {', '.join(properties)}. Name one of these.")
        return Words(name=field)
    if mcp_tools:
        return Tools(tools=tuple(map(_tool, mcp_tools)))
    if not properties:
        raise TaskError("the server does not say which fields its actions have. Name one for the text: field=NAME.")
    assert schema is not None, "it has properties"
    required = schema.get("required")
    needed = [name for name in properties if name in (required if isinstance(required, list) else ())]
    only = needed or list(properties)
    if len(only) == 1 and _type(properties[only[0]]) == "string":
        return Words(name=only[0])
    return Fields(schema={**schema, "properties": properties})


def _properties(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of an action, without the metadata that every action has."""
    found = (schema or {}).get("properties")
    return {name: one for name, one in found.items() if name != "metadata"} if isinstance(found, dict) else {}


def _type(one: object) -> object:
    return one.get("type") if isinstance(one, dict) else None


def _tool(told: Mapping[str, Any]) -> Tool:
    name, description = told.get("name"), told.get("description")
    parameters = told.get("inputSchema") or told.get("input_schema") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not isinstance(parameters, dict):
        raise ServerFault(f"the server lists a tool without name or schema: {short_form(told)}.")
    return Tool(name=name, description=description if isinstance(description, str) else "", parameters=parameters)


def read_answer(fields: Mapping[str, Any], path: str) -> Answer:
    """Return what a policy reads of an observation: the field that `path` names, or all of it.

    A text stays text, a list of messages with roles becomes messages, and anything else becomes JSON. Without a path,
    an observation with one field is that field.
    """
    value: Any = fields
    for name in path.split(".") if path else (list(fields) if len(fields) == 1 else ()):
        if not isinstance(value, dict) or name not in value:
            there = ", ".join(value) if isinstance(value, dict) else f"no fields, but {short_form(value)}"
            raise TaskError(f"observe={path}: the observation has {there}. Name a field that is always there.")
        value = value[name]
    if value is None and path:
        return ""
    if isinstance(value, str):
        return value
    return _messages(value) or json.dumps(value, ensure_ascii=False)


def _messages(value: object) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in value
    ):
        return ()
    return tuple(ChatMessage(role=one["role"], content=one["content"]) for one in value)


def read_result(fields: Mapping[str, Any], tool: str) -> str:
    """Return what a policy reads of an MCP tool's result. Raises ServerFault if the result is another tool's."""
    if "tool_name" not in fields:
        found = read_answer(fields, "")
        return found if isinstance(found, str) else json.dumps(fields, ensure_ascii=False)
    if fields["tool_name"] != tool:
        raise ServerFault(f"the server answered for the tool {short_form(fields['tool_name'])} instead of {tool!r}.")
    if isinstance(error := fields.get("error"), dict):
        return f"error: {error.get('message', 'it does not say which')}"
    result = fields.get("result")
    if isinstance(result, dict) and isinstance(content := result.get("content"), list):
        texts = [one["text"] for one in content if isinstance(one, dict) and isinstance(one.get("text"), str)]
        if len(texts) == len(content):
            return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
