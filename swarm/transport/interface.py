"""The port through which everything in this package reaches other peers.

A `Transport` is one node's presence: an identity, some listening addresses (none, for a node behind NAT), authenticated
and encrypted connections, ordered byte streams over them, and a small best-effort broadcast. What always holds:

* A connection belongs to both ends: either may open streams over it, whoever dialled. A node that nobody can dial is a
  full member.
* `Stream.remote` is authenticated: whoever speaks holds the key behind that peer id.
* A stream is ordered and reliable until it breaks; when it breaks, both directions raise `StreamBroken`.
* Broadcast is best effort: at most `MAX_ANNOUNCEMENT_BYTES`, may be lost, repeated or reordered. It never carries bulk.
* Cancelling a receive is always safe. A cancelled send may leave the stream half-written, so the canceller must
  `abort` it; the connection below stays usable.

Implementations: `swarm.testing.memory_transport` and `swarm.libp2p`. Both pass `swarm.testing.transport_conformance`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.core.errors import Fault
from protocol.core.ids import PeerId
from protocol.reach import Reach
from swarm.transport.reach_evidence import ReachEvidence

Report = Callable[[PeerId, Fault, str], None]
"""Called when a peer did something wrong: with the peer, the kind of fault, and a sentence."""


class TransportError(Exception):
    """Base of what a transport may raise."""


class StreamBroken(TransportError):
    """The stream, or the connection below it, ended before the other side closed it properly."""


class StreamRefused(TransportError):
    """The peer does not speak this protocol, is not connected, or would not open a stream."""


class DialFailed(TransportError):
    """No address answered, or the one that answered was not the peer we wanted. The message says which and why."""


class ListenFailed(TransportError):
    """A listening address could not be bound. The message names the address and the reason."""


class Stream(Protocol):
    """One ordered, authenticated byte stream. One task may send while another receives."""

    @property
    def remote(self) -> PeerId: ...

    @property
    def protocol(self) -> str: ...

    @property
    def num_arrived(self) -> int:
        """Bytes that have come so far, whether they were received or wait for that."""

    async def send_all(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        """Send all of `parts`, one behind the other; waits while the other side's window is full, but for a little.

        `note_progress` is told how many bytes have left, whenever some have and more are to. Raises StreamBroken.
        """

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Send all of `parts` without waiting, and call `done` when all have left; False, and nothing is sent, when
        something else is being sent, or the transport cannot.

        `done` is not called when the stream breaks. Neither may wait, or raise. Raises StreamBroken.
        """

    def post(self, data: bytes) -> bool:
        """Send a small message without waiting, behind all that is being sent; False, and nothing is sent, when too
        much waits already. Raises StreamBroken.
        """

    async def receive_some(self, max_bytes: int) -> bytes:
        """Wait for at least one byte, return up to `max_bytes`; b"" after the other side's `send_eof`, or after
        `on_arrival` returned False.

        Raises StreamBroken.
        """

    on_arrival: Callable[[], bool] | None
    """If set, this may be called when what was expected has come, in place of waking who waits in `receive_some`: it
    takes that with `take_arrived`, and returns whether to let him sleep. It must not wait, and not raise."""

    def take_arrived(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes of what has arrived, without waiting; b"" where that is nothing.

        Raises StreamBroken.
        """

    def retain(self, size: int) -> None:
        """Say how many bytes of what was received are still held here, so that they count for the peer.

        Whoever has said so once says so again when it has let go of some: until then, all that it received counts.
        """

    def expect(self, size: int) -> None:
        """Say that fewer than `size` bytes are of no use: the next `receive_some` may wait for them, or for a part.

        A hint, which spares wake-ups; what comes before the end of the stream is returned whatever was expected.
        """

    async def send_eof(self) -> None:
        """Say that nothing more follows; receiving goes on."""

    async def aclose(self) -> None:
        """Close both directions in good order. Idempotent, never raises StreamBroken."""

    async def abort(self) -> None:
        """Tear the stream down at once: the other side sees StreamBroken. Idempotent, does not wait for the peer."""


StreamHandler = Callable[[Stream], Awaitable[None]]
"""Runs in a task of its own for each stream a peer opens. The stream is closed when it returns, aborted when it raises.

A TransportError or PeerError that escapes it ends only that stream; anything else is a bug of ours and leaves the
transport's scope."""


@dataclass(frozen=True, kw_only=True)
class PeerConnected:
    """The first connection to `peer` is up. `dialled` tells whether we dialled it."""

    peer: PeerId
    dialled: bool
    remote_address: str


@dataclass(frozen=True, kw_only=True)
class PeerDisconnected:
    """The last connection to `peer` is gone."""

    peer: PeerId


ConnectionEvent = PeerConnected | PeerDisconnected


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """One broadcast received. `source` is the neighbour that handed it to us; its author is named in the envelope."""

    source: PeerId
    topic: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of stream payload exchanged with one peer since the transport started."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What one of the transport's budgets refused since that was last told.

    `times` in all; `who_times` of these concerned `who`, the address or peer that was refused most often.
    """

    budget: str
    times: int
    who: str
    who_times: int


BroadcastValidator = Callable[[Broadcast], bool]
"""Synchronous, cheap, pure: False drops a broadcast before it is delivered or forwarded to anyone."""


class Transport(Protocol):
    """One node's presence in the network. Obtained from an async context manager that owns its background tasks."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> list[str]:
        """Full multiaddrs with /p2p/ suffix that others may dial; empty when we do not listen."""

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool = False) -> PeerId:
        """Connect to the peer named by the /p2p/ suffix of `addresses` (all must name the same one).

        Returns at once when already connected. Tries the addresses in order. `named_by_others`: our owner did not, so
        what `may_dial` does not allow is left out, also where a name leads there. Raises DialFailed.
        """

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`. Quiet when there are none."""

    def connected_peers(self) -> frozenset[PeerId]: ...

    def events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """A new channel of connection events; starts with a PeerConnected for every peer already connected.

        Bounded by EVENT_QUEUE; a subscriber that does not keep up is closed.
        """

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve `protocol` with `handler` for streams that peers open."""

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream over any connection to `peer`. Raises StreamRefused, within STREAM_OPEN_TIMEOUT_S."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Broadcast `data`; LocalProtocolError when larger than MAX_ANNOUNCEMENT_BYTES. Not delivered to ourselves."""

    async def subscribe(self, topic: str, validate: BroadcastValidator) -> trio.MemoryReceiveChannel[Broadcast]:
        """Receive broadcasts that pass `validate`, from now on; only topics subscribed to are passed on to others.

        Bounded by BROADCAST_QUEUE; the oldest are dropped when full.
        """

    def reached(self) -> Reach:
        """How others reach this node, as far as it knows, and how it met those that are connected."""

    def take_carried(self) -> Mapping[tuple[PeerId, PeerId], int]:
        """Bytes that circuits through this node have carried since this was last asked, each byte once, by the two
        peers at their ends, the smaller id first."""

    def reach_evidence(self) -> ReachEvidence:
        """What `reached` is concluded from; a transport that leads nowhere has none."""

    def may_dial(self, address: str) -> bool:
        """Whether an address that somebody else named may be dialled: none inside a network that we are not on."""

    def traffic(self) -> dict[PeerId, Traffic]:
        """By peer: of members since the transport started, of strangers while they are connected."""

    def trust(self, peer: PeerId) -> None:
        """From now on `peer` is a member: it has the budgets of members, on all its connections."""

    def distrust(self, peer: PeerId) -> None:
        """It is a stranger again, but for connections that we dialled. Quiet when it was one."""

    def is_trusted(self, peer: PeerId) -> bool:
        """Whether `peer` is a member, or was dialled by us."""

    def expect(self, origins: Mapping[PeerId, str], awaited: Collection[PeerId] = ()) -> None:
        """These peers were members before, at these origins: when there is no place for all, they go first, and before
        all others those of them who are `awaited`."""

    def origins(self) -> dict[PeerId, str]:
        """Where members that are connected come from: an IPv4 address, or the /64 network of an IPv6 one."""

    def note_refusal(self, budget: str, who: str) -> None:
        """A budget of the layer above refused `who`, or slowed it down: `refusals` tells of it."""

    def refusals(self) -> list[Refusal]:
        """What was refused since the last call, by budget."""


EVENT_QUEUE = 1024
"""Connection events waiting for one subscriber: far more than peers joining within one scheduling pause."""

BROADCAST_QUEUE = 64
"""Broadcasts waiting: announcements are state, only the newest matters."""

STREAM_OPEN_TIMEOUT_S = 10.0
"""Negotiating a stream takes one round trip; ten seconds is a dead peer."""

DIAL_TIMEOUT_S = 10.0
"""TCP connect and handshake over a bad line take about two seconds. Whoever is dialled gives up sooner, and says so."""


def ignore_report(peer: PeerId, fault: Fault, detail: str) -> None:
    """Ignore a report, where nobody keeps any."""
