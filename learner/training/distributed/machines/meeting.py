"""The meeting of the machines: they wait until all are here, hear of each other meanwhile, and know why it is over.

`Meeting.begin` returns when all are here, `Meeting.end` when it is known why all is over. In between two threads are at
work: one carries what is said (`board`), one applies the rules (`first`, `other`). torchrun meets in the same store.

Invariants:
- A store that does not answer any more holds up nothing but the thread that carries.
- Ranks that are to end are killed, and so is this process if torchrun does not come back within STUCK_S.
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
"""Between two attempts to reach the first machine, which may be about to start."""

STUCK_S = 20.0
"""How long torchrun may take to notice that its ranks were killed: it looks ten times a second, but while it waits for
the store."""

LINGER_S = 4 * POLL_S
"""How long the first machine's store stays when all is over but not well, so that the others read the verdict."""

MAX_HEARD = 16
"""Events that wait to be looked at: rules take microseconds, so there is one at most unless telling people is slow."""

STUCK = 1
"""The exit status of a process that torchrun does not end."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Machine `machine` of `machines` with `ranks` ranks each, and where the first is to be reached."""

    ranks: int
    machines: int
    machine: int
    host: str
    port: int

    @property
    def meeting(self) -> str:
        """HOST:PORT, as it was given."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def store(self) -> str:
        """Where this machine finds the store."""
        return ANY_ADDRESS if self.machine == FIRST else self.host


@dataclass(kw_only=True)
class Meeting:
    """See the module's paragraph. `tell` is given sentences for people, on any thread."""

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
        """Return True when all machines are here, False when it is over before that: `lines` say why.

        Raises NoStore when the first machine cannot hold the store.
        """
        core, board = self._open()
        self._said = msgspec.json.encode(core.say(time.monotonic()))
        threading.Thread(target=self._carry, args=(board,), name="carry", daemon=True).start()
        threading.Thread(target=self._rule, args=(core,), name="rule", daemon=True).start()
        while not (self._begun.is_set() or self._over.is_set()):
            if self.terms.machine == FIRST and _has_hung_up(POLL_S):
                os._exit(STUCK)  # nobody would hear why
            self._begun.wait(POLL_S)
        return not self._over.is_set()

    def end(self, end: End | None) -> tuple[str, ...]:
        """Our ranks have ended, well if `end` is None. Return why all is over, nothing if all went well."""
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
        """Take a place in the first machine's store, as often as it takes."""
        wait = Wait(since_s=time.monotonic())
        while True:
            try:
                return OtherBoard.open(self.terms.host, self.terms.port, self.terms.machine)
            except NoStore as error:
                if wait.is_news(time.monotonic()):
                    self.tell(f"machine {FIRST} does not answer at {self.terms.meeting}, and is tried again: {error}")
            time.sleep(TRY_AGAIN_S)

    def _carry(self, board: Board) -> None:
        """Say what is to be said and hear what is said, until the process ends."""
        while True:
            self._heard.put(board.exchange(self._said))
            self._has_news.wait(POLL_S)
            self._has_news.clear()

    def _rule(self, core: First | Other) -> None:
        """Apply the rules to what happens, until it is over."""
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
                        f"the other machines reach this one over {' and '.join(names)}, and its ranks speak over "
                        f"{names[0]}. If that is wrong, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
                    )
                self._begun.set()
            case EndRanks():
                self._stuck_s = time.monotonic() + STUCK_S
                self._has_news.set()
            case Finish(lines=lines):
                self.lines = lines
                self._has_news.set()
                self._over.set()
                if not self._reported and self._begun.is_set():  # torchrun does not come back
                    say(lines)
                    self._linger()
                    os._exit(STUCK)

    def _kill(self) -> None:
        """Kill ranks that are to end, also such as torchrun is just starting; do without torchrun if it is stuck."""
        if self._stuck_s is None or self._reported:
            return
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                child.kill()
        if time.monotonic() > self._stuck_s:
            with suppress(queue.Full):  # then in the next round
                self._heard.put_nowait(Ended(end=None))


def say(lines: Sequence[str]) -> None:
    """Print lines that say why a trainer ended, as the node reads them."""
    for line in lines:
        print(f"trainer: {line}", file=sys.stderr, flush=True)


def _has_hung_up(wait_s: float) -> bool:
    """Whether nobody holds the other end of standard input any more. Nothing is read from it."""
    poll = select.poll()
    poll.register(0, 0)
    return bool(poll.poll(wait_s * 1000))
