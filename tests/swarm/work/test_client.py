"""Test a rollout node's end of the work connection, against a scripted learner and a real reception."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.accounting.tally import Proof
from protocol.core.codec import encode
from protocol.core.errors import Fault, LocalProtocolError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.limits import MAX_LEASES_PER_GRANT, MAX_REASON_CHARS, MAX_WORK_BYTES
from protocol.work import (
    KEY_IN_USE,
    PROOFS,
    RELAY_RECEIPTS,
    WORK,
    Acknowledgement,
    Delivery,
    Farewell,
    FromNode,
    Goodbye,
    Grant,
    Heartbeat,
    Hello,
    InboxFull,
    Introduction,
    LeaseRecall,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Proofs,
    Receipt,
    Refused,
    Relayed,
    Started,
    Welcome,
    open_receipt,
)
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.transport.framing import PREFIX, FrameStream
from swarm.transport.interface import Stream
from swarm.work.client import (
    GREETING_TIMEOUT_S,
    LONGEST_PAUSE_S,
    MAX_UNDELIVERED,
    OUTGOING,
    RELAYED_KEPT,
    Connected,
    Disconnected,
    Granted,
    KeyInUse,
    NotWelcome,
    RunFinished,
    SessionEvent,
    WorkClient,
)
from swarm.work.server import Incoming, WorkServer
from tests.support.store_fixture import small_swarm
from tests.support.swarm_fixture import (
    NOW_MS,
    hello_from,
    key_of,
    lease_envelope,
    lease_id_of,
    peer_of,
    receipt_envelope,
    welcome_with,
)

SWARM = small_swarm()
LEARNER, NODE = SWARM.learner.peer_id, peer_of("node")
Talk = Callable[[FrameStream], Awaitable[None]]


@dataclass
class World:
    """A node with a work session, and a learner that serves its WORK streams as a test says, one script per session."""

    network: MemoryNetwork
    learner: MemoryTransport
    transport: MemoryTransport
    work_client: WorkClient
    nursery: trio.Nursery
    events: list[SessionEvent]
    faults: list[tuple[PeerId, Fault]]
    heard: list[Any] = field(default_factory=list)
    lines: int = 0

    def script(self, *talks: Talk) -> None:
        """Set how the learner behaves on the first connection, the second, and so on; the last one holds for all later
        ones.
        """

        async def handler(stream: Stream) -> None:
            talk = talks[min(self.lines, len(talks) - 1)]
            self.lines += 1
            await talk(FrameStream(stream, MAX_WORK_BYTES))

        self.learner.handle(WORK, handler)

    def start(self) -> None:
        self.nursery.start_soon(self.work_client.run)

    async def next(self, frames: FrameStream, kind: type) -> Any:
        """Read until a message of `kind` comes, noting all that is heard."""
        while (message := await frames.receive(FromNode)) is not None:
            self.heard.append(message)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"the node closed its session without a {kind.__name__}")

    async def welcome(self, frames: FrameStream, *, heartbeat_ms: int = 600_000) -> None:
        await self.next(frames, Hello)
        await frames.send(welcome_with(heartbeat_ms=heartbeat_ms))

    async def idle(self, frames: FrameStream) -> None:
        """A learner that welcomes and listens."""
        await self.welcome(frames)
        while (message := await frames.receive(FromNode)) is not None:
            self.heard.append(message)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    def disconnections(self) -> list[Disconnected]:
        return [event for event in self.events if isinstance(event, Disconnected)]


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    network = MemoryNetwork()
    learner = await nursery.start(_present, network, "learner", LEARNER)
    transport = await nursery.start(_present, network, "node", NODE)
    events: list[SessionEvent] = []
    faults: list[tuple[PeerId, Fault]] = []
    work_client = WorkClient(
        transport=transport,
        authority=SWARM.authority,
        learner=learner.addresses(),
        hello=lambda: hello_from("node"),
        heartbeat=Heartbeat,
        now_ms=lambda: NOW_MS - 250,
        on_event=events.append,
        report=lambda peer, fault, detail: faults.append((peer, fault)),
        rng=random.Random(0),
    )
    return World(network, learner, transport, work_client, nursery, events, faults)


async def _present(
    network: MemoryNetwork, name: str, peer: PeerId, *, task_status: trio.TaskStatus[MemoryTransport]
) -> None:
    async with network.node(name, peer_id=peer) as transport:
        task_status.started(transport)
        await trio.sleep_forever()


def grant_of(*numbers: int, peer: PeerId = NODE, **options: Any) -> Grant:
    return Grant(leases=[lease_envelope(SWARM, number, peer=peer) for number in numbers], now_ms=NOW_MS, **options)


def acknowledge(number: int) -> Acknowledgement:
    return Acknowledgement(lease=lease_id_of(number), receipt=receipt_envelope(SWARM, number, peer=NODE))


# Greeting.


async def test_the_line_greets_and_says_when_it_is_up(world: World, autojump_clock: MockClock) -> None:
    world.script(world.idle)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    assert world.heard[0] == hello_from("node")
    assert world.events == [Connected(learner=LEARNER, welcome=welcome_with(heartbeat_ms=600_000))]


async def test_who_is_refused_for_good_is_told_why(world: World, autojump_clock: MockClock) -> None:
    async def refuse(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(Refused(reason="your token is wrong"))

    world.script(refuse)
    with pytest.raises(NotWelcome, match="your token is wrong"):
        await world.work_client.run()


async def test_who_is_refused_for_a_copied_key_is_told_so(world: World, autojump_clock: MockClock) -> None:
    async def refuse(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(Refused(reason="another node has your key", ext={KEY_IN_USE: b""}))

    world.script(refuse)
    with pytest.raises(KeyInUse, match="another node has your key"):
        await world.work_client.run()


async def test_who_is_refused_for_now_comes_back_when_it_was_told_to(world: World, autojump_clock: MockClock) -> None:
    async def refuse(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(Refused(reason="starting", retry_after_ms=40_000))

    world.script(refuse, world.idle)
    world.start()
    await trio.sleep(39)
    assert world.events == [Disconnected(reason="starting", pause_s=40.0, refused=True)]
    await trio.sleep(2)
    assert isinstance(world.events[1], Connected)


async def test_a_learner_that_does_not_answer_a_greeting_is_left_after_a_time(
    world: World, autojump_clock: MockClock
) -> None:
    async def say_nothing(frames: FrameStream) -> None:
        await trio.sleep_forever()

    world.script(say_nothing)
    world.start()
    await trio.sleep(GREETING_TIMEOUT_S + 0.1)
    (down,) = world.disconnections()
    assert "did not answer" in down.reason
    assert world.faults == []


@pytest.mark.parametrize("answer", [grant_of(1), Introduction(peers=[])])
async def test_another_answer_to_a_greeting_breaks_the_protocol(
    world: World, autojump_clock: MockClock, answer: Any
) -> None:
    async def misbehave(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(answer)
        await frames.receive_bytes()

    world.script(misbehave, world.idle)
    world.start()
    await trio.sleep(5)
    assert world.faults == [(LEARNER, Fault.BROKEN_PROMISE)]
    assert isinstance(world.events[-1], Connected)


async def test_a_learner_that_is_away_is_dialled_with_growing_pauses(world: World, autojump_clock: MockClock) -> None:
    world.network.block(LEARNER, NODE)
    world.start()
    await trio.sleep(120)
    pauses = [event.pause_s for event in world.disconnections()]
    assert pauses[0] < 1
    assert all(later > 1.1 * earlier for earlier, later in pairwise(pauses[:5]))
    assert max(pauses) <= 1.25 * LONGEST_PAUSE_S
    world.network.unblock(LEARNER, NODE)
    world.script(world.idle)
    await trio.sleep(2 * LONGEST_PAUSE_S)
    assert isinstance(world.events[-1], Connected)


async def test_the_heart_beats_as_the_learner_asked(world: World, autojump_clock: MockClock) -> None:
    async def listen(frames: FrameStream) -> None:
        await world.welcome(frames, heartbeat_ms=2000)
        while True:
            await world.next(frames, Heartbeat)

    world.script(listen)
    world.start()
    await trio.sleep(9)
    assert len(world.of(Heartbeat)) == 5


async def test_a_beat_out_of_turn_tells_the_state_at_once(world: World, mock_clock: MockClock) -> None:
    pending = [1]
    world.work_client.heartbeat = lambda: Heartbeat(pending=pending[0])
    world.work_client.heartbeat_now()  # without a session: the first one begins with it
    world.script(world.idle)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    pending[0] = 2
    world.work_client.heartbeat_now()
    await trio.testing.wait_all_tasks_blocked()
    assert [beat.pending for beat in world.of(Heartbeat)] == [1, 2]


async def test_beats_out_of_turn_do_not_pile_up_and_the_last_state_is_told(world: World, mock_clock: MockClock) -> None:
    pending = [0]
    world.work_client.heartbeat = lambda: Heartbeat(pending=pending[0])
    world.script(world.idle)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    for state in range(1, 100):  # nobody else runs meanwhile, so the first of these waits in the queue
        pending[0] = state
        world.work_client.heartbeat_now()
    await trio.testing.wait_all_tasks_blocked()
    assert [beat.pending for beat in world.of(Heartbeat)] == [0, 1, 99]


# Leases.


async def test_leases_asked_for_before_the_line_is_up_are_asked_once(world: World, autojump_clock: MockClock) -> None:
    world.script(world.idle)
    world.nursery.start_soon(world.work_client.request_leases, 7)
    await trio.testing.wait_all_tasks_blocked()
    world.start()
    await trio.sleep(5)
    assert world.of(LeaseRequest) == [LeaseRequest(rollouts=7)]


async def test_granted_leases_come_with_the_learner_s_clock(world: World, autojump_clock: MockClock) -> None:
    async def grant(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, LeaseRequest)
        await frames.send(grant_of(1, 2))
        await frames.receive_bytes()

    world.script(grant)
    world.start()
    granted = await world.work_client.request_leases(2)
    assert [(LeaseId(one.lease.id), one.clock_offset_ms) for one in granted] == [
        (lease_id_of(1), 250),
        (lease_id_of(2), 250),
    ]


async def test_when_there_is_no_work_the_request_is_repeated_when_the_learner_said(
    world: World, autojump_clock: MockClock
) -> None:
    times: list[float] = []

    async def grant(frames: FrameStream) -> None:
        await world.welcome(frames)
        for answer in (grant_of(retry_after_ms=8000), grant_of(), grant_of(1)):
            await world.next(frames, LeaseRequest)
            times.append(trio.current_time())
            await frames.send(answer)
        await frames.receive_bytes()

    world.script(grant)
    world.start()
    assert len(await world.work_client.request_leases(1)) == 1
    assert times[1] - times[0] == pytest.approx(8)
    assert times[2] - times[1] > 0, "no spinning on a learner that wants to be asked at once"


async def test_a_request_is_repeated_on_the_next_line(world: World, autojump_clock: MockClock) -> None:
    async def cut_off(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, LeaseRequest)
        world.network.cut(LEARNER, NODE)

    async def grant(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, LeaseRequest)
        await frames.send(grant_of(1))
        await frames.receive_bytes()

    world.script(cut_off, cut_off, grant)
    world.start()
    assert len(await world.work_client.request_leases(1)) == 1
    assert len(world.disconnections()) == 2
    assert world.faults == []


WRONG_LEASES = {
    "signed by somebody else": (lease_envelope(SWARM, 1, peer=NODE, by=key_of("forger")), Fault.UNAUTHORISED),
    "for somebody else": (lease_envelope(SWARM, 1, peer=peer_of("other")), Fault.BROKEN_PROMISE),
    "of another swarm": (
        lease_envelope(replace(small_swarm("other"), learner=SWARM.learner), 1, peer=NODE),
        Fault.WRONG_SWARM,
    ),
    "no lease": (receipt_envelope(SWARM, 1, peer=NODE), Fault.WRONG_KIND),
}


@pytest.mark.parametrize(("lease", "fault"), WRONG_LEASES.values(), ids=WRONG_LEASES.keys())
async def test_a_lease_that_is_not_ours_is_not_believed(
    world: World, autojump_clock: MockClock, lease: bytes, fault: Fault
) -> None:
    def grant(raw: bytes) -> Talk:
        async def talk(frames: FrameStream) -> None:
            await world.welcome(frames)
            await world.next(frames, LeaseRequest)
            await frames.send(Grant(leases=[lease_envelope(SWARM, 5, peer=NODE), raw], now_ms=NOW_MS))
            await frames.receive_bytes()

        return talk

    world.script(grant(lease), grant(lease_envelope(SWARM, 2, peer=NODE)))
    world.start()
    granted = await world.work_client.request_leases(1)
    assert [one.lease.id for one in granted] == [lease_id_of(5), lease_id_of(2)], "those of the second session"
    assert world.faults == [(LEARNER, fault)]


async def test_leases_that_nobody_waits_for_are_given_back(world: World, autojump_clock: MockClock) -> None:
    async def grant_twice(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, LeaseRequest)
        await frames.send(grant_of(1))
        await frames.send(grant_of(2, 3))
        await world.next(frames, LeaseReturn)
        await frames.receive_bytes()

    world.script(grant_twice)
    world.start()
    (granted,) = await world.work_client.request_leases(1)
    assert granted.lease.id == lease_id_of(1)
    await trio.testing.wait_all_tasks_blocked()
    assert world.of(LeaseReturn) == [LeaseReturn(leases=[lease_id_of(2), lease_id_of(3)], reason="no longer asked for")]


async def test_many_leases_are_given_back_in_messages_that_the_learner_accepts(
    world: World, autojump_clock: MockClock
) -> None:
    world.script(world.idle)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    leases = [lease_id_of(number) for number in range(MAX_LEASES_PER_GRANT + 3)]
    world.work_client.return_leases(leases, "the engine is lost. " * 100)
    await trio.testing.wait_all_tasks_blocked()
    returned = world.of(LeaseReturn)
    assert [lease for message in returned for lease in message.leases] == leases
    assert all(len(message.reason) == MAX_REASON_CHARS for message in returned)


async def test_two_requests_at_once_are_our_mistake(world: World, autojump_clock: MockClock) -> None:
    world.nursery.start_soon(world.work_client.request_leases, 1)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LocalProtocolError):
        await world.work_client.request_leases(1)


# Deliveries.


async def test_a_delivery_waits_for_its_receipt(world: World, autojump_clock: MockClock) -> None:
    async def judge(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Delivery)
        await trio.sleep(100)
        await frames.send(acknowledge(1))
        await frames.receive_bytes()

    world.script(judge)
    world.start()
    receipt, raw = await world.work_client.deliver(lease_id_of(1), [b"one", b"two"])
    assert world.of(Delivery) == [Delivery(lease=lease_id_of(1), records=[b"one", b"two"])]
    assert receipt == open_receipt(raw, SWARM.authority)
    assert receipt.tokens == 5


async def test_a_delivery_that_found_no_room_is_repeated_after_the_pause_and_once(
    world: World, autojump_clock: MockClock
) -> None:
    async def full(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Delivery)
        for _ in range(20):
            await frames.send(InboxFull(lease=lease_id_of(1), retry_after_ms=9000))
        began = trio.current_time()
        await world.next(frames, Delivery)
        assert trio.current_time() - began == pytest.approx(9)
        with trio.move_on_after(50):
            await world.next(frames, Delivery)
        await frames.send(acknowledge(1))
        await frames.receive_bytes()

    world.script(full)
    world.start()
    await world.work_client.deliver(lease_id_of(1), [b"one"])
    assert len(world.of(Delivery)) == 2


async def test_a_delivery_is_repeated_on_the_next_line_until_its_receipt_came(
    world: World, autojump_clock: MockClock
) -> None:
    async def cut_off(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Delivery)
        world.network.cut(LEARNER, NODE)

    async def judge(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Delivery)
        await frames.send(acknowledge(1))
        await frames.receive_bytes()

    world.script(cut_off, cut_off, judge)
    world.start()
    receipt, _ = await world.work_client.deliver(lease_id_of(1), [b"one"])
    assert receipt.lease == lease_id_of(1)
    assert world.of(Delivery) == [Delivery(lease=lease_id_of(1), records=[b"one"])] * 3
    await trio.sleep(60)
    assert len(world.of(Delivery)) == 3


WRONG_RECEIPTS = {
    "signed by somebody else": (
        receipt_envelope(SWARM, 1, peer=NODE, by=key_of("forger")),
        Fault.UNAUTHORISED,
    ),
    "for another lease": (receipt_envelope(SWARM, 2, peer=NODE), Fault.BROKEN_PROMISE),
    "for another peer": (receipt_envelope(SWARM, 1, peer=peer_of("other")), Fault.BROKEN_PROMISE),
    "no receipt": (lease_envelope(SWARM, 1, peer=NODE), Fault.WRONG_KIND),
    "rubbish": (b"rubbish", Fault.MALFORMED),
}


@pytest.mark.parametrize(("receipt", "fault"), WRONG_RECEIPTS.values(), ids=WRONG_RECEIPTS.keys())
async def test_a_receipt_that_is_not_the_learner_s_word_on_it_is_not_believed(
    world: World, autojump_clock: MockClock, receipt: bytes, fault: Fault
) -> None:
    def judge(answer: Acknowledgement) -> Talk:
        async def talk(frames: FrameStream) -> None:
            await world.welcome(frames)
            await world.next(frames, Delivery)
            await frames.send(answer)
            await frames.receive_bytes()

        return talk

    world.script(judge(Acknowledgement(lease=lease_id_of(1), receipt=receipt)), judge(acknowledge(1)))
    world.start()
    _, raw = await world.work_client.deliver(lease_id_of(1), [b"one"])
    assert raw == acknowledge(1).receipt
    assert world.faults == [(LEARNER, fault)]


async def test_what_is_out_of_bounds_is_our_mistake(world: World, autojump_clock: MockClock) -> None:
    for number in range(MAX_UNDELIVERED - 1):
        world.nursery.start_soon(world.work_client.deliver, lease_id_of(number), [b"one"])
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LocalProtocolError, match="being delivered already"):
        await world.work_client.deliver(lease_id_of(0), [b"one"])
    with pytest.raises(LocalProtocolError, match="more than a frame takes"):
        await world.work_client.deliver(lease_id_of(98), [bytes(MAX_WORK_BYTES)])
    world.nursery.start_soon(world.work_client.deliver, lease_id_of(99), [b"one"])
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LocalProtocolError, match="wait for their receipts"):
        await world.work_client.deliver(lease_id_of(100), [b"one"])


async def test_a_delivery_that_is_cancelled_is_not_repeated(world: World, autojump_clock: MockClock) -> None:
    world.script(world.idle)
    with trio.move_on_after(5):
        await world.work_client.deliver(lease_id_of(1), [b"one"])
    world.start()
    await trio.sleep(5)
    assert world.of(Delivery) == []


# How a session ends.


async def test_the_end_of_the_run_is_heard_even_when_the_learner_is_gone_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    async def farewell(frames: FrameStream) -> None:
        await world.welcome(frames, heartbeat_ms=100)
        await world.next(frames, Delivery)
        await frames.send(Farewell(reason="the last step was taken"))
        await frames.stream.aclose()
        world.network.block(LEARNER, NODE)

    world.script(farewell)
    world.nursery.start_soon(world.work_client.deliver, lease_id_of(1), [b"one"])
    with pytest.raises(RunFinished, match="the last step was taken"):
        await world.work_client.run()


async def test_what_the_learner_said_before_the_line_broke_is_heard_to_the_end(
    world: World, autojump_clock: MockClock
) -> None:
    async def say_all_and_vanish(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Heartbeat)
        world.nursery.start_soon(world.work_client.deliver, lease_id_of(1), [bytes(1_000_000)])
        await trio.testing.wait_all_tasks_blocked()  # now the node waits for us to take its delivery
        words = [encode(Introduction(peers=[]))] * 50 + [encode(Farewell(reason="the last step was taken"))]
        await frames.stream.send_all(b"".join(PREFIX.pack(len(word)) + word for word in words))
        await frames.stream.send_eof()
        world.network.block(LEARNER, NODE)

    world.script(say_all_and_vanish)
    with pytest.raises(RunFinished, match="the last step was taken"):
        await world.work_client.run()
    assert world.events.count(Introduction(peers=[])) == 50


async def test_a_last_word_for_now_ends_the_line_and_one_for_good_the_run(
    world: World, autojump_clock: MockClock
) -> None:
    def dismiss(last_word: Refused) -> Talk:
        async def talk(frames: FrameStream) -> None:
            await world.welcome(frames)
            await frames.send(last_word)

        return talk

    world.script(dismiss(Refused(reason="you were silent", retry_after_ms=1000)), dismiss(Refused(reason="banned")))
    with pytest.raises(NotWelcome, match="banned"):
        await world.work_client.run()
    assert [event.reason for event in world.disconnections()] == ["you were silent"]


async def test_a_second_welcome_and_rubbish_are_reported(world: World, autojump_clock: MockClock) -> None:
    async def welcome_again(frames: FrameStream) -> None:
        await world.welcome(frames)
        await frames.send(welcome_with())
        await frames.receive_bytes()

    async def rubbish(frames: FrameStream) -> None:
        await world.welcome(frames)
        await frames.send_bytes(b"\xc1")
        await frames.receive_bytes()

    world.script(welcome_again, rubbish, world.idle)
    world.start()
    await trio.sleep(30)
    assert world.faults == [(LEARNER, Fault.BROKEN_PROMISE), (LEARNER, Fault.MALFORMED)]


async def test_a_learner_that_reads_nothing_loses_its_line_and_nothing_is_lost(
    world: World, autojump_clock: MockClock
) -> None:
    async def freeze(frames: FrameStream) -> None:
        await world.welcome(frames)
        await trio.sleep_forever()

    async def judge(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Delivery)
        await frames.send(acknowledge(1))
        await frames.receive_bytes()

    world.script(freeze, judge)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    delivered: list[Receipt] = []

    async def deliver() -> None:
        receipt, _ = await world.work_client.deliver(lease_id_of(1), [bytes(1_000_000)])
        delivered.append(receipt)

    world.nursery.start_soon(deliver)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(OUTGOING + 1):
        world.work_client.tell_started(Started(lease=lease_id_of(1), version=delivered_version()))
    await trio.sleep(5)
    assert "unread" in world.disconnections()[0].reason
    assert len(delivered) == 1


def delivered_version() -> Any:
    return open_receipt(acknowledge(1).receipt, SWARM.authority).version


async def test_heartbeats_do_not_pile_up_before_a_learner_that_reads_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    async def freeze(frames: FrameStream) -> None:
        await world.welcome(frames, heartbeat_ms=100)
        await trio.sleep_forever()

    world.script(freeze)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    world.nursery.start_soon(world.work_client.deliver, lease_id_of(1), [bytes(1_000_000)])
    await trio.sleep(0.1 * OUTGOING * 2)
    assert world.disconnections() == []


async def test_leaving_says_goodbye_and_waits_for_the_learner(world: World, autojump_clock: MockClock) -> None:
    async def part(frames: FrameStream) -> None:
        await world.welcome(frames)
        await world.next(frames, Goodbye)
        await trio.sleep(3)

    await world.work_client.leave("there is no session yet")
    world.script(part)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    await world.work_client.leave("enough " * 200)
    assert trio.current_time() >= 3
    (goodbye,) = world.of(Goodbye)
    assert len(goodbye.reason) == MAX_REASON_CHARS
    await trio.sleep(60)
    assert world.disconnections() == [], "a node that has left must report no disconnection"


async def test_introductions_are_handed_on(world: World, autojump_clock: MockClock) -> None:
    async def introduce(frames: FrameStream) -> None:
        await world.welcome(frames)
        await frames.send(Introduction(peers=[]))
        await frames.receive_bytes()

    world.script(introduce)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    assert Introduction(peers=[]) in world.events


# Both ends.


@dataclass
class CountingDesk:
    """Grants lease after lease."""

    granted: int = 0
    left_for: list[str] = field(default_factory=list)

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        return welcome_with()

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        await trio.lowlevel.checkpoint()
        self.granted += 1
        return grant_of(self.granted, peer=peer)

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None: ...

    def take_start(self, peer: PeerId, started: Started) -> None: ...

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None: ...

    def note_departure(self, peer: PeerId, reason: str) -> None:
        self.left_for.append(reason)

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None: ...


async def test_over_lines_that_break_every_delivery_is_judged_once_and_has_one_receipt(
    world: World, autojump_clock: MockClock
) -> None:
    inbox, deliveries = trio.open_memory_channel[Incoming](4)
    desk = CountingDesk()
    WorkServer(transport=world.learner, desk=desk, inbox=inbox).start()
    world.start()
    receipts: dict[LeaseId, bytes] = {}
    judged: list[LeaseId] = []
    came: list[tuple[LeaseId, bytes]] = []
    rng = random.Random(5)

    async def judge() -> None:
        async for incoming in deliveries:
            await trio.sleep(rng.random())
            lease = LeaseId(incoming.delivery.lease)
            if lease not in receipts:
                judged.append(lease)
                number = int.from_bytes(lease, "big")
                receipts[lease] = receipt_envelope(SWARM, number, peer=incoming.peer, tokens=rng.randint(0, 99))
            incoming.answer(Acknowledgement(lease=lease, receipt=receipts[lease]))

    async def cut_lines() -> None:
        while True:
            await trio.sleep(rng.uniform(0.5, 4))
            world.network.cut(LEARNER, NODE)

    async def work(granted: Granted) -> None:
        lease = LeaseId(granted.lease.id)
        _, raw = await world.work_client.deliver(lease, [b"a record"])
        came.append((lease, raw))

    async with trio.open_nursery() as background:
        background.start_soon(judge)
        background.start_soon(cut_lines)
        async with trio.open_nursery() as working:
            for _ in range(30):
                for granted in await world.work_client.request_leases(1):
                    working.start_soon(work, granted)
        background.cancel_scope.cancel()
    assert len(world.disconnections()) > 3
    assert len(desk.left_for) >= len(world.disconnections())
    assert dict(came).items() <= receipts.items()
    assert len(came) == len(dict(came)) == 30
    assert len(judged) == len(set(judged)) == 30


async def test_the_end_of_the_run_reaches_the_node(world: World, autojump_clock: MockClock) -> None:
    inbox, _ = trio.open_memory_channel[Incoming](4)
    reception = WorkServer(transport=world.learner, desk=CountingDesk(), inbox=inbox)
    reception.start()

    async def dismiss() -> None:
        await trio.sleep(3)
        reception.dismiss(NODE, Farewell(reason="done"))

    world.nursery.start_soon(dismiss)
    with pytest.raises(RunFinished, match="done"):
        await world.work_client.run()


async def test_what_the_learner_recalls_is_handed_on(world: World, autojump_clock: MockClock) -> None:
    recall = LeaseRecall(leases=[lease_id_of(1), lease_id_of(2)], minimum=PolicyVersion(1, 3))

    async def recalling(frames: FrameStream) -> None:
        await world.welcome(frames)
        await frames.send(recall)
        await frames.send(LeaseRecall(leases=[], minimum=PolicyVersion(1, 3)))
        await world.next(frames, Goodbye)

    world.script(recalling)
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    assert [event for event in world.events if isinstance(event, LeaseRecall)][:1] == [recall]
    assert world.disconnections() == []


# Relay receipts.


def listener(world: World, *, until: type = Goodbye, **terms: Any) -> Talk:
    """A learner that welcomes on these terms and listens until it hears `until`; then the connection is cut."""

    async def talk(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(welcome_with(heartbeat_ms=600_000, **terms))
        await world.next(frames, until)
        world.network.cut(LEARNER, NODE)

    return talk


async def test_relay_receipts_are_said_to_a_learner_that_takes_them(world: World, autojump_clock: MockClock) -> None:
    world.script(listener(world, ext={RELAY_RECEIPTS: b""}))
    world.work_client.tell_relayed(b"before the session")
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    world.work_client.tell_relayed(b"while it is up")
    await trio.testing.wait_all_tasks_blocked()
    assert world.of(Relayed) == [Relayed(receipt=b"before the session"), Relayed(receipt=b"while it is up")]


async def test_a_learner_that_does_not_know_them_hears_of_none(world: World, autojump_clock: MockClock) -> None:
    world.script(listener(world))
    world.work_client.tell_relayed(b"before the session")
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    world.work_client.tell_relayed(b"while it is up")
    await trio.testing.wait_all_tasks_blocked()
    assert world.of(Relayed) == []
    assert len(world.of(Hello)) == 1


async def test_the_latest_are_said_again_on_the_next_line_after_the_deliveries(
    world: World, autojump_clock: MockClock
) -> None:
    world.script(listener(world, until=LeaseReturn, ext={RELAY_RECEIPTS: b""}))
    receipts = [Relayed(receipt=bytes([number])) for number in range(RELAYED_KEPT + 2)]
    world.start()
    await trio.testing.wait_all_tasks_blocked()
    for relayed in receipts:
        world.work_client.tell_relayed(relayed.receipt)
    world.nursery.start_soon(world.work_client.deliver, lease_id_of(1), [b"one"])
    await trio.testing.wait_all_tasks_blocked()
    world.heard.clear()
    world.work_client.return_leases([lease_id_of(2)], "")
    await trio.sleep(5)
    after_hello = world.heard[world.heard.index(hello_from("node")) :]
    said = [message for message in after_hello if isinstance(message, Delivery | Relayed)]
    assert said == [Delivery(lease=lease_id_of(1), records=[b"one"]), *receipts[-RELAYED_KEPT:]]


# Proofs.


ASKED = ProofRequest(version=PolicyVersion(1, 2), place=3)
ANSWER = Proofs(tally=b"a tally", proofs=[Proof(leaf=b"leaf", place=3, path=[])])


async def test_proofs_are_asked_for_until_a_line_brings_the_answer(world: World, autojump_clock: MockClock) -> None:
    async def breaks(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(welcome_with(ext={PROOFS: b""}))
        await world.next(frames, ProofRequest)

    async def answers(frames: FrameStream) -> None:
        await world.next(frames, Hello)
        await frames.send(welcome_with(ext={PROOFS: b""}))
        await world.next(frames, ProofRequest)
        await frames.send(Proofs(tally=b"news"))
        await frames.send(ANSWER)
        await frames.send(Proofs())
        await trio.sleep_forever()

    news: list[float] = []
    world.work_client.on_proofs = lambda: news.append(trio.current_time())
    world.script(breaks, answers)
    world.start()
    assert await world.work_client.request_proofs(ASKED) == ANSWER, (
        "a tally alone is no answer, nor is what comes after it"
    )
    assert world.of(ProofRequest) == [ASKED, ASKED]
    assert len(news) == 3, "on each session, and when it was told"
    assert world.faults == []


async def test_a_learner_that_proves_nothing_is_not_asked(world: World, autojump_clock: MockClock) -> None:
    world.script(world.idle)
    world.start()
    with trio.move_on_after(100):
        await world.work_client.request_proofs(ASKED)
    assert world.of(ProofRequest) == []
    assert len(world.of(Hello)) == 1


async def test_two_questions_at_once_are_our_mistake(world: World, autojump_clock: MockClock) -> None:
    world.nursery.start_soon(world.work_client.request_proofs, ASKED)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LocalProtocolError):
        await world.work_client.request_proofs(ASKED)
