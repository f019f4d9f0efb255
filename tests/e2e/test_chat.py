"""`volery chat` as people use it: in a terminal, and in a pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import Machine, wait_for
from tests.support.serving import write_random_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("spoken") / "model", seed=1)


def test_a_pipe_gets_answers_alone(machine: Machine, model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node", "chat", model, "--max-tokens", "12", "--temperature", "0", "--device", "cpu"],
        input="hello\n/reset\nhello\n/version\n",
        capture_output=True,
        text=True,
        check=False,
        env=machine.environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert len(first) <= 60
    assert done.stderr.count("model answers") == 2
    assert "> " not in done.stdout


def test_a_terminal_is_spoken_with(machine: Machine, model: Path) -> None:
    program, terminal = machine.start_in_terminal(
        "chat", "chat", model, "--max-tokens", 400, "--seed", 1, "--temperature", 2, "--device", "cpu"
    )

    def shows(words: str, times: int = 1) -> None:
        wait_for(words, lambda: terminal.text().count(words) >= times or None, program)

    shows("> ")
    terminal.press(b"\x03")
    shows("Ctrl-D ends.", 2)
    terminal.press(b"hello\n")
    shows("> ", 3)
    terminal.press(b"/version\n")
    shows("model answers", 2)
    terminal.press(b"\x04")
    assert program.wait() == 0
    terminal.close()


def test_an_answer_is_stopped_and_the_conversation_goes_on(machine: Machine, tmp_path: Path) -> None:
    endless = write_random_model(tmp_path / "model", seed=1, context=32_000, is_endless=True)
    program, terminal = machine.start_in_terminal(
        "chat", "chat", endless, "--max-tokens", 30_000, "--temperature", 0, "--device", "cpu"
    )

    def shows(words: str, times: int = 1) -> None:
        wait_for(words, lambda: terminal.text().count(words) >= times or None, program)

    shows("> ")
    terminal.press(b"on and on\n")
    wait_for("the answer", lambda: len(terminal.text().partition("on and on")[2]) > 20 or None, program)
    terminal.press(b"\x03")
    shows("[stopped]")
    terminal.press(b"/quit\n")
    assert program.wait() == 0
    terminal.close()
