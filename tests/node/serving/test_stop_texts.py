"""Strings that end a text, while it comes in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.serving.stop_texts import StopTexts


def test_a_stop_string_in_several_pieces_is_not_told() -> None:
    stops = StopTexts(["END"])
    assert [stops.push(piece) for piece in ("a", "bE", "N", "x", "EN", "D", "more")] == [
        "a",
        "b",
        "",
        "ENx",
        "",
        "",
        "",
    ]
    assert stops.found
    assert stops.finish() == ""


def test_what_only_began_a_stop_string_is_told_at_the_end() -> None:
    stops = StopTexts(["END"])
    assert stops.push("aEN") == "a"
    assert stops.finish() == "EN"
    assert not stops.found


TEXT = st.text(alphabet="ab", max_size=12)


@given(pieces=st.lists(TEXT, max_size=6), stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_at_the_first_stop_whatever_the_pieces(pieces: list[str], stops: list[str]) -> None:
    whole, reader = "".join(pieces), StopTexts(stops)
    told = "".join(reader.push(piece) for piece in pieces) + reader.finish()
    # A stop is found once it is complete: of two that overlap the one that ends first.
    ends = [(place + len(stop), place) for stop in stops if (place := whole.find(stop)) >= 0]
    assert reader.found == bool(ends)
    if not ends:
        assert told == whole
    else:
        assert whole.startswith(told)
        assert not any(stop in told for stop in stops)
        assert len(told) <= max(place for _, place in ends)
