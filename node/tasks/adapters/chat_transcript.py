"""Find out which messages of a conversation are new since the policy last spoke.

An environment that drives the model itself sends the whole conversation with each request, like clients of a chat API.
Here an episode is a transcript of tokens, to which turns are only appended. So a conversation may only grow. If an
environment rewrites, drops or inserts earlier messages, its episode fails with the number of the message.

Invariants:

- The conversation begins with the problem's prompt, message for message.
- Each message is returned as new once, and never a message of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from node.tasks.api.interface import Answer, ChatMessage, TaskError

ANSWERING = ("user", "tool")
"""Roles of the messages that the policy may read between two turns."""

TEXT = "text"
"""The role of a message that is plain text, without a chat template."""

MAX_SHOWN = 60
"""Characters of a message to show in an error, enough to find it."""


@dataclass(kw_only=True)
class ChatTranscript:
    """The messages of one episode. `prompt`: that of the problem, text or messages. `who`: names the environment in
    errors."""

    prompt: str | tuple[ChatMessage, ...]
    who: str
    _known: list[ChatMessage] = field(init=False)
    _turns: int = 0

    def __post_init__(self) -> None:
        prompt = self.prompt
        self._known = [ChatMessage(role=TEXT, content=prompt)] if isinstance(prompt, str) else list(prompt)

    def read(self, messages: Sequence[ChatMessage]) -> Answer | None:
        """Return the new messages of a request, or None for the first request, which holds only the prompt.

        Raises TaskError if earlier messages have changed or none is new.
        """
        self._require_known(messages)
        new = tuple(messages[len(self._known) :])
        if self._turns == 0:
            if new:
                raise TaskError(
                    f"{self.who} begins with other messages than its data set: its first request adds "
                    f"{_shown(new[0])}. The prompt must be known before the episode. Put all of it into the data set."
                )
            return None
        if not new:
            raise TaskError(f"{self.who} asks again without a new message. Each request must add a message.")
        for message in new:
            if message.role not in (*ANSWERING, TEXT):
                raise TaskError(
                    f"{self.who} answers with {_shown(message)}. Between two turns of the policy only messages of "
                    f"these roles are allowed: {', '.join(ANSWERING)}."
                )
        self._known += new
        if all(message.role == TEXT for message in new):
            return "".join(message.content for message in new)
        return new

    def say(self, message: ChatMessage) -> None:
        """Append what the policy said."""
        self._known.append(message)
        self._turns += 1

    def _require_known(self, messages: Sequence[ChatMessage]) -> None:
        for number, known in enumerate(self._known):
            if number >= len(messages):
                raise TaskError(
                    f"{self.who} has left out message {number + 1}, {_shown(known)}. {_GROWS.format('leave out')}"
                )
            if _told(messages[number]) != _told(known):
                begins = "begins unlike its data set" if self._turns == 0 else "has rewritten the conversation"
                raise TaskError(
                    f"{self.who} {begins}: message {number + 1} was {_shown(known)}, and is now "
                    f"{_shown(messages[number])}. {_GROWS.format('rewrite')}"
                )


_GROWS = "A conversation may only grow: environments that {} earlier messages cannot be used."


def _told(message: ChatMessage) -> tuple[object, ...]:
    """Return what must be equal for two messages to be the same. A tool's name follows from the call it answers."""
    calls = [(call.id, call.name, dict(call.arguments)) for call in message.tool_calls]
    return message.role, message.content, message.tool_call_id, calls


def _shown(message: ChatMessage) -> str:
    text = message.content if len(message.content) <= MAX_SHOWN else f"{message.content[:MAX_SHOWN]}..."
    calls = f", calling {', '.join(call.name for call in message.tool_calls)}" if message.tool_calls else ""
    return f"a message of role {message.role!r} ({text!r}{calls})"
