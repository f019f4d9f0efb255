"""Lines of a pipe and of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.commands.chat import lines
from node.commands.chat.lines import Lines


async def all_of(descriptor: int) -> list[str]:
    reader, found = Lines(descriptor=descriptor), []
    while (line := await reader.next()) is not None:
        found.append(line)
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\n", ["a", ""]),
        (b"\xff\n", ["\N{REPLACEMENT CHARACTER}"]),
    ],
    ids=["empty", "no end", "other ends", "no UTF-8"],
)
async def test_lines_of_a_pipe_and_of_a_file(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    with file.open("rb") as opened:
        assert await all_of(opened.fileno()) == expected
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    assert await all_of(ours) == expected
    os.close(ours)


async def test_a_line_without_end_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    file = tmp_path / "file"
    file.write_bytes(b"abcdefghij\nkl\n")
    with file.open("rb") as opened:
        assert await all_of(opened.fileno()) == ["abcd", "efgh", "ij", "kl"]


async def test_what_was_typed_can_be_dropped() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"one\nhalf")
    reader = Lines(descriptor=ours)
    assert await reader.next() == "one"
    reader.forget()
    os.write(theirs, b"two\n")
    assert await reader.next() == "two"
    os.close(ours)
    os.close(theirs)
