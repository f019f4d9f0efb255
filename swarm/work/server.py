"""The learner's end of the WORK streams: greet, hand on, answer.

What always holds: who has not been welcomed is not listened to, and may make us hold no more than a greeting; a peer
has at most one line, one open request for leases and a bounded number of answers waiting; deliveries wait in one
bounded inbox, no peer's more than a bounded share of it, and when there is no room the peer is told so instead of
being kept waiting; a peer that does not read what it is told loses its line. What to answer is decided by the
`WorkHandler`, which the learner role is.

Loops: per stream, the reader consumes what the peer says, the writer what the desk answers.
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
"""Deliveries waiting to be judged: several batches, so that a slow verdict does not idle the peers."""

MAX_WAITING_BYTES = 4 * MAX_WORK_BYTES
"""Of one peer's deliveries waiting in the inbox: the largest four, or all of the usual ones."""

INBOX_RETRY_MS = 500
"""Judging a delivery takes milliseconds; half a second later the inbox has moved on."""

ANSWERS = 256
"""Answers waiting for one peer: as many as deliveries in the inbox; who leaves them unread is not listening."""

SEND_TIMEOUT_S = 60.0
"""One answer of 16 MiB at 4 Mbit/s takes 34 s."""

LAST_WORD_S = 10.0
"""How long a peer that is dismissed may take to read what it was told."""

GREETING_TIMEOUT_S = 20.0
"""From the opening of the stream to our answer: one round trip, and a write to the ledger."""

HEARTBEATS = Rate(per_s=50.0, burst=200.0)
"""Of one peer. An honest one beats every `heartbeat_s`, ten times a second at most, and once more for each version that
it installs, of which a learner of toy models publishes ten a second, and when it pauses or is in trouble."""

MESSAGES = Rate(per_s=100.0, burst=1000.0)
"""Of one peer, heartbeats aside. The busiest honest one has leases of a fraction of a second: some 30 a second of
requests, starts and deliveries. Whoever says more is read no faster than this."""

HEARTBEAT_RATE, MESSAGE_RATE = "heartbeat_rate", "message_rate"
"""Budgets by the names under which refusals are told."""

MAX_INBOX_BYTES = 512 * MIB
"""Of all peers' deliveries waiting in the inbox. Usual ones are some 100 KiB, so that it is full by their number."""

MAX_GREETINGS = 4
"""Streams of one peer waiting to be welcomed: one is usual, two cross when a line breaks."""

COPIED = (
    "Another node that runs now has the key of this one, and was here first. One key is one peer. If this node's state "
    "directory was copied, remove node.key from the copy: the next start makes a new one. Else end the other node."
)
UNSETTLED = (
    "its key is in use here: by this node before it was started again, which is forgotten in a moment, or by another "
    "that has a copy"
)
"""What a second process with the key of a peer is told, at the end, and before that is sure."""


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One delivery in the inbox, or what was handed back of a lease, and where its one answer goes. It fills the peer's
    share until it is answered."""

    peer: PeerId
    delivery: Delivery | Handback
    answer: Callable[[FromLearner], None]


class WorkHandler(Protocol):
    """Who decides what peers are answered."""

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Judge a greeting. A Welcome makes the peer present until `left`, or until it is welcomed again.

        Between making it present and returning there must be no checkpoint: `left` for an earlier line could come.
        """

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant | ScoreGrant:
        """Wait until there is work for `peer`, or until it is worth telling it why there is none. A teacher, as its
        Hello said, is granted groups to score.

        May be cancelled (the peer asks anew, or leaves): then nothing that was to be granted may stay granted.
        """

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None: ...

    def take_start(self, peer: PeerId, started: Started) -> None: ...

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None:
        """A delivery for this lease was put into the inbox, as its sender says."""

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None: ...

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        """Take in who relayed a version to the peer. May raise PeerError, which ends its line."""

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        """Take in which proofs the peer asks for; it is answered by `WorkServer.tell`, or not at all."""

    def note_departure(self, peer: PeerId, reason: str) -> None:
        """The peer's line ended: `reason` is IN_GOOD_ORDER when it said goodbye, else what went wrong."""


