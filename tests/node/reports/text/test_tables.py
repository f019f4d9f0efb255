"""Gather columns into tables: all in order, in as few tables as possible, and none alone without need."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from node.reports.text.tables import DASHES, GAP, Strip, StripGroup, drawn, fitted, packed, table

SECTIONS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=7), min_size=1, max_size=5)


def packed_in(widths: Sequence[Sequence[int]], room: int) -> list[list[tuple[int, int, int]]]:
    """The columns of each table, as (section, place, width); `widths` are those of columns with the gap before them."""
    sections = [
        StripGroup(
            title=f"S{number}",
            strips=tuple(
                Strip(heading=f"{number}.{place}".ljust(max(0, width)), cells=()) for place, width in enumerate(columns)
            ),
        )
        for number, columns in enumerate(widths)
    ]
    return [
        [(*map(int, strip.heading.split(".")), strip.width + GAP) for strip in part.strips]  # type: ignore[misc]
        for part in packed(sections, room)
    ]


@given(widths=SECTIONS, room=st.integers(1, 90))
def test_every_column_is_there_once_in_order_and_fits(widths: list[list[int]], room: int) -> None:
    tables = packed_in(widths, room)
    shown = [(section, place) for table in tables for section, place, _ in table]
    assert shown == [(section, at) for section, columns in enumerate(widths) for at in range(len(columns))]
    wide = {(section, place): width for table in tables for section, place, width in table}
    for shown_table in tables:
        assert sum(width for _, _, width in shown_table) <= room or len(shown_table) == 1
        for section in {section for section, _, _ in shown_table}:
            inside = [place for one, place, _ in shown_table if one == section]
            whole = sum(wide[section, place] for place in range(len(widths[section])))
            assert len(inside) == len(widths[section]) or whole > room, "a table that fits on its own must not be cut"


@given(columns=st.integers(2, 40), room=st.integers(2, 12))
def test_columns_alike_take_as_few_tables_as_can_be_and_none_is_alone(columns: int, room: int) -> None:
    one = len("0.00") + GAP
    tables = packed_in([[len("0.00")] * columns], room * one)
    assert len(tables) == -(-columns // room)
    if room > 2 or columns % 2 == 0:
        assert all(len(table) > 1 for table in tables)


def test_the_last_column_of_a_section_is_not_left_for_a_table_of_its_own() -> None:
    first, last = packed_in([[8] * 7], 60)
    assert {len(first), len(last)} == {3, 4}


def test_sections_that_fit_side_by_side_share_a_table() -> None:
    assert packed_in([[5, 5], [5, 5]], 28) == [[(0, 0, 7), (0, 1, 7), (1, 0, 7), (1, 1, 7)]]


def test_a_table_says_its_headings_on_the_line_below_them_and_figures_to_the_right() -> None:
    text = drawn([table(["machine", "in\npool"], [["cheap", "12"], ["dear", "4"]], DASHES)], 40)
    assert text == "           in\nmachine  pool\n-------------\ncheap      12\ndear        4\n"


def test_names_are_broken_where_a_table_is_too_wide_and_figures_are_not() -> None:
    text = drawn([table(["machine", "rate"], [["a" * 30, "1,234,567"]], DASHES)], 30)
    assert max(map(len, text.splitlines())) <= 30
    assert "1,234,567" in text


def test_what_does_not_fit_goes_on_below_the_same_names() -> None:
    rows = [["atlas", "1,234", "words"], ["borealis", "-", "more words"]]
    assert fitted(["peer", "tokens", "why"], rows, 80) == [
        "peer      tokens  why", "atlas      1,234  words", "borealis       -  more words",
    ]  # fmt: skip
    assert fitted(["peer", "tokens", "why"], rows, 20) == [
        "peer      tokens", "atlas      1,234", "borealis       -", "",
        "peer      why", "atlas     words", "borealis  more words",
    ]  # fmt: skip
