"""Serve the learner's end of the WORK streams: greet peers, pass their messages on, send the answers.

The `WorkHandler`, which the learner role implements, decides the answers. A session (`_Session`) is one stream of a
peer that was welcomed.

Invariants:

- Before a peer is welcomed, only its greeting is read, and it takes no more memory than a greeting.
- A peer has at most one session, one open request for leases, and a bounded number of answers that wait for it.
- Deliveries wait in one bounded inbox, and each peer has a bounded share of it. If there is no room, the peer gets an
  answer that says so, instead of waiting.
- A peer that does not read its answers loses its session.

Loops: for each stream, the reader consumes the peer's messages, and the writer sends the answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_WORK_BYTES, MIB
from protocol.scores import ScoreGrant
from protocol.work import (
    IN_GOOD_ORDER,
    INSTANCE,
    KEY_IN_USE,
    MAX_HELLO_BYTES,
    WORK,
    Delivery,
    Farewell,
    FromLearner,
    FromNode,
    Goodbye,
    Grant,
    Handback,
    Heartbeat,
    Hello,
    InboxFull,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Refused,
    Relayed,
    Started,
    Welcome,
)
from swarm.transport.error_groups import first_cause
from swarm.transport.event_rate import Bucket, Rate
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import Report, Stream, StreamBroken, Transport, ignore_report
from swarm.work.duplicate_keys import Copied, Doubles, Standing, Unsettled

INBOX = 256
"""Deliveries that wait for verdicts: several batches, so that a slow verdict does not idle the peers."""

MAX_WAITING_BYTES = 4 * MAX_WORK_BYTES
"""Bytes of one peer's deliveries in the inbox: the four largest possible, or all of usual size."""

INBOX_RETRY_MS = 500
"""Milliseconds after which a peer repeats a delivery that found the inbox full. Judging one takes milliseconds, so half
a second later there is room."""

ANSWERS = 256
"""Answers that wait for one peer: as many as deliveries in the inbox. A peer that leaves so many unread does not
read."""

SEND_TIMEOUT_S = 60.0
"""Seconds to send one answer. One of 16 MiB takes 34 s at 4 Mbit/s."""

LAST_WORD_S = 10.0
"""Seconds that a dismissed peer has to read the reason."""

GREETING_TIMEOUT_S = 20.0
"""Seconds from the opening of the stream to our answer: one round trip, and a write to the ledger."""

HEARTBEATS = Rate(per_s=50.0, burst=200.0)
"""Heartbeats of one peer. An honest peer sends one every `heartbeat_s`, at most ten per second. It sends one more for
each version that it installs (a learner of toy models publishes ten per second), and when it pauses or has a
trouble."""

MESSAGES = Rate(per_s=100.0, burst=1000.0)
"""Messages of one peer except heartbeats. The busiest honest peer has leases of a fraction of a second: about 30
requests, starts and deliveries per second. Messages above this rate are read more slowly."""

HEARTBEAT_RATE, MESSAGE_RATE = "heartbeat_rate", "message_rate"
"""Names of the budgets under which refusals are reported."""

MAX_INBOX_BYTES = 512 * MIB
"""Bytes of all peers' deliveries in the inbox. Usual ones have about 100 KiB, so their number fills the inbox first."""

MAX_GREETINGS = 4
"""Streams of one peer that wait for a welcome. One is usual; two may overlap when a connection breaks."""

COPIED = (
    "Another node that runs now has the key of this one, and was here first. One key is one peer. If this node's state "
    "directory was copied, remove node.key from the copy: the next start makes a new one. Otherwise stop the other "
    "node."
)
UNSETTLED = (
    "the key of this node is in use: by its own earlier process, which the learner forgets in a moment, or by another "
    "node with a copy of the key"
)
"""Refusals of a second process with the key of a peer: the final one, and the one while it is not clear yet."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One Delivery or Handback in the inbox, and the function that takes its one answer.

    It counts against the peer's share until it is answered.
    """

    peer: PeerId
    delivery: Delivery | Handback
    answer: Callable[[FromLearner], None]


class WorkHandler(Protocol):
    """The part of the learner that decides the answers to peers."""

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Judge a greeting. After a Welcome the peer is present until `note_departure`, or until its next Welcome.

        Between making the peer present and returning there must be no checkpoint: `note_departure` for an earlier
        session could be called there.
        """

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant | ScoreGrant:
        """Wait until there is work for `peer`, or a reason to report why there is none.

        A teacher node, according to its Hello, gets groups to score. May be cancelled (the peer asks again, or leaves):
        then no lease may stay granted.
        """

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None: ...

    def take_start(self, peer: PeerId, started: Started) -> None: ...

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None:
        """Note that a delivery was put into the inbox which, according to its sender, is for this lease."""

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None: ...

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        """Handle the peer's relay receipt. May raise PeerError, which ends the session."""

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        """Handle a request for proofs. `WorkServer.tell` sends the answer, if there is one."""

    def note_departure(self, peer: PeerId, reason: str) -> None:
        """Note that the peer's session ended. `reason` is IN_GOOD_ORDER after a goodbye, otherwise the failure."""


