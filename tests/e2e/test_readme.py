"""Type the README's first page as it stands, after `make demo` has left its model behind."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.e2e.programs import Machine, Program, wait_for
from tests.support.paths import ROOT

README = ROOT / "README.md"
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"(?m)^    (volery .*)$", README.read_text(encoding="utf-8"))]
"""The arguments of every command of its examples that runs `volery`."""

STATE = Path("my-swarm") / "state"


@pytest.fixture
def clone(machine: Machine, model: Path) -> Machine:
    """A directory in which the demo was run."""
    shutil.copytree(model, machine.root / "runs" / "demo" / "model")
    return machine


def called(name: str) -> list[str]:
    """The one line that calls this command."""
    [command] = [command for command in COMMANDS if command[0] == name]
    return command


def test_every_line_is_tried_here() -> None:
    assert [command[0] for command in COMMANDS] == [
        "doctor", "init", "learn", "join", "status", "report", "export",
    ]  # fmt: skip


def test_what_init_writes_fits_the_demos_model(clone: Machine) -> None:
    assert clone.call(*called("init")).code == 0
    learn = clone.call(*called("learn"), "--dry-run")
    assert learn.code == 0, learn.err
    assert "max_new_tokens = 32" in learn.out


@pytest.mark.slow
def test_the_first_page_works_as_it_stands(clone: Machine) -> None:
    def start(name: str, state: Path | None = None) -> Program:
        return clone.start(name, *called(name), state=state)

    assert clone.call(*called("init")).code == 0
    learner = start("learn", clone.root / STATE)
    wait_for("an invite", (clone.root / STATE / "invite").exists, learner)
    [_, invite] = called("doctor")
    assert invite == "INVITE"
    looked = clone.call("doctor", clone.root / STATE / "invite")
    assert looked.code == 0, looked
    node = start("join")
    wait_for("two training steps", lambda: len(learner.events("step")) >= 2, learner, node)
    for name in ("status", "report", "export"):
        outcome = clone.call(*called(name))
        assert outcome.code == 0, outcome
    assert (clone.root / "run.html").exists()
    assert (clone.root / "my-model" / "model.safetensors").exists()
    for program in (node, learner):
        program.interrupt()
        assert program.wait() == 130, program.story()
    assert "Its report: volery report" in node.out.read_text()