@dataclass(kw_only=True, eq=False)
class _Line:
    """One peer that was welcomed: its queue of answers, and the scope in which its line lives."""

    peer: PeerId
    frames: FrameStream
    outgoing: trio.MemorySendChannel[FromLearner]
    instance: bytes
    beats: Bucket = field(default_factory=lambda: Bucket(rate=HEARTBEATS))
    says: Bucket = field(default_factory=lambda: Bucket(rate=MESSAGES))
    heard_s: float = field(default_factory=trio.current_time)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    asking: trio.CancelScope = field(default_factory=trio.CancelScope)
    reason: str = ""

    def answer(self, message: FromLearner) -> None:
        """Queue an answer; when the line is gone it is dropped, since the peer's repetition gets it again."""
        try:
            self.outgoing.send_nowait(message)
        except trio.WouldBlock:
            self.end(f"it has left {ANSWERS} answers unread")
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass

    def end(self, reason: str) -> None:
        """End the line; the first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()


@dataclass(kw_only=True)
class WorkServer:
    """See the module's paragraph. `start` registers it; every stream is then a task of the transport's.

    Args:
        protocol: of the streams that are answered.
        inbox: where deliveries wait to be judged; INBOX is the capacity it is made for.
        report: told of peers that do not keep to the protocol.
        doubles: judges who greets while a line of that peer is up.
        report_copy: called with a peer whose key a second process uses, which was turned away.
    """

    transport: Transport
    desk: WorkHandler
    inbox: trio.MemorySendChannel[Incoming]
    protocol: str = WORK
    report: Report = ignore_report
    doubles: Doubles = field(default_factory=Doubles)
    report_copy: Callable[[PeerId, Hello], None] = lambda peer, hello: None
    _lines: dict[PeerId, _Line] = field(default_factory=dict)
    _greetings: Counter[PeerId] = field(default_factory=Counter)
    _waiting: Counter[PeerId] = field(default_factory=Counter)

    def start(self) -> None:
        """Begin to answer."""
        self.transport.handle(self.protocol, self._handle)

    def dismiss(self, peer: PeerId, last_word: Refused | Farewell) -> None:
        """End the line of `peer` after telling it why; it has LAST_WORD_S to read that."""
        if (line := self._lines.get(peer)) is not None:
            line.answer(last_word)
            line.outgoing.close()
            line.scope.deadline = min(line.scope.deadline, trio.current_time() + LAST_WORD_S)

    def tell(self, peer: PeerId, message: FromLearner) -> None:
        """Send something unasked, if the peer is here."""
        if (line := self._lines.get(peer)) is not None:
            line.answer(message)

    async def _handle(self, stream: Stream) -> None:
        async with open_frames(stream, MAX_HELLO_BYTES) as frames:
            try:
                if (greeted := await self._greet(frames)) is not None:
                    await self._serve(frames, *greeted)
            except PeerError as error:
                self.report(stream.remote, error.fault, error.detail)
                raise

    async def _greet(self, frames: FrameStream) -> tuple[Hello, Welcome] | None:
        """Hear who it is and answer; None when it is not to be served. Raises StreamBroken or PeerError."""
        peer = frames.stream.remote
        if self._greetings[peer] >= MAX_GREETINGS:
            raise StreamBroken(f"{peer} has {MAX_GREETINGS} greetings under way already")
        self._greetings[peer] += 1
        try:
            with trio.move_on_after(GREETING_TIMEOUT_S):
                hello: FromNode | None = await frames.receive(FromNode)
                if hello is None:
                    return None
                if not isinstance(hello, Hello):
                    raise PeerError(Fault.BROKEN_PROMISE, f"said {type(hello).__name__} before Hello")
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
        """What a process is answered whose peer has a line already, which may be another process's."""
        line = self._lines.get(peer)
        standing = None if line is None else Standing(instance=line.instance, heard_s=line.heard_s)
        match self.doubles.judge(peer, hello.ext.get(INSTANCE, b""), standing, trio.current_time()):
            case Unsettled(retry_s=retry_s):
                return Refused(reason=UNSETTLED, retry_after_ms=math.ceil(1000 * retry_s))
            case Copied():
                self.report_copy(peer, hello)
                return Refused(reason=COPIED, ext={KEY_IN_USE: b""})
            case _:
                return None

    async def _serve(self, frames: FrameStream, hello: Hello, welcome: Welcome) -> None:
        """One line, from its welcome to its end. Returns in good order, raises StreamBroken or PeerError else."""
        peer = frames.stream.remote
        frames.limit = MAX_WORK_BYTES
        send, answers = trio.open_memory_channel[FromLearner](ANSWERS)
        line = _Line(peer=peer, frames=frames, outgoing=send, instance=hello.ext.get(INSTANCE, b""))
        if (old := self._lines.get(peer)) is not None:  # the peer came back before we noticed that it was gone
            old.end("the peer opened another line")
        self._lines[peer] = line
        self.transport.trust(peer)
        line.answer(welcome)
        try:
            with line.scope, first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, line, answers, nursery.cancel_scope)
                    line.reason = await self._read(line, nursery)
                    nursery.cancel_scope.cancel()
                return
            line.reason = line.reason or "it did not hear its dismissal"
            raise StreamBroken(line.reason)
        except (StreamBroken, PeerError) as error:
            line.reason = line.reason or str(error)
            raise
        finally:
            if self._lines.get(peer) is line:
                del self._lines[peer]
                self.transport.distrust(peer)
                self.doubles.forget(peer)
                self.desk.note_departure(peer, line.reason or "this node stops listening")

    async def _write(
        self, line: _Line, answers: trio.MemoryReceiveChannel[FromLearner], whole: trio.CancelScope
    ) -> None:
        async for answer in answers:
            with trio.move_on_after(SEND_TIMEOUT_S) as patience:
                try:
                    await line.frames.send(answer)
                except trio.Cancelled:
                    if patience.cancel_called:  # said here, before the reader finds its stream aborted
                        line.end(f"it did not take an answer within {SEND_TIMEOUT_S:.0f} s")
                    raise
        line.reason = "dismissed"
        whole.cancel()

    async def _read(self, line: _Line, nursery: trio.Nursery) -> str:
        while (message := await line.frames.receive(FromNode)) is not None:
            line.heard_s = trio.current_time()
            await self._keep_to_rate(line, message)
            match message:
                case LeaseRequest():
                    line.asking.cancel()
                    line.asking = trio.CancelScope()
                    nursery.start_soon(self._grant, line, message, line.asking)
                case Delivery() | Handback():
                    self._take(line, message)
                case Heartbeat():
                    self.desk.take_heartbeat(line.peer, message)
                case Started():
                    self.desk.take_start(line.peer, message)
                case LeaseReturn():
                    self.desk.take_return(line.peer, message)
                case Relayed():
                    self.desk.take_relay_receipt(line.peer, message)
                case ProofRequest():
                    self.desk.take_proof_request(line.peer, message)
                case Goodbye():
                    return IN_GOOD_ORDER
                case Hello():
                    raise PeerError(Fault.BROKEN_PROMISE, "greeted us twice")
        return "closed its line without a goodbye"

    async def _keep_to_rate(self, line: _Line, message: FromNode) -> None:
        """Wait before a message is acted on that comes too soon: the next is not read meanwhile."""
        bucket, budget = (line.beats, HEARTBEAT_RATE) if isinstance(message, Heartbeat) else (line.says, MESSAGE_RATE)
        if (wait_s := bucket.charge(1.0, trio.current_time())) > 0:
            self.transport.note_refusal(budget, line.peer)
            await trio.sleep(wait_s)
            line.heard_s = trio.current_time()

    async def _grant(self, line: _Line, request: LeaseRequest, scope: trio.CancelScope) -> None:
        with scope:
            await trio.lowlevel.checkpoint()  # a request that was replaced at once never reaches the desk
            line.answer(await self.desk.grant(line.peer, request))

    def _take(self, line: _Line, delivery: Delivery | Handback) -> None:
        """Put a delivery into the inbox, or say that it is full."""
        size = sum(len(record) for record in delivery.records)
        answer = partial(self._settle, line, size)
        is_room = self._waiting.total() + size <= MAX_INBOX_BYTES
        if is_room and self._waiting[line.peer] + size <= MAX_WAITING_BYTES:
            with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                self.inbox.send_nowait(Incoming(peer=line.peer, delivery=delivery, answer=answer))
                self._waiting[line.peer] += size
                self.desk.note_delivery(line.peer, LeaseId(delivery.lease))
                return
        line.answer(InboxFull(lease=delivery.lease, retry_after_ms=INBOX_RETRY_MS))

    def _settle(self, line: _Line, size: int, message: FromLearner) -> None:
        """A delivery was judged: its room is free again, and its answer goes out, if the line still is."""
        self._waiting[line.peer] -= size
        if not self._waiting[line.peer]:
            del self._waiting[line.peer]
        line.answer(message)
