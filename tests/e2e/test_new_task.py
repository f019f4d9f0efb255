"""Write a task as an author begins: make it, test it, look at it, try it out, train on it, install it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.e2e.programs import Machine, wait_event, wait_for
from tests.support.paths import ROOT

EACH = pytest.mark.parametrize(
    ("what", "passed"), [("task", "16 passed, 4 skipped"), ("environment", "19 passed, 2 skipped")]
)


@pytest.fixture
def written(machine: Machine) -> Path:
    """Return the package, without its model."""
    done = volery(machine.root, "new", "task", "my-task", "--no-model")
    assert done.returncode == 0, done
    return machine.root / "my-task"


def run(directory: Path, *command: object, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python as an author does, with this checkout, or what is below `path`, on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, dict.fromkeys((path, ROOT))))}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def volery(directory: Path, *words: object, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: in this one the task's module would stay for other tests."""
    return run(directory, "-m", "node", *words, path=path)


@EACH
def test_it_passes_its_own_test(machine: Machine, what: str, passed: str) -> None:
    assert volery(machine.root, "new", what, "my-task", "--no-model").returncode == 0
    written = machine.root / "my-task"
    done = run(written, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert passed in done.stdout
    lint = run(written, "-m", "ruff", "check", "--isolated", "--select", "E,F,I,UP,B", "--line-length", 120, ".")
    assert lint.returncode == 0, lint.stdout


def test_it_is_shown_and_checked(written: Path) -> None:
    shown = volery(written, "tasks", "show")
    assert shown.returncode == 2, "there is no model yet"
    assert "[model] directory: " in shown.stderr
    (written / "swarm.toml").rename(written / "later.toml")
    shown = volery(written, "tasks", "show", "python:my_task:MY_TASK", "--count", 1)
    assert shown.returncode == 0, shown
    assert "| after:" in shown.stdout
    assert "The reference answer has reward 1, an empty one 0." in shown.stdout
    checked = volery(written, "tasks", "check", "python:my_task:MY_TASK")
    assert checked.returncode == 0, checked
    assert "All 9 checks passed." in checked.stdout


def test_it_is_found_by_its_name_once_it_is_installed(written: Path, tmp_path: Path) -> None:
    wheel = next(iter(WheelBuilder(str(written)).build(directory=str(tmp_path / "dist"))))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "away").mkdir()
    done = volery(tmp_path / "away", "tasks", "check", "my_task:letters=2", path=tmp_path / "installed")
    assert done.returncode == 0, done
    listed = volery(tmp_path / "away", "tasks", path=tmp_path / "installed")
    assert "my_task[:letters=3]" in listed.stdout


@pytest.mark.rest
@pytest.mark.parametrize("what", ["task", "environment"])
def test_it_learns_what_it_says(machine: Machine, what: str) -> None:
    """From random weights to half of the highest reward, on the way to what the README of the package promises."""
    made = machine.start("new", "new", what, "my-task")
    assert made.wait() == 0, made.story()
    directory = machine.root / "my-task"
    assert "volery learn ." in made.out.read_text()
    looked = volery(directory, "learn", ".", "--dry-run")
    assert looked.returncode == 0, looked
    assert "The trial passed" in looked.stdout
    learner = machine.start("learn", "learn", directory / "swarm.toml", "--plain", state=directory / "state")
    wait_for("an invite", (directory / "state" / "invite").exists, learner)
    node = machine.start("join", "join", directory / "state" / "invite", "--config", directory / "node.toml", "--plain")
    wait_event(learner, "step", node)

    def sampled() -> list[float]:
        return [event["sampled"] for event in learner.events("evaluated")]

    wait_for(
        "a policy that gets half of it right",
        lambda: max(sampled(), default=0.0) > 0.5,
        learner,  # which ends after the steps that its configuration says
        progress=lambda: len(learner.events("step")),
    )
    assert sampled()[0] < 0.2
    for program in (node, learner):
        program.interrupt()
        assert program.wait() == 130, program.story()
