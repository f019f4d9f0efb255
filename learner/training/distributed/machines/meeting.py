"""Let the machines meet: they wait until all are here, hear of each other meanwhile, and learn why training is over.

`Meeting.begin` returns when all are here, `Meeting.end` when the reason for the end is known. Meanwhile two threads are
at work: one carries the messages (`board`), one applies the rules (`first`, `other`). torchrun uses the same store.

Invariants:

- A store that does not reply any more blocks only the thread that carries messages.
- Ranks that must end are killed, and so is this process if torchrun does not return within STUCK_S.
- Where the node runs, the process does not outlive it: its standard input is watched until the ranks can do that.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import psutil

from learner.training.distributed.machines.first_machine import First
from learner.training.distributed.machines.interfaces import connection_to, speak_over
from learner.training.distributed.machines.joining_machine import Other
from learner.training.distributed.machines.messages import (
    FIRST,
    POLL_S,
    Begin,
    Effect,
    End,
    Ended,
    EndRanks,
    Event,
    Finish,
    Tell,
    Ticked,
    Wait,
)
from learner.training.distributed.machines.roll_call import ANY_ADDRESS, Board, FirstBoard, NoStore, OtherBoard

TRY_AGAIN_S = 2.0
"""Seconds between two attempts to reach the first machine, which may be about to start."""

STUCK_S = 20.0
"""Seconds that torchrun may take to notice that its ranks were killed. It looks ten times a second, except while it
waits for the store."""

LINGER_S = 4 * POLL_S
"""Seconds that the first machine keeps the store after a failure, so that the others read the verdict."""

MAX_HEARD = 16
"""Most events that wait to be handled. Rules take microseconds, so there is one at most unless reporting is slow."""

STUCK = 1
"""Exit status of a process that torchrun does not end."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Machine `machine` of `machines` with `ranks` ranks each, and where the first machine can be reached."""

    ranks: int
    machines: int
    machine: int
    host: str
    port: int

    @property
    def meeting(self) -> str:
        """HOST:PORT, as given on the command line."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def store(self) -> str:
        """The host at which this machine finds the store."""
        return ANY_ADDRESS if self.machine == FIRST else self.host


@dataclass(kw_only=True)
class Meeting:
    """One machine's part in the meeting. `tell` gets sentences for people, on any thread."""

    terms: Terms
    tell: Callable[[str], None]
    lines: tuple[str, ...] = ()
    _heard: queue.Queue[Event] = field(default_factory=lambda: queue.Queue(MAX_HEARD))
    _said: bytes = b""
    _begun: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _has_news: threading.Event = field(default_factory=threading.Event)
    _reported: bool = False
    _stuck_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the ranks may have been started."""
        return self._begun.is_set()

    def begin(self) -> bool:
        """Return True when all machines are here, False when it is over before that; then `lines` say why.

        Raises NoStore when the first machine cannot hold the store.
        """
        core, board = self._open()
        self._said = msgspec.json.encode(core.say(time.monotonic()))
        threading.Thread(target=self._carry, args=(board,), name="carry", daemon=True).start()
        threading.Thread(target=self._rule, args=(core,), name="rule", daemon=True).start()
        while not (self._begun.is_set() or self._over.is_set()):
            if self.terms.machine == FIRST and _has_hung_up(POLL_S):
                os._exit(STUCK)  # nobody would read why
            self._begun.wait(POLL_S)
        return not self._over.is_set()

    def end(self, end: End | None) -> tuple[str, ...]:
        """Report the end of this machine's ranks, None if they ended well. Return why all is over; empty if all went
        well."""
        self._reported = True
        self._heard.put(Ended(end=end))
        self._over.wait()
        self._linger()
        return self.lines

    def _linger(self) -> None:
        if self.terms.machine == FIRST and self.lines:
            time.sleep(LINGER_S)

    def _open(self) -> tuple[First | Other, Board]:
        terms = self.terms
        if terms.machine == FIRST:
            first = First(machines=terms.machines, ranks=terms.ranks, meeting=terms.meeting, began_s=time.monotonic())
            return first, FirstBoard.open(terms.port, terms.machines, lambda: first.places)
        board = self._reach()
        address, reaches = connection_to(terms.port)
        speak_over([address])
        other = Other(
            place=board.place,
            machines=terms.machines,
            ranks=terms.ranks,
            meeting=terms.meeting,
            address=address,
            reaches=reaches,
            began_s=time.monotonic(),
        )
        return other, board

    def _reach(self) -> OtherBoard:
        """Take a place in the first machine's store, with as many attempts as it takes."""
        wait = Wait(since_s=time.monotonic())
        while True:
            try:
                return OtherBoard.open(self.terms.host, self.terms.port, self.terms.machine)
            except NoStore as error:
                if wait.is_news(time.monotonic()):
                    self.tell(f"machine {FIRST} does not answer at {self.terms.meeting}; trying again: {error}")
            time.sleep(TRY_AGAIN_S)

    def _carry(self, board: Board) -> None:
        """Write this machine's message and read the others', until the process ends."""
        while True:
            self._heard.put(board.exchange(self._said))
            self._has_news.wait(POLL_S)
            self._has_news.clear()

    def _rule(self, core: First | Other) -> None:
        """Apply the rules to each event, until it is over."""
        while not self._over.is_set():
            event: Event = Ticked()
            with suppress(queue.Empty):
                event = self._heard.get(timeout=POLL_S)
            effects = core.handle(event, time.monotonic())
            self._said = msgspec.json.encode(core.say(time.monotonic()))
            if isinstance(event, Ended):
                self._has_news.set()
            for effect in effects:
                self._perform(effect)
            self._kill()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Tell(text=text):
                self.tell(text)
            case Begin(reached=reached):
                if len(names := speak_over(reached)) > 1:
                    self.tell(
                        f"the other machines reach this one over {' and '.join(names)}, and its ranks use {names[0]}. "
                        "If that is wrong, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
                    )
                self._begun.set()
            case EndRanks():
                self._stuck_s = time.monotonic() + STUCK_S
                self._has_news.set()
            case Finish(lines=lines):
                self.lines = lines
                self._has_news.set()
                self._over.set()
                if not self._reported and self._begun.is_set():  # torchrun does not return
                    say(lines)
                    self._linger()
                    os._exit(STUCK)

    def _kill(self) -> None:
        """Kill ranks that must end, even those that torchrun is just starting. Do without torchrun if it is stuck."""
        if self._stuck_s is None or self._reported:
            return
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                child.kill()
        if time.monotonic() > self._stuck_s:
            with suppress(queue.Full):  # if full, in the next round
                self._heard.put_nowait(Ended(end=None))


def say(lines: Sequence[str]) -> None:
    """Print the lines that say why a trainer ended, in the form that the node reads."""
    for line in lines:
        print(f"trainer: {line}", file=sys.stderr, flush=True)


def _has_hung_up(wait_s: float) -> bool:
    """Return whether nobody holds the other end of standard input any more. Reads nothing from it."""
    poll = select.poll()
    poll.register(0, 0)
    return bool(poll.poll(wait_s * 1000))
