"""What was said so far, and what the next line means. Pure.

Invariants:
- a conversation begins with its system message, if it has one, and then alternates;
- what could not be answered is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.tasks.api.interface import ChatMessage

HELP = """\
/reset           forget what was said
/system TEXT     begin anew, with this system message; without TEXT: with none
/version         say which version answers
/help            this list
/quit            end, as Ctrl-D does
//TEXT           say a text that begins with /
Ctrl-C           stop an answer"""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The model is asked; `messages` are the conversation with the new one."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Something is told to who types."""

    text: str


@dataclass(frozen=True)
class TellVersion:
    """The version in service is told."""


@dataclass(frozen=True)
class End:
    """The conversation is over."""


Step = Ask | Tell | TellVersion | End


@dataclass(kw_only=True)
class Conversation:
    """See the module's paragraph. `remembers`: whether what was said before belongs to what is asked; a model without a
    chat template is asked for each text on its own."""

    system: str = ""
    remembers: bool = True
    _messages: list[ChatMessage] = field(default_factory=list)

    def take(self, line: str) -> Step | None:
        """What a line means; None where it says nothing."""
        text = line.strip()
        if not text:
            return None
        if text.startswith("//"):
            return self._ask(text[1:])
        if text.startswith("/"):
            return self._command(*text.partition(" ")[::2])
        return self._ask(text)

    def answered(self, asked: Ask, answer: str) -> None:
        """The model has said this, perhaps not to its end."""
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
                return Tell(text="What was said is forgotten.")
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
        return Tell(text=f"There is no {word[:40]}. /help lists what there is; //TEXT says a text that begins with /.")
