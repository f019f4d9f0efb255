"""Parse requests of OpenAI's API into what is generated, or an error that names the field.

A field that would change the answer and is not supported is refused: a client that asks for `top_p` must not get
another distribution without notice. Fields that do not change the answer are ignored.

Invariants:

- Only ApiError is raised, for any bytes.
- Every returned number is within the bounds of `node.commands.serve.limits`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from node.commands.serve.api_error import ApiError, bad_request
from node.commands.serve.limits import (
    MAX_MESSAGES,
    MAX_N,
    MAX_NEW_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOOLS,
)
from node.tasks.api.interface import ChatMessage, Tool, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of messages, and their names in chat templates."""

AT = re.compile(r" - at `\$\.?([^`]*)`$")
"""The end of msgspec's message, which holds the place of a wrong value."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
}
"""Unsupported fields, and the values with which they change nothing. None is always such a value."""


class Function(msgspec.Struct, kw_only=True):
    """A tool as a request describes it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct, kw_only=True):
    """One of a request's tools."""

    function: Function
    type: str = "function"


class Called(msgspec.Struct, kw_only=True):
    """The function of a call in an assistant's message. `arguments` are JSON in a string."""

    name: str
    arguments: str = "{}"


class CallBody(msgspec.Struct, kw_only=True):
    """A call in an assistant's message."""

    function: Called
    id: str = ""
    type: str = "function"


class Part(msgspec.Struct, kw_only=True):
    """A part of a message's content."""

    type: str
    text: str = ""


class MessageBody(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallBody] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options for the end of a stream."""

    include_usage: bool = False


class Common(msgspec.Struct, kw_only=True):
    """The fields that both kinds of requests have."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(Common, kw_only=True):
    """A request to /v1/chat/completions."""

    messages: list[MessageBody]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    tools: list[ToolBody] | None = None
    tool_choice: Any = None
    response_format: Any = None


class TextBody(Common, kw_only=True):
    """A request to /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling settings that both kinds of requests have. None means not given."""

    model: str
    max_tokens: int | None
    temperature: float
    seed: int | None
    n: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A conversation to continue."""

    sampling: Sampling
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    logprobs: bool


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A text, or token ids, to continue."""

    sampling: Sampling
    prompt: str | tuple[int, ...]


B = TypeVar("B", ChatBody, TextBody)


def parse_chat(body: bytes) -> ChatRequest:
    """Read a request to /v1/chat/completions. Raises ApiError."""
    read = _read(body, ChatBody)
    if read.max_completion_tokens is not None:
        read.max_tokens = read.max_completion_tokens
    limit_field = "max_tokens" if read.max_completion_tokens is None else "max_completion_tokens"
    if not 1 <= len(read.messages) <= MAX_MESSAGES:
        raise bad_request(f"messages: give 1 to {MAX_MESSAGES}, not {len(read.messages)}.", "messages")
    return ChatRequest(
        sampling=_sampling(read, limit_field),
        messages=tuple(_message(number, message) for number, message in enumerate(read.messages)),
        tools=_tools(read),
        logprobs=bool(read.logprobs),
    )


def parse_text(body: bytes) -> TextRequest:
    """Read a request to /v1/completions. Raises ApiError."""
    read = _read(body, TextBody)
    if read.logprobs is not None:
        raise bad_request("logprobs: only /v1/chat/completions gives them, with logprobs true.", "logprobs")
    return TextRequest(sampling=_sampling(read, "max_tokens"), prompt=_prompt(read.prompt))


def _read(body: bytes, kind: type[B]) -> B:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        read = msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request is not JSON: {error}. Send one object in UTF-8.") from error
    except RecursionError as error:
        raise bad_request("The request nests objects too deeply.") from error
    for name, values in NEUTRAL.items():
        given = fields.get(name)
        if given is not None and given not in values:
            raise bad_request(
                f"{name}: this server does not support it. Omit it, or give {values[0]!r}.", name, "unsupported_value"
            )
    return read


