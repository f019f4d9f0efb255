"""Run real nodes in processes of their own and watch them from outside: on loopback, or each behind a link of its own.

Invariants:

- A test waits for a node's report, never for a time, and fails with the ends of every node's output when that does not
  come.
- Every process that was started is gone when the stage is closed.
- `check` holds for every node, dead ones too, with any fault: only whole versions are under their final names and in
  service, with exactly the published bytes.
- `check` also fails if an honest node ever gave another a wrong byte.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from benchmarks.network.bound import all_peers_bound_s
from benchmarks.network.emulation import Network, open_network
from benchmarks.network.emulation import Node as Place
from benchmarks.network.founding import PORT
from benchmarks.network.payload import FILE_NAME, HEADER_BYTES, write_payload
from swarm.transport.error_groups import first_cause
from tests.faults.node import Assignment, digest_of_files
from tests.support.paths import ROOT

DEADLINE_S = float(os.environ.get("VOLERY_TEST_DEADLINE_S", "120"))
"""Seconds to wait for anything that is to happen: many times what it takes, since other people's machines are busy as
well."""

MIB = 1 << 20
CHUNK = 64 * 1024
"""Bytes of a chunk of versions below 16 MiB; larger versions are cut into four times as much here."""

CREDIT = 8 * CHUNK
"""Bytes that may come twice at one peer: four chunks that only this peer was given, and four asked of two peers."""

SOURCE = "source"
STRANGER = "stranger"
PEERS = ("one", "two", "three", "four", "five")
Event = dict[str, Any]


class Bell:
    """Rung whenever a node reports something."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(kw_only=True, eq=False)
