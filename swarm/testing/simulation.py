"""A swarm in virtual time: the very cores that nodes run, over links with rates, latencies and queues.

Every node has an uplink, which sends pieces of the uploads under way in turn, and a downlink, which takes them in the
order of their arrival; an upload has a few pieces on its way at most, as a window would let it. Control messages go
ahead of bulk in their sender, queue behind it at the receiver, and cost both links their bytes. What always holds: the
same scenario gives the same events, and nothing here decides what the cores decide: it performs, as the drivers do.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any

from protocol.ids import Cid, PeerId
from swarm import audience, scatter, scheduler, uploads

KIB, MIB = 1024, 1024 * 1024

MESSAGE_BYTES = 120
"""A small message on the wire: 28 to 60 bytes of it, frame, muxer, TLS record, TCP and IP headers."""

INDEX_BYTES = 3
"""What each further chunk adds to a Gained."""

CHUNK_HEADER_BYTES = 400
"""What a chunk costs beside its bytes, per 64 KiB: muxer and TLS records; TCP and IP headers are the link's."""

GATHER_S, GATHER_CHUNKS = 0.04, 3
"""How long, and up to how many, a node gathers chunks that it gained before it tells."""

TICK_S = 0.1

WINDOW_PIECES = 3
"""Pieces of one upload between the two links: a congestion window that fills the path and little of its queues."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Payload rates in Mbit/s, one-way latency to the middle of the network in seconds."""

    up: float
    down: float
    latency_s: float = 0.0005


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One fetching peer: when it comes and, if it does, goes. `relays` False: it takes and never gives."""

    link: Link
    joins_s: float = 0.0
    leaves_s: float | None = None
    relays: bool = True


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated. `neighbours` says who knows whom, given all names; None: everybody everybody."""

    source: Link
    peers: Sequence[Peer]
    size_bytes: int
    chunk_bytes: int
    seed: int = 0
    neighbours: Callable[[Sequence[PeerId]], dict[PeerId, set[PeerId]]] | None = None
    num_pieces: int = 4
    until_s: float = 36_000.0


@dataclass(kw_only=True)
class Outcome:
    """What came of it. `done_s` per peer from its joining, None if it left or never finished."""

    done_s: list[float | None]
    finished_s: float
    source_bytes: int
    chunk_bytes: int
    duplicate_bytes: int
    control_bytes: int
    by_peer_bytes: list[int]


@dataclass(slots=True, eq=False)
class _Upload:
    """One chunk on its way, in pieces. `landings` are when those under way will have arrived."""

    sender: _Node
    receiver: _Node
    cid: Cid
    chunk: int
    left: int
    window: int
    landings: deque[float] = field(default_factory=deque)


class _Node:
    """One node: its link, its cores, and what the drivers keep for them."""

    def __init__(self, name: PeerId, link: Link, *, seed: int, relays: bool = True) -> None:
        self.name = name
        self.link = link
        self.up_s = 8e-6 / link.up
        self.down_s = 8e-6 / link.down
        self.rng = random.Random(f"{seed} {name}")
        self.relays = relays
        self.here = False
        self.plan: scheduler.FetchPlan | None = None
        self.scatter: scatter.Scatter | None = None
        self.held: bytearray = bytearray()
        self.num_held = 0
        self.neighbours: dict[PeerId, _Node] = {}
        self.uploads = uploads.Uploads(holders=self._holders, promised=self._promised)
        self.turns: deque[_Upload] = deque()
        self.sending = False
        self.waking = False
        self.debt_s = 0.0
        self.up_until = 0.0
        self.down_until = 0.0
        self.fresh: list[int] = []
        self.tells_at = inf
        self.heard: dict[PeerId, float] = {}
        self.offers: dict[PeerId, list[int]] = {}
        self.shown: list[int] = []
        self.joined_at = 0.0
        self.done_at: float | None = None
        self.sent_bytes = 0

    def _holders(self, cid: Cid) -> int:
        chunk = int.from_bytes(cid, "big")
        core = self.plan or self.scatter
        return core.num_holders(chunk) if core is not None else 0

    def _promised(self, peer: PeerId, cid: Cid) -> bool:
        return self.scatter is not None and self.scatter.promised(peer, int.from_bytes(cid, "big"))


