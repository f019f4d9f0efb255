"""Run one system once in one scenario: start the nodes, wait until all are ready, say GO, collect, compare.

Invariants:

- The clock runs from GO to the last peer's DONE.
- A peer's file is compared with the payload, byte for byte, before its time counts.
- If a node ends early or a run takes too long, RunFailed is raised with the end of that node's output.
- Routers are probed before a node starts.
- When this returns, no process of the run is left.
"""

from __future__ import annotations

import filecmp
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from benchmarks.harness import ROOT, machine_seconds
from benchmarks.network.emulation import open_network
from benchmarks.network.home import Home
from benchmarks.network.homes import open_homes
from benchmarks.network.payload import write_payload
from benchmarks.network.profiles import SUFFIX
from benchmarks.network.program_end import Assignment, Report, report_of, to_json
from benchmarks.network.router_probe import check
from benchmarks.network.sampler import SAMPLES
from benchmarks.network.scenarios import Scenario
from swarm.transport.error_groups import first_cause

PROGRAMS = {"volery": "benchmarks.network.node_volery", "libtorrent": "benchmarks.network.node_libtorrent"}
"""The measured systems, with the modules of their nodes."""

RAW = "raw"
LOOPBACK_PROGRAMS = {"volery": PROGRAMS["volery"], RAW: "benchmarks.network.node_raw"}
"""The systems of a scenario with one peer and no links: ours, and a bare copy."""

UNPUNCHED = "unpunched"
HOME_PROGRAMS = dict.fromkeys(["volery", UNPUNCHED], "benchmarks.network.node_member")
"""The systems behind routers: ours, and ours without hole punching."""

READY_S = 150.0
"""Timeout for READY: nine interpreters import a network stack each, on two busy cores, and have a minute to connect."""

SETTLE_S = 0.5
"""Pause from the last READY to GO: streams open, and the machine becomes idle again."""

TIMEOUT_FACTOR = 6.0
"""Factor of the bound after which a run has failed; libtorrent takes two bounds."""

REPORT_S = 30.0
LOG_TAIL_LINES = 20


