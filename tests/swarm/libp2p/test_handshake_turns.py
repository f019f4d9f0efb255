"""Handshakes begin one in a pass of the scheduler, in the order in which they came, and where there is a place."""

from __future__ import annotations

from collections.abc import Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from swarm.libp2p.fair_slots import Claim
from swarm.libp2p.handshake_turns import LOOK_AGAIN_S, HandshakeTurns


class Crowd:
    """Those who wait, and in which pass of the scheduler each began."""

    def __init__(self) -> None:
        self.turns, self.began, self.passes = HandshakeTurns(), list[tuple[int, str]](), 0

    async def count_passes(self) -> None:
        while True:
            self.passes += 1
            await trio.lowlevel.checkpoint()

    async def wait(self, name: str, claim: Claim, may_begin: Callable[[], bool] = lambda: True) -> None:
        await self.turns.wait(may_begin, claim)
        self.began.append((self.passes, name))

    @property
    def order(self) -> str:
        return "".join(name for _, name in self.began)


async def test_one_begins_in_a_pass() -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.count_passes)
        for _ in range(50):
            nursery.start_soon(crowd.wait, "k", Claim.KNOWN)
        while len(crowd.began) < 50:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len({at for at, _ in crowd.began}) == 50


async def test_unknown_ones_have_every_other_turn_at_most() -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(crowd.wait, "u" if number < 10 else "k", Claim.UNKNOWN if number < 10 else Claim.KNOWN)
    assert sorted(crowd.order) == ["k"] * 10 + ["u"] * 10
    for end in range(1, 21):
        assert crowd.order[:end].count("u") <= crowd.order[:end].count("k") + 1 or "k" not in crowd.order[end:]


async def test_who_finds_no_place_keeps_nobody_of_the_other_kind_waiting(mock_clock: MockClock) -> None:
    crowd, is_free = Crowd(), False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.wait, "u", Claim.UNKNOWN, lambda: is_free)
        await wait_all_tasks_blocked()
        nursery.start_soon(crowd.wait, "k", Claim.KNOWN)
        await wait_all_tasks_blocked()
        assert crowd.order == "k"
        is_free = True
        mock_clock.jump(LOOK_AGAIN_S)
        await wait_all_tasks_blocked()
        assert crowd.order == "ku"


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await crowd.wait("a", Claim.KNOWN, lambda: False)
        nursery.start_soon(crowd.wait, "b", Claim.KNOWN)
    assert crowd.order == "b"
