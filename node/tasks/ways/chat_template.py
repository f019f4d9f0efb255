"""Turn a conversation into the text that the model was taught to read, by its chat template, like transformers.

Templates are programs of strangers. They run in jinja2's immutable sandbox, with what transformers gives them
(transformers.utils.chat_template_utils): messages, tools, special tokens, and the operator's own variables.

A transcript is never rendered again, because templates rewrite earlier turns: Qwen3's removes thinking, others trim
spaces. `after_said` returns only what follows a turn, and what the policy said stays unchanged.

Invariants:

- Any error of a template is a TaskError that says what the template was asked to do.
- Nothing is left out silently: a message or a tool that the template does not show is a TaskError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from node.tasks.api.interface import ChatMessage, TaskError, Tool, ToolCall
from node.tasks.api.options import suggestion

SAID, SHOWN = "WhatThePolicySaid", "WhatWasAnswered"
"""Stand for a turn and an answer in a conversation that is rendered to see what follows, and whether it is shown."""

CALL_ID = "volery000"
"""The id of a call that stands for what the policy said: nine letters and digits, as Mistral's templates demand."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables that every template gets from the conversation."""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The template `text`, found in `where`. It also gets `special_tokens` and `variables`, by their names."""

    text: str
    where: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    def require_variables(self) -> None:
        """Raise TaskError if the template does not use one of the operator's variables, or cannot be compiled."""
        try:
            known = meta.find_undeclared_variables(_environment().parse(self.text))
        except Exception as error:
            raise TaskError(f"{self.where}: its chat template is invalid: {error}") from error
        for name in self.variables:
            if name not in known:
                hint = suggestion(name, known - {*RESERVED, *self.special_tokens})
                raise TaskError(
                    f"{self.where}: its chat template does not read {name!r}{hint}. Correct [model] "
                    "chat_template_kwargs, or leave it out."
                )

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), *, begins: bool = True) -> str:
        """Return the conversation as text, with `begins` up to where the assistant begins. Raises TaskError."""
        try:
            return self._rendered(messages, tools, begins=begins)
        except Exception as error:  # a stranger's program may do 1 / 0, recurse or nest brackets without end
            why = f"{type(error).__name__}: {error}"
            if self._takes_without_system(messages, tools):
                raise TaskError(
                    f"{self.where}: its chat template fails on messages of role system ({why}). Leave [model] "
                    "system_prompt out, put its words into the task's prompts, or give another [model] chat_template."
                ) from error
            raise TaskError(f"{self.where}: its chat template fails on a prompt: {why}") from error

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """Return the text of a prompt that shows every message and every tool. Raises TaskError."""
        text = self.render(messages, tools)
        for number, message in enumerate(messages):
            if message.content.strip() not in text:  # the template may write it as JSON, but not leave it out
                probe = [*messages[:number], replace(message, content=SHOWN), *messages[number + 1 :]]
                if SHOWN not in self.render(probe, tools):
                    raise self._hides(message)
        if hidden := [tool.name for tool in tools if tool.name not in text]:
            raise TaskError(
                f"{self.where}: its chat template does not show tools ({hidden[0]}). Use a model that was taught "
                "tools, or give a template that shows them in [model] chat_template."
            )
        return text

    def after_said(self, before: Sequence[ChatMessage], answers: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        """Return the text after a turn of the policy that follows `before`: its end, the `answers`, and the beginning
        of the next turn.

        Raises TaskError, also if the template leaves out an answer, or what the policy said.
        """
        said = _marker(answers)
        return self._after(said, [*before, ChatMessage(role="assistant", content=said)], answers, tools)

    def after_call(self, before: Sequence[ChatMessage], answers: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        """Return the same after a turn that is a tool call. Templates may accept a tool's result only after a call.

        The text begins inside the call, which ends with a stop id.
        """
        said, calling = _marker(answers), [answer for answer in answers if answer.role == "tool"]
        calls = tuple(
            ToolCall(id=one.tool_call_id or CALL_ID, name=one.name or _name(tools), arguments={"said": said})
            for one in calling
        )
        return self._after(said, [*before, ChatMessage(role="assistant", content="", tool_calls=calls)], answers, tools)

    def _after(
        self, said: str, until: Sequence[ChatMessage], answers: Sequence[ChatMessage], tools: Sequence[Tool]
    ) -> str:
        after = self._behind(said, [*until, *answers], tools)
        for answer in answers:
            if answer.content.strip() not in after:
                probe = replace(answer, content=SHOWN)
                if SHOWN not in self._behind(said, [*until, probe], tools):
                    raise self._hides(answer)
        return after

    def _behind(self, said: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        _, shown, after = self.render(messages, tools).rpartition(said)
        if not shown:
            raise TaskError(f"{self.where}: its chat template does not show what the assistant said")
        return after

    def _rendered(self, messages: Iterable[ChatMessage], tools: Sequence[Tool], *, begins: bool) -> str:
        variables = {
            **self.special_tokens,
            **self.variables,
            "messages": [_message(message) for message in messages],
            "tools": [_tool(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": begins,
        }
        return _compile(self.text).render(variables)

    def _takes_without_system(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> bool:
        others = [message for message in messages if message.role != "system"]
        if not others or len(others) == len(messages):
            return False
        try:
            self._rendered(others, tools, begins=True)
        except Exception:  # reported as the first error, not as this one
            return False
        return True

    def _hides(self, message: ChatMessage) -> TaskError:
        return TaskError(f"{self.where}: its chat template does not show messages of role {message.role}")


def _marker(answers: Sequence[ChatMessage]) -> str:
    """Return a text that stands for a turn. No answer contains it, so a search finds the turn and not an answer."""
    marker = SAID
    while any(marker in answer.content for answer in answers):
        marker += "_"
    return marker


def _name(tools: Sequence[Tool]) -> str:
    return tools[0].name if tools else "tool"


def _message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates read it. Empty fields are left out, because templates ask whether they exist."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in message.tool_calls
    ]
    more = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": calls}
    return {"role": message.role, "content": message.content, **{key: value for key, value in more.items() if value}}


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = json.loads(tool.parameters) if isinstance(tool.parameters, str) else dict(tool.parameters)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


# --- jinja2 with the settings of transformers -------------------------------------------------------------------------


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks text for training masks. Here it only passes the text on."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    """Compile a template. Cached, because that takes milliseconds and every prompt needs it."""
    return _environment().from_string(template)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON. jinja2's own filter escapes for HTML, which no model expects."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
