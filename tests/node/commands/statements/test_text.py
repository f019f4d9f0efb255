"""Print statements for people: tables that fit, whole ids, and only known facts."""

from __future__ import annotations

import pytest

from node.commands.statements.format import Line
from node.commands.statements.text import NAMED, of_peers, receipts_text, verdict_text
from protocol.core.ids import PeerId
from tests.support.statements import ALPHA, BETA, Draft, judged, receipt, receipt_line, reputation_line

RECEIPTS: list[Line] = [receipt_line(1), receipt_line(2, BETA.peer_id)]
REPUTATIONS: list[Line] = [reputation_line()]


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("lines", [RECEIPTS, REPUTATIONS], ids=["receipts", "reputations"])
def test_tables_fit_and_whole_ids_are_told(lines: list[Line], width: int) -> None:
    text = verdict_text(judged(Draft(lines=lines).written()), "FILE", width=width)
    table = text[: text.index("Swarm ")]
    assert max(map(len, table.splitlines())) <= width
    assert ALPHA.peer_id in table


def test_of_many_peers_whole_ids_are_left_to_programs() -> None:
    rows = {PeerId(f"12D3KooW{number:044d}"): ("x" * 40,) for number in range(NAMED + 1)}
    *table, _, said = of_peers(("what",), rows, 80)
    assert max(map(len, table)) <= 80
    assert "whole ids of these 9 peers are in the JSON form" in said


def test_what_was_trained_on_is_not_known_without_proofs() -> None:
    without = verdict_text(judged(Draft(lines=RECEIPTS).written()), "FILE", width=200)
    row = next(line for line in without.splitlines() if line.startswith(ALPHA.peer_id))
    assert " - " in row
    proved = verdict_text(judged(Draft().written()), "FILE", width=200)
    row = next(line for line in proved.splitlines() if line.startswith(ALPHA.peer_id))
    assert " - " not in row


@pytest.mark.parametrize(("width", "has_peer"), [(80, False), (100, True)])
def test_receipts_of_one_peer_are_one_table_on_a_narrow_terminal(width: int, has_peer: bool) -> None:
    lines = receipts_text([(receipt(number), {}) for number in (1, 2)], records=False, width=width).splitlines()
    assert len(lines) == 4
    assert ("peer" in lines[1].split()) == has_peer
    assert max(map(len, lines)) <= width


def test_receipts_of_several_peers_name_them() -> None:
    lines = receipts_text([(receipt(1), {}), (receipt(2, BETA.peer_id), {})], records=False, width=80)
    assert "peer" in lines