@dataclass(kw_only=True, eq=False)
class _Session:
    """One session of a welcomed peer: its queue of answers, and its cancel scope."""

    peer: PeerId
    frames: FrameStream
    outgoing: trio.MemorySendChannel[FromLearner]
    instance: bytes
    heartbeats: Bucket = field(default_factory=lambda: Bucket(rate=HEARTBEATS))
    says: Bucket = field(default_factory=lambda: Bucket(rate=MESSAGES))
    heard_s: float = field(default_factory=trio.current_time)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    asking: trio.CancelScope = field(default_factory=trio.CancelScope)
    reason: str = ""

    def answer(self, message: FromLearner) -> None:
        """Queue an answer. If the session has ended it is dropped: the peer repeats its message and gets it again."""
        try:
            self.outgoing.send_nowait(message)
        except trio.WouldBlock:
            self.end(f"it left {ANSWERS} answers unread")
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass

    def end(self, reason: str) -> None:
        """End the session. The first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()


@dataclass(kw_only=True)
class WorkServer:
    """Serves the WORK streams of all peers. After `start`, every stream is a task of the transport.

    Args:
        desk: handler that decides the answers.
        inbox: channel of deliveries that wait for verdicts; INBOX is its intended capacity.
        protocol: protocol of the streams.
        report: function that is called with faults of peers.
        doubles: judge of greetings from peers that have a session.
        report_copy: function that is called with a peer and the Hello of a second process with its key.
    """

    transport: Transport
    desk: WorkHandler
    inbox: trio.MemorySendChannel[Incoming]
    protocol: str = WORK
    report: Report = ignore_report
    doubles: Doubles = field(default_factory=Doubles)
    report_copy: Callable[[PeerId, Hello], None] = lambda peer, hello: None
    _sessions: dict[PeerId, _Session] = field(default_factory=dict)
    _greetings: Counter[PeerId] = field(default_factory=Counter)
    _waiting: Counter[PeerId] = field(default_factory=Counter)

    def start(self) -> None:
        """Begin to answer peers."""
        self.transport.handle(self.protocol, self._handle)

    def dismiss(self, peer: PeerId, last_word: Refused | Farewell) -> None:
        """Send the reason to `peer` and end its session. The peer has LAST_WORD_S to read it."""
        if (session := self._sessions.get(peer)) is not None:
            session.answer(last_word)
            session.outgoing.close()
            session.scope.deadline = min(session.scope.deadline, trio.current_time() + LAST_WORD_S)

    def tell(self, peer: PeerId, message: FromLearner) -> None:
        """Send a message that the peer did not request, if it has a session."""
        if (session := self._sessions.get(peer)) is not None:
            session.answer(message)

    async def _handle(self, stream: Stream) -> None:
        async with open_frames(stream, MAX_HELLO_BYTES) as frames:
            try:
                if (greeted := await self._greet(frames)) is not None:
                    await self._serve(frames, *greeted)
            except PeerError as error:
                self.report(stream.remote, error.fault, error.detail)
                raise

    async def _greet(self, frames: FrameStream) -> tuple[Hello, Welcome] | None:
        """Read a greeting and answer it. Return None if the peer is refused. Raises StreamBroken or PeerError."""
        peer = frames.stream.remote
        if self._greetings[peer] >= MAX_GREETINGS:
            raise StreamBroken(f"{peer} already has {MAX_GREETINGS} streams that wait for a welcome")
        self._greetings[peer] += 1
        try:
            with trio.move_on_after(GREETING_TIMEOUT_S):
                hello: FromNode | None = await frames.receive(FromNode)
                if hello is None:
                    return None
                if not isinstance(hello, Hello):
                    raise PeerError(Fault.BROKEN_PROMISE, f"sent {type(hello).__name__} before Hello")
                match self._doubled(peer, hello) or await self.desk.welcome(peer, hello):
                    case Welcome() as welcome:
                        return hello, welcome
                    case Refused() as refused:
                        await frames.send(refused)
        finally:
            self._greetings[peer] -= 1
            if not self._greetings[peer]:
                del self._greetings[peer]
        return None

    def _doubled(self, peer: PeerId, hello: Hello) -> Refused | None:
        """Return a refusal if the peer already has a session that may belong to another process, otherwise None."""
        session = self._sessions.get(peer)
        standing = None if session is None else Standing(instance=session.instance, heard_s=session.heard_s)
        match self.doubles.judge(peer, hello.ext.get(INSTANCE, b""), standing, trio.current_time()):
            case Unsettled(retry_s=retry_s):
                return Refused(reason=UNSETTLED, retry_after_ms=math.ceil(1000 * retry_s))
            case Copied():
                self.report_copy(peer, hello)
                return Refused(reason=COPIED, ext={KEY_IN_USE: b""})
            case _:
                return None

    async def _serve(self, frames: FrameStream, hello: Hello, welcome: Welcome) -> None:
        """Serve one session from its welcome to its end. Raises StreamBroken or PeerError unless it ends properly."""
        peer = frames.stream.remote
        frames.limit = MAX_WORK_BYTES
        send, answers = trio.open_memory_channel[FromLearner](ANSWERS)
        session = _Session(peer=peer, frames=frames, outgoing=send, instance=hello.ext.get(INSTANCE, b""))
        if (old := self._sessions.get(peer)) is not None:  # the peer came back before we noticed that it was gone
            old.end("the peer began another session")
        self._sessions[peer] = session
        self.transport.trust(peer)
        session.answer(welcome)
        try:
            with session.scope, first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, session, answers, nursery.cancel_scope)
                    session.reason = await self._read(session, nursery)
                    nursery.cancel_scope.cancel()
                return
            session.reason = session.reason or "it did not read its dismissal"
            raise StreamBroken(session.reason)
        except (StreamBroken, PeerError) as error:
            session.reason = session.reason or str(error)
            raise
        finally:
            if self._sessions.get(peer) is session:
                del self._sessions[peer]
                self.transport.distrust(peer)
                self.doubles.forget(peer)
                self.desk.note_departure(peer, session.reason or "the learner stopped")

    async def _write(
        self, session: _Session, answers: trio.MemoryReceiveChannel[FromLearner], whole: trio.CancelScope
    ) -> None:
        async for answer in answers:
            with trio.move_on_after(SEND_TIMEOUT_S) as time_limit:
                try:
                    await session.frames.send(answer)
                except trio.Cancelled:
                    if time_limit.cancel_called:  # set the reason here, before the reader finds the stream aborted
                        session.end(f"it did not read an answer within {SEND_TIMEOUT_S:.0f} s")
                    raise
        session.reason = "dismissed"
        whole.cancel()

    async def _read(self, session: _Session, nursery: trio.Nursery) -> str:
        while (message := await session.frames.receive(FromNode)) is not None:
            session.heard_s = trio.current_time()
            await self._keep_to_rate(session, message)
            match message:
                case LeaseRequest():
                    session.asking.cancel()
                    session.asking = trio.CancelScope()
                    nursery.start_soon(self._grant, session, message, session.asking)
                case Delivery() | Handback():
                    self._take(session, message)
                case Heartbeat():
                    self.desk.take_heartbeat(session.peer, message)
                case Started():
                    self.desk.take_start(session.peer, message)
                case LeaseReturn():
                    self.desk.take_return(session.peer, message)
                case Relayed():
                    self.desk.take_relay_receipt(session.peer, message)
                case ProofRequest():
                    self.desk.take_proof_request(session.peer, message)
                case Goodbye():
                    return IN_GOOD_ORDER
                case Hello():
                    raise PeerError(Fault.BROKEN_PROMISE, "greeted us twice")
        return "it ended its session without a goodbye"

    async def _keep_to_rate(self, session: _Session, message: FromNode) -> None:
        """Wait before handling a message that comes too early. The next one is not read meanwhile."""
        bucket, budget = (
            (session.heartbeats, HEARTBEAT_RATE) if isinstance(message, Heartbeat) else (session.says, MESSAGE_RATE)
        )
        if (wait_s := bucket.charge(1.0, trio.current_time())) > 0:
            self.transport.note_refusal(budget, session.peer)
            await trio.sleep(wait_s)
            session.heard_s = trio.current_time()

    async def _grant(self, session: _Session, request: LeaseRequest, scope: trio.CancelScope) -> None:
        with scope:
            await trio.lowlevel.checkpoint()  # so that a request that is replaced at once never reaches the desk
            session.answer(await self.desk.grant(session.peer, request))

    def _take(self, session: _Session, delivery: Delivery | Handback) -> None:
        """Put a delivery into the inbox, or answer that it is full."""
        size = sum(len(record) for record in delivery.records)
        answer = partial(self._settle, session, size)
        is_room = self._waiting.total() + size <= MAX_INBOX_BYTES
        if is_room and self._waiting[session.peer] + size <= MAX_WAITING_BYTES:
            with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                self.inbox.send_nowait(Incoming(peer=session.peer, delivery=delivery, answer=answer))
                self._waiting[session.peer] += size
                self.desk.note_delivery(session.peer, LeaseId(delivery.lease))
                return
        session.answer(InboxFull(lease=delivery.lease, retry_after_ms=INBOX_RETRY_MS))

    def _settle(self, session: _Session, size: int, message: FromLearner) -> None:
        """Free the room of a delivery that was judged, and send its answer if the session still exists."""
        self._waiting[session.peer] -= size
        if not self._waiting[session.peer]:
            del self._waiting[session.peer]
        session.answer(message)
