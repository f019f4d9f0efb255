"""Handshakes begin one in a pass of the scheduler, in the order in which they came, and where there is a place."""

from __future__ import annotations

from collections.abc import Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from swarm.libp2p.fair_slots import Claim
from swarm.libp2p.handshake_turns import LOOK_AGAIN_S, HandshakeTurns, Places

CLAIMS = {"a": Claim.AWAITED, "k": Claim.KNOWN, "u": Claim.UNKNOWN}


class Crowd(Places):
    """Those who wait, each called by an origin that begins with its kind, and in which pass each began."""

    def __init__(self) -> None:
        self.turns, self.began, self.passes = HandshakeTurns(self), list[tuple[int, str]](), 0
        self.full: Callable[[str], bool] = lambda origin: False
        self.shared: Callable[[str], bool] = lambda origin: True
        self.claims = dict(CLAIMS)

    def claim_of(self, origin: str) -> Claim:
        return self.claims[origin[0]]

    def has_share(self, origin: str, now: float) -> bool:
        return self.shared(origin)

    def has_place(self, origin: str, now: float) -> bool:
        return not self.full(origin)

    async def count_passes(self) -> None:
        while True:
            self.passes += 1
            await trio.lowlevel.checkpoint()

    async def wait(self, origin: str) -> None:
        await self.turns.wait(origin)
        self.began.append((self.passes, origin))

    @property
    def order(self) -> str:
        return "".join(name for _, name in self.began)


async def test_one_begins_in_a_pass() -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.count_passes)
        for _ in range(50):
            nursery.start_soon(crowd.wait, "k")
        while len(crowd.began) < 50:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len({at for at, _ in crowd.began}) == 50


async def test_each_kind_has_its_turns() -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for name in "u" * 10 + "k" * 10 + "a" * 10:
            nursery.start_soon(crowd.wait, name)
    assert sorted(crowd.order) == sorted("u" * 10 + "k" * 10 + "a" * 10)
    for first in range(0, 24):
        assert set(crowd.order[first : first + 6]) == {"a", "k", "u"}


async def test_who_finds_no_place_keeps_nobody_of_another_kind_waiting(mock_clock: MockClock) -> None:
    crowd = Crowd()
    crowd.full = lambda origin: origin == "u"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.wait, "u")
        await wait_all_tasks_blocked()
        nursery.start_soon(crowd.wait, "k")
        await wait_all_tasks_blocked()
        assert crowd.order == "k"
        crowd.full = lambda origin: False
        mock_clock.jump(LOOK_AGAIN_S)
        await wait_all_tasks_blocked()
        assert crowd.order == "ku"


async def test_who_waits_for_its_own_origin_or_changes_its_kind_lets_others_pass(
    mock_clock: MockClock,
) -> None:
    crowd = Crowd()
    crowd.shared = lambda origin: origin != "k1"
    crowd.full = lambda origin: origin == "a1"
    async with trio.open_nursery() as nursery:
        for origin in ("k1", "a1"):
            nursery.start_soon(crowd.wait, origin)
        await wait_all_tasks_blocked()
        nursery.start_soon(crowd.wait, "k2")
        await wait_all_tasks_blocked()
        assert crowd.order == "k2"
        nursery.start_soon(crowd.wait, "a2")
        await wait_all_tasks_blocked()
        assert crowd.order == "k2", "it stands behind one of its kind that finds no place"
        claims, crowd.full = crowd.claim_of, lambda origin: origin == "a1"
        crowd.claim_of = lambda origin: Claim.KNOWN if origin == "a1" else claims(origin)  # type: ignore[method-assign]
        mock_clock.jump(LOOK_AGAIN_S)
        await wait_all_tasks_blocked()
        assert crowd.order == "k2a2"
        nursery.cancel_scope.cancel()


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    crowd = Crowd()
    crowd.full = lambda origin: origin == "k1"
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await crowd.wait("k1")
        nursery.start_soon(crowd.wait, "k2")
    assert crowd.order == "k2"