class Simulation:
    """See the module's paragraph."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self.num_chunks = -(-scenario.size_bytes // scenario.chunk_bytes)
        self.cids = [Cid(chunk.to_bytes(4, "big")) for chunk in range(self.num_chunks)]
        self.piece_bytes = scenario.chunk_bytes / scenario.num_pieces
        self.source = self._node("source", scenario.source)
        self.source.held = bytearray(b"\1" * self.num_chunks)
        self.source.num_held = self.num_chunks
        self.source.scatter = scatter.Scatter(range(self.num_chunks), self.source.rng)
        self.source.here = True
        self.peers = [self._node(f"p{index:04}", peer.link, peer.relays) for index, peer in enumerate(scenario.peers)]
        self.nodes = {node.name: node for node in [self.source, *self.peers]}
        names = [node.name for node in self.peers]
        self.map = scenario.neighbours(names) if scenario.neighbours is not None else None
        self.control_bytes = 0
        self.num_messages = 0
        self.duplicate_bytes = 0
        self.source_sent = 0
        self.waiting = 0
        self._order = count()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        for node, peer in zip(self.peers, scenario.peers, strict=True):
            self._at(peer.joins_s, self._join, node)
            if peer.leaves_s is not None:
                self._at(peer.leaves_s, self._leave, node)
            else:
                self.waiting += 1
        self._at(TICK_S, self._tick, self.source)

    def _node(self, name: str, link: Link, relays: bool = True) -> _Node:
        node = _Node(PeerId(name), link, seed=self.scenario.seed, relays=relays)
        node.held = bytearray(self.num_chunks)
        return node

    def run(self) -> Outcome:
        """Until every peer that stays has everything, or until the scenario's end."""
        heap = self._heap
        while heap and self.waiting:
            self.now, _, act, args = heappop(heap)
            if self.now > self.scenario.until_s:
                break
            act(*args)
        delivered = sum(node.num_held for node in self.peers) * self.scenario.chunk_bytes
        return Outcome(
            done_s=[None if node.done_at is None else node.done_at - node.joined_at for node in self.peers],
            finished_s=self.now,
            source_bytes=self.source.sent_bytes,
            chunk_bytes=delivered,
            duplicate_bytes=self.duplicate_bytes,
            control_bytes=self.control_bytes,
            by_peer_bytes=[node.sent_bytes for node in self.peers],
        )

    def _at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        heappush(self._heap, (when, next(self._order), act, args))

    # Who is here.

    def _join(self, node: _Node) -> None:
        node.here, node.joined_at = True, self.now
        node.plan = scheduler.FetchPlan(range(self.num_chunks), node.rng)
        others = self.peers if self.map is None else [self.nodes[name] for name in sorted(self.map[node.name])]
        for other in others:
            if other is not node and other.here:
                self._connect(node, other)
        node.neighbours[self.source.name] = self.source
        self.source.neighbours[node.name] = node
        self._say(node, self.source, 1, self._hear_want)
        self._at(self.now + TICK_S * node.rng.random(), self._tick, node)

    def _connect(self, one: _Node, other: _Node) -> None:
        one.neighbours[other.name] = other
        other.neighbours[one.name] = one
        for asker, holder in ((one, other), (other, one)):
            if asker.done_at is None:
                self._say(asker, holder, 1, self._hear_want)

    def _leave(self, node: _Node) -> None:
        if node.done_at is not None and node.here:
            pass
        node.here = False
        node.turns.clear()
        for other in node.neighbours.values():
            other.neighbours.pop(node.name, None)
            other.offers.pop(node.name, None)
            self._at(self.now + self._latency(node, other), self._lose, other, node)
        node.neighbours = {}

    def _lose(self, node: _Node, gone: _Node) -> None:
        for upload in [upload for upload in node.turns if upload.receiver is gone]:
            node.turns.remove(upload)
        if node.scatter is not None:
            self._scatter(node, audience.Unfollowed(peer=gone.name))
        for _, cid in [key for key in node.uploads.waiting if key[0] == gone.name]:
            self._uploads(node, uploads.Withdrawn(peer=gone.name, cid=cid))
        self._uploads(node, uploads.Sent(peer=gone.name))
        self._plan(node, scheduler.PeerGone(peer=gone.name))

    def _tick(self, node: _Node) -> None:
        if not node.here:
            return
        if node.plan is not None and node.done_at is None:
            for name, heard_at in node.heard.items():
                if self.now - TICK_S < heard_at <= self.now:
                    self._plan(node, scheduler.Heard(peer=name))
            self._plan(node, scheduler.Tick())
        if node.scatter is not None:
            self._scatter(node, scheduler.Tick())
        self._uploads(node, uploads.Tick())
        self._at(self.now + TICK_S, self._tick, node)

    # Small messages.

    def _latency(self, one: _Node, other: _Node) -> float:
        return one.link.latency_s + other.link.latency_s

    def _say(self, sender: _Node, receiver: _Node, num_indices: int, hear: Callable[..., None], *args: Any) -> None:
        size = MESSAGE_BYTES + INDEX_BYTES * (num_indices - 1)
        self.control_bytes += size
        self.num_messages += 1
        sender.debt_s += size * sender.up_s
        leaves = max(self.now, sender.up_until)
        arrives = leaves + sender.link.latency_s + receiver.link.latency_s
        receiver.down_until = max(receiver.down_until, arrives) + size * receiver.down_s
        heappush(self._heap, (receiver.down_until, next(self._order), hear, (receiver, sender, *args)))

    def _hear_want(self, node: _Node, peer: _Node) -> None:
        if not node.here or not peer.here:
            return
        if node.scatter is not None:
            held = frozenset(chunk for chunk in range(self.num_chunks) if node.scatter.shows(chunk))
            self._say(node, peer, 1 + self.num_chunks // 24, self._hear_have, held)
            self._scatter(node, audience.Followed(peer=peer.name))
            return
        held = frozenset(chunk for chunk in range(self.num_chunks) if node.held[chunk]) if node.relays else frozenset()
        self._say(node, peer, 1 + self.num_chunks // 24, self._hear_have, held)

    def _hear_have(self, node: _Node, peer: _Node, held: frozenset[int]) -> None:
        if peer.here:
            self._plan(node, scheduler.PeerHas(peer=peer.name, chunks=held))

    def _gained(self, node: _Node, chunk: int) -> None:
        node.fresh.append(chunk)
        enough = len(node.fresh) >= GATHER_CHUNKS or node.num_held == self.num_chunks
        when = self.now + (0.0 if enough else GATHER_S)
        if when < node.tells_at:
            node.tells_at = when
            self._at(when, self._tell, node)

    def _tell(self, node: _Node) -> None:
        if self.now < node.tells_at:
            return
        node.tells_at = inf
        gained, node.fresh = node.fresh, []
        shown, node.shown = node.shown, []
        offers, node.offers = node.offers, {}
        if not node.here or not node.relays:
            return
        if node.scatter is not None:
            for name in {**offers, **(node.neighbours if shown else {})}:
                peer = node.neighbours.get(name)
                if peer is not None and peer.done_at is None:
                    chunks = (*offers.get(name, ()), *shown)
                    self._say(node, peer, len(chunks), self._hear_gained, chunks)
            return
        targets = self.source.scatter.targets if self.source.scatter is not None else ()
        for peer in node.neighbours.values():
            if peer.scatter is not None:
                chunks = tuple(gained) if node.name in targets else ()
            elif peer.done_at is not None:
                continue
            else:
                plan = node.plan
                chunks = tuple(chunk for chunk in gained if plan is None or not plan.holds(peer.name, chunk))
            if chunks:
                self._say(node, peer, len(chunks), self._hear_gained, chunks)

    def _hear_gained(self, node: _Node, peer: _Node, chunks: tuple[int, ...]) -> None:
        if not peer.here:
            return
        if node.scatter is not None:
            self._scatter(node, scheduler.PeerGained(peer=peer.name, chunks=chunks))
        else:
            self._plan(node, scheduler.PeerGained(peer=peer.name, chunks=chunks))

    # Cores, performed.

    def _plan(self, node: _Node, event: scheduler.Event) -> None:
        if node.plan is None or not node.here:
            return
        for effect in node.plan.handle(event, self.now):
            match effect:
                case scheduler.Ask(peer=name, chunk=chunk):
                    self._say(node, self.nodes[name], 1, self._hear_request, chunk)
                case scheduler.Cancel(peer=name, chunk=chunk) | scheduler.Recall(peer=name, chunk=chunk):
                    self._say(node, self.nodes[name], 1, self._hear_cancel, chunk)
                case scheduler.Complete():
                    node.done_at = self.now
                    self.waiting -= self.scenario.peers[self.peers.index(node)].leaves_s is None

    def _scatter(self, node: _Node, event: scatter.Event) -> None:
        assert node.scatter is not None
        for effect in node.scatter.handle(event, self.now):
            match effect:
                case scatter.Offer(peer=name, chunk=chunk):
                    node.offers.setdefault(name, []).append(chunk)
                case scatter.Show(chunks=chunks):
                    node.shown += chunks
            if self.now < node.tells_at:
                node.tells_at = self.now
                self._at(self.now, self._tell, node)

    def _uploads(self, node: _Node, event: uploads.Event) -> None:
        for effect in node.uploads.handle(event, self.now):
            peer = self.nodes[effect.peer]
            match effect:
                case uploads.Begin(cid=cid):
                    chunk = int.from_bytes(cid, "big")
                    self._plan(node, scheduler.PeerGained(peer=peer.name, chunks=(chunk,)))
                    path = self._latency(node, peer) / (self.piece_bytes * max(node.up_s, peer.down_s))
                    window = WINDOW_PIECES + ceil(path)
                    node.turns.append(_Upload(node, peer, cid, chunk, self.scenario.num_pieces, window))
                    if not node.sending:
                        self._send_piece(node)
                case uploads.Refuse(cid=cid, retry_s=retry_s):
                    self._say(node, peer, 1, self._hear_busy, int.from_bytes(cid, "big"), retry_s)
                case uploads.Drop(cid=cid):
                    self._say(node, peer, 1, self._hear_return, int.from_bytes(cid, "big"))

    def _hear_request(self, node: _Node, peer: _Node, chunk: int) -> None:
        if node.here and peer.here:
            if node.scatter is not None:
                self._scatter(node, audience.Asked(peer=peer.name, chunk=chunk))
            cid = self.cids[chunk]
            self._uploads(node, uploads.Requested(peer=peer.name, cid=cid, size=self.scenario.chunk_bytes))

    def _hear_cancel(self, node: _Node, peer: _Node, chunk: int) -> None:
        self._uploads(node, uploads.Withdrawn(peer=peer.name, cid=self.cids[chunk]))

    def _hear_return(self, node: _Node, peer: _Node, chunk: int) -> None:
        self._plan(node, scheduler.Returned(peer=peer.name, chunk=chunk))

    def _hear_busy(self, node: _Node, peer: _Node, chunk: int, retry_s: float) -> None:
        self._plan(node, scheduler.Refused(peer=peer.name, chunk=chunk, retry_at=self.now + retry_s))

    # Bulk.

    def _send_piece(self, node: _Node) -> None:
        """Put the next piece on the uplink, of the upload whose turn it is and whose window is open."""
        turns, now = node.turns, self.now
        soonest = inf
        for _ in range(len(turns)):
            upload = turns.popleft()
            landings = upload.landings
            while landings and landings[0] <= now:
                landings.popleft()
            if len(landings) < upload.window:
                node.sending = True
                node.up_until = now + (self.piece_bytes + CHUNK_HEADER_BYTES) * node.up_s + node.debt_s
                node.debt_s = 0.0
                self._at(node.up_until, self._piece_sent, node, upload)
                return
            turns.append(upload)
            soonest = min(soonest, landings[0])
        node.debt_s = 0.0
        if turns and not node.waking:
            node.waking = True
            self._at(soonest, self._wake, node)

    def _wake(self, node: _Node) -> None:
        node.waking = False
        if not node.sending:
            self._send_piece(node)

    def _piece_sent(self, node: _Node, upload: _Upload) -> None:
        node.sending = False
        receiver = upload.receiver
        if not node.here:
            return
        if receiver.here:
            upload.left -= 1
            arrives = self.now + node.link.latency_s + receiver.link.latency_s
            landed = max(receiver.down_until, arrives) + self.piece_bytes * receiver.down_s
            receiver.down_until = landed
            upload.landings.append(landed)
            receiver.heard[node.name] = landed
            node.sent_bytes += int(self.piece_bytes)
            if upload.left:
                node.turns.append(upload)
                self._uploads(node, uploads.Moved(peer=receiver.name, size=int(self.piece_bytes)))
            else:
                self._at(landed, self._landed, receiver, node, upload.chunk)
                if node.scatter is not None:
                    self._scatter(node, audience.Sent(peer=receiver.name, chunk=upload.chunk))
                self._uploads(node, uploads.Sent(peer=receiver.name))
                if node.scatter is not None and node.uploads.idle:
                    self._scatter(node, audience.Idle())
        if not node.sending:
            self._send_piece(node)

    def _landed(self, node: _Node, sender: _Node, chunk: int) -> None:
        if not node.here:
            return
        if node.held[chunk]:
            self.duplicate_bytes += self.scenario.chunk_bytes
        else:
            node.held[chunk] = 1
            node.num_held += 1
            self._gained(node, chunk)
        self._plan(node, scheduler.Arrived(peer=sender.name, chunk=chunk))


def bound_s(scenario: Scenario) -> float:
    """No schedule of any kind finishes all peers sooner, if all are there from the start and stay."""
    size = scenario.size_bytes * 8e-6
    ups = sum(peer.link.up for peer in scenario.peers)
    slowest = min(peer.link.down for peer in scenario.peers)
    return max(size / scenario.source.up, size / slowest, len(scenario.peers) * size / (scenario.source.up + ups))
