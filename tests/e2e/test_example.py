"""The example that needs no GPU and no download runs: written by `volery init`, started, joined, and it learns."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.config.loader import read_swarm_config
from tests.e2e.programs import Machine, Program, wait_for

TEACHING_S = 1200.0
"""The command says nothing while it teaches the model for half a minute, and a busy machine takes many times that."""


def written(machine: Machine) -> Path:
    """Write the example, and check that what it prints can be typed."""
    made = machine.start("init", "init", "my-swarm", "--example", "reverse")
    assert made.wait(TEACHING_S) == 0, made.story()
    told = made.out.read_text(encoding="utf-8")
    assert "The model in my-swarm/model reverses " in told
    assert told.splitlines()[-2:] == [
        "  volery learn my-swarm",
        "  volery join my-swarm/state/invite --config my-swarm/node.toml",
    ]
    return machine.root / "my-swarm"


def both(machine: Machine, directory: Path) -> tuple[Program, Program]:
    """Type the two lines of its page in two terminals."""
    learner = machine.start("learn", "learn", "my-swarm", "--plain", state=directory / "state")
    wait_for("an invite", (directory / "state" / "invite").exists, learner)
    words = ("join", "my-swarm/state/invite", "--config", "my-swarm/node.toml", "--plain")
    return learner, machine.start("join", *words)


def test_the_small_example_is_written_and_trains(machine: Machine) -> None:
    directory = written(machine)
    assert {path.name for path in directory.iterdir()} == {"README.md", "node.toml", "swarm.toml", "model"}
    assert read_swarm_config(directory / "swarm.toml").swarm.name == "my-swarm"
    learner, node = both(machine, directory)

    def steps() -> list[dict[str, Any]]:
        return learner.events("step")

    wait_for("four steps", lambda: len(steps()) > 3, learner, node, progress=lambda: len(steps()))
    for program in (node, learner):
        program.interrupt()
        assert program.wait() == 130, program.story()


@pytest.mark.rest
def test_the_small_example_learns_what_its_page_says(machine: Machine) -> None:
    learner, node = both(machine, written(machine))

    def sampled() -> list[float]:
        return [event["sampled"] for event in learner.events("evaluated")]

    wait_for(
        "a policy that gets four of five right",
        lambda: max(sampled(), default=0.0) > 0.8,
        learner,  # which ends after the steps that its configuration says
        node,
        progress=lambda: len(learner.events("step")),
    )
    assert sampled()[0] < 0.4
    for program in (node, learner):
        program.interrupt()
        assert program.wait() == 130, program.story()


def test_a_model_that_is_there_is_kept(machine: Machine) -> None:
    (machine.root / "my-swarm" / "model").mkdir(parents=True)
    (machine.root / "my-swarm" / "model" / "config.json").write_text("{}")
    done = machine.start("init", "init", "my-swarm", "--example", "reverse")
    assert done.wait() == 0, done.story()
    assert "The model in my-swarm/model was kept." in done.out.read_text(encoding="utf-8")
    assert (machine.root / "my-swarm" / "model" / "config.json").read_text() == "{}"


def test_a_directory_that_is_taken_gets_no_model(machine: Machine) -> None:
    (machine.root / "my-swarm").mkdir()
    (machine.root / "my-swarm" / "swarm.toml").write_text("mine")
    refused = machine.call("init", "my-swarm", "--example", "reverse")
    assert refused.code == 2
    assert "swarm.toml already exists, and nothing was written" in refused.err
    assert [path.name for path in (machine.root / "my-swarm").iterdir()] == ["swarm.toml"]


def test_its_commands_start_where_the_program_is(machine: Machine) -> None:
    """The lines that `init` prints for a directory with a space are words of a shell."""
    done = subprocess.run(
        [sys.executable, "-m", "node", "init", "my swarm", "--example", "gsm8k"],
        cwd=machine.root, env={**os.environ, **machine.environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shlex.split(done.stdout.splitlines()[-1]) == ["volery", "learn", "my swarm"]
