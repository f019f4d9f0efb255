"""Find out which messages of a conversation are new since the policy spoke.

An environment that drives the model itself sends the whole conversation with each request, as clients of a chat API
do. An episode here is a transcript of tokens to which turns are added at its end. So a conversation may only grow: an
environment that rewrites, drops or inserts earlier messages asks for another transcript, and its episode fails with
the number of the message.

Invariants:
- The conversation begins with the problem's prompt, message for message.
- What is handed on was not handed on before, and holds no word of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from node.tasks.api.interface import Answer, ChatMessage, TaskError

ANSWERING = ("user", "tool")
"""Roles of the messages that a policy may read between two turns."""

TEXT = "text"
"""The role of a message that is plain text, without a chat template."""

MAX_SHOWN = 60
"""Characters of a message in an error: enough to find it."""


@dataclass(kw_only=True)
class ChatTranscript:
    """The messages of one episode. `prompt` is the problem's: text, or messages. `who` names the environment in
    errors."""

    prompt: str | tuple[ChatMessage, ...]
    who: str
    _known: list[ChatMessage] = field(init=False)
    _turns: int = 0

    def __post_init__(self) -> None:
        prompt = self.prompt
        self._known = [ChatMessage(role=TEXT, content=prompt)] if isinstance(prompt, str) else list(prompt)

    def read(self, messages: Sequence[ChatMessage]) -> Answer | None:
        """Return what is new in a request; None in the first, which holds the prompt alone.

        Raises TaskError where the conversation is not the one that it was, or nothing is new.
        """
        self._require_known(messages)
        new = tuple(messages[len(self._known) :])
        if self._turns == 0:
            if new:
                raise TaskError(
                    f"{self.who} begins with other messages than its data set has: its first request adds "
                    f"{_shown(new[0])}. A problem's prompt is known before the episode; let the data set hold it."
                )
            return None
        if not new:
            raise TaskError(f"{self.who} asks again and has said nothing since. Each request must add a message.")
        for message in new:
            if message.role not in (*ANSWERING, TEXT):
                raise TaskError(
                    f"{self.who} answers with {_shown(message)}. Between two turns of the policy there may be "
                    f"messages of these roles: {', '.join(ANSWERING)}."
                )
        self._known += new
        if all(message.role == TEXT for message in new):
            return "".join(message.content for message in new)
        return new

    def say(self, message: ChatMessage) -> None:
        """Add what the policy said."""
        self._known.append(message)
        self._turns += 1

    def _require_known(self, messages: Sequence[ChatMessage]) -> None:
        for number, known in enumerate(self._known):
            if number >= len(messages):
                raise TaskError(
                    f"{self.who} has left out message {number + 1}, {_shown(known)}. {_GROWS.format('leave out')}"
                )
            if _told(messages[number]) != _told(known):
                begins = "begins otherwise than its data set" if self._turns == 0 else "has rewritten the conversation"
                raise TaskError(
                    f"{self.who} {begins}: message {number + 1} was {_shown(known)}, and is "
                    f"{_shown(messages[number])}. {_GROWS.format('rewrite')}"
                )


_GROWS = "A conversation is a transcript that only grows: environments that {} earlier messages cannot be used."


def _told(message: ChatMessage) -> tuple[object, ...]:
    """What makes a message the same: a tool's name follows from the call that it answers."""
    calls = [(call.id, call.name, dict(call.arguments)) for call in message.tool_calls]
    return message.role, message.content, message.tool_call_id, calls


def _shown(message: ChatMessage) -> str:
    text = message.content if len(message.content) <= MAX_SHOWN else f"{message.content[:MAX_SHOWN]}..."
    calls = f", calling {', '.join(call.name for call in message.tool_calls)}" if message.tool_calls else ""
    return f"a message of role {message.role!r} ({text!r}{calls})"
