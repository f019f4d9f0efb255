"""Columns gathered into tables: all are there in order, none is alone that need not be, and as few tables as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.reports.text.column_packing import Piece, packed_in

SECTIONS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=7), min_size=1, max_size=5)


@given(widths=SECTIONS, room=st.integers(1, 90))
def test_every_column_is_there_once_in_order_and_fits(widths: list[list[int]], room: int) -> None:
    tables = packed_in(widths, room)
    shown = [(one.section, at) for table in tables for one in table for at in range(one.begin, one.end)]
    assert shown == [(section, at) for section, columns in enumerate(widths) for at in range(len(columns))]
    for table in tables:
        taken = [widths[one.section][at] for one in table for at in range(one.begin, one.end)]
        assert sum(taken) <= room or len(taken) == 1
        for one in table:
            is_whole = one.end - one.begin == len(widths[one.section])
            assert is_whole or sum(widths[one.section]) > room, "what fits on its own is not cut"


@given(columns=st.integers(2, 40), room=st.integers(2, 12))
def test_columns_alike_take_as_few_tables_as_can_be_and_none_is_alone(columns: int, room: int) -> None:
    tables = packed_in([[1] * columns], room)
    assert len(tables) == -(-columns // room)
    if room > 2 or columns % 2 == 0:
        assert all(one.end - one.begin > 1 for table in tables for one in table)


def test_the_last_column_of_a_section_is_not_left_for_a_table_of_its_own() -> None:
    (first,), (last,) = packed_in([[10] * 7], 60)
    assert {first.end - first.begin, last.end - last.begin} == {3, 4}


def test_sections_that_fit_side_by_side_share_a_table() -> None:
    assert packed_in([[5, 5], [5, 5]], 20) == [
        [Piece(section=0, begin=0, end=2), Piece(section=1, begin=0, end=2)],
    ]
