"""Choose the peers to which security is proposed at once, ask some again, and remember them."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.libp2p import haste
from swarm.libp2p.haste import Haste
from swarm.libp2p.security import HandshakeFailed, NotTakenAtOnce
from tests.support.examples import examples

PEER = PeerId("peer")


class Peer:
    """One that takes what is proposed at once, or does not; and is there, or is not."""

    def __init__(self, *, is_quick: bool, is_there: bool = True) -> None:
        self.is_quick, self.is_there = is_quick, is_there
        self.asked: list[bool] = []

    async def connect(self, at_once: bool) -> str:
        self.asked.append(at_once)
        if at_once and not self.is_quick:
            raise NotTakenAtOnce("na")
        if not self.is_there:
            raise HandshakeFailed("somebody else")
        return "connected"


async def test_whoever_takes_it_at_once_is_asked_once() -> None:
    hasty, peer = Haste(), Peer(is_quick=True)
    for _ in range(3):
        assert await hasty.attempt(PEER, peer.connect) == "connected"
    assert peer.asked == [True] * 3
    assert hasty.suits(PEER)


async def test_whoever_does_not_is_asked_again_and_remembered() -> None:
    hasty, peer = Haste(), Peer(is_quick=False)
    for _ in range(3):
        assert await hasty.attempt(PEER, peer.connect) == "connected"
    assert peer.asked == [True, False, False, False]
    assert not hasty.suits(PEER)
    assert hasty.suits(PeerId("another"))


async def test_a_peer_that_is_not_reached_either_way_is_not_remembered() -> None:
    """It may have been down, and a proposal at once saves a round trip when it is back."""
    hasty = Haste()
    with pytest.raises(HandshakeFailed, match="somebody else"):
        await hasty.attempt(PEER, Peer(is_quick=False, is_there=False).connect)
    assert hasty.suits(PEER)


async def test_whoever_is_somebody_else_is_not_asked_again() -> None:
    peer = Peer(is_quick=True, is_there=False)
    with pytest.raises(HandshakeFailed, match="somebody else"):
        await Haste().attempt(PEER, peer.connect)
    assert peer.asked == [True]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=50))
def test_any_attempts_ask_twice_at_most_and_remember_no_more_than_the_bound(
    attempts: list[tuple[int, bool, bool]],
) -> None:
    async def make() -> None:
        hasty, slow = Haste(), list[PeerId]()
        for number, is_quick, is_there in attempts:
            name, peer = PeerId(str(number)), Peer(is_quick=is_quick, is_there=is_there)
            assert hasty.suits(name) is (name not in slow[-haste.MAX_REMEMBERED :])
            expected = [False] if not hasty.suits(name) else [True] if is_quick else [True, False]
            try:
                await hasty.attempt(name, peer.connect)
            except HandshakeFailed:
                assert not is_there
            else:
                if not peer.asked[-1]:
                    slow = [one for one in slow if one != name] + [name]
            assert peer.asked == expected
            assert len(hasty._remembered) <= haste.MAX_REMEMBERED

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haste, "MAX_REMEMBERED", 3)
        trio.run(make)
