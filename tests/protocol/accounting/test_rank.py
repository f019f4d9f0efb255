"""Ranks: places by admitted rollouts, and what a node believes of what a learner says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.rank import RANK, Rank, rank_from, ranks_of
from protocol.core.codec import encode
from protocol.core.ids import PeerId

COUNTS = st.dictionaries(st.text(min_size=1, max_size=3).map(PeerId), st.integers(0, 5), max_size=12)


def test_peers_with_the_same_number_share_a_place() -> None:
    found = ranks_of({PeerId("a"): 5, PeerId("b"): 9, PeerId("c"): 5, PeerId("d"): 0, PeerId("e"): 1})
    assert {peer: rank.place for peer, rank in found.items()} == {"b": 1, "a": 2, "c": 2, "e": 4}
    assert found[PeerId("a")] == Rank(place=2, peers=4, admitted=5, admitted_by_all=20)
    assert found[PeerId("a")].share == 0.25
    assert ranks_of({}) == {}


@given(COUNTS)
def test_a_place_is_one_and_the_number_of_peers_with_more(counts: dict[PeerId, int]) -> None:
    found = ranks_of(counts)
    assert found.keys() == {peer for peer, number in counts.items() if number}
    for peer, rank in found.items():
        assert rank.place == 1 + sum(other > counts[peer] for other in counts.values())
        assert rank_from({RANK: encode(rank)}) == rank


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"\xc1",
        encode(Rank(place=4, peers=3, admitted=1, admitted_by_all=9)),
        encode(Rank(place=1, peers=3, admitted=10, admitted_by_all=9)),
        encode({"place": 0, "peers": 1, "admitted": 0, "admitted_by_all": 0}),
        encode({"place": 1, "peers": 1 << 53, "admitted": 0, "admitted_by_all": 0}),
        encode({"place": 1}),
    ],
)
def test_what_cannot_be_true_is_no_rank(raw: bytes | None) -> None:
    assert rank_from({} if raw is None else {RANK: raw}) is None


def test_a_later_program_may_say_more() -> None:
    told = {"place": 1, "peers": 2, "admitted": 3, "admitted_by_all": 4, "medal": "gold"}
    assert rank_from({RANK: encode(told)}) == Rank(place=1, peers=2, admitted=3, admitted_by_all=4)
