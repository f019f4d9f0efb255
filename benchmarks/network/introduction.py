"""Let a relay introduce two nodes of a laboratory, and report how they came to a direct connection.

Invariants:

- A direct connection counts only if both ends report one.
- An attempt begins with nodes that have never been connected.
- Programs end with the block, or with the laboratory.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.network.homes import Laboratory
from benchmarks.network.node_reach import Assignment, Report
from protocol.core.ids import PeerId
from swarm.libp2p.security import Identity

FIRST_PORT = 4001
PORTS = 10_000
"""Each attempt has its own ports: a connection that has just ended blocks another one between the same ports."""

ANSWER_S = 120.0
"""Timeout for a program's next line: an attempt without success takes three tries, with their waiting times."""


NOBODY = PeerId("")


class IntroductionFailed(Exception):
    """A program of a node ended, or timed out. The message says which, and where to look."""


class Way(Enum):
    """How a direct connection came about."""

    OPENING = "both ends connected at once"
    KNOCKING = "the one that was introduced got in"
    REVERSAL = "the one that it was introduced to got in"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """The outcome of introducing `one`, which dialled, to `other`."""

    one: str
    other: str
    way: Way
    seconds: float
    reports: tuple[Report, Report]

    @property
    def met(self) -> bool:
        return self.way is not Way.NOTHING

    @property
    def tries(self) -> int:
        """The larger number of tries of both ends."""
        return max(report.tries for report in self.reports)

    @property
    def is_false(self) -> bool:
        """Whether one end reports a connection, and the other does not."""
        return self.reports[0].direct != self.reports[1].direct


class Programs:
    """The programs of a laboratory's nodes, each started when it is first needed; get one from `open_programs`."""

    def __init__(self, lab: Laboratory, relay: str, stack: ExitStack, log: Path | None, first_port: int) -> None:
        self.lab, self.relay = lab, relay
        self._stack, self._log, self._first_port = stack, log, first_port
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = count()

    def introduce(self, one: str, other: str) -> Introduction:
        """Let `one` dial `other` through the relay. Raises IntroductionFailed."""
        number = self.next_number()
        seeds = {name: os.urandom(32) for name in (one, other)}
        peers = {name: PeerId(Identity.from_seed(seed).peer_id) for name, seed in seeds.items()}
        relay_at = self.open_relay(number, [peers[one], peers[other]])
        relay = PeerId(relay_at[0].rpartition("/")[2])
        for name, peer in ((one, peers[other]), (other, peers[one])):
            self._assign(name, number, seeds[name], shift=name == other, trusted=[relay], relay=relay_at, peer=peer)
        self._ask(one, "GO")
        first, second = (msgspec.json.decode(self._ask(name, "TELL"), type=Report) for name in (one, other))
        for name in (one, other):
            self._ask(name, "END")
        self.close_relay()
        return Introduction(
            one=one, other=other, way=_way(first, second), seconds=first.seconds, reports=(first, second)
        )

    def next_number(self) -> int:
        """Return the number of the next attempt."""
        return next(self._numbers)

    def open_relay(self, number: int, trusted: list[PeerId]) -> list[str]:
        """Make the relay a new node that trusts these peers; return its addresses. Raises IntroductionFailed."""
        seed = os.urandom(32)
        self._assign(self.relay, number, seed, trusted=trusted)
        hosts = [f"/ip4/{self.lab.address(self.relay)}", f"/ip6/{self.lab.address6(self.relay)}"]
        return [f"{host}/tcp/{self.port(number)}/p2p/{Identity.from_seed(seed).peer_id}" for host in hosts]

    def close_relay(self) -> None:
        """End the node that `open_relay` began. Raises IntroductionFailed."""
        self._ask(self.relay, "END")

    def port(self, number: int, *, shift: bool = False) -> int:
        """Return the listening port of an attempt; `shift` is for the end that is dialled."""
        return self._first_port + (2 * number + shift) % PORTS

    def _assign(
        self,
        name: str,
        number: int,
        seed: bytes,
        *,
        shift: bool = False,
        trusted: list[PeerId],
        relay: Sequence[str] = (),
        peer: PeerId = NOBODY,
    ) -> None:
        """Make a program a new node, and wait until it is ready."""
        listen = [f"{host}/tcp/{self.port(number, shift=shift)}" for host in ("/ip4/0.0.0.0", "/ip6/::")]
        task = Assignment(seed=seed.hex(), listen=listen, trusted=trusted, relay=[*relay], peer=peer)
        self._ask(name, msgspec.json.encode(task).decode())

    def _ask(self, name: str, word: str) -> str:
        """Send a word to a program, and return its next line. Raises IntroductionFailed."""
        process = self._started.get(name) or self._start(name)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the missing line reports it
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        line = process.stdout.readline().decode() if ready else ""
        if not line:
            with suppress(subprocess.TimeoutExpired):  # its end of the pipe closes a little before it is gone
                process.wait(1.0)
            ended = "did not answer" if process.poll() is None else f"ended with code {process.returncode}"
            raise IntroductionFailed(f"the program of {name} {ended} after {word.split()[0]!r}; its log says why")
        return line

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "benchmarks.network.node_reach", *(["debug"] if self._log is not None else [])]
        process = subprocess.Popen(
            self.lab.inside(name, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._log is None else self._stack.enter_context((self._log / f"{name}.log").open("ab")),
        )
        self._stack.callback(_end, process)
        self._started[name] = process
        return process


@contextmanager
def open_programs(
    lab: Laboratory, relay: str, *, log: Path | None = None, first_port: int = FIRST_PORT
) -> Iterator[Programs]:
    """Yield programs that end with the block; `relay` is a public host. With `log`, a directory, they log there.

    Several may be open at once, each with its own relay and PORTS ports.
    """
    with ExitStack() as stack:
        yield Programs(lab, relay, stack, log, first_port)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _way(one: Report, other: Report) -> Way:
    if not (one.direct and other.direct):
        return Way.NOTHING
    if one.dialled and other.dialled:
        return Way.OPENING
    return Way.KNOCKING if one.dialled else Way.REVERSAL
