"""Keep a rollout node's session with the learner: receive leases, and send deliveries and heartbeats.

A session (`_Session`) is one WORK stream. The node opens it over a connection that it dialled or already had.

Invariants:

- A delivery is repeated until its receipt arrives, over as many sessions as necessary. The receipt is checked before it
  is accepted.
- At most `MAX_UNDELIVERED` deliveries wait.
- A session drops no message while it lives: if the learner does not read, the session ends.
- When a session ends, the next one is opened after pauses that grow. Callers that wait for a lease or a receipt go on
  waiting.

Loops: `run` dials and greets. In each session, the reader consumes the learner's messages, the writer sends ours, and a
third task sends heartbeats.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import LeaseId, PeerId, short
from protocol.core.limits import MAX_LEASES_PER_GRANT, MAX_REASON_CHARS, MAX_WORK_BYTES
from protocol.scores import ScoreGrant, ScoreLease, open_score_lease
from protocol.work import (
    KEY_IN_USE,
    MAX_LEASES_HELD,
    PARTS,
    PROOFS,
    RELAY_RECEIPTS,
    WORK,
    Acknowledgement,
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
    Introduction,
    Lease,
    LeaseRecall,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Proofs,
    Receipt,
    Refused,
    Relayed,
    Revised,
    Started,
    Welcome,
    Window,
    open_lease,
    open_receipt,
)
from swarm.transport.error_groups import first_cause
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import DialFailed, Report, StreamBroken, StreamRefused, Transport

MAX_UNDELIVERED = 64
"""Deliveries without a receipt. At this number the caller stops generating, because memory must not fill while the
learner is away."""

RELAYED_KEPT = 4
"""Relay receipts that are sent again in a new session: those of the versions that are usually still in use."""

OUTGOING = 2 * MAX_LEASES_HELD
"""Messages that wait for the writer: for each lease that a node may hold, its start and its records."""

GREETING_TIMEOUT_S = 20.0
"""Seconds from opening the stream to Welcome. The learner may be restoring a checkpoint."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""Pause in seconds before dialling again, doubled each time. A learner that restarts is back within seconds; one that
is down gets few dials."""

SHORTEST_WAIT_S = 0.1
"""Seconds between an empty grant and our next request, even if the learner asks for an earlier one."""

LAST_WORDS_S = 5.0
"""Seconds to read the learner's last messages after the stream broke: they may contain the reason."""


class RunFinished(Exception):
    """The learner sent that the run is over. The message is its reason."""


class NotWelcome(Exception):
    """The learner refused this node for good. The message is its reason, and what to do."""


class KeyInUse(NotWelcome):
    """The learner refused this node because another process with its key is connected."""


@dataclass(frozen=True, kw_only=True)
class Connected:
    """A session has begun; `welcome` are the learner's terms."""

    learner: PeerId
    welcome: Welcome


@dataclass(frozen=True, kw_only=True)
class Disconnected:
    """There is no session; the next try is in `pause_s` seconds. `refused`: the learner asked us to come back later."""

    reason: str
    pause_s: float
    refused: bool = False


@dataclass(frozen=True, kw_only=True)
class NoLease:
    """The learner had no lease for this node. The event is sent once for each new `reason`."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class ReceiptRevised:
    """A later receipt for one of our leases, whose signature was checked, and its envelope."""

    receipt: Receipt
    raw: bytes


SessionEvent = Connected | Disconnected | Introduction | NoLease | LeaseRecall | ReceiptRevised | Window


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A lease whose signature was checked, and the lead of the learner's clock over ours, in milliseconds."""

    lease: Lease
    clock_offset_ms: int


@dataclass(kw_only=True, eq=False)
class _Pending:
    delivery: Delivery | Handback
    done: trio.Event = field(default_factory=trio.Event)
    receipt: tuple[Receipt, bytes] | None = None
    again: bool = False


@dataclass(kw_only=True, eq=False)
class _Ask:
    """A request for leases or, from a teacher node, for score leases."""

    rollouts: int
    teaches: bool = False
    done: trio.Event = field(default_factory=trio.Event)
    granted: list[Granted] = field(default_factory=list)
    scoring: list[ScoreLease] = field(default_factory=list)
    retry_after_s: float = 0.0


@dataclass(kw_only=True, eq=False)
class _Question:
    request: ProofRequest
    done: trio.Event = field(default_factory=trio.Event)
    answer: Proofs = field(default_factory=Proofs)