class Player:
    """One node's program. `events` is everything that it has reported."""

    name: str
    kind: str
    store: Path
    process: trio.Process
    log: Path
    bell: Bell
    events: list[Event] = field(default_factory=list)
    ended: bool = False

    def said(self, event: str, **fields: object) -> list[Event]:
        """Return its reports so far of this kind and with these fields."""
        return [one for one in self.events if one["event"] == event and fields.items() <= one.items()]

    async def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait until `condition` gives something, and return that; it is tried whenever a node reports something."""
        with trio.move_on_after(DEADLINE_S):
            while not (found := condition()):
                assert not self.ended, f"{self.name} ended before {what}\n{self.story()}"
                await self.bell.wait()
            return found
        raise AssertionError(f"{self.name}: no {what} within {DEADLINE_S:.0f} s\n{self.story()}")

    async def hear(self, event: str, *, after: int = 0, **fields: object) -> Event:
        """Wait until it reports this event, and return the event; `after` skips that many that are alike."""
        await self.until(f"{event} {fields or ''}", lambda: len(self.said(event, **fields)) > after)
        return self.said(event, **fields)[after]

    async def reach(self, version: int, share: float) -> Event:
        """Wait until it holds this share of a version."""

        def reached() -> Event | None:
            said = self.said("progress", version=version)
            return next((one for one in said if len(one["held"]) >= share * one["of"]), None)

        return await self.until(f"{share:.0%} of version {version}", reached)  # type: ignore[no-any-return]

    async def say(self, do: str, **fields: object) -> None:
        """Send it a command."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps({"do": do, **fields}).encode() + b"\n")

    async def status(self) -> Event:
        before = len(self.said("status"))
        await self.say("status")
        return await self.hear("status", after=before)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        await self.process.wait()

    async def leave(self) -> int:
        """End its input, and return the exit code."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        with trio.fail_after(DEADLINE_S):
            return await self.process.wait()

    async def listen(self) -> None:
        """Record its reports, until it ends."""
        assert self.process.stdout is not None
        buffer = b""
        async for data in self.process.stdout:
            *lines, buffer = (buffer + data).split(b"\n")
            self.events += [json.loads(line) for line in lines]
            self.bell.ring()
        self.ended = True
        self.bell.ring()

    def held(self, version: int) -> set[int]:
        """Return the chunks of a version that it has reported to hold."""
        return {index for said in self.said("progress", version=version)[-1:] for index in said["held"]}

    def last_words(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def story(self) -> str:
        """Return the ends of its output, for people."""
        events = [{**one, "held": len(one["held"])} if "held" in one else one for one in self.events]
        return "\n".join([f"--- {self.name} ({self.kind})", self.last_words(), *map(str, events[-25:])])


@dataclass(kw_only=True, eq=False)
class Company:
    """The programs that were started, by name; all are gone when `stack` is closed."""

    root: Path
    nursery: trio.Nursery
    stack: AsyncExitStack
    bell: Bell = field(default_factory=Bell)
    players: dict[str, Player] = field(default_factory=dict)
    started: list[Player] = field(default_factory=list)

    async def open_player(self, name: str, command: Sequence[str], *, kind: str, store: Path) -> Player:
        """Run a command, and return without waiting for its first report."""
        log = self.root / f"{len(self.started)}-{name}.log"
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        player = self.players[name] = Player(
            name=name, kind=kind, store=store, process=process, log=log, bell=self.bell
        )
        self.started.append(player)
        self.stack.push_async_callback(_end, process)
        self.nursery.start_soon(player.listen)
        return player


@dataclass(kw_only=True, eq=False)
class Stage(Company):
    """The processes of nodes on a network. Get one from `open_stage`."""

    network: Network | None
    models: dict[int, Path] = field(default_factory=dict)

    async def start(self, name: str, *, kind: str = "honest", store: Path | None = None) -> Player:
        """Start a node, or start it again, and wait until it is ready."""
        player = await self.launch(name, kind=kind, store=store)
        await player.hear("ready")
        return player

    async def launch(self, name: str, *, kind: str = "honest", store: Path | None = None) -> Player:
        """Start a node, and do not wait."""
        store = store or self.root / name
        host = "127.0.0.1" if self.network is None else self.network.address(name)
        listen = f"/ip4/{host}/tcp/{0 if self.network is None else PORT}"
        names = [SOURCE, *PEERS, STRANGER]
        task = Assignment(name=name, names=names, store=str(store), listen=listen, kind=kind)
        command = [sys.executable, "-m", "tests.faults.program", msgspec.json.encode(task).decode()]
        if self.network is not None:
            command = self.network.inside(name, command)
        return await self.open_player(name, command, kind=kind, store=store)

    async def troupe(self, *names: str, kinds: Mapping[str, str] | None = None) -> list[Player]:
        """Start the source and these nodes at once, and connect each with each; return the source first."""
        players = [await self.launch(name, kind=(kinds or {}).get(name, "honest")) for name in (SOURCE, *names)]
        for player in players:
            await player.hear("ready")
        for number, player in enumerate(players):
            await self.introduce(player, *players[:number])
        return players

    async def introduce(self, player: Player, *others: Player) -> None:
        """Let `player` dial the others, and keep doing so; wait until all are connected."""
        for other in others:
            addresses = (await other.hear("ready"))["addresses"]
            await player.say("dial", addresses=addresses)
        for other in others:
            await player.hear("connected", peer=other.name)
            await other.hear("connected", peer=player.name)

    # Versions.

    def write(self, version: int, mib: float = 8) -> Path:
        """Write a model of random bytes."""
        directory = self.models[version] = self.root / "models" / str(version)
        directory.mkdir(parents=True)
        write_payload(directory, round(mib * MIB), seed=version)
        return directory

    def nudge(self, version: int, base: int, *, share: float = 0.01) -> Path:
        """Write a model that is one small step further: this share of its values are the next larger ones."""
        directory = self.models[version] = self.root / "models" / str(version)
        directory.mkdir(parents=True)
        data = np.fromfile(self.models[base] / FILE_NAME, dtype=np.uint16)
        rng = np.random.default_rng(version)
        data[rng.integers(HEADER_BYTES // 2, len(data), round(share * len(data)))] += 1
        data.tofile(directory / FILE_NAME)
        return directory

    async def publish(self, version: int, *bases: int, pretend: Mapping[int, int] | None = None) -> Event:
        """Let the source publish a model that was written, with patches from `bases`.

        `pretend` are bases whose patches are made from the files of another version.
        """
        offered = {base: self.models[base] for base in bases}
        offered |= {base: self.models[other] for base, other in (pretend or {}).items()}
        paths = {str(base): str(path) for base, path in offered.items()}
        await self.players[SOURCE].say("publish", directory=str(self.models[version]), version=version, bases=paths)
        return await self.players[SOURCE].hear("published", version=version)

    def digest(self, version: int) -> str:
        return digest_of_files(self.models[version])

    async def complete(self, version: int, *players: Player) -> list[Event]:
        """Wait until all have the version, and check its bytes."""
        events = [await player.hear("complete", version=version) for player in players]
        assert {one["digest"] for one in events} == {self.digest(version)}
        return events

    # Measurements and checks.

    def bound_s(self, version: int, *peers: str) -> float:
        """Return the least time in seconds in which the last of `peers` can have a version, with the links as they were
        at first.
        """
        assert self.network is not None
        places = {place.name: place for place in self.network.nodes}
        size = sum(path.stat().st_size for path in self.models[version].iterdir())
        ups, downs = [places[name].up for name in peers], [places[name].down for name in peers]
        return all_peers_bound_s(size, places[SOURCE].up, ups, downs)

    async def check(self, *alive: Player, service: int) -> list[Event]:
        """Ask the nodes alive for their state, which must have version `service` in use; check every node's disk.
        Return the states.
        """
        for player in alive:
            assert not player.ended, f"{player.name} has ended\n{player.story()}"
        statuses = [await player.status() for player in alive]
        for player, status in zip(alive, statuses, strict=True):
            expected = {"version": service, "digest": self.digest(service)}
            assert status["service"] == expected, f"{player.name} uses {status['service']}\n{player.story()}"
        honest = [player for player in self.started if player.kind in ("honest", "forgetful")]
        names = {player.name for player in honest}
        for player in honest:
            wrong = [one for one in player.said("fault", fault="corrupt_chunk") if one["peer"] in names]
            assert not wrong, f"{player.name} was given wrong bytes by an honest node: {wrong}"
        published = {self.digest(version) for version in self.models}
        for store in {player.store for player in self.started}:
            for directory in (store / "versions").glob("*"):
                if directory.suffix != ".part":
                    assert digest_of_files(directory) in published, f"{directory} is not what was published"
        return statuses


def duplicates(statuses: Collection[Event]) -> float:
    """Return the bytes that came twice, as a fraction of the bytes that were fetched."""
    return sum(one["duplicates"] for one in statuses) / sum(one["fetched"] for one in statuses)


def lateness(players: Sequence[Event], published: Event) -> float:
    """Return the seconds from the publication to the last of these events."""
    return max(one["at"] for one in players) - published["at"]  # type: ignore[no-any-return]


@asynccontextmanager
async def open_stage(root: Path, links: Mapping[str, tuple[float, float]] | None = None) -> AsyncIterator[Stage]:
    """Open a stage on loopback; with `links`, (up, down) in Mbit/s by node, in a network of these. That needs root."""
    async with AsyncExitStack() as stack:
        network = None
        if links is not None:
            places = [Place(name=name, up=up, down=down) for name, (up, down) in links.items()]
            network = stack.enter_context(open_network(places))
        with first_cause():
            async with trio.open_nursery() as nursery, AsyncExitStack() as players:
                yield Stage(root=root, network=network, nursery=nursery, stack=players)
                await players.aclose()
                nursery.cancel_scope.cancel()


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        process.kill()
    with trio.CancelScope(shield=True):
        await process.wait()
