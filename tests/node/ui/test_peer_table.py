"""The table of peers: the columns that fit, and those that are here first."""

from __future__ import annotations

import pytest

from node.ui.live_view import PeerView
from node.ui.peer_table import in_order, peer_table, present_line
from protocol.core.ids import PeerId


def peers() -> list[PeerView]:
    here = PeerView(peer=PeerId("12D3KooWaaaaaa"), name="atlas", installed="1.7", admitted=1240, pending=32)
    better = PeerView(peer=PeerId("12D3KooWbbbbbb"), name="borealis", installed="1.7", admitted=9000, standing_by=True)
    gone = PeerView(peer=PeerId("12D3KooWcccccc"), name="ceres", admitted=99_999, gone="timed out")
    return [gone, here, better]


def test_those_that_are_here_come_first_by_what_was_admitted() -> None:
    assert [peer.name for peer in in_order(peers())] == ["borealis", "atlas", "ceres"]
    assert present_line(peers()) == "2 here, 1 of them on standby, 1 gone"
    assert present_line([]) == "0 here"


def test_a_wide_table_has_all_columns_in_line() -> None:
    lines = [line.plain for line in peer_table(in_order(peers()), 100, 0, 10)]
    assert lines[0].split() == ["peer", "version", "admitted", "rejected", "per", "s", "leased", "up", "down"]
    assert lines[1].split() == ["borealis", "bbbbbb", "1.7", "9,000", "0", "standby", "0", "0", "B", "0", "B"]
    assert "gone" in lines[3]
    assert len({line.index("0 B") for line in lines[1:]}) == 1


@pytest.mark.parametrize("width", [1, 5, 12, 20, 30, 40, 60])
def test_a_narrow_table_keeps_name_and_admitted(width: int) -> None:
    lines = peer_table(in_order(peers()), width, 0, 10)
    assert max(line.cell_len for line in lines) <= width
    assert "down" not in lines[0].plain
    if width >= 30:
        assert "9,000" in lines[1].plain
        assert "borealis" in lines[1].plain


def test_a_window_of_rows() -> None:
    lines = peer_table(in_order(peers()), 80, 1, 1)
    assert len(lines) == 2
    assert "atlas" in lines[1].plain
