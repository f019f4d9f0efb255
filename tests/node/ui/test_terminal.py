"""Run a program on a screen: its outcome, its failure, a request to stop, orders by key, and what a log gets."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from node.energy import machine_load
from node.energy.machine_load import Load
from node.reports.model.report import Role
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from node.runtime.safe_console import HarmlessConsole
from node.runtime.shutdown import Stopped
from node.state.owner_orders import OwnerRequests
from node.ui.full_screen import FullScreen
from node.ui.live_view import ViewState
from node.ui.log_lines import LogFormat
from node.ui.look import Order
from node.ui.terminal import (
    ALREADY,
    CANNOT_PAUSE,
    NOT_JOINED,
    LogChoice,
    Terminal,
    open_terminal,
    run_shown,
    shows_pictures,
)
from node.ui.view_updates import follow


async def run(program: object, **options: object) -> object:
    with open_terminal(ViewState(role=Role.ROLLOUT, title="a swarm"), plain=True) as terminal:
        return await run_shown(terminal, program, **options)  # type: ignore[arg-type]


def test_the_outcome_is_returned() -> None:
    async def program() -> str:
        await trio.lowlevel.checkpoint()
        return "well done"

    assert trio.run(run, program) == "well done"


def test_what_ends_it_is_raised_as_it_is() -> None:
    async def program() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        trio.run(run, program)


@pytest.mark.parametrize("error", [BrokenPipeError("nobody reads"), RunError("standard output cannot be written")])
def test_a_screen_that_cannot_be_written_is_left_in_order(error: Exception) -> None:
    left = []

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        left.append("in order")

    async def main() -> None:
        with open_terminal(ViewState(role=Role.ROLLOUT, title="a swarm"), plain=True) as terminal:

            def refresh() -> None:
                raise error

            broken = replace(terminal, refresh=refresh)
            await run_shown(broken, trio.sleep_forever, leave=leave)

    with pytest.raises(type(error)):
        trio.run(main)
    assert left == ["in order"]


def test_asked_in_its_first_moment_it_leaves_and_stops() -> None:
    """Also where whoever started it had Ctrl-C ignored, as a shell script does for what it starts in the background."""
    left = []

    async def program() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        left.append("in order")

    async def main() -> None:
        with trio.fail_after(60):
            await run(program, leave=leave)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped):
            trio.run(main)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert left == ["in order"]


@pytest.mark.parametrize("text", ["one line", "The invite.\n\n  volery join x\n"])
def test_what_is_said_while_the_screen_is_drawn_is_a_notice_as_well(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", file)
        monkeypatch.setenv("TERM", "xterm")
        with open_terminal(ViewState(role=Role.LEARNER), plain=False) as terminal:
            terminal.say(text)
            assert notes_of(terminal.state) == [text if text == "one line" else "The invite. (i shows all of it)"]
        terminal.say("the end")
        assert len(notes_of(terminal.state)) == 1
    os.close(master)


def all_of(master: int) -> bytes:
    """Return everything that was written to a terminal that no program has open any more, and close it."""
    told = b""
    with suppress(OSError), open(master, "rb", buffering=0) as screen:  # at its end, reading fails
        while part := screen.read(1 << 16):
            told += part
    return told


def test_the_end_repeats_no_notice_and_breaks_lines_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", file)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "40")
        with open_terminal(ViewState(role=Role.ROLLOUT), plain=False) as terminal:
            terminal.say("Live page: http://127.0.0.1:1/")
            terminal.state.note("a notice that is a little longer than a line")
        terminal.say_stopped(
            "Stopped. What the learner admitted stays counted.", "Its report: volery report " + 30 * "x"
        )
    told = all_of(master).decode().rpartition("\x1b[?1049l")[2].splitlines()
    assert told == [
        "00:00  a notice that is a little longer",
        "       than a line",
        "Stopped. What the learner admitted stays",
        "counted.",
        "Its report: volery report " + 30 * "x",
    ]


# Orders by key


def notes_of(state: ViewState) -> list[str]:
    return [notice.text for notice in state.notices]


def test_a_node_is_paused_resumed_and_drained_by_key(tmp_path: Path) -> None:
    orders = OwnerRequests(tmp_path)
    with open_terminal(ViewState(role=Role.ROLLOUT), plain=True) as terminal:
        terminal.obey(Order.PAUSE)
        assert notes_of(terminal.state) == [NOT_JOINED]
        terminal.orders = orders
        terminal.obey(Order.PAUSE)
        assert orders.paused_by == "the key p"
        terminal.obey(Order.PAUSE)
        assert orders.paused_by == ""
        terminal.obey(Order.DRAIN)
        assert orders.drained is not None
        terminal.obey(Order.DRAIN)
        assert notes_of(terminal.state)[-1] == "this node drains already"


def test_an_order_that_cannot_be_left_is_told(tmp_path: Path) -> None:
    with open_terminal(ViewState(role=Role.ROLLOUT), plain=True) as terminal:
        terminal.orders = OwnerRequests(tmp_path / "gone")
        terminal.obey(Order.PAUSE)
        assert "cannot be written: No such file or directory" in notes_of(terminal.state)[-1]


def test_a_learner_says_what_it_cannot_do() -> None:
    with open_terminal(ViewState(role=Role.LEARNER), plain=True) as terminal:
        terminal.obey(Order.PAUSE)
        terminal.obey(Order.DRAIN)
        assert notes_of(terminal.state) == [CANNOT_PAUSE, CANNOT_PAUSE]


def test_the_key_to_stop_is_ctrl_c_once() -> None:
    told = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: told.append(number))
    try:
        with open_terminal(ViewState(role=Role.LEARNER), plain=True) as terminal:
            terminal.obey(Order.STOP)
            terminal.obey(Order.STOP)
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT]
    assert notes_of(terminal.state) == [ALREADY]


# The machine's load


@pytest.mark.parametrize("role", list(Role))
def test_the_load_of_a_node_is_measured_while_a_screen_shows_it(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "LOAD_S", 0.01)
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        state = ViewState(role=role)
        screen = FullScreen(console=HarmlessConsole(file=file, _environ={"TERM": "xterm"}), state=state)
        shown = Terminal(console=screen.console, state=state, refresh=lambda: None, screen=screen)
        seen: list[Load] = []

        async def until_twice() -> None:
            if role is Role.LEARNER:
                await trio.testing.wait_all_tasks_blocked()
                return
            while len(seen) < 2:
                if state.load is not None and state.load not in seen:
                    seen.append(state.load)
                await trio.sleep(0.001)

        trio.run(run_shown, shown, until_twice)
    os.close(master)
    if role is Role.LEARNER:
        assert state.load is None, "a learner's screen does not show it"
    else:
        assert seen[0].cpu is None, "there was no time yet to measure over"
        assert seen[1].cpu is not None


def test_lines_measure_no_load() -> None:
    state = ViewState(role=Role.ROLLOUT)
    with open_terminal(state, plain=True) as terminal:
        trio.run(run_shown, terminal, trio.testing.wait_all_tasks_blocked)
    assert state.load is None


# Where a screen is drawn


@pytest.mark.parametrize(
    ("term", "encoding", "is_drawn"), [("xterm", "utf-8", True), ("dumb", "utf-8", False), ("xterm", "latin-1", False)]
)
def test_a_screen_needs_a_terminal_that_shows_it(term: str, encoding: str, is_drawn: bool) -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding=encoding) as file:
        assert shows_pictures(HarmlessConsole(file=file, _environ={"TERM": term})) is is_drawn
    os.close(master)


def test_a_file_or_a_pipe_gets_no_screen() -> None:
    assert not shows_pictures(HarmlessConsole(file=io.StringIO()))


# Logs


def test_json_on_standard_output_is_all_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    state, events = ViewState(role=Role.ROLLOUT), EventLog()
    follow(state, events)
    with open_terminal(state, plain=False, log=LogChoice(form=LogFormat.JSON), events=events) as terminal:
        terminal.say("Joined.")
        events.emit("resumed")
    terminal.say_stopped("A sum.", "Stopped.")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one.get("event"), one["text"]) for one in told] == [
        (None, "Joined."), ("resumed", "at work again"), (None, "A sum.\nStopped.")
    ]  # fmt: skip


def test_a_log_file_stands_beside_the_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, events, path = ViewState(role=Role.ROLLOUT), EventLog(), tmp_path / "node.log"
    follow(state, events)
    with open_terminal(state, plain=True, log=LogChoice(file=path), events=events) as terminal:
        terminal.say("Joined.")
        events.emit("resumed")
    terminal.say_stopped("Stopped.")
    assert [line.split(maxsplit=2)[2] for line in path.read_text().splitlines()] == [
        "Joined.", "at work again", "Stopped."
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "00:00 at work again" in out
    assert "Stopped." in out


def test_a_log_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--log-file"),
        open_terminal(ViewState(role=Role.ROLLOUT), plain=True, log=LogChoice(file=tmp_path), events=EventLog()),
    ):
        pass
