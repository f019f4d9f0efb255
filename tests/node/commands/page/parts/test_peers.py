"""Rows of peers: sorted, searched and windowed by the program; without machines for everybody."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.page.parts import peers
from node.commands.page.parts.peers import FIRST_ROWS, MOST_ROWS, PUBLIC, Question, columns, part, rows, state_of
from node.reports import SwarmReport
from node.reports.model.report import HERE_MS, Role
from tests.support.ledgers import ALPHA, BETA, LEARNER
from tests.support.page_stories import HOSTILE, banned_report, crowd, rich_report


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    return crowd(tmp_path_factory.mktemp("crowd") / "ledger.sqlite", 300)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    return rich_report(tmp_path_factory.mktemp("rich") / "ledger.sqlite")


def ids(html: list[str]) -> list[str]:
    return [found.group(1) for row in html if (found := re.search(r'data-peer="([^"]+)"', row))]


def asked(report: SwarmReport, **question: object) -> list[str]:
    return ids(rows(report, Question(**{"count": MOST_ROWS, **question}), is_public=False).html)  # type: ignore[arg-type]


@given(st.integers(-5, 400), st.integers(-5, 200), st.sampled_from(["", "peer", "admitted", "tokens", "no column"]),
       st.booleans(), st.sampled_from(["", "peer", "PEER 12", "x", " "]))  # fmt: skip
def test_windows_together_are_the_whole(
    many: SwarmReport, first: int, count: int, by: str, down: bool, find: str
) -> None:
    """Any window is the piece of the whole order that it names, and is never longer than MOST_ROWS."""
    order: list[str] = []
    question = Question(count=MOST_ROWS, by=by, is_descending=down, find=find)
    while piece := ids(rows(many, replace(question, first=len(order)), is_public=True).html):
        order += piece
    found = rows(many, replace(question, first=first, count=count), is_public=True)
    assert found.total == len(order) == len(set(order))
    assert ids(found.html) == order[max(0, first) :][: max(0, min(count, MOST_ROWS))]


def test_rows_are_sorted_by_any_column_both_ways(rich: SwarmReport) -> None:
    for column in columns(rich, is_public=False):
        known = {peer.peer: column.number(peer) for peer in rich.peers if peer.role is Role.ROLLOUT}
        for down in (True, False):
            found = asked(rich, by=column.key, is_descending=down)
            numbers = [known[peer] for peer in found]  # type: ignore[index]
            told = [number for number in numbers if number is not None]
            assert told == sorted(told, reverse=down), column.key
            assert numbers == told + [None] * (len(numbers) - len(told)), "who has no value comes last"


def test_names_are_sorted_and_the_usual_order_is_that_of_the_caption(rich: SwarmReport) -> None:
    names = {peer.peer: peers.name_of(peer).lower() for peer in rich.peers}
    up = [names[peer] for peer in asked(rich, by="peer", is_descending=False)]  # type: ignore[index]
    assert up == sorted(up)
    admitted = {peer.peer: peer.admitted for peer in rich.peers}
    usual = [admitted[peer] for peer in asked(rich)]  # type: ignore[index]
    assert usual == sorted(usual, reverse=True)


@pytest.mark.parametrize("find", ["atlas", "ATL", ALPHA[-6:], ALPHA, "fake", "2 cores"])
def test_the_operator_finds_peers_by_name_id_engine_and_machine(rich: SwarmReport, find: str) -> None:
    assert ALPHA in asked(rich, find=find)


@pytest.mark.parametrize("find", ["fake", "2 cores", ALPHA])
def test_everybody_finds_them_by_what_everybody_sees(rich: SwarmReport, find: str) -> None:
    """A search must not tell what the rows do not."""
    assert rows(rich, Question(find=find), is_public=True).total == 0
    assert rows(rich, Question(find="atlas"), is_public=True).total == 1


def test_the_learner_has_no_row_and_nobody_is_missing(rich: SwarmReport) -> None:
    assert set(asked(rich)) == {peer.peer for peer in rich.peers} - {LEARNER}


def test_a_public_page_has_public_columns_and_no_links(rich: SwarmReport) -> None:
    shown = {column.key for column in columns(rich, is_public=True)}
    assert shown <= PUBLIC
    assert {column.key for column in columns(rich, is_public=False)} >= PUBLIC, "a public key names no column"
    html = part(rich, is_public=True).text
    assert "<a " not in html
    for secret in ("fake", "2 cores", "price", "chunks"):
        assert secret not in html
    assert "<a " in part(rich, is_public=False).text


def test_states(tmp_path: Path) -> None:
    report = banned_report(tmp_path / "ledger.sqlite")
    told = {peer.peer: state_of(peer, report) for peer in report.rollout_peers}
    assert told[HOSTILE] == "banned"
    assert {told[ALPHA], told[BETA]} <= {"here", "gone", "quarantined"}
    for peer in report.rollout_peers:
        if peer.peer != HOSTILE:
            assert (told[peer.peer] == "gone") is (peer.last_seen_ms < report.ended_ms - HERE_MS)


def test_a_page_without_scripts_has_the_first_rows_and_says_so(many: SwarmReport, rich: SwarmReport) -> None:
    html = part(many, is_public=False).text
    assert len(ids(html.split("<tr"))) == FIRST_ROWS
    assert "The first 25 of 300 peers." in html
    assert "The first" not in part(rich, is_public=False).text
    assert "No peer has joined yet." in part(None, is_public=False).text
