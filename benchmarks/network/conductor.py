"""One run of one system in one scenario: start the nodes, wait until all are ready, say GO, collect, compare.

What always holds: the clock runs from GO to the last peer's DONE; what a peer received is compared with what was sent,
byte for byte, before its time counts; a node that ends early, or a run that takes too long, is a RunFailed with the end
of that node's output; when this returns, no process of the run is left.
"""

from __future__ import annotations

import filecmp
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.harness import ROOT, machine_seconds
from benchmarks.network.emulation import Network, open_network
from benchmarks.network.line import Assignment, Report, report_of, to_json
from benchmarks.network.payload import write_payload
from benchmarks.network.profiles import SUFFIX
from benchmarks.network.sampler import SAMPLES
from benchmarks.network.scenarios import Scenario
from swarm.transport.error_groups import first_cause

PROGRAMS = {"volery": "benchmarks.network.node_volery", "libtorrent": "benchmarks.network.node_libtorrent"}
"""The systems that are measured, and the modules that are their nodes."""

READY_S = 90.0
"""Nine interpreters that import a network stack each, on two busy cores."""

SETTLE_S = 0.5
"""From the last READY to GO: conversations open, and the machine is quiet again."""

PATIENCE = 6.0
"""Bounds after which a run has failed: libtorrent takes two."""

REPORT_S = 30.0
LOG_TAIL_LINES = 20


class RunFailed(Exception):
    """There is no figure. The message says which node failed, and how."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run. `seconds` are the peers', from GO; `reports` are everybody's, the source first.

    `machine_cpu_s` is the processor time of everybody on this machine in the same time, the emulation among them.
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
        """What of it the kernel spent: on files and sockets, and on carrying packets to the hub's ports."""
        return sum(report.system_s for report in self.reports)

    @property
    def cpu_s_per_gib(self) -> float:
        """Processor seconds of all nodes, the sending ends too, per GiB delivered."""
        return self.node_cpu_s / (self.delivered_bytes / 2**30)

    @property
    def duplicates_pct(self) -> float:
        """Bytes that peers received beyond the payload, of it; so control messages and cut-off chunks count as well."""
        received = sum(sum(report.down.values()) for report in self.reports[1:])
        return 100 * (received - self.delivered_bytes) / self.delivered_bytes

    @property
    def nodes_share(self) -> float:
        """The part of this machine's processor time, until the last peer was done, that the nodes had."""
        return self.node_cpu_s / self._available_s

    @property
    def others_share(self) -> float:
        """What all others had, the emulation's packets among them."""
        return max(0.0, self.machine_cpu_s - self.node_cpu_s) / self._available_s

    @property
    def _available_s(self) -> float:
        return self.last_s * (os.cpu_count() or 1)


def run_once(scenario: Scenario, system: str, out: Path, *, seed: int, profile: Path | None = None) -> Ran:
    """Run `system` in `scenario` once; `out`, a new directory, takes what is written.

    With `profile`, a directory, nodes leave there samples of where their time went. Raises RunFailed or
    NetworkUnavailable.
    """
    sent = out / "sent"
    sent.mkdir(parents=True)
    payload = write_payload(sent, scenario.size_bytes, seed=seed)
    with open_network(scenario.nodes) as network:
        ran = trio.run(partial(_conduct, network, scenario, PROGRAMS[system], payload, out, profile))
    for node, report in zip(scenario.peers, ran.reports[1:], strict=True):
        if not filecmp.cmp(payload, report.file, shallow=False):
            raise RunFailed(f"{system}, {scenario.name}: {node.name} holds other bytes than were sent.")
    return ran


async def _conduct(
    network: Network, scenario: Scenario, module: str, payload: Path, out: Path, profile: Path | None
) -> Ran:
    names = [node.name for node in scenario.nodes]
    addresses = [network.address(name) for name in names]
    with first_cause():
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            nursery.start_soon(_stop_when_told)
            members = []
            for index, name in enumerate(names):
                directory = out / name
                directory.mkdir()
                assignment = Assignment(
                    index=index, names=names, addresses=addresses, directory=directory, shared=out, payload=payload
                )
                command = [sys.executable, "-m", module, to_json(assignment)]
                inside = network.inside(name, command)
                samples = {} if profile is None else {SAMPLES: str(profile / f"{name}{SUFFIX}")}
                member = _start(name, inside, {**os.environ, **samples}, out / f"{name}.log")
                members.append(await stack.enter_async_context(member))
            ran = await _perform(scenario, members)
            nursery.cancel_scope.cancel()
    return ran


async def _stop_when_told() -> None:
    """End the run at SIGTERM, by trio's own means: its loop is no place to raise from a signal handler."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            raise KeyboardInterrupt


async def _perform(scenario: Scenario, members: Sequence[_Member]) -> Ran:
    peers = members[1:]
    await _all(members, lambda member: member.hear("READY"), READY_S)
    await trio.sleep(SETTLE_S)
    machine, began = machine_seconds(), time.monotonic()
    await _all(members, lambda member: member.say("GO\n"), REPORT_S)
    done = await _all(peers, lambda member: member.hear("DONE"), PATIENCE * scenario.bound_s + READY_S)
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
    """Let all do the same at once; return what each said. Raises RunFailed when one fails or takes too long."""
    said: dict[_Member, str] = {}
    waiting = list(members)

    async def one(member: _Member) -> None:
        said[member] = await act(member)

    with trio.move_on_after(timeout_s) as patience:
        async with trio.open_nursery() as nursery:
            for member in waiting:
                nursery.start_soon(one, member)
    if patience.cancelled_caught:
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
        """Tell the program something."""
        await self._stdin.send_all(text.encode())
        return ""

    async def end(self) -> str:
        """Tell the program that all is done."""
        await self._stdin.aclose()
        return ""

    def last_words(self) -> str:
        """The end of what it wrote to its error output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"The end of the output of {self.name}:", *(lines or ["(nothing)"])])


@asynccontextmanager
async def _start(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> AsyncIterator[_Member]:
    """A program that is killed, at the latest, when the block ends."""
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
