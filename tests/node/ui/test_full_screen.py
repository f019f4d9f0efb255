"""Drawing on a real terminal: only what changed, on the second screen, and never where it does not belong."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from node.runtime.safe_console import HarmlessConsole
from node.ui.full_screen import ENTER, LEAVE, FullScreen
from node.ui.keyboard import Keyboard
from node.ui.look import Order, Page
from tests.support.views import busy_node


@dataclass
class Shown:
    """A terminal with a screen on it."""

    master: int
    slave: int
    screen: FullScreen

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> str:
        """Return what was written since the last call."""
        os.set_blocking(self.master, False)
        data = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self.master, 1 << 16):
                data += chunk
        return data.decode()


@pytest.fixture
def shown() -> Iterator[Shown]:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        console = HarmlessConsole(file=file, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
        made = Shown(master, slave, FullScreen(console=console, state=busy_node(), keyboard=Keyboard(slave)))
        made.resize(80, 24)
        yield made
    os.close(master)


def echoes(descriptor: int) -> bool:
    return bool(termios.tcgetattr(descriptor)[3] & termios.ECHO)


def test_the_screen_is_entered_drawn_and_left(shown: Shown) -> None:
    with shown.screen.shown():
        text = shown.read()
        assert text.startswith(ENTER)
        assert "Volery rollout" in text
        assert "\x1b[24;1H" in text, "the last line is at its place"
        assert not echoes(shown.slave)
    assert shown.read() == LEAVE
    assert echoes(shown.slave)


def test_only_lines_that_changed_are_written(shown: Shown) -> None:
    with shown.screen.shown():
        shown.read()
        shown.screen.draw()
        assert shown.read() == ""
        shown.screen.state.pending = 77
        shown.screen.draw()
        text = shown.read()
        assert "77 rollouts, not yet judged" in text
        assert text.count("H") == 1, "one move of the cursor"


def test_a_resize_draws_anew_for_the_new_size(shown: Shown) -> None:
    with shown.screen.shown():
        shown.read()
        shown.resize(20, 10)
        shown.screen.draw()
        text = shown.read()
        assert "\x1b[2J" in text
        assert "\x1b[10;1H" in text
        assert "\x1b[11;1H" not in text


def test_what_is_printed_stays_on_the_first_screen(shown: Shown) -> None:
    with shown.screen.shown():
        shown.read()
        with shown.screen.printing():
            shown.screen.console.print("the invite", soft_wrap=True)
        text = shown.read()
        assert text.startswith(f"{LEAVE}the invite\r\n{ENTER}")


def test_a_key_shows_what_was_printed_until_another_comes(shown: Shown) -> None:
    with shown.screen.shown():
        assert shown.screen.press("i") is None
        assert "nothing was printed so far" in shown.read()
        with shown.screen.printing():
            pass
        shown.read()
        shown.screen.press("i")
        assert shown.read().startswith(LEAVE)
        shown.screen.draw()
        assert shown.read() == "", "nothing is drawn meanwhile"
        assert shown.screen.press("q") is None, "the key that brings the view back orders nothing"
        assert shown.read().startswith(ENTER)
        assert shown.screen.press("q") is Order.STOP


def test_pages_and_scrolling_by_key(shown: Shown) -> None:
    with shown.screen.shown():
        shown.screen.press("h")
        assert "pause a node, or let it go on" in shown.read()
        shown.screen.press("n")
        for _ in range(99):
            shown.screen.press("page down")
        assert (shown.screen.look.page, shown.screen.look.scrolled) == (Page.NOTICES, shown.screen.look.most)
        assert "there is no NVIDIA GPU here" in shown.read(), "the first notice"


def test_a_signal_that_ends_the_program_finds_the_terminal_as_it_was(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def raised(number: int) -> None:
        seen.append((number, signal.getsignal(number), echoes(shown.slave), shown.read().endswith(LEAVE)))

    monkeypatch.setattr(signal, "raise_signal", raised)
    with shown.screen.shown():
        for number in (signal.SIGTSTP, signal.SIGQUIT):
            os.kill(os.getpid(), number)
            assert seen.pop() == (number, signal.SIG_DFL, True, True)
            shown.screen.draw()  # it was stopped, and goes on
            assert shown.read().startswith(ENTER)
            assert not echoes(shown.slave)
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL


def test_a_signal_waits_for_the_end_of_what_is_printed(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: seen.append((number, shown.read())))
    with shown.screen.shown():
        shown.read()
        with shown.screen.printing():
            os.kill(os.getpid(), signal.SIGTSTP)
            assert seen == []
            shown.screen.console.print("whole", soft_wrap=True)
        assert seen == [(signal.SIGTSTP, f"{LEAVE}whole\r\n")]
