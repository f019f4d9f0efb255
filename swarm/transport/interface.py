"""Define the interface through which all code of this package reaches other peers.

A `Transport` is one node's presence in the network. It has an identity, listening addresses (none for a node behind
NAT), authenticated and encrypted connections, ordered byte streams over them, and a small best-effort broadcast. The
implementations are `swarm.testing.memory_transport` and `swarm.libp2p`. Both pass the tests of
`swarm.testing.transport_conformance`.

Invariants:

- A connection belongs to both ends: either may open streams over it, no matter which one dialled. A node that cannot be
  dialled is a full member.
- `Stream.remote` is authenticated: the other end holds the key behind that peer id.
- A stream is ordered and reliable until it breaks. Then both directions raise `StreamBroken`.
- Broadcast is best effort: a message has at most `MAX_ANNOUNCEMENT_BYTES`, and may be lost, repeated or reordered. It
  never carries bulk.
- Cancelling a receive is always safe. A cancelled send may leave the stream half-written, so the caller must `abort`
  it; the connection below stays usable.
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
"""A function that is called when a peer did something wrong, with the peer, the kind of fault, and a sentence."""


class TransportError(Exception):
    """Base of the errors that a transport may raise."""


class StreamBroken(TransportError):
    """The stream, or the connection below it, ended before the other side closed it properly."""


class StreamRefused(TransportError):
    """The peer does not support this protocol, is not connected, or did not open a stream."""


class DialFailed(TransportError):
    """No address answered, or another peer answered. The message says which and why."""


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
        """Bytes that have arrived so far, including those that were not received yet."""

    async def send_all(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        """Send all of `parts` in order. Wait while the other side's window is full, unless there are only a few bytes.

        Each time that some bytes were sent and others remain, `note_progress` is called with the number just sent.
        Raises StreamBroken.
        """

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Send all of `parts` without waiting, and call `done` when all were sent.

        Returns False, and sends nothing, if something else is being sent or the transport does not support this. `done`
        is not called if the stream breaks. Neither callback may wait or raise. Raises StreamBroken.
        """

    def post(self, data: bytes) -> bool:
        """Send a small message without waiting, after everything that is being sent.

        Returns False, and sends nothing, if too much waits already. Raises StreamBroken.
        """

    async def receive_some(self, max_bytes: int) -> bytes:
        """Wait for at least one byte and return up to `max_bytes`.

        Returns b"" after the other side's `send_eof`, or after `on_arrival` returned False. Raises StreamBroken.
        """

    on_arrival: Callable[[], bool] | None
    """If set, this may be called when the expected bytes have arrived, instead of waking the task that waits in
    `receive_some`. It takes the bytes with `take_arrived`, and returns False if that task must be woken. It must not
    wait or raise."""

    def take_arrived(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` of the bytes that have arrived, without waiting; b"" if there are none.

        Raises StreamBroken.
        """

    def retain(self, size: int) -> None:
        """State how many of the received bytes the caller still holds. They count against the peer's budget.

        After the first call, the caller must call this again whenever it has released some: until then, all bytes that
        it received count.
        """

    def expect(self, size: int) -> None:
        """State that fewer than `size` bytes are of no use: the next `receive_some` may wait for them, or for a part.

        This is a hint that avoids wake-ups. At the end of the stream, all bytes that arrived are returned, even if more
        were expected.
        """

    async def send_eof(self) -> None:
        """Tell the other side that nothing more follows. Receiving is still possible."""

    async def aclose(self) -> None:
        """Close both directions properly. Idempotent; never raises StreamBroken."""

    async def abort(self) -> None:
        """Abort the stream at once: the other side sees StreamBroken. Idempotent; does not wait for the peer."""


StreamHandler = Callable[[Stream], Awaitable[None]]
"""A function that runs in its own task for each stream that a peer opens. The stream is closed when it returns, and
aborted when it raises.

A TransportError or PeerError that it raises ends only that stream. Any other error is a bug of ours and is raised out
of the transport's scope."""


@dataclass(frozen=True, kw_only=True)
class PeerConnected:
    """The first connection to `peer` is open. `dialled`: whether we dialled it."""

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
    """One received broadcast. `source` is the neighbour that forwarded it; the envelope names its author."""

    source: PeerId
    topic: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of stream payload exchanged with one peer, or with all, since the transport started."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The refusals of one of the transport's budgets since the last report.

    There were `times` in total. `who_times` of these concerned `who`, the address or peer that was refused most often.
    """

    budget: str
    times: int
    who: str
    who_times: int


BroadcastValidator = Callable[[Broadcast], bool]
"""A synchronous, cheap, pure function. If it returns False, the broadcast is neither delivered nor forwarded."""


class Transport(Protocol):
    """One node's presence in the network. An async context manager creates it and owns its background tasks."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> list[str]:
        """Return full multiaddrs with a /p2p/ suffix that others may dial; none if this node does not listen."""

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool = False) -> PeerId:
        """Connect to the peer that the /p2p/ suffix of `addresses` names (all must name the same one).

        Returns at once if it is connected already. Tries the addresses in order. `named_by_others`: a peer named the
        addresses, not our owner; then those that `may_dial` does not allow are left out, also if a host name resolves
        to one. Raises DialFailed.
        """

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`. Do nothing if there are none."""

    def connected_peers(self) -> frozenset[PeerId]: ...

    def events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """Return a new channel of connection events. It starts with a PeerConnected for every connected peer.

        EVENT_QUEUE bounds it; a subscriber that does not keep up is closed.
        """

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve `protocol` with `handler` for streams that peers open."""

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream over any connection to `peer`. Raises StreamRefused, within STREAM_OPEN_TIMEOUT_S."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Broadcast `data` to others, not to this node. Raise LocalProtocolError above MAX_ANNOUNCEMENT_BYTES."""

    async def subscribe(self, topic: str, validate: BroadcastValidator) -> trio.MemoryReceiveChannel[Broadcast]:
        """Receive broadcasts that pass `validate`, from now on. Only subscribed topics are forwarded to others.

        BROADCAST_QUEUE bounds the channel; when it is full, the oldest broadcast is dropped.
        """

    def reached(self) -> Reach:
        """Return how others reach this node, as far as it knows, and how its connections came about."""

    def take_carried(self) -> Mapping[tuple[PeerId, PeerId], int]:
        """Return the bytes that circuits through this node carried since the last call, each byte once.

        The keys are the two peers at the ends, the smaller id first.
        """

    def reach_evidence(self) -> ReachEvidence:
        """Return the evidence for `reached`; it is empty for a transport without a real network."""

    def may_dial(self, address: str) -> bool:
        """Return whether an address that a peer named may be dialled: none in a network to which we do not belong."""

    def limit_rates(self, *, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        """Cap from now on what all connections together send and receive; None is no cap. Nothing is disconnected."""

    def traffic(self) -> dict[PeerId, Traffic]:
        """Return the traffic by peer: of members since the transport started, of strangers while they are connected."""

    def total_traffic(self) -> Traffic:
        """Return the traffic with all peers since the transport started."""

    def trust(self, peer: PeerId) -> None:
        """Treat `peer` as a member from now on: it has the budgets of members on all its connections."""

    def distrust(self, peer: PeerId) -> None:
        """Treat `peer` as a stranger again, except on connections that we dialled. Do nothing if it is one already."""

    def is_trusted(self, peer: PeerId) -> bool:
        """Return whether `peer` is a member, or was dialled by us."""

    def expect(self, origins: Mapping[PeerId, str], awaited: Collection[PeerId] = ()) -> None:
        """Name former members with their origins. If there are too few places, they are accepted before other peers,
        and those in `awaited` before all."""

    def origins(self) -> dict[PeerId, str]:
        """Return the origin of each connected member: an IPv4 address, or the /64 network of an IPv6 address."""

    def note_refusal(self, budget: str, who: str) -> None:
        """Record that a budget of the layer above refused or slowed down `who`, for `refusals`."""

    def refusals(self) -> list[Refusal]:
        """Return the refusals since the last call, by budget."""


EVENT_QUEUE = 1024
"""Connection events that wait for one subscriber: far more than the peers that join within one scheduling pause."""

BROADCAST_QUEUE = 64
"""Broadcasts that wait for one subscriber. Announcements are state, so only the newest matters."""

STREAM_OPEN_TIMEOUT_S = 10.0
"""Seconds to open a stream. Negotiation takes one round trip; a peer that needs ten seconds is dead."""

DIAL_TIMEOUT_S = 10.0
"""Seconds to dial. TCP connect and handshake over a bad link take about two. The dialled node gives up sooner, and says
so."""


def ignore_report(peer: PeerId, fault: Fault, detail: str) -> None:
    """Ignore a report, for callers that keep none."""
