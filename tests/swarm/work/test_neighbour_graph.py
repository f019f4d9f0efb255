"""Assign neighbours: everybody in a small swarm, a random graph of low degree in a large one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.work.neighbour_graph import (
    FULL_MESH,
    NEIGHBOURS,
    OPEN_RINGS,
    RINGS,
    Meets,
    NeighbourGraph,
    can_meet,
    neighbourhoods,
)


def rule(peers: Mapping[PeerId, Meets]) -> dict[PeerId, set[PeerId]]:
    """The rule of the module's first paragraphs, of all peers at once and without any cleverness."""

    def place(ring: int, peer: PeerId) -> bytes:
        return sha256(f"{ring} {peer}".encode()).digest()

    if len(peers) <= FULL_MESH:
        return {
            peer: {other for other in peers if other != peer and can_meet(peers[other], peers[peer])} for peer in peers
        }
    beside: dict[PeerId, set[PeerId]] = {peer: set() for peer in peers}
    open_ones = sorted((place(0, peer), peer) for peer, meets in peers.items() if meets is Meets.ALL)
    hard = [peer for peer, meets in peers.items() if meets is Meets.OPEN_ONES]
    given_to = min(RINGS, len(open_ones))
    circles = max(OPEN_RINGS, RINGS - given_to * len(hard) // len(open_ones) // 2) if open_ones else RINGS
    pairs = []
    for ring in range(RINGS):
        stand = {Meets.ALL, Meets.MOST} if ring < circles else {Meets.MOST}
        order = partial(place, ring)
        circle = sorted((peer for peer, meets in peers.items() if meets in stand), key=order)
        pairs += list(pairwise([*circle, *circle[:1]]))
    for peer in hard:
        at = sum(item < (place(0, peer), peer) for item in open_ones)
        pairs += [(peer, other) for _, other in [*open_ones[at:], *open_ones[:at]][:given_to]]
    for one, other in pairs:
        beside[one] |= {other} - {one}
        beside[other] |= {one} - {other}
    return beside


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


@given(
    st.lists(st.tuples(st.integers(0, 39), st.sampled_from([None, *Meets, Meets.ALL, Meets.MOST])), max_size=90),
    st.sampled_from([(1, 0, 0), (1, 2, 2), (1, 5, 12), (0, 1, 1)]),
)
def test_while_peers_come_and_go_the_graph_is_what_the_rule_says_and_tells_who_is_concerned(
    changes: list[tuple[int, Meets | None]], mix: tuple[int, int, int]
) -> None:
    kinds = [kind for kind, times in zip(Meets, mix, strict=True) for _ in range(times)]
    known, graph = list(names(40)), NeighbourGraph()
    here = {peer: kinds[number % len(kinds)] for number, peer in enumerate(known[: FULL_MESH + 6])}
    for peer, meets in here.items():
        graph.put(peer, meets)
    before = rule(here)
    for number, now in changes:
        peer = known[number]
        if now is None:
            here.pop(peer, None)
            concerned = graph.remove(peer)
        else:
            here[peer] = now
            concerned = graph.put(peer, now)
        after = rule(here)
        assert {one: graph.beside(one) for one in here} == after
        assert {one for one in here if before.get(one) != after[one]} <= concerned
        before = after


def test_of_two_thousand_one_more_concerns_its_neighbours_alone() -> None:
    graph = NeighbourGraph()
    for peer in names(2000):
        graph.put(peer, Meets.ALL)
    assert len(graph.put(PeerId("12D3KooWnew"), Meets.ALL)) <= NEIGHBOURS + 1
    assert len(graph.remove(PeerId("12D3KooWnew"))) <= NEIGHBOURS


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
