"""A learner records how nodes are reached: written soon after, reported when new, found after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.learner_role.peers.session_service import REACH_SAID_EVERY_S
from protocol.core.codec import encode
from protocol.core.ids import PeerId
from protocol.reach import REACH, Meeting, Reach, ReachKind, Way
from protocol.work import Heartbeat
from tests.node.learner_role.peers.test_session_service import opened, tick
from tests.support.learner_fixture import Learner, Settings, hello, open_learner
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM

HERE, THERE, ME = PEER.peer_id, OTHER.peer_id, SWARM.learner.peer_id

pytestmark = pytest.mark.usefixtures("mock_clock")


def extension(kind: ReachKind, *met: tuple[PeerId, Way]) -> dict[str, bytes]:
    return {REACH: encode(Reach(kind=kind, why="so it is", met=[Meeting(peer, way) for peer, way in met]))}


def said(learner: Learner) -> list[object]:
    return [fields["text"] for name, fields in learner.log if name == "nodes_reached"]


async def test_how_nodes_are_reached_is_written_and_said(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as learner:
        learner.sessions.recall_reach()
        await learner.sessions.welcome(HERE, hello(ext=extension(ReachKind.UNKNOWN)))
        await learner.sessions.welcome(THERE, hello(ext=extension(ReachKind.NOT, (HERE, Way.DIALLED))))
        await tick(learner, mock_clock)
        assert said(learner) == ["how nodes are reached: 1 outbound only, 1 not known; how pairs met: 1 dialled"]
        assert {row.peer: row.kind for row in learner.ledger.peers.reach()} == {
            HERE: ReachKind.UNKNOWN,
            THERE: ReachKind.NOT,
        }
        told = extension(ReachKind.BY_PUNCHING, (THERE, Way.PUNCHED), (ME, Way.DIALLED))
        learner.sessions.take_heartbeat(HERE, Heartbeat(ext=told))
        await tick(learner, mock_clock)
        assert len(said(learner)) == 1, "not at once"
        await tick(learner, mock_clock, REACH_SAID_EVERY_S)
        assert said(learner)[1:] == ["how nodes are reached: 1 punchable, 1 outbound only; how pairs met: 1 punched"]
        met = {(row.peer, row.other): row.way for row in learner.ledger.peers.met()}
        assert met == {(THERE, HERE): Way.DIALLED, (HERE, THERE): Way.PUNCHED, (HERE, ME): Way.DIALLED}


async def test_who_is_not_here_is_not_met(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as learner:
        await learner.sessions.welcome(HERE, hello(ext=extension(ReachKind.NOT, (THERE, Way.PUNCHED))))
        await tick(learner, mock_clock)
        assert learner.ledger.peers.met() == []


async def test_a_learner_that_comes_back_knows_it_still(tmp_path: Path) -> None:
    async with opened(tmp_path) as learner:
        await learner.sessions.welcome(HERE, hello(ext=extension(ReachKind.MAPPED)))
    async with open_learner(tmp_path, Settings()) as again:
        await trio.to_thread.run_sync(again.sessions.recall_reach)
        assert (
            again.sessions.state.reaches.figures.text == "how nodes are reached: 1 mapped; how pairs met: none has met"
        )
        assert ME in again.sessions.state.reaches.learners


async def test_the_learner_says_of_itself_how_it_is_reached(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path) as learner:
        learner.sessions.recall_reach()
        learner.sessions.own_reach = lambda: Reach(kind=ReachKind.DIRECTLY, why="others dialled it")
        await tick(learner, mock_clock)
        (own,) = learner.sessions.state.reaches.verdicts()
        assert (own.peer, own.kind, own.since_ms >= NOW_MS) == (ME, ReachKind.DIRECTLY, True)
        assert said(learner) == [], "it is no node"
