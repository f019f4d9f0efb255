"""Lines of a terminal: never too wide, and no word is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from node.ui.lines import num_lines, padded, shortened, wrapped

TEXTS = st.text(st.sampled_from("ab c長é"), max_size=80)


@given(TEXTS, st.integers(2, 30), st.integers(0, 12))
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(text: str, width: int, indent: int) -> None:
    lines = wrapped(Text(text), width, indent)
    assert max(line.cell_len for line in lines) <= width
    assert "".join(line.plain for line in lines).replace(" ", "") == text.replace(" ", "")
    assert len(lines) == num_lines(text, width, indent)


def test_lines_break_at_words_and_keep_their_style() -> None:
    lines = wrapped(Text.assemble(("00:01  ", "dim"), "one two three"), 14, indent=7)
    assert [line.plain for line in lines] == ["00:01  one two", "       three"]
    assert lines[0].spans[0].style == "dim"


def test_a_word_that_is_too_long_is_broken() -> None:
    assert [line.plain for line in wrapped(Text("abcdefgh"), 3)] == ["abc", "def", "gh"]
    assert wrapped(Text("x"), 0) == []


@given(TEXTS, st.integers(0, 30))
def test_a_shortened_line_fits(text: str, width: int) -> None:
    line = shortened(Text(text), width)
    assert line.cell_len <= width
    assert line.plain == text or line.plain.endswith("…") or not width


def test_padding_counts_cells() -> None:
    assert padded("長", 4) == "長  "
    assert padded("長", 4, right=True) == "  長"
    assert padded("long", 2) == "long"
