"""Keep what was said so far, and decide what the next line means. Pure.

Invariants:

- A conversation begins with its system message, if it has one, and then alternates.
- A text that could not be answered is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.tasks.api.interface import ChatMessage

HELP = """\
/reset           forget the conversation
/system TEXT     begin a new conversation with this system message; without TEXT: with none
/version         show which version answers
/help            show this list
/quit            end, as Ctrl-D does
//TEXT           send a text that begins with /
Ctrl-C           stop an answer"""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask the model. `messages` are the conversation, with the new message at its end."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Show a text to the person who types."""

    text: str


@dataclass(frozen=True)
class TellVersion:
    """Show the version that answers."""


@dataclass(frozen=True)
class End:
    """End the conversation."""


Step = Ask | Tell | TellVersion | End


@dataclass(kw_only=True)
class Conversation:
    """A conversation. `remembers`: whether earlier messages are sent with the next one.

    A model without a chat template is asked for each text on its own.
    """

    system: str = ""
    remembers: bool = True
    _messages: list[ChatMessage] = field(default_factory=list)

    def take(self, line: str) -> Step | None:
        """Return what a line asks for; None if it is empty."""
        text = line.strip()
        if not text:
            return None
        if text.startswith("//"):
            return self._ask(text[1:])
        if text.startswith("/"):
            return self._command(*text.partition(" ")[::2])
        return self._ask(text)

    def answered(self, asked: Ask, answer: str) -> None:
        """Note the model's answer, which may have been stopped before its end."""
        if self.remembers and answer:
            asked_last = asked.messages[-1]
            self._messages += [asked_last, ChatMessage(role="assistant", content=answer)]

    def _ask(self, text: str) -> Ask:
        first = [ChatMessage(role="system", content=self.system)] if self.system and self.remembers else []
        return Ask(messages=(*first, *self._messages, ChatMessage(role="user", content=text)))

    def _command(self, word: str, rest: str) -> Step:
        match word:
            case "/reset":
                self._messages.clear()
                return Tell(text="The conversation is forgotten.")
            case "/system" if not self.remembers:
                return Tell(text="This model has no chat template, so it reads no system message.")
            case "/system":
                self.system = rest.strip()
                self._messages.clear()
                return Tell(
                    text="A new conversation, with that system message." if self.system else "A new conversation."
                )
            case "/version":
                return TellVersion()
            case "/help":
                return Tell(text=HELP)
            case "/quit":
                return End()
        return Tell(text=f"There is no command {word[:40]}. /help lists them; //TEXT sends a text that begins with /.")
