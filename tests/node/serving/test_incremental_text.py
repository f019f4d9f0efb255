"""Tokens as text: no character is split, nothing is lost, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from node.serving.incremental_text import MAX_HELD, REPLACEMENT, IncrementalText


def bytes_as_text(tokens: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes."""
    return bytes(tokens).decode(errors="replace")


def pieces(tokens: Sequence[int]) -> list[str]:
    text = IncrementalText(bytes_as_text)
    return [*(text.push(token) for token in tokens), text.finish()]


@given(st.text())
def test_pieces_of_a_text_are_whole_characters(text: str) -> None:
    found = pieces(text.encode(errors="ignore"))
    assert "".join(found) == text.encode(errors="ignore").decode()
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in found)


def test_a_character_comes_with_its_last_byte() -> None:
    assert pieces("aß😀b".encode()) == ["a", "", "ß", "", "", "", "😀", "b", ""]


def test_bytes_that_are_no_text_are_not_held_for_ever() -> None:
    found = pieces([0xF0] * (MAX_HELD * 3))
    assert "".join(found) == REPLACEMENT * (MAX_HELD * 3)
    assert sum(bool(piece) for piece in found) == 3


def test_the_end_of_a_character_that_never_comes_is_told_at_the_end() -> None:
    assert pieces(b"a\xf0\x9f") == ["a", "", "", REPLACEMENT]


def test_spaces_of_a_tokenizer_that_drops_the_first_are_kept() -> None:
    words = {"▁a": 0, "▁b": 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="▁a"))
    tokenizer.decoder = decoders.Metaspace()
    text = IncrementalText(lambda tokens: str(tokenizer.decode(list(tokens))))
    assert [text.push(token) for token in (0, 1, 1)] == ["a", " b", " b"]
