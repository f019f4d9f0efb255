"""How peers are reached and connect: counted once, bounded, and the same from the ledger as from live reports."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ledger import reach as module
from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.reach import VERDICTS, WAYS, Pair, Reaches, ReachFigures
from learner.ledger.rows import CarriedRow, MetRow, ReachRow
from learner.ledger.sqlite import database
from learner.ledger.sqlite.schema import LATER_TABLES, REACH
from protocol.core.ids import PeerId
from protocol.reach import Meeting, Reach, ReachKind, Way
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, SWARM, open_story, peer_row

ALL = (LEARNER, ALPHA, BETA, GAMMA)


def reach(kind: ReachKind = ReachKind.BY_PUNCHING, *met: tuple[PeerId, Way], why: str = "so it is") -> Reach:
    return Reach(kind=kind, why=why, met=[Meeting(peer, way) for peer, way in met])


def pair_of(reaches: Reaches, one: PeerId, other: PeerId) -> Pair | None:
    return next((pair for pair in reaches.pairs() if {pair.one, pair.other} == {one, other}), None)


def test_a_verdict_lasts_from_when_it_was_first_told() -> None:
    reaches = Reaches(learners={LEARNER})
    reaches.hear(ALPHA, reach(ReachKind.UNKNOWN), ALL, 1)
    reaches.hear(ALPHA, reach(), ALL, 2)
    reaches.hear(ALPHA, reach(why="its router is new"), ALL, 3)
    kind, why = ReachKind.BY_PUNCHING, "its router is new"
    assert reaches.verdicts() == [ReachRow(peer=ALPHA, kind=kind, why=why, since_ms=2)]
    assert reaches.unwritten() == (reaches.verdicts(), [])
    reaches.hear(ALPHA, reach(why=why), ALL, 4)
    assert reaches.unwritten() == ([], []), "nothing is news"


@pytest.mark.parametrize(
    ("alphas", "betas", "way", "by"),
    [
        (Way.DIALLED, Way.WAS_DIALLED, Way.DIALLED, ALPHA),
        (None, Way.WAS_DIALLED, Way.DIALLED, ALPHA),
        (Way.PUNCHED, Way.WAS_DIALLED, Way.PUNCHED, None),
        (Way.REVERSED, Way.WAS_DIALLED, Way.REVERSED, ALPHA),
        (Way.WAS_DIALLED, Way.REVERSED, Way.REVERSED, BETA),
        (Way.RELAYED, Way.RELAYED, Way.RELAYED, None),
        (Way.RELAYED, Way.DIALLED, Way.DIALLED, BETA),
        (Way.OTHER, None, Way.OTHER, None),
    ],
)
def test_the_word_that_tells_most_counts_for_both(
    alphas: Way | None, betas: Way | None, way: Way, by: PeerId | None
) -> None:
    reaches = Reaches(learners={LEARNER})
    for now_ms, (peer, other, said) in enumerate([(ALPHA, BETA, alphas), (BETA, ALPHA, betas)]):
        reaches.hear(peer, reach(ReachKind.NOT, *([(other, said)] if said else [])), ALL, now_ms)
    pair = pair_of(reaches, BETA, ALPHA)
    assert pair is not None
    assert (pair.way, pair.by) == (way, by)
    assert reaches.figures.ways == {way: 1}


def test_who_is_no_member_is_not_met_nor_is_oneself() -> None:
    reaches = Reaches(learners={LEARNER})
    reaches.hear(ALPHA, reach(ReachKind.NOT, (GAMMA, Way.PUNCHED), (ALPHA, Way.PUNCHED)), (ALPHA, BETA), 1)
    assert reaches.pairs() == []


def test_a_learner_counts_as_no_node() -> None:
    reaches = Reaches(learners={LEARNER})
    reaches.hear(LEARNER, reach(ReachKind.DIRECTLY, (ALPHA, Way.WAS_DIALLED)), ALL, 1)
    reaches.hear(ALPHA, reach(ReachKind.NOT, (LEARNER, Way.DIALLED)), ALL, 1)
    assert reaches.figures == ReachFigures(kinds={ReachKind.NOT: 1}, ways={})
    assert reaches.figures.text == "how nodes are reached: 1 outbound only; how pairs met: none has met"
    assert pair_of(reaches, LEARNER, ALPHA) is not None


def test_both_are_told_in_a_line() -> None:
    kinds = {ReachKind.DIRECTLY: 1, ReachKind.BY_PUNCHING: 1200, ReachKind.UNKNOWN: 1, ReachKind.OTHER: 1}
    figures = ReachFigures(kinds=kinds, ways={Way.PUNCHED: 3, Way.DIALLED: 2, Way.RELAYED: 1})
    assert figures.text == (
        "how nodes are reached: 1 reachable, 1,200 punchable, 2 not known; how pairs met: 2 dialled, 3 punched, "
        "1 over a circuit"
    )
    assert ReachFigures(kinds={}, ways={}).text == ""


def test_every_kind_and_way_has_a_word() -> None:
    assert set(VERDICTS) == set(ReachKind)
    assert set(WAYS) == set(Way) - {Way.WAS_DIALLED}, "every way but WAS_DIALLED must have a word"


def test_those_heard_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PEERS", 2)
    reaches = Reaches()
    reaches.hear(ALPHA, reach(), ALL, 1)
    reaches.hear(BETA, reach(ReachKind.NOT, (ALPHA, Way.DIALLED)), ALL, 2)
    reaches.hear(ALPHA, reach(ReachKind.BY_PUNCHING, (BETA, Way.PUNCHED)), ALL, 3)
    assert reaches.figures.ways == {Way.PUNCHED: 1}
    reaches.hear(GAMMA, reach(), ALL, 4)
    assert reaches.figures == ReachFigures(kinds={ReachKind.BY_PUNCHING: 2}, ways={})
    assert not reaches.pairs()
    verdicts, met = reaches.unwritten()
    assert len(verdicts) == 3, "the ledger is told of all"
    assert len(met) == 2


said = st.tuples(
    st.sampled_from(ALL),
    st.sampled_from(ReachKind),
    st.lists(st.tuples(st.sampled_from(ALL), st.sampled_from(Way)), max_size=4, unique_by=lambda one: one[0]),
)


Said = tuple[PeerId, ReachKind, list[tuple[PeerId, Way]]]


@given(st.lists(said, max_size=30))
def test_what_is_heard_is_what_the_ledger_tells(heard: list[Said]) -> None:
    live = Reaches(learners={LEARNER})
    rows: dict[PeerId, ReachRow] = {}
    met: dict[tuple[PeerId, PeerId], MetRow] = {}
    for now_ms, (peer, kind, ways) in enumerate(heard):
        live.hear(peer, reach(kind, *ways), ALL, now_ms)
        told, meetings = live.unwritten()
        rows.update({row.peer: row for row in told})
        met.update({(row.peer, row.other): row for row in meetings})
    again = Reaches()
    again.recall({LEARNER}, rows.values(), met.values())
    assert again.figures == live.figures
    assert sorted(again.pairs(), key=repr) == sorted(live.pairs(), key=repr)
    nodes = [row for row in rows.values() if row.peer != LEARNER]
    assert live.figures.kinds == Counter(row.kind for row in nodes)
    among_nodes = [pair for pair in live.pairs() if LEARNER not in (pair.one, pair.other)]
    assert live.figures.ways == Counter(pair.way for pair in among_nodes)


# In the ledger.


def test_the_ledger_keeps_the_last_word_of_each(tmp_path: Path) -> None:
    story = open_story(tmp_path / "ledger.sqlite")
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a node"))
    row = ReachRow(peer=ALPHA, kind=ReachKind.UNKNOWN, why="", since_ms=1)
    later = ReachRow(peer=ALPHA, kind=ReachKind.NOT, why="it listens nowhere", since_ms=2)
    met = MetRow(peer=ALPHA, other=BETA, way=Way.RELAYED, since_ms=1)
    punched = MetRow(peer=ALPHA, other=BETA, way=Way.PUNCHED, since_ms=2)
    for told, meeting in ((row, met), (later, punched)):
        story.ledger.peers.write_reach([told], [meeting])
        story.ledger.peers.circuits_carried([CarriedRow(one=ALPHA, other=BETA, num_bytes=100)])
    story.ledger.close()
    with read_ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.peers.reach() == [later]
        assert ledger.peers.met() == [punched]
        assert ledger.peers.carried() == [CarriedRow(one=ALPHA, other=BETA, num_bytes=200)]


def test_a_ledger_of_before_tells_nothing_and_gets_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "LATER_TABLES", [tables for tables in LATER_TABLES if tables is not REACH])
        story = open_story(path)
        story.join(peer_row(ALPHA, "a node"))
        story.ledger.close()
    with read_ledger(path) as reader:
        assert (reader.peers.reach(), reader.peers.met(), reader.peers.carried()) == ([], [], [])
    for _ in range(2):
        with Ledger(path, swarm=SWARM) as ledger:
            ledger.peers.write_reach([ReachRow(peer=ALPHA, kind=ReachKind.NOT, why="", since_ms=START_MS)], [])
            assert len(ledger.peers.reach()) == 1
