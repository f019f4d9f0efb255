"""Reception: the learner's end of the work connections, against scripted peers and a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.codec import encode
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.limits import MAX_WORK_BYTES
from protocol.work import (
    INSTANCE,
    KEY_IN_USE,
    MAX_HELLO_BYTES,
    WORK,
    Acknowledgement,
    Delivery,
    Farewell,
    FromLearner,
    FromNode,
    Goodbye,
    Grant,
    Heartbeat,
    Hello,
    InboxFull,
    Introduction,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Refused,
    Relayed,
    Started,
    Welcome,
)
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.transport.event_rate import Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import StreamBroken
from swarm.work import server as reception
from swarm.work.server import (
    ANSWERS,
    GREETING_TIMEOUT_S,
    INBOX,
    LAST_WORD_S,
    MAX_GREETINGS,
    SEND_TIMEOUT_S,
    Incoming,
    WorkServer,
)
from tests.support.swarm_fixture import NOW_MS, hello_from, lease_id_of, peer_of, welcome_with

LEARNER = peer_of("learner")
FILLER = b"x" * 1_000_000
FORGED = b"forged"


@dataclass
class ScriptedDesk:
    """Welcomes everybody, notes what it hears, and grants when a test lets it."""

    answer: Welcome | Refused = field(default_factory=welcome_with)
    notes: list[Any] = field(default_factory=list)
    may_grant: trio.Event = field(default_factory=trio.Event)
    reached: list[LeaseRequest] = field(default_factory=list)

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        await trio.lowlevel.checkpoint()
        self.notes.append((peer, hello))
        return self.answer

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        self.reached.append(request)
        await self.may_grant.wait()
        return Grant(leases=[], now_ms=NOW_MS, reason=f"for {request.rollouts}")

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        self.notes.append((peer, heartbeat))

    def take_start(self, peer: PeerId, started: Started) -> None:
        self.notes.append((peer, started))

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None:
        self.notes.append((peer, lease))

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        self.notes.append((peer, leases))

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        if relayed.receipt == FORGED:
            raise PeerError(Fault.BAD_SIGNATURE, "a relay receipt")
        self.notes.append((peer, relayed))

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        self.notes.append((peer, request))

    def note_departure(self, peer: PeerId, reason: str) -> None:
        self.notes.append((peer, reason))

    def departures(self, peer: PeerId) -> list[str]:
        return [note for who, note in self.notes if who == peer and isinstance(note, str)]


@dataclass
class Learner:
    """A reception with its desk and inbox, and peers that speak raw frames."""

    network: MemoryNetwork
    transport: MemoryTransport
    reception: WorkServer
    desk: ScriptedDesk
    inbox: trio.MemoryReceiveChannel[Incoming]
    faults: list[tuple[PeerId, Fault]]
    clients: dict[str, MemoryTransport] = field(default_factory=dict)

    async def open(self, name: str) -> FrameStream:
        """A new WORK stream from the peer called `name`."""
        return FrameStream(await self.clients[name].open_stream(LEARNER, WORK), MAX_WORK_BYTES)

    async def join(self, name: str) -> FrameStream:
        """A line that was welcomed."""
        frames = await self.open(name)
        await frames.send(hello_from(name))
        assert isinstance(await frames.receive(FromLearner), Welcome)
        return frames


@asynccontextmanager
async def learner(*names: str, inbox: int = INBOX) -> AsyncIterator[Learner]:
    network = MemoryNetwork()
    async with network.node("learner", peer_id=LEARNER) as transport, trio.open_nursery() as nursery:
        desk, faults = ScriptedDesk(), list[tuple[PeerId, Fault]]()
        send, receive = trio.open_memory_channel[Incoming](inbox)
        desk_side = WorkServer(
            transport=transport,
            desk=desk,
            inbox=send,
            report=lambda peer, fault, detail: faults.append((peer, fault)),
        )
        desk_side.start()
        here = Learner(network, transport, desk_side, desk, receive, faults)
        for name in names:
            here.clients[name] = await nursery.start(_client, here, name)
        yield here
        nursery.cancel_scope.cancel()


async def _client(here: Learner, name: str, *, task_status: trio.TaskStatus[MemoryTransport]) -> None:
    async with here.network.node(name, peer_id=peer_of(name)) as transport:
        await transport.dial(here.transport.addresses())
        task_status.started(transport)
        await trio.sleep_forever()


async def is_silent(frames: FrameStream) -> bool:
    await trio.testing.wait_all_tasks_blocked()
    with trio.move_on_after(0) as time_limit:
        await frames.receive_bytes()
    return time_limit.cancelled_caught


def delivery(number: int, size: int = 10) -> Delivery:
    return Delivery(lease=lease_id_of(number), records=[FILLER[:size]])


A = peer_of("a")


# Greeting.


FIRST, SECOND = {INSTANCE: b"\x01" * 16}, {INSTANCE: b"\x02" * 16}


async def answered(here: Learner, name: str, ext: dict[str, bytes]) -> FromLearner | None:
    """Return the answer to a process that greets."""
    frames = await here.open(name)
    await frames.send(hello_from(name, ext=ext))
    answer: FromLearner | None = await frames.receive(FromLearner)
    return answer


async def test_a_second_process_with_a_peers_key_is_turned_away_and_the_first_works_on(
    autojump_clock: MockClock,
) -> None:
    async with learner("a") as here:
        copies: list[tuple[PeerId, Hello]] = []
        here.reception.report_copy = lambda peer, hello: copies.append((peer, hello))
        first = await here.open("a")
        await first.send(hello_from("a", ext=FIRST))
        assert isinstance(await first.receive(FromLearner), Welcome)
        await trio.sleep(10)
        unsure = await answered(here, "a", SECOND)
        assert isinstance(unsure, Refused)
        assert unsure.retry_after_ms == 6000
        assert unsure.ext == {}
        for _ in range(2):
            assert copies == [], "one word may be a dead process's, which its system sends long after it"
            await trio.sleep(4)
            await first.send(Heartbeat())
            await trio.sleep(2)
            sure = await answered(here, "a", SECOND)
        assert isinstance(sure, Refused)
        assert (sure.retry_after_ms, sure.ext) == (None, {KEY_IN_USE: b""})
        assert "node.key" in sure.reason
        assert copies == [(A, hello_from("a", ext=SECOND))]
        assert here.desk.departures(A) == []
        await first.send(LeaseRequest(rollouts=3))
        here.desk.may_grant.set()
        assert isinstance(await first.receive(FromLearner), Grant)


async def test_a_process_that_lost_its_line_unseen_opens_another_at_once() -> None:
    """Its network has changed: the old line is half-open here."""
    async with learner("a") as here:
        assert isinstance(await answered(here, "a", FIRST), Welcome)
        assert isinstance(await answered(here, "a", FIRST), Welcome)


async def test_a_node_that_was_started_again_takes_the_place_of_a_line_that_says_nothing(
    autojump_clock: MockClock,
) -> None:
    """After a power cut: nobody has told the learner that the first process is gone."""
    async with learner("a") as here:
        assert isinstance(await answered(here, "a", FIRST), Welcome)
        began = trio.current_time()
        while isinstance(answer := await answered(here, "a", SECOND), Refused):
            assert answer.retry_after_ms is not None
            await trio.sleep(answer.retry_after_ms / 1000)
        assert isinstance(answer, Welcome)
        assert trio.current_time() - began == 12.0


async def test_a_node_that_was_killed_and_whose_system_still_sends_what_it_had_written_is_no_copy_of_itself(
    autojump_clock: MockClock,
) -> None:
    async with learner("a") as here:
        copies: list[PeerId] = []
        here.reception.report_copy = lambda peer, hello: copies.append(peer)
        killed = await here.open("a")
        await killed.send(hello_from("a", ext=FIRST))
        assert isinstance(await killed.receive(FromLearner), Welcome)
        began = trio.current_time()
        assert isinstance(await answered(here, "a", SECOND), Refused)
        await trio.sleep(2)
        await killed.send(Heartbeat())
        await trio.sleep(4)
        while isinstance(answer := await answered(here, "a", SECOND), Refused):
            assert answer.retry_after_ms is not None
            await trio.sleep(answer.retry_after_ms / 1000)
        assert isinstance(answer, Welcome)
        assert trio.current_time() - began == 14.0
        assert copies == []


async def test_a_process_whose_line_ended_leaves_no_claim_behind(autojump_clock: MockClock) -> None:
    async with learner("a") as here:
        first = await here.open("a")
        await first.send(hello_from("a", ext=FIRST))
        await first.receive(FromLearner)
        assert isinstance(await answered(here, "a", SECOND), Refused)
        await first.send(Goodbye())
        while not here.desk.departures(A):
            await trio.sleep(0.1)
        assert isinstance(await answered(here, "a", SECOND), Welcome)


async def test_who_greets_is_welcomed_and_the_desk_hears_the_greeting() -> None:
    async with learner("a") as here:
        frames = await here.open("a")
        await frames.send(hello_from("a"))
        assert await frames.receive(FromLearner) == here.desk.answer
        assert here.desk.notes == [(A, hello_from("a"))]


async def test_who_is_refused_hears_why_and_the_line_ends_in_order() -> None:
    async with learner("a") as here:
        here.desk.answer = Refused(reason="not today")
        frames = await here.open("a")
        await frames.send(hello_from("a"))
        assert await frames.receive(FromLearner) == Refused(reason="not today")
        assert await frames.receive(FromLearner) is None
        assert here.desk.departures(A) == []
        assert here.faults == []


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (encode(Heartbeat()), Fault.BROKEN_PROMISE),
        (encode(delivery(1)), Fault.BROKEN_PROMISE),
        (encode(welcome_with()), Fault.MALFORMED),
        (b"\xc1", Fault.MALFORMED),
        (bytes(MAX_HELLO_BYTES + 1), Fault.OVERSIZED),
    ],
    ids=["a heartbeat", "a delivery", "the learner's words", "rubbish", "more than a greeting"],
)
async def test_who_does_not_greet_is_not_listened_to(first: bytes, fault: Fault) -> None:
    async with learner("a") as here:
        frames = await here.open("a")
        await frames.send_bytes(first)
        with pytest.raises(StreamBroken):
            await frames.receive_bytes()
        assert here.faults == [(A, fault)]
        assert here.desk.notes == []
        assert isinstance(await here.join("a"), FrameStream), "the peer may try again"


async def test_who_opens_a_line_and_says_nothing_is_shown_out(autojump_clock: MockClock) -> None:
    async with learner("a") as here:
        frames = await here.open("a")
        assert await frames.receive_bytes() is None
        assert trio.current_time() == GREETING_TIMEOUT_S
        closing = await here.open("a")
        await closing.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert here.faults == []


async def test_the_greetings_of_one_peer_are_bounded() -> None:
    async with learner("a", "b") as here:
        for _ in range(MAX_GREETINGS):
            await here.open("a")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StreamBroken):
            await here.join("a")
        await here.join("b")


async def test_greeting_twice_is_reported_and_ends_the_line() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await frames.send(hello_from("a"))
        with pytest.raises(StreamBroken):
            await frames.receive_bytes()
        assert here.faults == [(A, Fault.BROKEN_PROMISE)]
        assert here.desk.departures(A) == ["broken_promise: greeted us twice"]


# Working.


async def test_what_a_peer_tells_reaches_the_desk_in_order() -> None:
    told = [
        Heartbeat(installed=PolicyVersion(1, 2), pending=3),
        Started(lease=lease_id_of(1), version=PolicyVersion(1, 2)),
        LeaseReturn(leases=[lease_id_of(1)], reason="engine lost"),
        Relayed(receipt=b"signed"),
        ProofRequest(version=PolicyVersion(1, 2), place=3),
    ]
    async with learner("a") as here:
        frames = await here.join("a")
        for message in told:
            await frames.send(message)
        await trio.testing.wait_all_tasks_blocked()
        assert here.desk.notes[1:] == [(A, message) for message in told]


async def test_what_the_desk_refuses_is_reported_and_ends_the_line() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await frames.send(Relayed(receipt=FORGED))
        with pytest.raises(StreamBroken):
            await frames.receive_bytes()
        assert here.faults == [(A, Fault.BAD_SIGNATURE)]


async def test_a_request_for_leases_is_held_open_while_other_things_are_said() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await frames.send(LeaseRequest(rollouts=3))
        assert await is_silent(frames)
        here.reception.tell(A, Introduction(peers=[]))
        assert await frames.receive(FromLearner) == Introduction(peers=[])
        here.desk.may_grant.set()
        assert (await frames.receive(FromLearner)).reason == "for 3"


async def test_a_request_replaces_the_one_before_and_has_one_answer() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await frames.send(LeaseRequest(rollouts=3))
        await trio.testing.wait_all_tasks_blocked()
        for rollouts in (4, 5, 6):
            await frames.send(LeaseRequest(rollouts=rollouts))
        await trio.testing.wait_all_tasks_blocked()
        assert here.desk.reached[0] == LeaseRequest(rollouts=3)
        assert here.desk.reached[-1] == LeaseRequest(rollouts=6)
        here.desk.may_grant.set()
        assert (await frames.receive(FromLearner)).reason == "for 6"
        assert await is_silent(frames)
        await frames.send(LeaseRequest(rollouts=7))
        assert (await frames.receive(FromLearner)).reason == "for 7"


async def test_deliveries_wait_in_the_inbox_and_their_answers_find_back() -> None:
    async with learner("a", "b") as here:
        lines = {name: await here.join(name) for name in ("a", "b")}
        for number, frames in enumerate(lines.values()):
            await frames.send(delivery(number))
        await trio.testing.wait_all_tasks_blocked()
        for _ in lines:
            incoming = here.inbox.receive_nowait()
            incoming.answer(Acknowledgement(lease=incoming.delivery.lease, receipt=incoming.peer.encode()))
        for number, (name, frames) in enumerate(lines.items()):
            acknowledged = Acknowledgement(lease=lease_id_of(number), receipt=peer_of(name).encode())
            assert await frames.receive(FromLearner) == acknowledged


async def test_a_full_inbox_says_so() -> None:
    async with learner("a", inbox=1) as here:
        frames = await here.join("a")
        for number in (1, 2):
            await frames.send(delivery(number))
        full = await frames.receive(FromLearner)
        assert full == InboxFull(lease=lease_id_of(2), retry_after_ms=reception.INBOX_RETRY_MS)
        assert [note for _, note in here.desk.notes if isinstance(note, bytes)] == [lease_id_of(1)], "what arrived"
        assert here.inbox.receive_nowait().delivery == delivery(1)
        await frames.send(delivery(2))
        assert (await here.inbox.receive()).delivery == delivery(2)


async def test_an_inbox_that_nobody_reads_any_more_is_full() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        here.inbox.close()
        await frames.send(delivery(1))
        assert isinstance(await frames.receive(FromLearner), InboxFull)


async def test_no_peer_takes_more_than_its_share_of_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "MAX_WAITING_BYTES", 1000)
    async with learner("a", "b") as here:
        greedy, other = await here.join("a"), await here.join("b")
        for number in (1, 2, 3):
            await greedy.send(delivery(number, size=400))
        assert (await greedy.receive(FromLearner)).lease == lease_id_of(3)
        again = await here.join("a")  # another line is no other peer
        await again.send(delivery(3, size=400))
        assert isinstance(await again.receive(FromLearner), InboxFull)
        await other.send(delivery(4, size=400))
        assert await is_silent(other)
        judged = here.inbox.receive_nowait()
        judged.answer(Acknowledgement(lease=judged.delivery.lease, receipt=b""))
        await again.send(delivery(3, size=400))
        await trio.testing.wait_all_tasks_blocked()
        assert [here.inbox.receive_nowait().delivery.lease for _ in range(3)] == [lease_id_of(n) for n in (2, 4, 3)]


# Leaving.


# Rates.


@pytest.mark.parametrize(
    ("message", "rate", "budget"),
    [
        (Heartbeat(), reception.HEARTBEATS, reception.HEARTBEAT_RATE),
        (Started(lease=lease_id_of(1), version=PolicyVersion(1, 0)), reception.MESSAGES, reception.MESSAGE_RATE),
        (LeaseReturn(leases=[lease_id_of(1)], reason="no"), reception.MESSAGES, reception.MESSAGE_RATE),
        (ProofRequest(version=PolicyVersion(1, 0)), reception.MESSAGES, reception.MESSAGE_RATE),
        (LeaseRequest(rollouts=1), reception.MESSAGES, reception.MESSAGE_RATE),
    ],
    ids=["heartbeat", "started", "return", "proofs", "request"],
)
async def test_whoever_says_too_much_is_read_slowly(
    autojump_clock: MockClock, message: FromNode, rate: Rate, budget: str
) -> None:
    async with learner("a", "b") as here, trio.open_nursery() as nursery:
        line, other = await here.join("a"), await here.join("b")
        here.desk.notes.clear()
        began, more = trio.current_time(), 40

        async def flood() -> None:
            for _ in range(int(rate.burst) + more):
                await line.send(message)
            await line.send(Goodbye())

        nursery.start_soon(flood)
        await other.send(Heartbeat(bytes_up=7))
        while await line.receive(FromLearner) is not None:
            pass
        assert trio.current_time() - began == pytest.approx(more / rate.per_s, rel=0.1)
        assert (peer_of("b"), Heartbeat(bytes_up=7)) in here.desk.notes
        told = here.transport.refusals()
        assert {(one.budget, one.who) for one in told} == {(budget, A)}


async def test_a_peer_is_a_member_from_its_welcome_to_the_end_of_its_line() -> None:
    async with learner("a") as here:
        assert not here.transport.is_trusted(A)
        line = await here.join("a")
        assert here.transport.is_trusted(A)
        again = await here.join("a")
        assert here.transport.is_trusted(A)
        await line.stream.abort()
        await trio.testing.wait_all_tasks_blocked()
        assert here.transport.is_trusted(A)
        await again.send(Goodbye())
        assert await again.receive(FromLearner) is None
        await trio.testing.wait_all_tasks_blocked()
        assert not here.transport.is_trusted(A)


async def test_who_is_refused_stays_a_stranger() -> None:
    async with learner("a") as here:
        here.desk.answer = Refused(reason="no")
        frames = await here.open("a")
        await frames.send(hello_from("a"))
        assert isinstance(await frames.receive(FromLearner), Refused)
        assert not here.transport.is_trusted(A)


async def test_the_inbox_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "MAX_INBOX_BYTES", 1000)
    async with learner("a", "b") as here:
        one, other = await here.join("a"), await here.join("b")
        await one.send(delivery(1, 900))
        await trio.testing.wait_all_tasks_blocked()
        await other.send(delivery(2, 101))
        assert isinstance(await other.receive(FromLearner), InboxFull)
        await other.send(delivery(3, 100))
        assert await is_silent(other)


async def test_a_goodbye_ends_the_line_in_order_and_what_the_peer_had_asked() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await frames.send(LeaseRequest(rollouts=1))
        await frames.send(Goodbye(reason="night"))
        assert await frames.receive(FromLearner) is None
        assert here.desk.departures(A) == ["left in good order"]
        assert here.reception._sessions == {}


async def test_a_line_that_breaks_is_a_departure() -> None:
    async with learner("a") as here:
        await here.join("a")
        here.network.cut(LEARNER, A)
        await trio.testing.wait_all_tasks_blocked()
        (reason,) = here.desk.departures(A)
        assert "lost" in reason
        assert here.faults == []


async def test_a_second_line_replaces_the_first_and_the_peer_never_left() -> None:
    async with learner("a") as here:
        first = await here.join("a")
        await first.send(delivery(1))
        second = await here.join("a")
        with pytest.raises(StreamBroken):
            await first.receive_bytes()
        assert here.desk.departures(A) == []
        here.inbox.receive_nowait().answer(Acknowledgement(lease=lease_id_of(1), receipt=b""))
        assert await is_silent(second), "the answer belonged to the first line; the peer delivers again"
        here.reception.tell(A, Introduction(peers=[]))
        assert await second.receive(FromLearner) == Introduction(peers=[])
        await second.send(Goodbye())
        assert await second.receive(FromLearner) is None
        assert here.desk.departures(A) == ["left in good order"]


@pytest.mark.parametrize("last_word", [Farewell(reason="done"), Refused(reason="silent", retry_after_ms=1000)])
async def test_who_is_dismissed_hears_all_answers_and_why(last_word: Farewell | Refused) -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        here.reception.tell(A, Introduction(peers=[]))
        here.reception.dismiss(A, last_word)
        here.reception.tell(A, Introduction(peers=[]))
        assert await frames.receive(FromLearner) == Introduction(peers=[])
        assert await frames.receive(FromLearner) == last_word
        assert await frames.receive(FromLearner) is None
        assert here.desk.departures(A) == ["dismissed"]
        here.reception.dismiss(A, last_word)


# Peers that do not read.


async def clog(here: Learner, frames: FrameStream) -> None:
    """Put more into a peer's stream than its window takes."""
    here.reception.tell(A, Acknowledgement(lease=lease_id_of(0), receipt=FILLER[:700_000]))
    await trio.testing.wait_all_tasks_blocked()


