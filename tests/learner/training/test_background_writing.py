"""Exports and checkpoints in the background hold the bytes of the moment of the request, at any speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner.training.server import Trainer
from learner.training.snapshot import Kept
from protocol.core.pipe import Arrays, Header
from tests.support.disks import file_limit
from tests.support.processes import Child

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
EXPERTS = {**CONFIG, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
HYPERPARAMETERS: dict[str, Any] = {
    **{"learning_rate": 1e-2, "max_new_tokens": 4, "max_tokens_per_microbatch": 40},
    **{"objective": "dr_grpo", "clip_high": 0.28},
}
LORA = {"lora": {"rank": 3, "alpha": 6}}
WITH_REFERENCE = {"hyperparameters": HYPERPARAMETERS | {"objective": "decoupled", "kl": 0.1}}


class Subject:
    """A trainer, and what it told."""

    def __init__(self, model: Path, **fields: Any) -> None:
        self.events: list[tuple[Header, Arrays]] = []
        self.trainer = Trainer(tell=lambda event, arrays: self.events.append((event, arrays)))
        self.ok("load", directory=str(model), **{"hyperparameters": HYPERPARAMETERS} | fields)

    def ask(self, op: str, arrays: Arrays | None = None, **fields: Any) -> tuple[Header, Arrays]:
        return self.trainer.answer({"id": 7, "op": op, **fields}, arrays or {})

    def ok(self, op: str, arrays: Arrays | None = None, **fields: Any) -> tuple[Header, Arrays]:
        reply, found = self.ask(op, arrays, **fields)
        assert reply["ok"], reply
        return reply, found

    def steps(self, *seeds: int) -> float:
        """Take a step for each seed, and return for how long they had to wait."""
        return sum(float(self.ok("step", rollouts(seed))[0]["blocked_s"]) for seed in seeds)

    def told(self) -> dict[str, tuple[Header, Arrays]]:
        """The events that came since, by directory, once nothing is being written."""
        self.trainer.wait_until_written()
        events, self.events = self.events, []
        return {Path(str(event["directory"])).name: (event, arrays) for event, arrays in events}


def rollouts(seed: int) -> Arrays:
    """Two groups of two completions of 3 tokens."""
    generator = np.random.default_rng(seed)
    return {
        "tokens": generator.integers(0, 40, 4 * 6).astype(np.int32),
        "lengths": np.full(4, 6, np.int32),
        "mask": np.tile(np.array([0, 0, 0, 1, 1, 1], np.uint8), 4),
        "behaviour_logprobs": (np.log(1 / 40) + 0.3 * generator.normal(size=12)).astype(np.float32),
        "lags": np.zeros(12, np.int32),
        "rewards": generator.normal(size=4).astype(np.float32),
        "group_sizes": np.array([2, 2], np.int32),
        "origins": np.zeros(4, np.uint8),
    }


class Gate:
    """Lets readers of snapshots pass until number `at` comes, who waits until it is opened."""

    def __init__(self, at: int = 1 << 30) -> None:
        self.at, self.count = at, 0
        self.reached, self.opened = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def pass_one(self) -> None:
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number == self.at:
            self.reached.set()
            self.opened.wait()


@contextmanager
def gated(gate: Gate) -> Iterator[Gate]:
    plain = Kept.reading

    @contextmanager
    def reading(kept: Kept, first: int = 0, last: int | None = None) -> Iterator[Tensor]:
        gate.pass_one()
        with plain(kept, first, last) as values:
            yield values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kept, "reading", reading)
        try:
            yield gate
        finally:
            gate.opened.set()


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.fixture(scope="module", params=["dense", "experts"])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory, "dense")


def made(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Path:
    directory = tmp_path_factory.mktemp("models") / kind
    what = {"config": CONFIG} if kind == "dense" else {"config": EXPERTS, "architecture": "qwen3_moe"}
    reply, _ = Trainer().answer({"id": 1, "op": "make_model", "directory": str(directory), **what}, {})
    assert reply["ok"], reply
    return directory


PLACES = [0.0, 0.5, 1.0]
"""Where the reader stands while training goes on: at the first tensor, in the middle, at the last."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fields", [{}, WITH_REFERENCE, LORA, {"compute_dtype": "bfloat16"}])
def test_an_export_beside_training_holds_the_moment_it_was_asked_for(
    tmp_path: Path, any_model: Path, fields: dict[str, Any], dtype: str, place: float
) -> None:
    subject, twin = Subject(any_model, **fields), Subject(any_model, **fields)
    for each in (subject, twin):
        each.steps(0)
    with gated(Gate()) as gate:
        waited, names = subject.ok("export", directory=str(tmp_path / "waited"), dtype=dtype, max_shard_bytes=20_000)
    asked = {"directory": str(tmp_path / "beside"), "dtype": dtype, "max_shard_bytes": 20_000, "wait": False}
    with gated(Gate(round(place * (gate.count - 1)))) as gate:
        reply, none = subject.ok("export", **asked)
        gate.reached.wait()
        assert subject.steps(1, 2, 3) > 0, "something had to be copied"
        assert not (tmp_path / "beside").exists()
        gate.opened.set()
        event, found = subject.told()["beside"]
    assert (event["event"], event["files"]) == ("exported", waited["files"])
    assert reply.keys() - {"id", "ok", "seconds"} == {"probe"}
    assert reply["probe"] == event["probe"] == waited["probe"]
    assert not none
    assert found.keys() == names.keys()
    if names:
        assert np.array_equal(found["digests"], names["digests"])
    assert files(tmp_path / "beside") == files(tmp_path / "waited")
    twin.steps(1, 2, 3)
    for each, name in ((subject, "ours"), (twin, "theirs")):
        each.ok("export", directory=str(tmp_path / name), dtype="float32")
    assert files(tmp_path / "ours") == files(tmp_path / "theirs"), "training did not hear of it"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fields", [{}, WITH_REFERENCE, LORA, {"compute_dtype": "bfloat16"}])
