"""Simulate a swarm in virtual time: the same cores that nodes run, over simulated links.

`Scenario` describes the nodes, `Simulation` runs them, `Outcome` is the result; `bound_s` is a bound that no schedule
can beat.

Invariants:

- The same scenario gives the same outcome.
- Nothing here decides what the cores decide. The simulation acts as the drivers do (`swarm/transfer/exchange.py`,
  `swarm/transfer/serving.py`), and charges the bytes that they send.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from benchmarks.swarms.virtual_links import NO_QUEUE, Clock, Link, Port, Router, Transfer
from protocol.core.ids import Cid, PeerId
from swarm.transfer import audience
from swarm.transfer import chunk_picker as scheduler
from swarm.transfer import super_seeding as scatter
from swarm.transfer import upload_queue as uploads
from swarm.transfer.exchange import GATHER_CHUNKS, GATHER_S, TICK_S

SOURCE = PeerId("source")

MESSAGE_BYTES, INDEX_BYTES = 120, 3
"""Bytes of a small message on the wire (28 to 60 bytes, its frame, muxer, TLS record, TCP and IP), and of each further
chunk that a Gained names."""

TIMEOUT_S = 30.0
"""Seconds after which the connection to a peer that vanished without notice is found to be dead."""

Neighbours = Callable[[Collection[PeerId]], Mapping[PeerId, Collection[PeerId]]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer that fetches, with the times at which it joins and leaves.

    `vanishes`: it leaves without notice. Without `relays`, it fetches, and never says that it holds anything. Without
    `answers`, it says what it holds, and never sends it. `changes`: its later links, and when they change.
    """

    link: Link
    joins_s: float = 0.0
    leaves_s: float = inf
    vanishes: bool = False
    relays: bool = True
    answers: bool = True
    changes: tuple[tuple[float, Link], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The nodes of a run. `neighbours` gives each peer's neighbours by name; None: all peers are neighbours. The source
    is a neighbour of all."""

    source: Link
    peers: Sequence[Peer]
    size_bytes: int
    chunk_bytes: int
    seed: int = 0
    router: Router = NO_QUEUE
    neighbours: Neighbours | None = None
    source_leaves_s: float = inf
    num_pieces: int = 4
    until_s: float = 36_000.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result. `done_s`: when each peer had everything, by the common clock; None if it left before or never did."""

    done_s: tuple[float | None, ...]
    source_bytes: float
    source_opened_s: float | None
    peer_bytes: tuple[float, ...]
    delivered_bytes: int
    duplicate_bytes: int
    control_bytes: int

    @property
    def last_s(self) -> float:
        """When the last of the peers that completed had everything."""
        return max(done for done in self.done_s if done is not None)


class Simulation:
    """Runs a scenario in virtual time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.num_chunks = -(-scenario.size_bytes // scenario.chunk_bytes)
        self.cids = [Cid(chunk.to_bytes(4, "big")) for chunk in range(self.num_chunks)]
        self.source = _Source(self, SOURCE, Peer(link=scenario.source, leaves_s=scenario.source_leaves_s))
        self.peers = [_Fetcher(self, PeerId(f"p{number:04}"), peer) for number, peer in enumerate(scenario.peers)]
        self.nodes: dict[PeerId, _Node] = {node.name: node for node in [self.source, *self.peers]}
        names = [node.name for node in self.peers]
        self._beside = None if scenario.neighbours is None else scenario.neighbours(names)
        self.num_awaited = sum(peer.leaves_s == inf for peer in scenario.peers)
        self.duplicate_bytes = 0
        self.source.join([])
        for node in self.peers:
            self.clock.at(node.peer.joins_s, self._join, node)
        for gone in self.nodes.values():
            if gone.peer.leaves_s < inf:
                self.clock.at(gone.peer.leaves_s, self._leave, gone)
            for when, link in gone.peer.changes:
                self.clock.at(when, gone.port.set_link, link)

    def run(self) -> Outcome:
        """Run until every peer that stays has everything, or until the scenario's end."""
        self.clock.run(lambda: self.num_awaited > 0, self.scenario.until_s)
        return Outcome(
            done_s=tuple(node.done_at for node in self.peers),
            source_bytes=self.source.port.sent_bytes,
            source_opened_s=self.source.opened_at,
            peer_bytes=tuple(node.port.sent_bytes for node in self.peers),
            delivered_bytes=sum(node.num_held for node in self.peers) * self.scenario.chunk_bytes,
            duplicate_bytes=self.duplicate_bytes,
            control_bytes=sum(node.port.control_bytes for node in self.nodes.values()),
        )

    def _join(self, node: _Fetcher) -> None:
        others = self.peers if self._beside is None else [self.nodes[name] for name in sorted(self._beside[node.name])]
        node.join([self.source, *(other for other in others if other is not node)])

    def _leave(self, node: _Node) -> None:
        node.port.present = False
        for other in node.neighbours.values():
            notice_s = TIMEOUT_S if node.peer.vanishes else node.peer.link.latency_s + other.peer.link.latency_s
            self.clock.at(self.clock.now + notice_s, other.lose, node)


class _Node:
    """The behaviour of every node: it knows its neighbours, tells them which chunks it shows, and serves them."""

    def __init__(self, swarm: Simulation, name: PeerId, peer: Peer) -> None:
        self.swarm = swarm
        self.name = name
        self.peer = peer
        self.port = Port(name, swarm.clock, peer.link, swarm.scenario.router)
        self.rng = random.Random(f"{swarm.scenario.seed} {name}")
        self.neighbours: dict[PeerId, _Node] = {}
        self.uploads = uploads.UploadQueue(
            num_holders=lambda cid: self.num_holders(int.from_bytes(cid, "big")),
            is_promised=lambda peer, cid: self.is_promised(peer, int.from_bytes(cid, "big")),
            num_held=lambda peer, cid: self.num_held_by(peer),
        )
        self._tells_at = inf

    @property
    def now(self) -> float:
        return self.swarm.clock.now

    # Answers to the drivers' audiences.

    def num_holders(self, chunk: int) -> int:
        raise NotImplementedError

    def num_held_by(self, peer: PeerId) -> int:
        return 0

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        return False

    # Joining, leaving, time.

    def join(self, others: Iterable[_Node]) -> None:
        """Become present, and connect to those of `others` that are present."""
        self.port.present = True
        for other in others:
            if other.port.present:
                self.neighbours[other.name] = other
                other.neighbours[self.name] = self
                self.want(other)
                other.want(self)
        self.swarm.clock.at(self.now + TICK_S * self.rng.random(), self._tick)

    def lose(self, gone: _Node) -> None:
        """Handle the end of the connection to `gone`."""
        if self.port.present and self.neighbours.pop(gone.name, None) is not None:
            self.port.forget(gone.port)
            for peer, cid in self.uploads.waiting:
                if peer == gone.name:
                    self.queue(uploads.Withdrawn(peer=peer, cid=cid))
            self.queue(uploads.Sent(peer=gone.name))
            self.lost(gone)

    def _tick(self) -> None:
        if self.port.present:
            self.tick()
            self.queue(uploads.Tick())
            self._note_idleness()
            self.swarm.clock.at(self.now + TICK_S, self._tick)

    def say(self, to: _Node, num_indices: int, hear: Callable[..., None], *args: object) -> None:
        """Send a small message; nodes that have left neither send nor receive."""
        if self.port.present:
            self.port.say(to.port, MESSAGE_BYTES + INDEX_BYTES * (num_indices - 1), self._arrive, to, hear, *args)

    def _arrive(self, to: _Node, hear: Callable[..., None], *args: object) -> None:
        if to.port.present and self.name in to.neighbours:
            hear(self, *args)

    def tell_at(self, when: float) -> None:
        """Send the news to the neighbours, at `when` at the latest."""
        if when < self._tells_at:
            self._tells_at = when
            self.swarm.clock.at(when, self._tell)

    def _tell(self) -> None:
        if self.now >= self._tells_at:
            self._tells_at = inf
            if self.port.present:
                self.tell()

    # Serving.

    def queue(self, event: uploads.Event) -> None:
        """Pass an event to the queue of uploads, and perform its effects."""
        for effect in self.uploads.handle(event, self.now):
            to, chunk = self.swarm.nodes[effect.peer], int.from_bytes(effect.cid, "big")
            match effect:
                case uploads.Begin():
                    self.note(audience.Begun(peer=to.name, chunk=chunk))
                    self._send(to, chunk)
                case uploads.Refuse(retry_s=retry_s):
                    self.say(to, 1, to.hear_busy, chunk, retry_s)
                case uploads.Drop():
                    self.say(to, 1, to.hear_return, chunk)

    def _send(self, to: _Node, chunk: int) -> None:
        scenario = self.swarm.scenario
        piece_bytes = scenario.chunk_bytes / scenario.num_pieces
        self.port.send(
            Transfer(
                to=to.port,
                num_pieces=scenario.num_pieces,
                piece_bytes=piece_bytes,
                moved=partial(self.queue, uploads.Moved(peer=to.name, size=int(piece_bytes))),
                sent=partial(self._sent, to, chunk),
                landed=partial(to.land, self, chunk),
            )
        )

    def _sent(self, to: _Node, chunk: int) -> None:
        self.note(audience.Sent(peer=to.name, chunk=chunk))
        self.queue(uploads.Sent(peer=to.name))
        self._note_idleness()

    def _note_idleness(self) -> None:
        if self.uploads.idle:
            self.note(audience.Idle())

    def hear_request(self, peer: _Node, chunk: int) -> None:
        if self.peer.answers:
            self.note(audience.Asked(peer=peer.name, chunk=chunk))
            size = self.swarm.scenario.chunk_bytes
            self.queue(uploads.Requested(peer=peer.name, cid=self.swarm.cids[chunk], size=size))

    def hear_cancel(self, peer: _Node, chunk: int) -> None:
        self.queue(uploads.Withdrawn(peer=peer.name, cid=self.swarm.cids[chunk]))

    def hear_want(self, peer: _Node) -> None:
        shown = self.shown()
        self.say(peer, 1 + self.swarm.num_chunks // 24, peer.hear_have, shown)
        self.note(audience.Followed(peer=peer.name))

    # Differences between sources and fetchers.

    def want(self, other: _Node) -> None: ...

    def lost(self, gone: _Node) -> None: ...

    def tick(self) -> None: ...

    def tell(self) -> None: ...

    def shown(self) -> frozenset[int]:
        raise NotImplementedError

    def note(self, note: audience.Note) -> None: ...

    def land(self, peer: _Node, chunk: int) -> None: ...

    def hear_have(self, peer: _Node, chunks: frozenset[int]) -> None: ...

    def hear_gained(self, peer: _Node, chunks: tuple[int, ...]) -> None: ...

    def hear_busy(self, peer: _Node, chunk: int, retry_s: float) -> None: ...

    def hear_return(self, peer: _Node, chunk: int) -> None: ...


class _Source(_Node):
    """Holds everything, and scatters it."""

    def __init__(self, swarm: Simulation, name: PeerId, peer: Peer) -> None:
        super().__init__(swarm, name, peer)
        self.core = scatter.SuperSeeder(range(swarm.num_chunks), self.rng)
        self.opened_at: float | None = None
        self._offers: dict[PeerId, list[int]] = {}
        self._shown: list[int] = []

    def num_holders(self, chunk: int) -> int:
        return self.core.num_holders(chunk)

    def num_held_by(self, peer: PeerId) -> int:
        return self.core.num_held(peer)

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        return self.core.is_promised(peer, chunk)

    def shown(self) -> frozenset[int]:
        return frozenset(chunk for chunk in range(self.swarm.num_chunks) if self.core.shows(chunk))

    def feed(self, event: scatter.Event) -> None:
        """Pass an event to the super seeder, and perform its effects."""
        for effect in self.core.handle(event, self.now):
            match effect:
                case scatter.Offer(peer=peer, chunk=chunk):
                    self._offers.setdefault(peer, []).append(chunk)
                case scatter.Show(chunks=chunks):
                    self._shown += chunks
                case scatter.Listen(peer=peer):
                    self.say(self.swarm.nodes[peer], 1, self.swarm.nodes[peer].hear_want)
            self.tell_at(self.now)
        if self.core.opened and self.opened_at is None:
            self.opened_at = self.now

    def note(self, note: audience.Note) -> None:
        self.feed(note)

    def tell(self) -> None:
        offers, self._offers = self._offers, {}
        shown, self._shown = self._shown, []
        for name in self.neighbours if shown else offers:
            peer = self.neighbours.get(name)
            chunks = (*offers.get(name, ()), *shown)
            if peer is not None and chunks:
                self.say(peer, len(chunks), peer.hear_gained, chunks)

    def lost(self, gone: _Node) -> None:
        self._offers.pop(gone.name, None)
        self.feed(audience.Unfollowed(peer=gone.name))

    def tick(self) -> None:
        self.feed(scheduler.Tick())

    def hear_have(self, peer: _Node, chunks: frozenset[int]) -> None:
        self.feed(scheduler.PeerHas(peer=peer.name, chunks=chunks))

    def hear_gained(self, peer: _Node, chunks: tuple[int, ...]) -> None:
        self.feed(scheduler.PeerGained(peer=peer.name, chunks=chunks))


class _Fetcher(_Node):
    """Fetches and relays chunks."""

    def __init__(self, swarm: Simulation, name: PeerId, peer: Peer) -> None:
        super().__init__(swarm, name, peer)
        self.plan = scheduler.ChunkPicker(range(swarm.num_chunks), self.rng)
        self.held = bytearray(swarm.num_chunks)
        self.num_held = 0
        self.done_at: float | None = None
        self._gained: list[int] = []
        self._followers: dict[PeerId, _Node] = {}

    def num_holders(self, chunk: int) -> int:
        return self.plan.num_holders(chunk)

    def num_held_by(self, peer: PeerId) -> int:
        return self.plan.num_held(peer)

    def shown(self) -> frozenset[int]:
        return frozenset(chunk for chunk, held in enumerate(self.held) if held) if self.peer.relays else frozenset()

    def want(self, other: _Node) -> None:
        if self.done_at is None:
            self.say(other, 1, other.hear_want)

    def hear_want(self, peer: _Node) -> None:
        self._followers[peer.name] = peer
        super().hear_want(peer)

    def feed(self, event: scheduler.Event) -> None:
        """Pass an event to the chunk picker, and perform its effects."""
        for effect in self.plan.handle(event, self.now):
            match effect:
                case scheduler.Ask(peer=name, chunk=chunk):
                    server = self.swarm.nodes[name]
                    self.say(server, 1, server.hear_request, chunk)
                case scheduler.Cancel(peer=name, chunk=chunk) | scheduler.Recall(peer=name, chunk=chunk):
                    server = self.swarm.nodes[name]
                    self.say(server, 1, server.hear_cancel, chunk)
                case scheduler.Complete():
                    self.done_at = self.now
                    self.swarm.num_awaited -= self.peer.leaves_s == inf

    def note(self, note: audience.Note) -> None:
        if isinstance(note, audience.Begun):
            self.feed(scheduler.PeerGained(peer=note.peer, chunks=(note.chunk,)))

    def land(self, peer: _Node, chunk: int) -> None:
        if not self.port.present:
            return
        if self.held[chunk]:
            self.swarm.duplicate_bytes += self.swarm.scenario.chunk_bytes
        else:
            self.held[chunk] = 1
            self.num_held += 1
            self._gained.append(chunk)
            enough = (
                len(self._gained) >= GATHER_CHUNKS
                or self.num_held == self.swarm.num_chunks
                or peer is self.swarm.source
            )
            self.tell_at(self.now + (0.0 if enough else GATHER_S))
        self.feed(scheduler.Arrived(peer=peer.name, chunk=chunk))

    def tell(self) -> None:
        gained, self._gained = self._gained, []
        if not self.peer.relays:
            return
        for name, peer in self._followers.items():
            if isinstance(peer, _Fetcher) and peer.done_at is not None:
                continue
            news = tuple(gained) if isinstance(peer, _Source) else self.plan.news(name, gained)
            if news:
                self.say(peer, len(news), peer.hear_gained, news)

    def lost(self, gone: _Node) -> None:
        self._followers.pop(gone.name, None)
        self.feed(scheduler.PeerGone(peer=gone.name))

    def tick(self) -> None:
        if self.done_at is None:
            for name in self.port.take_heard():
                self.feed(scheduler.Heard(peer=PeerId(name)))
            self.feed(scheduler.Tick())

    def hear_have(self, peer: _Node, chunks: frozenset[int]) -> None:
        self.feed(scheduler.PeerHas(peer=peer.name, chunks=chunks))

    def hear_gained(self, peer: _Node, chunks: tuple[int, ...]) -> None:
        self.feed(scheduler.PeerGained(peer=peer.name, chunks=chunks))

    def hear_busy(self, peer: _Node, chunk: int, retry_s: float) -> None:
        self.feed(scheduler.Refused(peer=peer.name, chunk=chunk, retry_at=self.now + retry_s))

    def hear_return(self, peer: _Node, chunk: int) -> None:
        self.feed(scheduler.Returned(peer=peer.name, chunk=chunk))


def bound_s(scenario: Scenario) -> float:
    """Return the soonest time at which the last staying peer can have everything, with any schedule.

    Every byte leaves the source once. Each peer receives everything after it joined. Some node sends all that the
    staying peers need; leaving peers send as long as they are there, and need nothing. (Mundinger, Weber and Weiss
    2008; the fluid bound is reached without churn.) Changes of links are left out.
    """
    size = scenario.size_bytes * 8e-6
    stay = [peer for peer in scenario.peers if peer.leaves_s == inf]
    through_source = size / scenario.source.up
    through_downlinks = max(peer.joins_s + size / peer.link.down for peer in stay)
    return max(through_source, through_downlinks, _through_uplinks(scenario, len(stay) * size))


def _through_uplinks(scenario: Scenario, demand: float) -> float:
    """Return when all nodes present can have sent this many Mbit."""

    def sent_by(now: float) -> float:
        relayed = sum(
            peer.link.up * max(0.0, min(now, peer.leaves_s) - peer.joins_s) for peer in scenario.peers if peer.relays
        )
        return scenario.source.up * now + relayed

    low, high = 0.0, demand / scenario.source.up
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if sent_by(middle) >= demand else (middle, high)
    return high
