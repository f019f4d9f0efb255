"""Summarise many introductions: ours by themselves, go-libp2p's beside them."""

from __future__ import annotations

import pytest

from benchmarks.network.go_introduction import GoIntroduction
from benchmarks.network.introduction import Introduction, Way
from benchmarks.network.node_reach import Report
from benchmarks.network.routers import KINDS
from benchmarks.reach import Attempt, Summary, pairs_of, tell

PORT, SYMMETRIC = KINDS["port"], KINDS["symmetric"]


def ours(way: Way = Way.OPENING, *, tries: int = 1, seconds: float = 0.08, other: str = "port") -> Attempt:
    met = way is not Way.NOTHING
    reports = (Report(direct=met, seconds=seconds), Report(direct=met, tries=tries))
    introduction = Introduction(one="a", other="b", way=way, seconds=seconds, reports=reports)
    return Attempt(one=PORT, other=KINDS[other], round_trip_ms=10.0, introduction=introduction)


def theirs(*, met: bool = True, tries: int = 1, seconds: float = 0.2) -> Attempt:
    introduction = GoIntroduction(met=met, seconds=seconds, tries=tries)
    return Attempt(one=PORT, other=PORT, round_trip_ms=10.0, introduction=introduction)


def test_of_all_attempts_is_told_how_many_met_at_which_try_and_when() -> None:
    some = [ours(), ours(tries=2), ours(Way.REVERSAL, tries=0, seconds=0.04), ours(Way.NOTHING)]
    assert Summary.of(some) == Summary(met_pct=75.0, first_try_pct=50.0, round_trips=pytest.approx(4.0))


def test_where_nobody_met_there_is_no_time_and_of_nothing_no_share() -> None:
    assert Summary.of([ours(Way.NOTHING)]) == Summary(met_pct=0.0, first_try_pct=0.0, round_trips=None)
    assert Summary.of([]) == Summary(met_pct=None, first_try_pct=None, round_trips=None)


def test_who_meets_where_no_way_leads_has_not_met() -> None:
    assert ours(other="symmetric").is_false
    assert not ours().is_false
    assert not ours(Way.NOTHING, other="symmetric").is_false
    assert not theirs().is_false


def test_a_pair_has_one_row_with_both(capsys: pytest.CaptureFixture[str]) -> None:
    found = [ours(), theirs(), theirs(met=False), ours(Way.NOTHING, other="symmetric")]
    first, second = pairs_of(found)
    assert (first["pair"], first["attempts"], first["go_attempts"], first["go_met"]) == ("port-port", 1, 2, 1)
    assert (second["pair"], second["possible"], second["go_attempts"]) == ("port-symmetric", False, 0)
    tell(found)
    said = capsys.readouterr()
    assert "1 of 2" in said.out + said.err
