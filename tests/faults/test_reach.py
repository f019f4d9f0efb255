"""Members that ask a relay, and others, for more than they are allowed, or are gone: on loopback, which is enough here.

Each does so with a real process against another one. None of it ends a node, fills its memory, or makes it dial an
address that it should not. The memory it took is recorded, and bounded far above that.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from swarm.libp2p.reachability.autonat.server import MIN_PROOF_BYTES
from swarm.libp2p.reachability.relaying.relay import REQUESTS
from swarm.libp2p.reachability.relaying.relay_budget import RelayLimits
from tests.faults.conftest import Figure
from tests.faults.stage import MIB, Player
from tests.faults.village import LEARNER, open_village

pytestmark = pytest.mark.rest

LIAR, HONEST = "liar", "honest"
RESERVATIONS = 10_000

GROWTH_BYTES = 64 * MIB
"""Bytes by which a node may grow, whatever one member does. A node has 110 MiB to begin with."""


async def grown(player: Player, before: int, figure: Figure) -> None:
    """Check that a node is alive, and no larger than it may be."""
    status = await player.status()
    figure(f"{player.name} grew by, MiB", (status["resident"] - before) / MIB)
    assert status["resident"] - before < GROWTH_BYTES


async def test_ten_thousand_reservations_cost_one_place(tmp_path: Path, figure: Figure) -> None:
    async with open_village(tmp_path, [LIAR, HONEST]) as village:
        learner, liar, honest = await village.settle(LIAR, HONEST)
        before = (await learner.status())["resident"]
        await liar.say("reserve", relay=LEARNER, times=RESERVATIONS)
        answers = await liar.hear("reserved")
        figure("granted", answers["granted"])
        assert sum(answers[key] for key in ("granted", "refused", "unanswered")) == RESERVATIONS
        assert answers["granted"] <= REQUESTS.burst + REQUESTS.per_s * (answers["at"] - liar.said("ready")[0]["at"])
        await grown(learner, before, figure)
        await village.see(honest, "its reservation", lambda status: status["reach"]["relays"])
        newcomer = await village.start(HONEST)  # with the same key, on another port
        await village.join(newcomer)


async def test_a_circuit_carries_no_bulk(tmp_path: Path, figure: Figure) -> None:
    async with open_village(tmp_path, [LIAR, HONEST]) as village:
        learner, liar, honest = await village.settle(LIAR, HONEST)
        before = (await learner.status())["resident"]
        for number in range(3):
            await liar.say("bulk", relay=LEARNER, peer=HONEST)
            sent = await liar.hear("sent", after=number)
            assert sent["why"]
        status = await village.see(learner, "the end of all circuits", lambda status: not status["circuits"])
        figure("bytes that went", status["relayed"])
        assert status["relayed"] <= 3 * 2 * RelayLimits().circuit_bytes
        await grown(learner, before, figure)
        assert LEARNER in (await honest.status())["met"]


@pytest.mark.parametrize("pays", [False, True])
async def test_who_has_another_dial_somebody_pays_first_and_names_nobody_inside(tmp_path: Path, pays: bool) -> None:
    """The address 45.3.2.1 belongs to no node here: the test checks the requests before the dial."""
    async with open_village(tmp_path, [LIAR]) as village:
        learner, liar = await village.settle(LIAR)
        await liar.say("ask_dial_back", peer=LEARNER, address="/ip4/192.168.1.1/tcp/80", pays=pays)
        refused = await liar.hear("dialled_back")
        assert (refused["wanted"], refused["status"]) == (0, "E_DIAL_REFUSED")
        await liar.say("ask_dial_back", peer=LEARNER, address="/ip4/127.0.0.1/tcp/22", pays=pays)
        refused = await liar.hear("dialled_back", after=1)
        assert (refused["wanted"], refused["status"]) == (0, "E_DIAL_REFUSED")
        if not pays:
            await liar.say("ask_dial_back", peer=LEARNER, address="/ip4/45.3.2.1/tcp/80", pays=False)
            asked = await liar.hear("dialled_back", after=2)
            assert asked["wanted"] >= MIN_PROOF_BYTES
            assert asked["status"] != "OK"
        assert not learner.ended


async def test_nobody_inside_is_knocked_at_on_a_members_word(tmp_path: Path) -> None:
    """The liar claims the address of another program: in its addresses, as its observed address, and to the learner."""
    async with open_village(tmp_path, [LIAR, HONEST]) as village, trio.open_nursery() as nursery:
        knocked = 0
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def count(stream: trio.SocketStream) -> None:
            nonlocal knocked
            async with stream:
                knocked += 1

        nursery.start_soon(trio.serve_listeners, count, listeners)
        port = listeners[0].socket.getsockname()[1]
        learner, liar, honest = await village.settle(LIAR, HONEST)
        await liar.say("lie", addresses=[f"/ip4/127.0.0.1/tcp/{port}", "/ip4/192.168.1.1/tcp/80"])
        await liar.hear("lied")
        for number in range(3):
            await liar.say("circuit", relay=LEARNER, peer=HONEST)
            await liar.hear("circuit_over", after=number)
        assert not knocked
        assert {player.ended for player in (learner, liar, honest)} == {False}
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_dead_gives_way_to_the_one_that_its_peer_made_since(tmp_path: Path) -> None:
    """The peer slept, or moved, and knows that its older connection is lost; this node does not."""
    async with open_village(tmp_path, [HONEST]) as village:
        learner, honest = await village.settle(HONEST)
        honest.signal(signal.SIGSTOP)
        again = await village.start(HONEST)  # it has the same key
        await village.join(again)
        port = again.said("ready")[0]["addresses"][0].split("/")[4]
        status = await village.see(learner, "one connection", lambda status: len(status["met"][HONEST]) == 1)
        assert status["met"][HONEST][0]["address"].endswith(f"/{port}")
        honest.signal(signal.SIGKILL)