def test_a_checkpoint_beside_training_holds_the_moment_it_was_asked_for(
    tmp_path: Path, model: Path, fields: dict[str, Any], place: float
) -> None:
    subject = Subject(model, **fields)
    subject.steps(0)
    with gated(Gate()) as gate:
        subject.ok("save", directory=str(tmp_path / "waited"))
    with gated(Gate(round(place * (gate.count - 1)))) as gate:
        subject.ok("save", directory=str(tmp_path / "beside"), wait=False)
        gate.reached.wait()
        assert subject.steps(1, 2, 3) > 0
        gate.opened.set()
        event, arrays = subject.told()["beside"]
    assert (event["event"], arrays) == ("saved", {})
    assert files(tmp_path / "beside") == files(tmp_path / "waited")


def test_the_moments_of_a_warm_start_are_saved_after_training_has_dropped_them(tmp_path: Path, model: Path) -> None:
    subject = Subject(model)
    sequences = {name: rollouts(0)[name] for name in ("tokens", "lengths", "mask")}
    subject.ok("supervised", sequences, learning_rate=1e-3)
    subject.ok("save", directory=str(tmp_path / "waited"))
    with gated(Gate(0)) as gate:
        subject.ok("save", directory=str(tmp_path / "beside"), wait=False)
        gate.reached.wait()
        subject.steps(1)
        gate.opened.set()
        assert subject.told()["beside"][0]["event"] == "saved"
    assert files(tmp_path / "beside") == files(tmp_path / "waited")


def test_an_export_and_a_checkpoint_go_on_at_once(tmp_path: Path, model: Path) -> None:
    subject = Subject(model)
    subject.steps(0)
    subject.ok("export", directory=str(tmp_path / "export"))
    subject.ok("save", directory=str(tmp_path / "checkpoint"))
    with gated(Gate(3)) as gate:
        subject.ok("export", directory=str(tmp_path / "export-beside"), wait=False)
        subject.ok("save", directory=str(tmp_path / "checkpoint-beside"), wait=False)
        gate.reached.wait()
        subject.steps(1, 2)
        gate.opened.set()
        told = subject.told()
    assert told["export-beside"][0]["event"] == "exported"
    assert told["checkpoint-beside"][0]["event"] == "saved"
    for name in ("export", "checkpoint"):
        assert files(tmp_path / f"{name}-beside") == files(tmp_path / name)


