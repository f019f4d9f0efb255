"""The terminal as people use it: keys in a real terminal, job control by a real shell, logs for programs."""

from __future__ import annotations

import json
import re
import shlex
import sys
import termios
from pathlib import Path

import pytest

from tests.e2e.programs import Machine, Program, Swarm, Terminal, free_port, wait_event, wait_for

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
CTRL_Z = b"\x1a"


def raw(terminal: Terminal) -> str:
    return terminal.shown.read_text(errors="replace")


def is_as_before(terminal: Terminal) -> bool:
    """Return whether the terminal shows its first screen, with a cursor, and echoes whole lines."""
    local = termios.tcgetattr(terminal.master)[3]
    return bool(local & termios.ECHO and local & termios.ICANON) and is_left(terminal)


def is_left(terminal: Terminal) -> bool:
    """Return whether the terminal shows its first screen, with a cursor."""
    text = raw(terminal)
    return text.rfind(LEAVE) > text.rfind(ENTER) and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


@pytest.fixture
def at_work(swarm: Swarm) -> tuple[Program, Program, Terminal]:
    """A learner, and a node in a terminal that has delivered something."""
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    node, terminal = swarm.join_in_terminal("node")
    wait_event(node, "receipt", learner)
    return learner, node, terminal


def test_a_node_is_paused_resumed_looked_at_and_stopped_by_keys(at_work: tuple[Program, Program, Terminal]) -> None:
    learner, node, terminal = at_work
    wait_for("the screen", lambda: "p pause" in terminal.text() and "tokens per s admitted" in terminal.text(), node)
    terminal.press(b"p")
    assert wait_event(node, "paused", learner)["why"] == "paused by the key p"
    wait_for("the way back", lambda: "p resume" in terminal.text(), node)
    terminal.press(b"p")
    wait_event(node, "resumed", learner)
    terminal.press(b"h")
    wait_for("the help", lambda: "a node, or let it go on" in terminal.text(), node)
    terminal.press(b"r")
    wait_for("the report's line", lambda: f"Its report: volery report {node.state}" in terminal.text(), node)
    wait_for("the machine's load", lambda: "processor" in terminal.text(), node)
    terminal.press(b"\x1b[B\x1b[6~x")
    terminal.press(b"q")
    assert node.wait() == 130, node.story()
    terminal.wait_read()
    assert is_as_before(terminal)
    after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw(terminal).rpartition(LEAVE)[2])
    assert re.search(r"In \d+ s: [\d,]+ tokens admitted", after), after
    assert "paused by the key p" in after, "the newest notices stay in sight"
    assert after.rstrip().endswith("start the same command again.")


def test_a_node_is_drained_by_key(at_work: tuple[Program, Program, Terminal]) -> None:
    learner, node, terminal = at_work
    terminal.press(b"d")
    assert node.wait() == 0, node.story()
    terminal.wait_read()
    assert wait_event(learner, "peer_left", learner)
    assert "Drained: all leases are delivered." in terminal.text()
    assert is_as_before(terminal)


def test_what_was_printed_is_shown_by_key(at_work: tuple[Program, Program, Terminal]) -> None:
    _, node, terminal = at_work
    terminal.press(b"i")
    wait_for("the first screen", lambda: "any key brings the view back" in terminal.text(), node)
    assert raw(terminal).rstrip("\r\n").endswith(("(any key brings the view back)", "\x1b[0m"))
    assert raw(terminal).rfind(LEAVE) > raw(terminal).rfind(ENTER)
    before = raw(terminal).count(ENTER)
    terminal.press(b"q")
    wait_for("the view", lambda: raw(terminal).count(ENTER) > before, node)
    assert node.is_running


def test_ctrl_c_and_ctrl_backslash_leave_the_terminal_as_it_was(swarm: Swarm) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    for keys, code in ((b"\x03", 130), (b"\x1c", -3)):  # Ctrl-C, Ctrl-\
        node, terminal = swarm.join_in_terminal("node")
        wait_event(node, "receipt", learner)
        wait_for("the screen", lambda shown=terminal: ENTER in raw(shown), node)
        terminal.press(keys)
        assert node.wait() == code, node.story()
        terminal.wait_read()
        assert is_as_before(terminal), keys
        terminal.close()
        assert node.state is not None
        (node.state / "events.jsonl").unlink()


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(swarm: Swarm, machine: Machine) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    words = [sys.executable, "-m", "node", *map(str, swarm.to_join("node"))]
    shell, terminal = machine.start_shell("bash")
    state = swarm.directory / "node"
    terminal.press(f"{shlex.join(words)}\n".encode())
    node = Program(name="node", arguments=(), process=shell.process, out=shell.out, err=shell.err, state=state)
    wait_event(node, "receipt", learner)
    wait_for("the screen", lambda: ENTER in raw(terminal), shell)
    terminal.press(CTRL_Z)
    wait_for("the shell", lambda: "Stopped" in terminal.text() and is_left(terminal), shell)
    terminal.press(b"stty -a; echo it is $((6 * 7))\n")
    wait_for("the shell's answer", lambda: "it is 42" in terminal.text(), shell)
    modes = terminal.text().rpartition("speed ")[2].split()
    assert {"icanon", "echo", "isig"} <= set(modes)
    seen = len(raw(terminal))
    terminal.press(b"fg\n")
    wait_for("the screen again", lambda: ENTER in raw(terminal)[seen:], shell)
    wait_for("work", lambda: "tokens per s admitted" in raw(terminal)[seen:], shell)
    terminal.press(b"q")
    wait_for("the end", lambda: "start the same command again." in raw(terminal)[seen:], shell)
    assert is_left(terminal)
    terminal.press(b"exit\n")
    shell.wait()


def test_json_is_one_object_a_line_from_the_first_to_the_last(swarm: Swarm) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    node = swarm.join("node", "--log-format", "json")
    wait_event(node, "receipt", learner)
    node.interrupt()
    assert node.wait() == 130, node.story()
    told = [json.loads(line) for line in node.out.read_text(encoding="utf-8").splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"]) for one in told)
    assert {one["level"] for one in told} <= {"info", "warning", "error"}
    assert {"joined", "receipt", "version_installed"} <= {one.get("event") for one in told}
    assert told[0]["text"].startswith(("the engine is", "found the swarm", "Joined"))
    assert told[-1]["text"].endswith("start the same command again.")


def test_a_log_file_has_text_and_the_output_stays(swarm: Swarm, tmp_path: Path) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    path = tmp_path / "node.log"
    node = swarm.join("node", "--log-file", path)
    wait_event(node, "receipt", learner)
    node.interrupt()
    assert node.wait() == 130, node.story()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.endswith(" info    joined the swarm") for line in lines)
    assert lines[-1].endswith("start the same command again.")
    assert "joined the swarm" in node.out.read_text(encoding="utf-8")