class RunFailed(Exception):
    """There is no figure. The message says which node failed, and why."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run. `seconds` are the peers' times from GO; `reports` are those of all nodes, the source first.

    `machine_cpu_s` is the processor time of all processes on this machine in that time, the emulation included.
    """

    scenario: Scenario
    seconds: tuple[float, ...]
    reports: tuple[Report, ...]
    machine_cpu_s: float

    @property
    def last_s(self) -> float:
        return max(self.seconds)

    @property
    def mean_s(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    @property
    def over_bound(self) -> float:
        return self.last_s / self.scenario.bound_s

    @property
    def delivered_bytes(self) -> int:
        return self.scenario.size_bytes * len(self.scenario.peers)

    @property
    def node_cpu_s(self) -> float:
        return sum(report.cpu_s for report in self.reports)

    @property
    def system_cpu_s(self) -> float:
        """The kernel's part of it: files and sockets, and carrying packets to the hub's ports."""
        return sum(report.system_s for report in self.reports)

    @property
    def cpu_s_per_gib(self) -> float:
        """Processor seconds of all nodes, the senders included, for each GiB delivered."""
        return self.node_cpu_s / (self.delivered_bytes / 2**30)

    @property
    def duplicates_pct(self) -> float:
        """Bytes that peers received beyond the payload, in percent of it; control messages and cut-off chunks count."""
        received = sum(sum(report.down.values()) for report in self.reports[1:])
        return 100 * (received - self.delivered_bytes) / self.delivered_bytes

    @property
    def source_copies(self) -> float:
        """How many copies of the payload the source sent."""
        return sum(self.reports[0].up.values()) / self.scenario.size_bytes

    @property
    def met_pct(self) -> float:
        """Percentage of the pairs able to exchange bytes behind their routers that had connected; 100 without pairs."""
        met = sum(len(report.met) for report in self.reports) / 2
        return 100 * met / self.scenario.num_bulk_pairs if self.scenario.num_bulk_pairs else 100.0

    @property
    def circuits_pct(self) -> float:
        """Bytes that relays carried so that peers could connect, in percent of all bytes, since the nodes started."""
        carried = sum(report.circuit_bytes for report in self.reports)
        received = sum(sum(report.down.values()) for report in self.reports)
        return 100 * carried / (carried + received)

    @property
    def nodes_share(self) -> float:
        """The nodes' share of this machine's processor time, until the last peer was done."""
        return self.node_cpu_s / self._available_s

    @property
    def others_share(self) -> float:
        """The share of all other processes, the emulation's packets included."""
        return max(0.0, self.machine_cpu_s - self.node_cpu_s) / self._available_s

    @property
    def _available_s(self) -> float:
        return self.last_s * (os.cpu_count() or 1)


class Place(Protocol):
    """The interface to where nodes run."""

    def address(self, name: str) -> str: ...

    def inside(self, name: str, argv: Sequence[str]) -> list[str]: ...


class Loopback:
    """This machine itself; each node has an address of its own."""

    def __init__(self, names: Sequence[str]) -> None:
        self._addresses = {name: f"127.0.0.{number}" for number, name in enumerate(names, 2)}

    def address(self, name: str) -> str:
        return self._addresses[name]

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        return list(argv)


@contextmanager
def open_place(scenario: Scenario) -> Iterator[Place]:
    """Build the links and routers of a scenario, and probe each router. Raises NetworkUnavailable, ProbeFailed."""
    if scenario.on_loopback:
        yield Loopback([node.name for node in scenario.nodes])
        return
    if not scenario.kinds:
        with open_network(scenario.nodes) as network:
            yield network
        return
    homes = [
        Home(name=peer.name, kind=kind, up=peer.up, down=peer.down, delay_ms=peer.delay_ms)
        for peer, kind in zip(scenario.peers, scenario.kinds, strict=True)
    ]
    with open_homes(homes, [scenario.source]) as lab:
        check(lab)
        yield lab


def run_once(scenario: Scenario, system: str, out: Path, *, seed: int, profile: Path | None = None) -> Ran:
    """Run `system` in `scenario` once; `out`, a new directory, receives all written files.

    With `profile`, a directory, nodes write samples of their processor time there. Raises RunFailed,
    NetworkUnavailable, or ProbeFailed if a router does not behave as its kind does.
    """
    sent = out / "sent"
    sent.mkdir(parents=True)
    payload = write_payload(sent, scenario.size_bytes, seed=seed)
    with open_place(scenario) as place:
        ran = trio.run(partial(_conduct, place, scenario, system, payload, out, profile))
    for node, report in zip(scenario.peers, ran.reports[1:], strict=True):
        if not filecmp.cmp(payload, report.file, shallow=False):
            raise RunFailed(f"{system}, {scenario.name}: {node.name} holds other bytes than were sent.")
    return ran


def programs_in(scenario: Scenario) -> Mapping[str, str]:
    """Return the systems that can run in this scenario, with their modules."""
    if scenario.on_loopback:
        return LOOPBACK_PROGRAMS
    return HOME_PROGRAMS if scenario.kinds else PROGRAMS


def touch_memory(size_bytes: int) -> None:
    """Use this much memory for a moment, and free it.

    A host that lends memory takes seconds to hand out memory that was free for long, at up to two processor seconds a
    GiB. Without this, the first program to write files would pay for it.
    """
    with mmap.mmap(-1, size_bytes) as memory:
        for start in range(0, size_bytes, mmap.PAGESIZE):
            memory[start] = 1


async def _conduct(
    place: Place, scenario: Scenario, system: str, payload: Path, out: Path, profile: Path | None
) -> Ran:
    names = [node.name for node in scenario.nodes]
    addresses = [place.address(name) for name in names]
    module = programs_in(scenario)[system]
    punches = bool(scenario.kinds) and system != UNPUNCHED
    with first_cause():
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            nursery.start_soon(_stop_when_told)
            members = []
            for index, name in enumerate(names):
                directory = out / name
                directory.mkdir()
                assignment = Assignment(
                    index=index,
                    names=names,
                    addresses=addresses,
                    directory=directory,
                    shared=out,
                    payload=payload,
                    partners=scenario.partners(name, punches=punches),
                    punches=punches,
                )
                command = [sys.executable, "-m", module, to_json(assignment)]
                inside = place.inside(name, command)
                samples = {} if profile is None else {SAMPLES: str(profile / f"{name}{SUFFIX}")}
                member = _start(name, inside, {**os.environ, **samples}, out / f"{name}.log")
                members.append(await stack.enter_async_context(member))
            ran = await _perform(scenario, members)
            nursery.cancel_scope.cancel()
    return ran


async def _stop_when_told() -> None:
    """End the run at SIGTERM by trio's own means, since raising from a signal handler would break its loop."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            raise KeyboardInterrupt


async def _perform(scenario: Scenario, members: Sequence[_Member]) -> Ran:
    peers = members[1:]
    await _all(members, lambda member: member.hear("READY"), READY_S)
    touch_memory(scenario.size_bytes * len(peers))
    await trio.sleep(SETTLE_S)
    machine, began = machine_seconds(), time.monotonic()
    await _all(members, lambda member: member.say("GO\n"), REPORT_S)
    done = await _all(peers, lambda member: member.hear("DONE"), TIMEOUT_FACTOR * scenario.bound_s + READY_S)
    machine = machine_seconds() - machine
    await _all(members, lambda member: member.end(), REPORT_S)
    reports = await _all(members, lambda member: member.hear("REPORT"), REPORT_S)
    return Ran(
        scenario=scenario,
        seconds=tuple(float(at) - began for at in done),
        reports=tuple(report_of(report) for report in reports),
        machine_cpu_s=machine,
    )


async def _all(members: Iterable[_Member], act: Callable[[_Member], Awaitable[str]], timeout_s: float) -> list[str]:
    """Let all members act at once; return what each said. Raises RunFailed if one fails or takes too long."""
    said: dict[_Member, str] = {}
    waiting = list(members)

    async def one(member: _Member) -> None:
        said[member] = await act(member)

    with trio.move_on_after(timeout_s) as time_limit:
        async with trio.open_nursery() as nursery:
            for member in waiting:
                nursery.start_soon(one, member)
    if time_limit.cancelled_caught:
        late = [member for member in waiting if member not in said]
        raise RunFailed(f"After {timeout_s:.0f} s, {len(late)} nodes had not answered. {late[0].last_words()}")
    return [said[member] for member in waiting]


class _Member:
    """One node's program, seen from outside."""

    def __init__(self, name: str, process: trio.Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name = name
        self._stdin, self._stdout = process.stdin, process.stdout
        self._log = log
        self._heard = b""

    async def hear(self, word: str) -> str:
        """Wait for a line that begins with `word`; return the rest of it. Raises RunFailed when the program ends."""
        while True:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                said, _, argument = line.decode().partition(" ")
                if said == word:
                    return argument
            elif data := await self._stdout.receive_some():
                self._heard += data
            else:
                raise RunFailed(f"{self.name} ended before it said {word}. {self.last_words()}")

    async def say(self, text: str) -> str:
        """Send a text to the program."""
        await self._stdin.send_all(text.encode())
        return ""

    async def end(self) -> str:
        """Tell the program that the run is over."""
        await self._stdin.aclose()
        return ""

    def last_words(self) -> str:
        """Return the end of its error output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"The end of the output of {self.name}:", *(lines or ["(nothing)"])])


@asynccontextmanager
async def _start(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> AsyncIterator[_Member]:
    """Start a program, which is killed at the latest when the block ends."""
    with log.open("wb") as output:
        process = await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=ROOT, env=environment
        )
    try:
        yield _Member(name, process, log)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
