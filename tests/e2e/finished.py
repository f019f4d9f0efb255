"""Make the state directories of a run that is over: of a learner and a node, with a trainer without torch.

Invariants:

- No process works in the directories any more.
- They hold everything that a learner and a node keep between two starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.tasks.tokenizer import write_character_tokenizer
from tests.e2e.doom import VARIABLE
from tests.e2e.programs import Machine, Swarm, free_port, wait_done, wait_event
from tests.support.store_fixture import safetensors_file

STEPS = 6


def hashed_swarm(machine: Machine, *, steps: int = STEPS) -> Swarm:
    """Make a swarm whose model is a name and a tokenizer, since no process computes with it. Do not start it."""
    model = machine.root / "model"
    model.mkdir()
    write_character_tokenizer(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(safetensors_file({"layer": ("U8", (1,), b"0")}))
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=model)
    swarm.configure(steps=steps, port=free_port(), heartbeat_s=2.0)
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write("\n[metrics]\nsamples = 2\n")
    return swarm


def finish(swarm: Swarm) -> None:
    """Run it to its end with one node, `swarm.directory / "one"`."""
    learner = swarm.learn_doomed()
    node = swarm.join("one")
    wait_event(node, "joined", learner)
    wait_done(learner, node)


@contextmanager
def surroundings(root: Path) -> Iterator[None]:
    """Provide the environment and the directory in which programs in `root` are started."""
    changed = {
        "VOLERY_HOME": str(root / "home"),
        VARIABLE: str(root / "doom"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    before, here = {name: os.environ.get(name) for name in changed}, Path.cwd()
    os.environ.update(changed)
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(here)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