@pytest.mark.parametrize("then", ["export", "restore", "load"])
def test_what_needs_an_export_to_be_over_waits_for_it(tmp_path: Path, model: Path, then: str) -> None:
    subject = Subject(model)
    subject.steps(0)
    subject.ok("save", directory=str(tmp_path / "checkpoint"))
    subject.ok("export", directory=str(tmp_path / "waited"))
    subject.steps(1)
    subject.ok("restore", directory=str(tmp_path / "checkpoint"))
    requests: dict[str, dict[str, Any]] = {
        "export": {"directory": str(tmp_path / "second"), "wait": False},
        "restore": {"directory": str(tmp_path / "checkpoint")},
        "load": {"directory": str(model), "hyperparameters": HYPERPARAMETERS},
    }
    with gated(Gate(0)) as gate:
        subject.ok("export", directory=str(tmp_path / "first"), wait=False)
        subject.steps(1)
        order: list[str] = []
        plain = subject.trainer._tell
        subject.trainer._tell = lambda event, arrays: (order.append("told"), plain(event, arrays))[-1]

        def go_on() -> None:
            subject.ok(then, **requests[then])
            order.append("replied")

        thread = threading.Thread(target=go_on)
        thread.start()
        gate.opened.set()
        thread.join()
        assert order[:2] == ["told", "replied"]
        told = subject.told()
    assert files(tmp_path / "first") == files(tmp_path / "waited")
    assert all(event["event"] == "exported" for event, _ in told.values())
    if then == "export":
        assert files(tmp_path / "second") != files(tmp_path / "first")


def test_an_export_that_fails_is_told_and_training_is_as_before(tmp_path: Path, model: Path) -> None:
    subject, twin = Subject(model), Subject(model)
    (tmp_path / "there").mkdir()
    with file_limit(10_000):
        subject.ok("export", directory=str(tmp_path / "full"), wait=False)
        full, _ = subject.told()["full"]
    subject.ok("export", directory=str(tmp_path / "there"), wait=False)
    assert not subject.events, "the reply comes first"
    there, _ = subject.told()["there"]
    for event, kind, said in ((full, "disk", "nothing was left"), (there, "bad_request", "exists already")):
        assert (event["event"], event["kind"]) == ("export_failed", kind)
        assert said in event["error"]
    assert [file.name for file in tmp_path.rglob("*")] == ["there"]
    for each, name in ((subject, "ours"), (twin, "theirs")):
        each.steps(0)
        each.ok("export", directory=str(tmp_path / name), wait=False)
        assert each.told()[name][0]["event"] == "exported"
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")


@pytest.mark.parametrize("fields", [{}, LORA])
def test_weights_that_are_not_finite_are_told_and_never_appear(
    tmp_path: Path, model: Path, fields: dict[str, Any]
) -> None:
    subject = Subject(model, **fields)
    training = subject.trainer._require_training()
    with torch.no_grad():
        training.policy.parameters[1][1].view(-1)[-1] = torch.nan
    subject.ok("export", directory=str(tmp_path / "export"), wait=False)
    event, arrays = subject.told()["export"]
    assert (event["event"], event["kind"], arrays) == ("export_failed", "bad_model", {})
    assert list(tmp_path.iterdir()) == []


STUCK = """
import contextlib, os, runpy, sys, threading
from learner.training.snapshot import Kept
plain, left = Kept.reading, [int(sys.argv[1])]
def reading(kept, *some):
    left[0] -= 1
    if left[0] < 0:
        os.write(2, b"stuck\\n")
        threading.Event().wait()
    return plain(kept, *some)
Kept.reading = reading
runpy.run_module("learner.training.server", run_name="__main__")
"""


@pytest.mark.parametrize("op", ["export", "save"])
def test_a_trainer_that_is_killed_in_the_middle_leaves_nothing_under_its_name(
    tmp_path: Path, model: Path, op: str
) -> None:
    child = Child("-c", STUCK, "5")
    child.receive()
    child.ask("load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    child.ask(op, directory=str(tmp_path / "place"), wait=False)
    child.ask("step", rollouts(0))
    assert child.log is not None
    while child.log.readline() != b"stuck\n":
        pass
    child.process.kill()
    assert child.replies.read() == b""
    child.bury()
    assert [file.name for file in tmp_path.iterdir()] == [".place.partial"]
    subject = Subject(model)
    subject.ok(op, directory=str(tmp_path / "place"))
    assert [file.name for file in tmp_path.iterdir()] == ["place"]
