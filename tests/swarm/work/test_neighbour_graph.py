"""Who is whose neighbour: everybody in a small swarm, a random graph of low degree in a large one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.work.neighbour_graph import FULL_MESH, NEIGHBOURS, OPEN_RINGS, RINGS, Meets, can_meet, neighbourhoods


def names(count: int) -> dict[PeerId, Meets]:
    return {PeerId(f"12D3KooW{i:04}"): Meets.ALL for i in range(count)}


def mixed(kinds: list[Meets]) -> dict[PeerId, Meets]:
    return dict(zip(names(len(kinds)), kinds, strict=True))


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
    assert sum(steps_from(next(iter(peers)), beside)) == count


def test_a_thousand_are_a_few_steps_apart() -> None:
    beside = neighbourhoods(names(1000))
    assert sum(map(len, beside.values())) / 1000 > NEIGHBOURS - 1
    assert len(steps_from(next(iter(beside)), beside)) <= 6


def test_who_comes_or_goes_changes_few_neighbourhoods() -> None:
    before, after = neighbourhoods(names(200)), neighbourhoods(names(201))
    assert sum(before[peer] != after[peer] for peer in before) <= NEIGHBOURS


def test_it_does_not_depend_on_the_order_of_telling() -> None:
    assert neighbourhoods(names(60)) == neighbourhoods(dict(reversed(names(60).items())))


@given(st.lists(st.sampled_from(Meets), max_size=80))
def test_only_those_are_neighbours_who_can_meet_and_nobody_is_cut_off_who_can_meet_anybody(kinds: list[Meets]) -> None:
    peers = mixed(kinds)
    beside = neighbourhoods(peers)
    for peer, others in beside.items():
        assert all(peer in beside[other] and can_meet(peers[peer], peers[other]) for other in others)
        if any(other != peer and can_meet(peers[peer], peers[other]) for other in peers):
            assert others
    connected = [peer for peer in peers if beside[peer]]
    if connected:
        assert sum(steps_from(connected[0], beside)) == len(connected), "one mesh, not several"


@pytest.mark.parametrize("mix", [(0, 100, 0), (20, 50, 30), (20, 80, 0), (10, 60, 30)])
@given(seed=st.integers(0, 10_000))
def test_a_hundred_homes_are_one_mesh_in_which_everybody_has_enough_to_fetch_from(
    mix: tuple[int, int, int], seed: int
) -> None:
    kinds = [kind for kind, count in zip(Meets, mix, strict=True) for _ in range(count)]
    peers = {PeerId(f"12D3KooW{seed}x{number}"): kind for number, kind in enumerate(kinds)}
    beside = neighbourhoods(peers)
    assert sum(steps_from(next(iter(peers)), beside)) == 100
    for peer, others in beside.items():
        assert all(can_meet(peers[peer], peers[other]) for other in others), "nobody is to punch what cannot be"
        fewest = {Meets.ALL: OPEN_RINGS + 1, Meets.MOST: RINGS, Meets.OPEN_ONES: min(RINGS, mix[0])}
        assert len(others) >= fewest[peers[peer]]
    assert sum(map(len, beside.values())) / 100 <= NEIGHBOURS + 2


def test_who_is_needed_by_those_that_meet_nobody_else_has_few_others() -> None:
    kinds = [Meets.ALL] * 20 + [Meets.MOST] * 50 + [Meets.OPEN_ONES] * 30
    peers = mixed(kinds)
    beside = neighbourhoods(peers)
    open_ones = [others for others, kind in zip(beside.values(), kinds, strict=True) if kind is Meets.ALL]
    others = [sum(peers[other] is not Meets.OPEN_ONES for other in some) for some in open_ones]
    assert max(others) <= NEIGHBOURS / 2
    assert min(others) > OPEN_RINGS
    assert sum(map(len, open_ones)) / 20 <= NEIGHBOURS + 2


def test_a_hundred_homes_are_one_mesh() -> None:
    """Seven of ten routers can be punched (arXiv 2510.27500); one node in twenty can be dialled."""
    kinds = [Meets.ALL] * 5 + [Meets.MOST] * 65 + [Meets.OPEN_ONES] * 30
    beside = neighbourhoods(mixed(kinds))
    assert sum(steps_from(next(iter(beside)), beside)) == 100
    hard = [len(others) for others, kind in zip(beside.values(), kinds, strict=True) if kind is Meets.OPEN_ONES]
    assert min(hard) == min(RINGS, 5)