@dataclass(kw_only=True, eq=False)
class _Session:
    """One session: its queue of messages, and the cancel scope of its tasks."""

    outgoing: trio.MemorySendChannel[FromNode]
    scope: trio.CancelScope
    takes_relayed: bool = False
    proves: bool = False
    takes_parts: bool = False
    down: trio.Event = field(default_factory=trio.Event)
    reason: str = ""
    heartbeat_queued: bool = False
    heartbeat_again: bool = False

    def say(self, message: FromNode) -> None:
        try:
            self.outgoing.send_nowait(message)
        except trio.WouldBlock:
            self.end(f"the learner has left {OUTGOING} messages unread")

    def end(self, reason: str) -> None:
        """End the session. The first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()


class _NotNow(Exception):
    """The learner refused this node for now. The message is its reason."""

    def __init__(self, reason: str, retry_s: float) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


@dataclass(kw_only=True)
class WorkClient:
    """Keeps one node's session with the learner.

    Args:
        learner: addresses of the learner; the caller keeps the list up to date.
        hello: function that returns our greeting, called for every session.
        heartbeat: function that returns our state, called for every heartbeat.
        now_ms: clock of this node, in milliseconds since 1970.
        on_event: function that is called with each SessionEvent.
        report: function that is called with the learner's faults.
        protocol: protocol of the stream.
        on_proofs: function that is called when the learner may have proofs for us: at the start of each session with a
            learner that has any, and when it says so.
    """

    transport: Transport
    authority: Authority
    learner: Sequence[str]
    hello: Callable[[], Hello]
    heartbeat: Callable[[], Heartbeat]
    now_ms: Callable[[], int]
    on_event: Callable[[SessionEvent], None]
    report: Report
    on_proofs: Callable[[], None] = lambda: None
    protocol: str = WORK
    rng: random.Random = field(default_factory=random.Random)
    _pending: dict[LeaseId, _Pending] = field(default_factory=dict)
    _relayed: deque[Relayed] = field(default_factory=lambda: deque(maxlen=RELAYED_KEPT))
    _session: _Session | None = None
    _ask: _Ask | None = None
    _question: _Question | None = None
    _reason: str = ""
    _leaving: bool = False

    @property
    def is_up(self) -> bool:
        """Whether the learner has welcomed this node, and the session lasts."""
        return self._session is not None

    async def run(self) -> None:
        """Keep a session with the learner until cancelled.

        Raises NotWelcome if the learner refuses this node for good, and RunFinished when the run is over.
        """
        backoff = FIRST_PAUSE_S
        while True:
            began = trio.current_time()
            reason, wanted_s = await self._one_session()
            if self._leaving:
                await trio.sleep_forever()
            if trio.current_time() - began > LONGEST_PAUSE_S:
                backoff = FIRST_PAUSE_S
            pause = max(wanted_s or 0.0, backoff * self.rng.uniform(0.75, 1.25))
            self.on_event(Disconnected(reason=reason, pause_s=pause, refused=wanted_s is not None))
            await trio.sleep(pause)
            backoff = min(2 * backoff, LONGEST_PAUSE_S)

    async def request_leases(self, rollouts: int) -> list[Granted]:
        """Ask for up to `rollouts` more completions and wait until the learner grants some. One caller at a time."""
        return (await self._request(rollouts, teaches=False)).granted

    async def request_scoring(self, rollouts: int) -> list[ScoreLease]:
        """Ask for up to `rollouts` completions to score and wait until the learner grants some. One caller at a time.

        Only for a teacher node, whose Hello contains TEACHER.
        """
        return (await self._request(rollouts, teaches=True)).scoring

    async def _request(self, rollouts: int, *, teaches: bool) -> _Ask:
        """Ask until the learner grants something. Return the request with its leases."""
        while True:
            if self._ask is not None:
                raise LocalProtocolError("another request for leases is still open")
            self._ask = ask = _Ask(rollouts=rollouts, teaches=teaches)
            try:
                self._say(LeaseRequest(rollouts=rollouts))  # without a session, `_catch_up` sends it in the next one
                await ask.done.wait()
            except trio.Cancelled:
                self._decline([granted.lease for granted in ask.granted])
                self._decline(ask.scoring)
                raise
            finally:
                self._ask = None
            if ask.granted or ask.scoring:
                return ask
            await trio.sleep(max(ask.retry_after_s, SHORTEST_WAIT_S))

    async def deliver(self, lease: LeaseId, records: Sequence[bytes]) -> tuple[Receipt, bytes]:
        """Deliver all records of a lease. Wait for the receipt and return it with its bytes as signed.

        Raises LocalProtocolError if the lease is being delivered already, MAX_UNDELIVERED others are, or the records do
        not fit one frame.
        """
        receipt = await self._hand_in(Delivery(lease=lease, records=list(records)))
        assert receipt is not None, "every learner accepts deliveries"
        return receipt

    @property
    def takes_parts(self) -> bool:
        """Whether the learner of this session accepts Handback: leases that were begun, with their records."""
        return self._session is not None and self._session.takes_parts

    async def return_begun(self, lease: LeaseId, records: Sequence[bytes], reason: str) -> tuple[Receipt, bytes] | None:
        """Return a lease with one or more records of what was generated, and wait for the receipt as `deliver` does.

        Returns None if the learner does not accept Handback, or no longer; then the lease is returned without records.
        Raises LocalProtocolError as `deliver` does.
        """
        if self._session is not None and not self._session.takes_parts:
            self.return_leases([lease], reason)
            return None
        said = Handback(lease=lease, records=list(records), reason=reason[:MAX_REASON_CHARS])
        return await self._hand_in(said)

    async def _hand_in(self, said: Delivery | Handback) -> tuple[Receipt, bytes] | None:
        lease = LeaseId(said.lease)
        size = sum(len(record) + 5 for record in said.records)
        if size > MAX_WORK_BYTES - 1024:
            raise LocalProtocolError(f"the records of lease {short(lease)} have {size} bytes, more than a frame takes")
        if lease in self._pending:
            raise LocalProtocolError(f"lease {short(lease)} is being delivered already")
        if len(self._pending) >= MAX_UNDELIVERED:
            raise LocalProtocolError(f"{MAX_UNDELIVERED} deliveries already wait for their receipts")
        pending = self._pending[lease] = _Pending(delivery=said)
        try:
            self._say(pending.delivery)
            await pending.done.wait()
        finally:
            del self._pending[lease]
        return pending.receipt

    async def request_proofs(self, request: ProofRequest) -> Proofs:
        """Ask for proofs and wait for the answer, which is not checked here. One caller at a time.

        Waits over as many sessions as necessary, and for ever if the learner has no proofs.
        """
        if self._question is not None:
            raise LocalProtocolError("another request for proofs is still open")
        self._question = question = _Question(request=request)
        try:
            if self._session is not None and self._session.proves:
                self._session.say(request)
            await question.done.wait()
        finally:
            self._question = None
        return question.answer

    def heartbeat_now(self) -> None:
        """Send a heartbeat now. Without a session, the next session begins with one."""
        if self._session is not None:
            self._tell_state(self._session)

    def tell_started(self, started: Started) -> None:
        """Send with which version a lease is generated. Without a session the message is lost."""
        self._say(started)

    def tell_relayed(self, receipt: bytes) -> None:
        """Send a relay receipt now and in each new session, until RELAYED_KEPT later ones replaced it."""
        self._relayed.append(Relayed(receipt=receipt))
        if self._session is not None and self._session.takes_relayed:
            self._session.say(self._relayed[-1])

    def return_leases(self, leases: Sequence[LeaseId], reason: str) -> None:
        """Return leases that will not be delivered. Without a session, the next Hello does this by not naming them."""
        for first in range(0, len(leases), MAX_LEASES_PER_GRANT):
            some: list[bytes] = list(leases[first : first + MAX_LEASES_PER_GRANT])
            self._say(LeaseReturn(leases=some, reason=reason[:MAX_REASON_CHARS]))

    async def leave(self, reason: str) -> None:
        """Say goodbye and wait until the learner has ended the session. Return at once if there is none.

        The caller should set a timeout, and then cancel `run`, which does nothing from now on.
        """
        self._leaving = True
        if (session := self._session) is not None:
            session.say(Goodbye(reason=reason[:MAX_REASON_CHARS]))
            await session.down.wait()

    def _say(self, message: FromNode) -> None:
        """Queue a message. Without a session it is dropped; messages that must arrive are repeated in the next one."""
        if self._session is not None:
            self._session.say(message)

    async def _one_session(self) -> tuple[str, float | None]:
        """Dial, greet and serve one session until it ends.

        Returns the reason, and the seconds to wait if the learner refused this node for now.
        """
        try:
            learner = await self.transport.dial(self.learner)
            stream = await self.transport.open_stream(learner, self.protocol)
            with first_cause():
                async with open_frames(stream, MAX_WORK_BYTES) as frames:
                    return await self._serve(frames, learner), None
        except (DialFailed, StreamRefused, StreamBroken) as error:
            return str(error), None
        except trio.TooSlowError:
            return f"the learner did not answer within {GREETING_TIMEOUT_S:.0f} s", None
        except _NotNow as refusal:
            return str(refusal), refusal.retry_s
        except PeerError as error:
            self.report(stream.remote, error.fault, error.detail)
            return str(error), None

    async def _serve(self, frames: FrameStream, learner: PeerId) -> str:
        """Greet, then exchange messages until either side ends the session. Return the reason."""
        welcome = await self._greet(frames)
        self.on_event(Connected(learner=learner, welcome=welcome))
        outgoing, queue = trio.open_memory_channel[FromNode](OUTGOING)
        async with trio.open_nursery() as nursery:
            session = self._session = _Session(
                outgoing=outgoing,
                scope=nursery.cancel_scope,
                takes_relayed=RELAY_RECEIPTS in welcome.ext,
                proves=PROOFS in welcome.ext,
                takes_parts=PARTS in welcome.ext,
            )
            try:
                nursery.start_soon(self._write, frames, queue, session)
                nursery.start_soon(self._send_heartbeats, session, welcome.heartbeat_ms / 1000)
                self._catch_up(session)
                await self._read(frames, learner, nursery)
                session.end("the learner ended the session")
            finally:
                self._session = None
                session.down.set()
        return session.reason

    async def _greet(self, frames: FrameStream) -> Welcome:
        with trio.fail_after(GREETING_TIMEOUT_S):
            await frames.send(self.hello())
            answer: FromLearner | None = await frames.receive(FromLearner)
        match answer:
            case Welcome():
                return answer
            case Refused():
                raise _refusal(answer)
            case Farewell(reason=reason):
                raise RunFinished(reason)
            case None:
                raise StreamBroken("the learner closed the stream instead of answering our greeting")
            case _:
                raise PeerError(Fault.BROKEN_PROMISE, f"answered our greeting with {type(answer).__name__}")

    def _catch_up(self, session: _Session) -> None:
        """Repeat the messages that the previous session may have lost."""
        for pending in self._pending.values():
            pending.again = False
            if (
                isinstance(pending.delivery, Handback) and not session.takes_parts
            ):  # an older program runs the learner now
                self.return_leases([LeaseId(pending.delivery.lease)], pending.delivery.reason)
                pending.done.set()
                continue
            session.say(pending.delivery)
        if self._ask is not None:
            session.say(LeaseRequest(rollouts=self._ask.rollouts))
        for relayed in self._relayed if session.takes_relayed else ():  # last, because they are not urgent
            session.say(relayed)
        if session.proves:
            if self._question is not None:
                session.say(self._question.request)
            self.on_proofs()

    async def _write(self, frames: FrameStream, queue: trio.MemoryReceiveChannel[FromNode], session: _Session) -> None:
        try:
            async for message in queue:
                await frames.send(message)
                if isinstance(message, Heartbeat):
                    session.heartbeat_queued = False
                    if session.heartbeat_again:
                        self._tell_state(session)
        except StreamBroken as error:
            # The reader gets this error too, but first the learner's last messages: perhaps that the run is over.
            await trio.sleep(LAST_WORDS_S)
            session.end(str(error))

    async def _send_heartbeats(self, session: _Session, every_s: float) -> None:
        while True:
            if not session.heartbeat_queued:  # at most one in the queue, because more would say nothing new
                self._tell_state(session)
            await trio.sleep(every_s)

    def _tell_state(self, session: _Session) -> None:
        """Queue a heartbeat. If one waits already, another is made when that one is sent."""
        session.heartbeat_again = session.heartbeat_queued
        if not session.heartbeat_queued:
            session.heartbeat_queued = True
            session.say(self.heartbeat())

    async def _read(self, frames: FrameStream, learner: PeerId, nursery: trio.Nursery) -> None:
        while (message := await frames.receive(FromLearner)) is not None:
            match message:
                case Grant():
                    self._granted(message, learner)
                case ScoreGrant():
                    self._granted_scoring(message, learner)
                case Acknowledgement(lease=lease, receipt=raw):
                    self._acknowledged(LeaseId(lease), raw)
                case InboxFull(lease=lease, retry_after_ms=retry):
                    pending = self._pending.get(LeaseId(lease))
                    if pending is not None and not pending.again:
                        pending.again = True
                        nursery.start_soon(self._redeliver, pending, retry / 1000)
                case Revised(receipt=raw):
                    self.on_event(ReceiptRevised(receipt=self._own_receipt(raw), raw=raw))
                case Introduction() | LeaseRecall() | Window():
                    self.on_event(message)
                case Proofs():
                    self._heard_proofs(message)
                case Refused():
                    raise _refusal(message)
                case Farewell(reason=reason):
                    raise RunFinished(reason)
                case Welcome():
                    raise PeerError(Fault.BROKEN_PROMISE, "the learner greeted us twice")

    def _granted(self, grant: Grant, learner: PeerId) -> None:
        offset = grant.now_ms - self.now_ms()
        leases = [open_lease(raw, self.authority.swarm, learner=learner) for raw in grant.leases]
        if (ask := self._answered(grant, leases, teaches=False)) is not None:
            ask.granted = [Granted(lease=lease, clock_offset_ms=offset) for lease in leases]

    def _granted_scoring(self, grant: ScoreGrant, learner: PeerId) -> None:
        leases = [open_score_lease(raw, self.authority.swarm, learner=learner) for raw in grant.leases]
        if (ask := self._answered(grant, leases, teaches=True)) is not None:
            ask.scoring = leases

    def _answered(
        self, grant: Grant | ScoreGrant, leases: Sequence[Lease] | Sequence[ScoreLease], *, teaches: bool
    ) -> _Ask | None:
        """Return the request that this grant answers, and let it continue.

        If no request waits, return the leases to the learner, and None.
        """
        for lease in leases:
            if lease.peer != self.transport.peer_id:
                raise PeerError(Fault.BROKEN_PROMISE, f"lease {short(lease.id)} is bound to {lease.peer}")
        ask = self._ask
        if ask is None or ask.done.is_set() or ask.teaches != teaches:
            self._decline(leases)
            return None
        ask.retry_after_s = grant.retry_after_ms / 1000
        if grant.reason != self._reason and not leases:
            self.on_event(NoLease(reason=grant.reason))
        self._reason = "" if leases else grant.reason
        ask.done.set()
        return ask

    def _decline(self, leases: Sequence[Lease] | Sequence[ScoreLease]) -> None:
        """Return leases that no caller waits for. Otherwise the learner would wait for them until their deadline."""
        self.return_leases([LeaseId(lease.id) for lease in leases], "no longer asked for")

    def _acknowledged(self, lease: LeaseId, raw: bytes) -> None:
        receipt = self._own_receipt(raw)
        if receipt.lease != lease:
            raise PeerError(Fault.BROKEN_PROMISE, f"the receipt for lease {short(lease)} is for another lease")
        if (pending := self._pending.get(lease)) is not None:
            pending.receipt = receipt, raw
            pending.done.set()

    def _heard_proofs(self, proofs: Proofs) -> None:
        """Handle Proofs: a tally alone announces new proofs, anything else is an answer.

        An answer that no caller waits for is dropped; it will be requested again.
        """
        if proofs.tally and proofs.is_empty:
            self.on_proofs()
        elif self._question is not None and not self._question.done.is_set():
            self._question.answer = proofs
            self._question.done.set()

    def _own_receipt(self, raw: bytes) -> Receipt:
        receipt = open_receipt(raw, self.authority)
        if receipt.peer != self.transport.peer_id:
            raise PeerError(Fault.BROKEN_PROMISE, f"the receipt for lease {short(receipt.lease)} is for another peer")
        return receipt

    async def _redeliver(self, pending: _Pending, after_s: float) -> None:
        await trio.sleep(after_s)
        pending.again = False
        if not pending.done.is_set():
            self._say(pending.delivery)


def _refusal(refused: Refused) -> Exception:
    if refused.retry_after_ms is None:
        return (KeyInUse if KEY_IN_USE in refused.ext else NotWelcome)(refused.reason)
    return _NotNow(refused.reason, refused.retry_after_ms / 1000)
