"""Two machines whose names lead to 127.0.1.1 train one policy, and each reports how the other ended.

Machines, networks, torchrun and ranks are real.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.network.requirements import missing_tools, obstacle
from learner.training.distributed.machines.messages import FIRST_TOLD_S
from learner.training.server import Trainer
from protocol.core.pipe import Arrays
from tests.support.two_machines import PORT, Machines, open_machines

WHY_NOT = obstacle() or (f"{', '.join(missing_tools())} not installed" if missing_tools() else "")

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

CONFIG: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 49,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    reply, _ = Trainer().answer({"id": 1, "op": "make_model", "directory": str(directory), "config": CONFIG}, {})
    assert reply["ok"], reply
    return directory


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with open_machines(tmp_path) as machines:
        yield machines


def texts() -> Arrays:
    """Return three sequences to learn from."""
    generator = np.random.default_rng(0)
    lengths = np.array([7, 12, 9], np.int32)
    return {
        "tokens": generator.integers(0, 41, int(lengths.sum())).astype(np.int32),
        "lengths": lengths,
        "mask": np.concatenate([[0] + [1] * (int(length) - 1) for length in lengths]).astype(np.uint8),
    }


def load(model: Path) -> dict[str, Any]:
    return {"directory": str(model), "threads": 1, "hyperparameters": {"learning_rate": 1e-3, "max_new_tokens": 12}}


def test_two_machines_meet_and_train_as_one_does_and_end_together(machines: Machines, model: Path) -> None:
    first, second = machines.launch(0), machines.launch(1)
    assert first.ready()[-1]["ranks"] == 2
    first.ask("load", **load(model))
    both = first.ask("supervised", texts(), learning_rate=1e-3)

    alone = Trainer()
    assert alone.answer({"id": 1, "op": "load", **load(model)}, {})[0]["ok"]
    one, _ = alone.answer({"id": 1, "op": "supervised", "learning_rate": 1e-3}, texts())
    assert both["loss"] == pytest.approx(one["loss"], rel=1e-4)

    assert first.process.stdin is not None
    first.process.stdin.close()
    assert (first.end(), second.end()) == (0, 0)
    assert first.last() == second.last() == []


def test_a_machine_that_has_not_come_is_told_of_and_may_come_late(machines: Machines) -> None:
    first = machines.launch(0)
    waiting, _ = first.receive()
    assert waiting["event"] == "waiting"
    assert waiting["text"].startswith(f"the trainer has waited {FIRST_TOLD_S:.0f} s for machine 1 of 2. Run there: ")
    assert waiting["text"].endswith(f"python -m learner.training.distributed.launcher 1 2 1 {machines.meeting}")
    machines.launch(1)
    assert first.ready()[-1]["ranks"] == 2


def test_one_that_comes_before_the_first_tries_until_that_is_there(machines: Machines) -> None:
    second = machines.launch(1)
    assert f"machine 0 does not answer at {machines.meeting}; trying again" in second.hear("does not answer")
    first = machines.launch(0)
    assert first.ready()[-1]["ranks"] == 2
    assert all("frame #" not in line for line in second.said), (
        "the output must not repeat twenty lines of C++ on every attempt"
    )


@pytest.mark.parametrize("machine", [0, 1])
def test_when_a_rank_dies_both_machines_end_and_both_name_it(machines: Machines, model: Path, machine: int) -> None:
    launchers = [machines.launch(0), machines.launch(1)]
    launchers[0].ready()
    launchers[0].ask("load", **load(model))
    [rank] = launchers[machine].ranks()
    os.kill(rank, signal.SIGKILL)
    assert [launcher.end() for launcher in launchers] == [1, 1]
    called = "machine 0" if machine == 0 else f"machine 1 ({machines.network.address('beta')})"
    for launcher in launchers:
        assert launcher.last() == [
            f"{called}: rank {machine} was killed by SIGKILL; if nobody killed it, the machine ran out of memory. "
            "All 2 ranks of 2 machines were ended"
        ]


def test_a_machine_that_goes_ends_the_run_of_the_first_which_says_so(machines: Machines, model: Path) -> None:
    first, second = machines.launch(0), machines.launch(1)
    first.ready()
    first.ask("load", **load(model))
    second.kill()
    assert first.end() == 1
    [cause] = first.last()
    assert cause.startswith(
        f"machine 1 ({machines.network.address('beta')}) has gone: nothing has been heard of it for"
    )


def test_when_the_first_machine_goes_the_second_ends_and_says_so(machines: Machines) -> None:
    first, second = machines.launch(0), machines.launch(1)
    first.ready()
    first.kill()
    assert second.end() == 1
    assert second.last() == [
        f"machine 0 at {machines.meeting} has gone: the connection to it ended. All 1 ranks of this machine were ended"
    ]


def test_a_cable_that_is_pulled_ends_both(machines: Machines) -> None:
    first, second = machines.launch(0), machines.launch(1)
    first.ready()
    machines.network.set_link("beta", connected=False)
    assert (first.end(), second.end()) == (1, 1)
    assert "machine 1" in first.last()[0]
    assert "has gone: nothing has been heard of it for 30 s" in first.last()[0]
    assert f"machine 0 at {machines.meeting} has gone: nothing has been heard of it for 30 s" in second.last()[0]


def test_an_interface_that_the_operator_chose_is_kept(machines: Machines) -> None:
    """A wrong interface is reported: its ranks cannot speak to each other."""
    first, second = machines.launch(0), machines.launch(1, GLOO_SOCKET_IFNAME="nowhere0")
    assert (first.end(), second.end()) == (1, 1)
    assert first.last() == second.last()
    assert first.last()[0].startswith(
        f"machine 1 ({machines.network.address('beta')}): rank 1 ended with exit code 1: "
    )
    assert "nowhere0" in first.last()[0]


def test_a_port_that_is_taken_is_told_at_once(machines: Machines) -> None:
    listens = f"import socket; s = socket.create_server(('', {PORT})); print(flush=True); input()"
    other = machines.launch(0, command=("-c", listens))
    assert other.process.stdout is not None
    other.process.stdout.readline()
    first = machines.launch(0)
    assert first.end() == 1
    assert first.said == [
        f"trainer: the machines cannot meet at {machines.meeting}: something else listens there. See [trainer] "
        "rendezvous"
    ]


def test_one_that_was_started_with_other_numbers_is_refused_and_both_say_why(machines: Machines) -> None:
    first, second = machines.launch(0), machines.launch(1, ranks=2)
    why = "it was started with 2 ranks and 2 machines, but [trainer] has ranks = 1 and machines = 2"
    assert why in first.receive()[0]["text"]
    assert second.end() == 1
    assert f"machine 0 at {machines.meeting} refuses this one: {why}" in second.last()[0]
    machines.launch(1)
    assert first.ready()[-1]["ranks"] == 2
