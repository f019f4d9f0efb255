"""Encode a conversation as the token ids that the model reads, by the model's own rules.

Invariant: no part of a conversation is dropped silently. If the chat template or the tokenizer cannot write a part, a
TaskError is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.api.interface import Chat, ChatMessage, Problem, Tool
from node.tasks.tokenizer import TextCodec


def encode_chat(codec: TextCodec, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
    """Return the ids of a conversation, up to where the assistant begins. Raises TaskError."""
    problem = Problem(prompt=tuple(messages), chat=Chat.ALWAYS, tools=tuple(tools))
    return without_second_beginning(codec, codec.encode_as_written(problem))


def encode_text(codec: TextCodec, text: str) -> tuple[int, ...]:
    """Return the ids of plain text, with the tokenizer's beginning. Raises TaskError."""
    return without_second_beginning(codec, codec.encode_as_written(Problem(prompt=text, chat=Chat.NEVER)))


def without_second_beginning(codec: TextCodec, ids: Sequence[int]) -> tuple[int, ...]:
    """Return `ids` with at most one token that begins a text: chat template and tokenizer may both write it."""
    beginnings = next((place for place, token in enumerate(ids) if token != codec.bos_id), len(ids))
    return tuple(ids[max(beginnings - 1, 0) :])
