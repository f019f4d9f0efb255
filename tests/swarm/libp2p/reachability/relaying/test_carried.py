"""Bytes carried by circuits count once, for a pair in either direction, and need no more room than promised."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.libp2p.reachability.relaying import carried as module
from swarm.libp2p.reachability.relaying.carried import OTHERS, Carried

peers = st.sampled_from([PeerId(name) for name in "abcdef"])


def test_both_ways_are_one_pair_and_what_was_taken_is_gone() -> None:
    counted = Carried()
    counted.add(PeerId("b"), PeerId("a"), 3)
    counted.add(PeerId("a"), PeerId("b"), 4)
    assert counted.take() == {("a", "b"): 7}
    assert counted.take() == {}


@given(st.lists(st.tuples(peers, peers, st.integers(1, 99))))
def test_no_byte_is_lost_and_no_more_pairs_are_told_apart(sent: list[tuple[PeerId, PeerId, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_PAIRS", 3)
        counted, right = Carried(), Counter[tuple[PeerId, ...]]()
        for one, other, num_bytes in sent:
            counted.add(one, other, num_bytes)
            right[tuple(sorted((one, other)))] += num_bytes
        taken = counted.take()
    assert sum(taken.values()) == sum(right.values())
    assert len(taken.keys() - {OTHERS}) <= 3
    assert all(taken[pair] == right[pair] for pair in taken if pair != OTHERS)
