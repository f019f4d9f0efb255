"""Run `volery chat`: talk in the terminal to the model that `volery serve` would serve, without a server.

Answers go to standard output as they come, and everything else to standard error, so that a pipe gets only answers.
Ctrl-C stops an answer; the part that was printed stays in the conversation. Ctrl-D, or the end of a pipe, ends the
conversation.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import trio

from node.commands.chat.conversation import Ask, Conversation, End, Tell, TellVersion
from node.commands.chat.lines import Lines
from node.engine.interface import EngineError
from node.runtime.shutdown import Stopped
from node.runtime.startup import STOPPED_EXIT_CODE
from node.runtime.stdout import complain, say
from node.serving.completion import DEFAULT_NEW_TOKENS, Piece, Wish, complete
from node.serving.opening import open_model, prepare
from node.serving.prompts import encode_chat, encode_text
from node.serving.served_model import Served, ServedModel
from node.tasks.api.interface import TaskError
from protocol.core.visible import first_line
from swarm.transport.error_groups import first_cause

PROMPT = "> "


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the model is asked. `max_tokens` 0 means DEFAULT_NEW_TOKENS. `seed` None means another seed each time."""

    system: str = ""
    temperature: float = 1.0
    max_tokens: int = 0
    seed: int | None = None


async def chat(target: Path | None, *, version: str, config: Path | None, device: str, manner: Manner) -> int:
    """Converse until the input ends, and return the exit code."""
    opening = prepare(target, version=version, config=config, device=device, name="", tell=complain)
    with suppress(Stopped), interrupts() as pressed, first_cause():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pressed.end_when_told)
            complain(await trio.to_thread.run_sync(opening.announce))
            async with open_model(opening, tell=complain) as model:
                pressed.ends_at_once = False
                await _Talk(model=model, manner=manner, pressed=pressed).run()
            nursery.cancel_scope.cancel()
        return 0
    return STOPPED_EXIT_CODE


@dataclass(kw_only=True)
class _Interrupts:
    """Lets a task wait for the next Ctrl-C, any number of times.

    `ends` is set by a signal that ends the program, and by Ctrl-C while `ends_at_once`.
    """

    ends: trio.Event = field(default_factory=trio.Event)
    ends_at_once: bool = True
    _pressed: trio.Event = field(default_factory=trio.Event)

    def press(self) -> None:
        if self.ends_at_once:
            self.ends.set()
        self._pressed.set()
        self._pressed = trio.Event()

    async def wait(self) -> None:
        """Return at the next Ctrl-C."""
        await self._pressed.wait()

    async def end_when_told(self) -> None:
        await self.ends.wait()
        raise Stopped


@contextmanager
def interrupts() -> Iterator[_Interrupts]:
    """Handle Ctrl-C, SIGTERM and SIGHUP while inside."""
    token, pressed = trio.lowlevel.current_trio_token(), _Interrupts()

    def hear(number: int, _frame: FrameType | None) -> None:
        token.run_sync_soon(pressed.press if number == signal.SIGINT else pressed.ends.set)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(kw_only=True)
class _Talk:
    """Runs the conversation, line by line."""

    model: ServedModel
    manner: Manner
    pressed: _Interrupts
    lines: Lines = field(default_factory=Lines)
    label: str = ""

    async def run(self) -> None:
        """Converse until the input ends, or /quit is typed."""
        served = self.model.served
        conversation = Conversation(system=self.manner.system, remembers=served.codec.template is not None)
        self._tell_version(served)
        if not conversation.remembers:
            complain("This model has no chat template: it continues the text of each line.")
        if self._is_terminal:
            complain("/help lists the commands. Ctrl-D ends.")
        while (line := await self._line()) is not None:
            match conversation.take(line):
                case Ask() as asked:
                    conversation.answered(asked, await self._answer(asked, remembers=conversation.remembers))
                case Tell(text=text):
                    complain(text)
                case TellVersion():
                    self._tell_version(self.model.served)
                case End():
                    return
        if self._is_terminal:
            complain("")

    @property
    def _is_terminal(self) -> bool:
        return os.isatty(self.lines.descriptor) and sys.stdout.isatty()

    async def _line(self) -> str | None:
        """Return the next line. Ctrl-C discards what was typed of it."""
        while True:
            if self._is_terminal:
                say(PROMPT, nl=False)
            found: list[str | None] = []

            async def read(found: list[str | None] = found) -> None:
                found.append(await self.lines.next())

            await _first_of(read, self.pressed.wait)
            if found:
                return found[0]
            self.lines.forget()
            complain("\nCtrl-D ends.")

    async def _answer(self, asked: Ask, *, remembers: bool) -> str:
        """Print the model's answer as it comes, and return it."""
        said: list[str] = []

        async def show(piece: Piece) -> None:
            if piece.served.label != self.label:
                self._tell_version(piece.served)
            said.append(piece.text)
            say(piece.text, nl=False)

        async def generate() -> None:
            wish = await trio.to_thread.run_sync(self._wish, asked, remembers)
            await complete(self.model, wish, show)

        try:
            stopped = not await _first_of(generate, self.pressed.wait)
        except TaskError as error:
            complain(f"This question cannot be asked: {first_line(str(error))}")
            return ""
        except EngineError as error:
            complain(f"The engine failed: {first_line(str(error))}")
            return ""
        say(" [stopped]" if stopped and self._is_terminal else "")
        return "".join(said)

    def _wish(self, asked: Ask, remembers: bool) -> Wish:
        """Return the request for the engine. Raises TaskError."""
        served = self.model.served
        codec = served.codec
        ids = encode_chat(codec, asked.messages) if remembers else encode_text(codec, asked.messages[-1].content)
        room = served.context - len(ids)
        if room < 1 or not ids:
            raise TaskError(
                f"the conversation has {len(ids)} tokens, and the model can read and write {served.context} in all. "
                "Type /reset to forget it."
            )
        return Wish(
            prompt=ids,
            max_tokens=min(self.manner.max_tokens or DEFAULT_NEW_TOKENS, room),
            temperature=self.manner.temperature,
            seed=secrets.randbits(64) if self.manner.seed is None else self.manner.seed,
        )

    def _tell_version(self, served: Served) -> None:
        self.label = served.label
        name = self.model.source.name
        complain(
            f"{name}@{served.label} answers." if served.label else f"{name} answers: a directory, without a version."
        )


async def _first_of(work: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> bool:
    """Do `work` until `stop` returns; return False if that came first."""
    done = False
    with first_cause():
        async with trio.open_nursery() as nursery:

            async def until() -> None:
                await stop()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until)
            await work()
            done = True
            nursery.cancel_scope.cancel()
    return done
