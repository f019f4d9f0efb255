"""Peers that come, leave or move: all introductions together are those that a learner would make from scratch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.learner_role.peers.introducer import EVERY_S, Introducer
from node.learner_role.shared.run_state import PeerSession
from node.learner_role.shared.signals import connect_peers
from protocol.core.ids import PeerId
from protocol.reach import Reach, ReachKind
from protocol.versions.exchange import PeerAddresses
from protocol.work import Introduction
from swarm.work import neighbour_graph
from tests.node.learner_role.peers.test_session_service import Lines
from tests.support.learner_fixture import Learner, Settings, open_learner

KINDS = [None, ReachKind.DIRECTLY, ReachKind.BY_PUNCHING, ReachKind.NOT]


def session(number: int, kind: ReachKind | None, relays: list[str]) -> PeerSession:
    address = f"/ip4/8.8.{number % 250}.{random.randrange(250)}/tcp/4001"
    reach = None if kind is None else Reach(kind=kind, addresses=[address], relays=relays)
    return PeerSession(row=number, name=f"n{number}", addresses=(address,), reach=reach)


def told_anew(learner: Learner, own: list[str]) -> dict[PeerId, list[PeerAddresses]]:
    """Return what each present peer would be told by a learner that has told nothing yet."""
    fresh = Introducer(context=learner.context, addresses=lambda: own, origins=dict)
    fresh.note(*learner.run.present)
    return {peer: fresh.greet(peer) for peer in learner.run.present}


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_told_bit_by_bit_is_what_would_be_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, seed: int
) -> None:
    monkeypatch.setattr(neighbour_graph, "FULL_MESH", 6)
    rng, own = random.Random(seed), ["/ip4/9.9.9.9/tcp/1"]
    async with open_learner(tmp_path, Settings()) as learner:
        present, heard = learner.run.present, dict[PeerId, list[PeerAddresses]]()
        introducer = Introducer(context=learner.context, addresses=lambda: own, origins=dict)
        lines = Lines()
        connect_peers(learner.context.signals, lines)
        for _ in range(120):
            number = rng.randrange(30)
            peer = PeerId(f"12D3KooW{number:02}")
            if peer in present and rng.random() < 0.4:
                del present[peer]
                heard.pop(peer, None)
            else:
                relays = [learner.context.identity.keypair.peer_id, f"12D3KooW{rng.randrange(30):02}"]
                present[peer] = session(number, rng.choice(KINDS), rng.sample(relays, rng.randrange(3)))
            if rng.random() < 0.1:
                own[0] = f"/ip4/9.9.9.{rng.randrange(9)}/tcp/1"
            lines.said.clear()
            introducer.note(peer)
            mock_clock.jump(EVERY_S)
            introducer.tell_late()
            for to, said in lines.said:
                assert isinstance(said, Introduction)
                assert heard.get(to) != said.peers, "nobody is told twice"
                heard[to] = said.peers
            mock_clock.jump(EVERY_S)
            assert heard == told_anew(learner, own)


async def test_the_first_change_is_told_at_once_and_the_next_together(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        present, lines = learner.run.present, Lines()
        introducer = Introducer(context=learner.context, addresses=list, origins=dict)
        connect_peers(learner.context.signals, lines)
        peers = [PeerId(f"12D3KooW{number:02}") for number in range(6)]
        for number, peer in enumerate(peers):
            present[peer] = session(number, None, [])
            told = introducer.greet(peer)
            assert {one.peer for one in told} == set(peers[:number]), "a newcomer hears of all at once"
        assert [to for to, _ in lines.said] == peers[:1]
        await trio.sleep(EVERY_S)
        introducer.tell_late()
        assert sorted(to for to, _ in lines.said[1:]) == peers[:5], "once each, and the last has heard it all"
        introducer.tell_late()
        assert len(lines.said) == 6
