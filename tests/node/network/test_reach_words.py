"""Describe in words how a node is reached."""

from __future__ import annotations

import pytest

from node.network.reach_words import KINDS, WAYS, reach_words
from protocol.reach import Meeting, Reach, ReachKind, Way

PEER = "12D3KooW" + "p" * 44


def test_who_has_met_nobody() -> None:
    said = reach_words(Reach(kind=ReachKind.NOT, why="it listens nowhere"))
    assert said == (
        "outbound only: others cannot reach it; it dials those that can be dialled (it listens nowhere); 0 connections"
    )


def test_how_it_met_the_others() -> None:
    met = [Meeting(PEER, Way.DIALLED), Meeting(PEER, Way.PUNCHED), Meeting(PEER, Way.PUNCHED), Meeting(PEER, Way.OTHER)]
    said = reach_words(Reach(kind=ReachKind.BY_PUNCHING, met=met))
    assert said.endswith("4 connections: 1 dialled, 2 punched")


@pytest.mark.parametrize("kind", ReachKind)
def test_every_kind_has_words(kind: ReachKind) -> None:
    assert reach_words(Reach(kind=kind))
    assert kind in KINDS or kind in (ReachKind.OTHER, ReachKind.UNKNOWN)


def test_what_is_not_known_is_said_once() -> None:
    said = reach_words(Reach(kind=ReachKind.UNKNOWN, why="no peer has said where it sees the node"))
    assert said == "not known (no peer has said where it sees the node); 0 connections"


def test_every_way_has_words() -> None:
    assert WAYS.keys() == set(Way) - {Way.OTHER}


def test_what_it_carried_for_others() -> None:
    said = reach_words(Reach(kind=ReachKind.DIRECTLY), 2048)
    assert said == "reachable: others dial it; 0 connections; 2 KiB carried between others"