def _wrong(said: str) -> ApiError:
    """Return msgspec's message about a value as an error, with its place as the field."""
    found = AT.search(said)
    missing = re.search(r"missing required field `([^`]+)`", said)
    place = found.group(1) if found else ""
    if missing:
        place = f"{place}.{missing.group(1)}" if place else missing.group(1)
    what = AT.sub("", said)
    return bad_request(f"{place}: {what}." if place else f"{what}.", place or None)


def _sampling(read: Common, limit_field: str) -> Sampling:
    temperature = 1.0 if read.temperature is None else read.temperature
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise bad_request(f"temperature: give 0 to {MAX_TEMPERATURE:g}, not {temperature:g}.", "temperature")
    if read.max_tokens is not None and not 1 <= read.max_tokens <= MAX_NEW_TOKENS:
        raise bad_request(f"{limit_field}: give 1 to {MAX_NEW_TOKENS}, not {read.max_tokens}.", limit_field)
    n = 1 if read.n is None else read.n
    if not 1 <= n <= MAX_N:
        raise bad_request(f"n: give 1 to {MAX_N}, not {n}.", "n")
    if read.seed is not None and not -(1 << 63) <= read.seed < 1 << 64:
        raise bad_request("seed: give an integer of 64 bits.", "seed")
    return Sampling(
        model=read.model,
        max_tokens=read.max_tokens,
        temperature=temperature,
        seed=None if read.seed is None else read.seed % (1 << 64),
        n=n,
        stops=_stops(read.stop),
        stream=bool(read.stream),
        include_usage=read.stream_options is not None and read.stream_options.include_usage,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS or any(not 1 <= len(one) <= MAX_STOP_CHARS for one in stops):
        raise bad_request(f"stop: give at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters.", "stop")
    return stops


def _message(number: int, message: MessageBody) -> ChatMessage:
    place = f"messages[{number}]"
    if message.role not in ROLES:
        raise bad_request(f"{place}.role: {message.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{place}.role")
    content = message.content
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise bad_request(f"{place}.content: a message with this role needs content.", f"{place}.content")
    if isinstance(content, list):
        if other := next((part for part in content if part.type != "text"), None):
            raise bad_request(
                f"{place}.content: parts of type {other.type[:40]!r} are not supported, only text.", f"{place}.content"
            )
        content = "".join(part.text for part in content)
    return ChatMessage(
        role=ROLES[message.role],
        content=content or "",
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        tool_calls=tuple(_call(place, call) for call in message.tool_calls or ()),
    )


def _call(place: str, call: CallBody) -> ToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        field = f"{place}.tool_calls"
        raise bad_request(
            f"{field}: arguments of {call.function.name[:40]!r} are not a JSON object: {error}.", field
        ) from error
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


def _tools(read: ChatBody) -> tuple[Tool, ...]:
    if read.response_format not in (None, {"type": "text"}):
        raise bad_request(
            'response_format: only {"type": "text"} is supported.', "response_format", "unsupported_value"
        )
    if read.tool_choice not in (None, "auto", "none"):
        raise bad_request('tool_choice: only "auto" and "none" are supported.', "tool_choice", "unsupported_value")
    if len(read.tools or ()) > MAX_TOOLS:
        raise bad_request(f"tools: give at most {MAX_TOOLS}.", "tools")
    if wrong := next((tool for tool in read.tools or () if tool.type != "function"), None):
        raise bad_request(f"tools: {wrong.type[:40]!r} is not supported, only tools of type function.", "tools")
    if read.tool_choice == "none":
        return ()
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {"type": "object", "properties": {}},
        )
        for tool in read.tools or ()
    )


def _prompt(prompt: str | Sequence[Any]) -> str | tuple[int, ...]:
    """Return one text, or the token ids of one. Either may be in a list of one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise bad_request("prompt: give at least one character.", "prompt")
        return prompt
    if not prompt or not all(isinstance(id, int) and not isinstance(id, bool) and 0 <= id < 1 << 31 for id in prompt):
        raise bad_request("prompt: give one text, or the token ids of one.", "prompt")
    return tuple(prompt)
