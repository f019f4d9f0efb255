"""Answers of OpenAI's API as JSON, from the pieces of completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from node.serving.completion import End, Piece, Token
from node.serving.served_model import Served
from node.tasks.api.interface import Spoken, ToolCall


@dataclass(kw_only=True)
class Choice:
    """One completion while its pieces come."""

    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    made: int = 0
    end: End | None = None

    def take(self, piece: Piece, *, logprobs: bool) -> None:
        """Add a piece."""
        self.text.append(piece.text)
        self.made, self.end = piece.made, piece.end
        if logprobs:
            self.tokens += piece.tokens

    @property
    def said(self) -> str:
        """All of its text."""
        return "".join(self.text)


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the parts of one answer have in common. `kind` is "chat.completion" or "text_completion"."""

    id: str
    created: int
    model: str
    kind: str

    @property
    def is_chat(self) -> bool:
        """Whether this answers a conversation."""
        return self.kind == "chat.completion"

    def whole(self, served: Served, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """An answer that is sent at once."""
        return {**self._common(served, self.kind), "choices": list(choices), "usage": usage}

    def chunk(
        self, served: Served, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """A part of a stream."""
        kind = "chat.completion.chunk" if self.is_chat else self.kind
        more = {} if usage is None else {"usage": usage}
        return {**self._common(served, kind), "choices": list(choices), **more}

    def _common(self, served: Served, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(served),
        }


def fingerprint(served: Served) -> str:
    """The version and its manifest's hash: equal where the weights are."""
    return f"{served.label or 'directory'}-{served.candidate.version.manifest.hex()[:12]}"


def chat_choice(index: int, choice: Choice, spoken: Spoken | None, *, logprobs: bool) -> dict[str, Any]:
    """A finished completion of a conversation. `spoken`: what it says where the request has tools."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.said}
    finish = end_word(choice.end)
    if spoken is not None:
        message = {"role": "assistant", "content": spoken.content or (None if spoken.calls else "")}
        if spoken.thinking:
            message["reasoning_content"] = spoken.thinking
        if spoken.calls:
            message["tool_calls"] = [tool_call(call) for call in spoken.calls]
            finish = "tool_calls"
    more = {"logprobs": logprobs_of(choice.tokens) if logprobs else None}
    return {"index": index, "message": message, **more, "finish_reason": finish}


def delta_choice(
    index: int, delta: dict[str, Any], tokens: Sequence[Token] | None = None, finish: str | None = None
) -> dict[str, Any]:
    """A part of a completion of a conversation. `tokens` where log probabilities were asked for."""
    logprobs = logprobs_of(tokens) if tokens else None
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def text_choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    """A completion of a text, or a part of one."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def end_word(end: End | None) -> str | None:
    """Why it ended, as clients read it."""
    return None if end is None else end.value


def tool_call(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    """A call; with its `index` in a stream."""
    place = {} if index is None else {"index": index}
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {**place, "id": call.id, "type": "function", "function": function}


def logprobs_of(tokens: Sequence[Token]) -> dict[str, Any]:
    """Each token with its log probability at the temperature that it was drawn with. Alternatives are not told."""
    return {
        "content": [
            {
                "token": one.text,
                "logprob": max(one.logprob, -9999.0),
                "bytes": list(one.text.encode(errors="replace")),
                "top_logprobs": [],
            }
            for one in tokens
        ],
        "refusal": None,
    }


def usage_of(num_prompt: int, num_made: int) -> dict[str, int]:
    """How many tokens were read and generated."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_made, "total_tokens": num_prompt + num_made}


def model_list(name: str, served: Served) -> dict[str, Any]:
    """What /v1/models says: the name that stands for whatever is served, and that of the version in service."""
    return {"object": "list", "data": [model_entry(one, served) for one in model_names(name, served)]}


def model_names(name: str, served: Served) -> list[str]:
    """Names that requests may give now."""
    return [name, f"{name}@{served.label}"] if served.label else [name]


def model_entry(id: str, served: Served) -> dict[str, Any]:
    """One of them."""
    return {
        "id": id,
        "object": "model",
        "created": served.candidate.created_s,
        "owned_by": "volery",
        "max_model_len": served.context,
    }
