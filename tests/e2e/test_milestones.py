"""Milestones of a real run: listed, exported to the bit though the store has evicted them, and forked from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.programs import Swarm, wait_done

STEPS = 6


@pytest.mark.rest
def test_a_milestone_is_listed_exported_and_begun_with(swarm: Swarm, tmp_path: Path) -> None:
    swarm.configure(steps=STEPS, staleness=1)
    text = swarm.config.read_text(encoding="utf-8")
    swarm.config.write_text(text.replace("threads = 1\n", "threads = 1\nkeep_every = 2\n", 1), encoding="utf-8")
    learner = swarm.learn()
    wait_done(learner, swarm.join("one"))
    report = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    steps = [one["step"] for one in report["checkpoints"]]
    assert 2 <= steps[0] < STEPS, "the first that the disk had time for at or after step 2"
    assert steps[-1] == STEPS
    assert f"kept from training steps {steps[0]}" in " ".join(swarm.machine.call("report", swarm.config).out.split())

    held, made = tmp_path / "held", tmp_path / "made"
    assert swarm.machine.call("export", swarm.config, held).code == 0
    for version in (swarm.state / "store" / "versions").iterdir():
        shutil.rmtree(version)
    done = swarm.machine.call("export", swarm.config, made, "--version", STEPS)
    assert (done.code, "made from its checkpoint" in done.out) == (0, True), done.err
    again, once = files(made), files(held)
    assert b"the learner's checkpoint of this step" in again.pop("README.md")
    assert once.pop("README.md")
    assert again == once, "to the bit"

    other = Swarm(machine=swarm.machine, directory=swarm.machine.root / "other", model=swarm.model)
    other.configure(steps=STEPS + 1)
    asked = swarm.machine.call("learn", other.config, "--dry-run", "--fork-from", f"{swarm.config}@{steps[0]}")
    assert (asked.code, f"begins with step {steps[0]} of" in asked.out) == (0, True), asked.err


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