async def test_who_leaves_too_many_answers_unread_loses_its_line() -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await clog(here, frames)
        for _ in range(ANSWERS + 1):
            here.reception.tell(A, Introduction(peers=[]))
        await trio.testing.wait_all_tasks_blocked()
        assert here.desk.departures(A) == [f"it left {ANSWERS} answers unread"]
        with pytest.raises(StreamBroken):
            await frames.receive_bytes()
        assert isinstance(await here.join("a"), FrameStream)


async def test_who_does_not_take_an_answer_in_time_loses_its_line(autojump_clock: MockClock) -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await clog(here, frames)
        await trio.sleep(SEND_TIMEOUT_S + 1)
        (reason,) = here.desk.departures(A)
        assert "did not read an answer" in reason


async def test_who_does_not_hear_its_dismissal_is_shown_out(autojump_clock: MockClock) -> None:
    async with learner("a") as here:
        frames = await here.join("a")
        await clog(here, frames)
        here.reception.dismiss(A, Farewell(reason="done"))
        await trio.sleep(LAST_WORD_S + 1)
        assert here.desk.departures(A) == ["it did not read its dismissal"]
        assert here.reception._sessions == {}


async def test_a_learner_that_stops_does_not_wait_for_who_does_not_read(autojump_clock: MockClock) -> None:
    async with learner("a") as here:
        await clog(here, await here.join("a"))
    assert trio.current_time() < 1
    assert len(here.desk.departures(A)) == 1
