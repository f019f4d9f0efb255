"""Who is whose neighbour: everybody in a small swarm, a random graph of low degree in a large one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.work.neighbour_graph import FULL_MESH, NEIGHBOURS, neighbourhoods


def names(count: int) -> list[PeerId]:
    return [PeerId(f"12D3KooW{i:04}") for i in range(count)]


def steps_from(first: PeerId, beside: Mapping[PeerId, frozenset[PeerId]]) -> list[int]:
    """How many peers are 0, 1, 2, ... steps away."""
    seen, edge, counts = {first}, {first}, []
    while edge:
        counts.append(len(edge))
        edge = {other for peer in edge for other in beside[peer]} - seen
        seen |= edge
    return counts


@pytest.mark.parametrize("count", [0, 1, 2, FULL_MESH])
def test_in_a_small_swarm_everybody_is_everybody_s(count: int) -> None:
    peers = names(count)
    assert neighbourhoods(peers) == {peer: frozenset(peers) - {peer} for peer in peers}


@given(st.integers(FULL_MESH + 1, 120))
def test_in_a_large_one_neighbours_are_few_mutual_and_nobody_is_cut_off(count: int) -> None:
    peers = names(count)
    beside = neighbourhoods(peers)
    assert beside.keys() == set(peers)
    for peer, others in beside.items():
        assert 2 <= len(others) <= NEIGHBOURS
        assert peer not in others
        assert all(peer in beside[other] for other in others)
    assert sum(steps_from(peers[0], beside)) == count


def test_a_thousand_are_a_few_steps_apart() -> None:
    beside = neighbourhoods(names(1000))
    assert sum(map(len, beside.values())) / 1000 > NEIGHBOURS - 1
    assert len(steps_from(names(1)[0], beside)) <= 6


def test_who_comes_or_goes_changes_few_neighbourhoods() -> None:
    before, after = neighbourhoods(names(200)), neighbourhoods(names(201))
    assert sum(before[peer] != after[peer] for peer in before) <= NEIGHBOURS


def test_it_does_not_depend_on_the_order_of_telling() -> None:
    assert neighbourhoods(names(60)) == neighbourhoods(list(reversed(names(60))))
