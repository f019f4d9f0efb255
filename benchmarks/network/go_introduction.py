"""Let a relay of ours introduce two peers of go-libp2p in the laboratory's homes, as `introduction.py` does with ours.

Invariants:

- Each attempt is between peers that have never been connected, each a process of its own.
- They have connected when one of them says so and the kernel of each shows a connection to a host that is neither the
  relay nor an observer.
- Programs end with the block, or with the laboratory.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.network.homes import INTERNET, Laboratory
from benchmarks.network.introduction import IntroductionFailed, Programs
from benchmarks.network.namespaces import ip, run
from benchmarks.network.node_kubo import MARK, OBSERVERS_NEEDED, arguments, identity
from protocol.core.ids import PeerId

ROOT = Path(__file__).parents[2]

FIRST_OBSERVER = 240
"""The last part of its address, beyond those of the star."""

OBSERVER_PORT = 4001

START_S = 30.0
READY_S = 15.0
"""To reserve at the relay and to accept its outside address: 4 s. Behind a symmetric router it never accepts one."""

MEET_S = 30.0
"""Timeout to connect: three tries at 5 s each are over by then."""

LOG = "error,p2p-holepunch=debug,autorelay=debug"
"""Its log levels, by part (GOLOG_LOG_LEVEL)."""

RESERVED = "adding new relay"
SEEN = "Host now has a public address"
TRIES = "starting hole punch in"
MET = ("hole punch successful", "direct connection to peer successful")
GAVE_UP = "all retries for hole punch"


@dataclass(frozen=True, kw_only=True)
class GoIntroduction:
    """The outcome: seconds until the first of the two reported a connection, and the larger number of tries."""

    met: bool
    seconds: float
    tries: int


class _Kubo:
    """One process, and the lines that it has logged."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._unread = b""

    def fileno(self) -> int:
        """Return the file number of the pipe to which it logs."""
        assert self.process.stderr is not None
        return self.process.stderr.fileno()

    def hear(self) -> None:
        """Read the available output."""
        piece = os.read(self.fileno(), 1 << 16)
        if not piece:
            raise IntroductionFailed(f"kubo ended: {' '.join(self.lines[-3:])}")
        *lines, self._unread = (self._unread + piece).split(b"\n")
        self.lines += [line.decode(errors="replace") for line in lines]

    def tell(self, address: str) -> None:
        """Let it connect to an address."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `hear` reports it
            self.process.stdin.write(f"{address}\n".encode())
            self.process.stdin.flush()

    def num(self, words: str) -> int:
        """Return how many of its lines contain these words."""
        return sum(words in line for line in self.lines)

    @property
    def met(self) -> bool:
        return any(self.num(words) for words in MET)


class GoPrograms:
    """Introduces peers of go-libp2p by the relay of `programs`; get the observers from `open_observers`."""

    def __init__(self, programs: Programs, observers: Sequence[Sequence[str]]) -> None:
        self._programs, self._lab = programs, programs.lab
        self._observers = observers

    def introduce(self, one: str, other: str) -> GoIntroduction:
        """Let `one` dial `other` through the relay. Raises IntroductionFailed."""
        number = self._programs.next_number()
        who = {name: identity(os.urandom(32)) for name in (one, other)}
        relay_at = self._programs.open_relay(number, [PeerId(who[name]["PeerID"]) for name in (one, other)])
        with (
            self._kubo(one, self._programs.port(number), relay_at, who[one]) as here,
            self._kubo(other, self._programs.port(number, shift=True), relay_at, who[other]) as there,
        ):
            both = (here, there)
            _listen(both, lambda: all(kubo.num(f"{MARK}running") for kubo in both), START_S)
            for kubo, name in ((here, one), (there, other)):
                for addresses in self._observers:
                    for address in self._of_family(name, addresses):
                        kubo.tell(address)
            _listen(both, lambda: all(kubo.num(SEEN) and kubo.num(RESERVED) for kubo in both), READY_S)
            began = time.monotonic()
            here.tell(f"{self._of_family(one, relay_at)[0]}/p2p-circuit/p2p/{who[other]['PeerID']}")
            _listen(both, lambda: here.met or there.met or bool(here.num(GAVE_UP) + there.num(GAVE_UP)), MEET_S)
            introduction = GoIntroduction(
                met=(here.met or there.met) and self._is_connected(one) and self._is_connected(other),
                seconds=time.monotonic() - began,
                tries=max(kubo.num(TRIES) for kubo in both),
            )
        self._programs.close_relay()
        return introduction

    @contextmanager
    def _kubo(self, name: str, port: int, relay_at: Sequence[str], who: dict[str, str]) -> Iterator[_Kubo]:
        listen = [f"{host}/tcp/{port}" for host in ("/ip4/0.0.0.0", "/ip6/::")]
        relays = self._of_family(name, relay_at)[:1]  # it counts a relay with two addresses twice, and loses both
        with TemporaryDirectory(prefix="volery-kubo-") as repository:
            process = subprocess.Popen(
                self._lab.inside(name, [sys.executable, *arguments(repository, listen=listen, relays=relays, who=who)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=repository,  # it leaves a log where it is started
                env=os.environ | {"GOLOG_LOG_LEVEL": LOG, "PYTHONPATH": str(ROOT)},
            )
            try:
                yield _Kubo(process)
            finally:
                process.kill()
                process.communicate()

    def _of_family(self, name: str, addresses: Sequence[str]) -> list[str]:
        """Return the addresses that a node can dial at all; go-libp2p would count failures of the others against the
        host."""
        has = {"ip4": self._lab.address(name), "ip6": self._lab.address6(name)}
        return [address for address in addresses if has[address.split("/")[1]]]

    def _is_connected(self, name: str) -> bool:
        """Return whether the kernel shows a connection of this node beyond those to the relay and the observers."""
        relay = {self._lab.address(self._programs.relay), self._lab.address6(self._programs.relay)}
        known = {ip_address(address) for address in relay if address}
        known |= {ip_address(address.split("/")[2]) for addresses in self._observers for address in addresses}
        told = run(*self._lab.inside(name, ["ss", "-Htn", "state", "established"]))
        remotes = [line.split()[3].rpartition(":")[0].strip("[]") for line in told.splitlines()]
        return any(ip_address(remote.removeprefix("::ffff:")) not in known for remote in remotes)


def _listen(kubos: Sequence[_Kubo], until: Callable[[], bool], seconds: float) -> None:
    """Read their output until the condition holds, or until the time is over."""
    ends = time.monotonic() + seconds
    by_file = {kubo.fileno(): kubo for kubo in kubos}
    while not until() and (left := ends - time.monotonic()) > 0:
        for file in select.select(list(by_file), [], [], left)[0]:
            by_file[file].hear()


@contextmanager
def open_observers(lab: Laboratory, name: str) -> Iterator[list[list[str]]]:
    """Start as many observers as go-libp2p needs, at addresses of their own on a public host; yield the addresses."""
    assert INTERNET.ip6 is not None
    listen = []
    for number in range(FIRST_OBSERVER, FIRST_OBSERVER + OBSERVERS_NEEDED):
        ip4, ip6 = INTERNET.ip4[number], INTERNET.ip6[number]
        ip("-n", lab.namespace(name), "addr", "add", f"{ip4}/{INTERNET.ip4.prefixlen}", "dev", "eth0")
        ip("-n", lab.namespace(name), "addr", "add", f"{ip6}/64", "dev", "eth0", "nodad")
        listen += [f"/ip4/{ip4}/tcp/{OBSERVER_PORT}", f"/ip6/{ip6}/tcp/{OBSERVER_PORT}"]
    argv = lab.inside(name, [sys.executable, "-m", "benchmarks.network.node_observers", *listen])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise IntroductionFailed("the observers did not start; their error output is above")
            yield json.loads(line)
        finally:
            process.kill()
