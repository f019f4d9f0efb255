"""Keys from a real terminal, which is given back as it was."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from node.ui.keyboard import MOST_TYPED, Keyboard, in_foreground, keys_in


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"rh?", ["r", "h", "?"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["page up", "page down", "home", "end", "home", "end"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1b[200~", []),  # the start of a paste, where a terminal was told to mark it
        (b"\x1b[1;5A", []),  # Ctrl with an arrow
        (b"\x1bq", []),  # Alt with a letter orders nothing
        (b"\r\n\t\x00\xff\xc3\xa9", []),
    ],
)
def test_keys_by_what_a_terminal_sends(sent: bytes, keys: list[str]) -> None:
    assert list(keys_in(sent)) == keys


def test_a_pasted_text_orders_nothing() -> None:
    assert list(keys_in(b"quit the diagram")) == []
    assert list(keys_in(b"q" * MOST_TYPED)) == ["q"] * MOST_TYPED
    assert list(keys_in(b"\x1b[B" * 50)) == ["down"] * 50, "a held arrow is no paste"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    for descriptor in (master, slave):
        with suppress(OSError):
            os.close(descriptor)


def modes(descriptor: int) -> tuple[bool, bool, bool]:
    """Return whether the terminal echoes, waits for whole lines, and makes signals of Ctrl-C and Ctrl-Z."""
    local = termios.tcgetattr(descriptor)[3]
    return bool(local & termios.ECHO), bool(local & termios.ICANON), bool(local & termios.ISIG)


def test_the_terminal_is_taken_and_given_back(terminal: tuple[int, int]) -> None:
    _, slave = terminal
    before, keyboard = termios.tcgetattr(slave), Keyboard(slave)
    keyboard.take()
    keyboard.take()  # again, after the program was stopped
    assert modes(slave) == (False, False, True)
    keyboard.restore()
    assert termios.tcgetattr(slave) == before
    keyboard.restore()


def test_keys_come_at_once_and_end_with_the_terminal(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    keyboard = Keyboard(slave)
    keyboard.take()

    async def main() -> list[str]:
        found: list[str] = []
        with trio.fail_after(60):
            async for key in keyboard.keys():
                found.append(key)
                if key == "q":
                    os.close(master)
                else:
                    os.write(master, b"q")
        return found

    os.write(master, b"r")
    assert trio.run(main) == ["r", "q"]
    keyboard.restore()  # nothing is there any more, which is no error


def test_what_is_no_terminal_of_ours_may_be_used(terminal: tuple[int, int]) -> None:
    assert in_foreground(terminal[1])
    assert in_foreground(-1)
