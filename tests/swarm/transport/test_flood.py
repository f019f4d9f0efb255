"""Handle a neighbour that broadcasts without end."""

from __future__ import annotations

from itertools import count

import pytest
import trio
from trio.testing import MockClock

from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport, Transfer
from swarm.transport.event_rate import Bucket
from swarm.transport.flood import (
    GOSSIP_PROTOCOL,
    ID_BYTES,
    RATE,
    SEEN_FRAMES,
    Seen,
    encode_frame,
)
from swarm.transport.interface import Broadcast

TOPIC = "a topic"


class Heard:
    """Counts the broadcasts that come, by who passed them on."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def __call__(self, broadcast: Broadcast) -> bool:
        self.sources.append(broadcast.source)
        return True


async def storm(attacker: MemoryTransport, victim: MemoryTransport, numbers: count[int], frames: int) -> None:
    """Send so many broadcasts that nobody has seen over a stream of one's own, until all were taken in."""
    stream = await attacker.open_stream(victim.peer_id, GOSSIP_PROTOCOL)
    for _ in range(frames):
        number = next(numbers)
        await stream.send_all(encode_frame(number.to_bytes(ID_BYTES, "big"), TOPIC, b"storm"))
    await stream.send_eof()
    await trio.testing.wait_all_tasks_blocked()
    await stream.abort()


async def test_a_storm_is_cut_down_where_it_begins_and_another_neighbour_is_still_heard(mock_clock: MockClock) -> None:
    network, numbers = MemoryNetwork(), count()
    passed_on = bytearray()

    async def see(transfer: Transfer) -> bytes:
        passed_on.extend(transfer.data)
        return transfer.data

    async with network.node("storm") as attacker, network.node("victim") as victim, network.node("other") as other:
        at_victim = Heard()
        await victim.subscribe(TOPIC, at_victim)
        await other.subscribe(TOPIC, Heard())
        network.set_fault(victim.peer_id, other.peer_id, see)
        await attacker.dial(victim.addresses())
        await other.dial(victim.addresses())

        await storm(attacker, victim, numbers, 4000)
        assert at_victim.sources == [attacker.peer_id] * int(RATE.burst)
        assert 0 < passed_on.count(b"storm") <= RATE.burst

        mock_clock.jump(4.0)
        await storm(attacker, victim, numbers, 4000)
        assert len(at_victim.sources) == RATE.burst + 4 * RATE.per_s

        await storm(other, victim, numbers, 1)
        assert at_victim.sources[-1] == other.peer_id


@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
def test_a_pause_saves_up_no_more_than_a_burst(idle_s: float) -> None:
    bucket = Bucket(rate=RATE)
    assert sum(bucket.admit(idle_s) for _ in range(10_000)) == RATE.burst
    assert not bucket.admit(idle_s + 0.5 / RATE.per_s)
    assert bucket.admit(idle_s + 1.5 / RATE.per_s)


def test_what_was_seen_is_remembered_within_a_bound() -> None:
    seen = Seen()
    assert all(seen.add(number.to_bytes(16, "big")) for number in range(SEEN_FRAMES + 1))
    assert seen.add(bytes(16)), "the oldest is forgotten"
    assert not seen.add(SEEN_FRAMES.to_bytes(16, "big"))
