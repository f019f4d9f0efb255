"""A chat template: a conversation becomes the text that the model was taught to read, as transformers renders it.

Templates are programs of strangers. They run in jinja2's immutable sandbox, with what transformers gives them
(transformers.utils.chat_template_utils): messages, tools, special tokens, and the operator's own variables.

A transcript is never rendered anew, since templates rewrite what was said: Qwen3's strips thinking from earlier turns,
others trim spaces. `after_said` gives what follows, and what the policy said stays as it said it.

Invariants:
- Whatever a template raises is a TaskError that says what was asked of it.
- Nothing is left out unseen: a message that the template does not show is a TaskError, and so are tools.
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
"""Stand for it in a conversation that is rendered to see what follows, and whether that is shown."""

CALL_ID = "volery000"
"""Of a call that stands for what the policy said: nine letters and digits, as Mistral's templates demand."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of every template that the conversation gives."""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The template `text`, which stands in `where`. `special_tokens` and `variables` are given to it by their names."""

    text: str
    where: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    def require_variables(self) -> None:
        """Raises TaskError where the template does not read one of the operator's variables, or cannot be compiled."""
        try:
            known = meta.find_undeclared_variables(_environment().parse(self.text))
        except Exception as error:
            raise TaskError(f"{self.where}: its chat template is none: {error}") from error
        for name in self.variables:
            if name not in known:
                hint = suggestion(name, known - {*RESERVED, *self.special_tokens})
                raise TaskError(
                    f"{self.where}: its chat template does not read {name!r}{hint}. Correct [model] "
                    "chat_template_kwargs, or leave it out."
                )

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), *, begins: bool = True) -> str:
        """Return the conversation as text; with `begins`, up to where the assistant begins. Raises TaskError."""
        try:
            return self._rendered(messages, tools, begins=begins)
        except Exception as error:  # a stranger's program: 1 / 0, a macro that calls itself, brackets without end
            why = f"{type(error).__name__}: {error}"
            if self._takes_without_system(messages, tools):
                raise TaskError(
                    f"{self.where}: its chat template fails on messages of role system ({why}). Leave [model] "
                    "system_prompt out, put its words into the task's prompts, or give another [model] chat_template."
                ) from error
            raise TaskError(f"{self.where}: its chat template fails on a prompt: {why}") from error

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """Return the text of a prompt, in which every message and every tool is shown. Raises TaskError."""
        text = self.render(messages, tools)
        for number, message in enumerate(messages):
            if message.content.strip() not in text:  # which it may write as JSON, but not leave out
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
        """Return what follows what the policy said after `before`: an end, `answers`, up to where it begins again.

        Raises TaskError, also where the template leaves an answer out, or what the policy said.
        """
        said = _marker(answers)
        return self._after(said, [*before, ChatMessage(role="assistant", content=said)], answers, tools)

    def after_call(self, before: Sequence[ChatMessage], answers: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        """As `after_said`, where what the policy said is a call: templates may take no answer of a tool without one.

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
        except Exception:  # as above: the first error is told
            return False
        return True

    def _hides(self, message: ChatMessage) -> TaskError:
        return TaskError(f"{self.where}: its chat template does not show messages of role {message.role}")


def _marker(answers: Sequence[ChatMessage]) -> str:
    """What stands for the policy's words: nothing that an answer repeats, or what follows would begin in there."""
    marker = SAID
    while any(marker in answer.content for answer in answers):
        marker += "_"
    return marker


def _name(tools: Sequence[Tool]) -> str:
    return tools[0].name if tools else "tool"


def _message(message: ChatMessage) -> dict[str, Any]:
    """As templates read it: what is empty is not there, since they ask whether it is defined."""
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


# --- jinja2, as transformers has it -----------------------------------------------------------------------------------


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks words for training masks; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    """Cached: templates of today take milliseconds to compile, and every prompt goes through one."""
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
    """jinja2's own filter escapes for HTML, which no model expects."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
