"""Print statements for people: tables that fit, whole ids, and only known facts."""

from __future__ import annotations

import pytest

from node.commands.statements.format import Line
from node.commands.statements.text import NAMED, of_peers, verdict_text
from protocol.core.ids import PeerId
from tests.support.statements import ALPHA, BETA, Draft, judged, receipt_line, reputation_line

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
