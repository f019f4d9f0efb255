"""Build the JSON answers of OpenAI's API from the pieces of completions."""

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
    """Collects the pieces of one completion."""

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
        """Return its text so far."""
        return "".join(self.text)


@dataclass(frozen=True, kw_only=True)
class Form:
    """What all parts of one answer share. `kind` is "chat.completion" or "text_completion"."""

    id: str
    created: int
    model: str
    kind: str

    @property
    def is_chat(self) -> bool:
        """Whether this answers a conversation."""
        return self.kind == "chat.completion"

    def whole(self, served: Served, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """Return an answer that is sent at once."""
        return {**self._common(served, self.kind), "choices": list(choices), "usage": usage}

    def chunk(
        self, served: Served, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """Return one part of a stream."""
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
    """Return the version and its manifest's hash. Equal weights give equal fingerprints."""
    return f"{served.label or 'directory'}-{served.candidate.version.manifest.hex()[:12]}"


def chat_choice(index: int, choice: Choice, spoken: Spoken | None, *, logprobs: bool) -> dict[str, Any]:
    """Return a finished completion of a conversation. `spoken`: the completion, read for calls of tools."""
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
    """Return a part of a completion of a conversation. `tokens` are given if log probabilities were requested."""
    logprobs = logprobs_of(tokens) if tokens else None
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def text_choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    """Return a completion of a text, or a part of one."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def end_word(end: End | None) -> str | None:
    """Return the word that clients read for why it ended."""
    return None if end is None else end.value


def tool_call(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    """Return a call of a tool, with its `index` if it is in a stream."""
    place = {} if index is None else {"index": index}
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {**place, "id": call.id, "type": "function", "function": function}


def logprobs_of(tokens: Sequence[Token]) -> dict[str, Any]:
    """Return each token with its log probability at the sampling temperature. Alternatives are not given."""
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
    """Return the numbers of tokens that were read and generated."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_made, "total_tokens": num_prompt + num_made}


def model_list(name: str, served: Served) -> dict[str, Any]:
    """Return the answer of /v1/models: the general name of the model, and the name of the version that is served."""
    return {"object": "list", "data": [model_entry(one, served) for one in model_names(name, served)]}


def model_names(name: str, served: Served) -> list[str]:
    """Return the names that requests may give now."""
    return [name, f"{name}@{served.label}"] if served.label else [name]


def model_entry(id: str, served: Served) -> dict[str, Any]:
    """Return one entry of the list of models."""
    return {
        "id": id,
        "object": "model",
        "created": served.candidate.created_s,
        "owned_by": "volery",
        "max_model_len": served.context,
    }
