"""Test what the benchmark runs beside the product, what it plans, and how runs become bars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from trio.testing import MockClock

from benchmarks.harness import BenchmarkError
from benchmarks.live.swarm import Plant, Run, node_toml, swarm_toml
from benchmarks.live.trainer import SleepingTrainer
from benchmarks.planned_nodes import Result, bars, fewer, planned, row
from learner.provisioning.estimation.recording import Stepped
from node.commands.plan.measured_run import read_run
from node.config.loader import read_node_config, read_swarm_config
from node.config.node_config import DrillSection, EngineSection
from node.engine.factory import open_engine
from node.engine.interface import GenerationRequest, InstalledVersion
from node.runtime.events import EventLog
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash
from protocol.versions.safetensors_header import read_table
from tests.support.recorded_runs import run as recorded
from tests.support.recorded_runs import write
from tests.support.trainer_fixture import version

PLANT = Plant()


# The trainer that sleeps


def trainer(tmp_path: Path) -> SleepingTrainer:
    begin = tmp_path / "begin"
    begin.touch()
    return SleepingTrainer(train_s=0.0, size_bytes=1 << 16, begin=begin)


def test_every_version_is_a_model_of_its_size_and_unlike_the_one_before(tmp_path: Path) -> None:
    sleeping = trainer(tmp_path)
    hyperparameters = {"max_new_tokens": 16}
    loaded = sleeping.answer({"id": 1, "op": "load", "directory": "model", "hyperparameters": hyperparameters})
    assert (loaded["id"], loaded["ok"], loaded["vocab_size"]) == (1, True, 64)
    found = []
    for step in (1, 2):
        assert sleeping.answer({"id": 2, "op": "step"})["steps"] == step
        directory = tmp_path / str(step)
        told = sleeping.answer({"id": 3, "op": "export", "directory": str(directory), "dtype": "bfloat16"})
        assert told["files"] == sorted(path.name for path in directory.iterdir())
        raw = (directory / "model.safetensors").read_bytes()
        assert len(raw) == 1 << 16
        read_table("model.safetensors", len(raw), lambda offset, size, raw=raw: raw[offset : offset + size])  # type: ignore[misc]
        found.append(raw)
    equal = sum(a == b for a, b in zip(*found, strict=True))
    assert equal < 0.1 * (1 << 16)  # the header


def test_a_checkpoint_says_how_far_it_was(tmp_path: Path) -> None:
    before, after = trainer(tmp_path), trainer(tmp_path)
    before.answer({"id": 1, "op": "step"})
    before.answer({"id": 2, "op": "save", "directory": str(tmp_path / "saved")})
    assert after.answer({"id": 1, "op": "restore", "directory": str(tmp_path / "saved")})["steps"] == 1


def test_what_it_does_not_know_it_refuses(tmp_path: Path) -> None:
    told = trainer(tmp_path).answer({"id": 7, "op": "supervised", "learning_rate": 1.0})
    assert (told["id"], told["ok"], told["kind"]) == (7, False, "bad_request")


# The configurations


def test_the_configurations_say_what_the_plant_does(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").write_text(
        swarm_toml(PLANT, Run(staleness=6, kappa=5, nodes=3, steps=7, first=1), "10.77.0.1")
    )
    learn = read_swarm_config(tmp_path / "swarm.toml").learn
    assert (learn.staleness, learn.publish_every, learn.steps) == (6, 5, 7)
    assert learn.prompts_per_step * learn.group_size == PLANT.rollouts
    (tmp_path / "node.toml").write_text(node_toml(PLANT, "n1", "10.77.0.2"))
    node = read_node_config(tmp_path / "node.toml")
    assert (node.engine.kind, node.engine.batch_rollouts) == ("fake", PLANT.group)
    assert node.testing.fake_token_s * PLANT.tokens == pytest.approx(PLANT.generation_s)


async def test_the_fake_engine_takes_the_time_that_is_configured(tmp_path: Path, autojump_clock: MockClock) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    section, testing = EngineSection(kind="fake"), DrillSection(fake_token_s=0.25)
    request = GenerationRequest(prompt=(1,), seed=0, temperature=1.0, max_new_tokens=8, stop_ids=frozenset())
    async with open_engine(section, EventLog(), name="engine", testing=testing) as engine:
        await engine.install(InstalledVersion(name=version("1.0"), manifest=ManifestHash(digest_of(b"any"))), tmp_path)
        (made,) = await engine.generate([request])
    assert made.generation_s == pytest.approx(8 * 0.25)


# What is planned


def test_as_many_alike_as_the_rule_asks_for(tmp_path: Path) -> None:
    """There are two peers of 4 rollouts a second each, T_train = 10 s, and delays of 7 s, so R / T_train is 3.2. With S
    = 1 only 3 s of 10 are left, and 32 / 3 asks for 2.67 peers, with the margin for 2.8. Where all 10 s count, one peer
    gives 4 of 3.36.
    """
    trial = read_run(write(tmp_path / "recording.jsonl", recorded()))
    tight, loose = (planned(trial, staleness) for staleness in (1, 3))
    assert (len(tight.choice.chosen), tight.kappa) == (3, 1)
    assert (len(loose.choice.chosen), loose.kappa) == (1, 2)


def test_a_trial_that_shows_too_little_is_said_to(tmp_path: Path) -> None:
    trial = read_run(write(tmp_path / "recording.jsonl", recorded(deliveries=False)))
    with pytest.raises(BenchmarkError, match="too little"):
        planned(trial, 1)


@pytest.mark.parametrize(("nodes", "left"), [(2, 1), (3, 2), (5, 3), (10, 6)])
def test_fewer_are_about_three_fifths(nodes: int, left: int) -> None:
    assert fewer(nodes) == left


# How runs become bars


def result(
    tmp_path: Path, staleness: int, waited_s: float, *, planned: bool = True, predicted: float | None = 0.0
) -> Result:
    """A run that waited so long of every ten seconds that it was busy, and was expected to wait for such a share."""
    events = [
        msgspec.structs.replace(event, waited_s=waited_s) if isinstance(event, Stepped) else event
        for event in recorded()
    ]
    measured = read_run(write(tmp_path / "recording.jsonl", events)).measured
    assert measured.predicted is not None
    period_s = None if predicted is None else measured.predicted.train_s / (1 - predicted)
    outcome = None if period_s is None else replace(measured.predicted, period_s=period_s)
    run = Run(staleness=staleness, nodes=3, steps=40, first=8)
    return Result(run=run, planned=planned, measured=replace(measured, predicted=outcome), cores=0.5)


def met(results: list[Result]) -> dict[str, bool]:
    return {bar.name: bar.met for bar in bars(results)}


def test_a_learner_that_waits_more_than_a_twentieth_misses(tmp_path: Path) -> None:
    few = [result(tmp_path, staleness, 2.5, planned=False, predicted=0.2) for staleness in (1, 3)]
    enough = [result(tmp_path, 1, 0.5), result(tmp_path, 3, 0.6)]
    assert met([*enough, *few]) == {"not_waiting_s1": True, "not_waiting_s3": False, "bubble_error_points": True}


def test_the_worst_prediction_counts_and_none_is_a_miss(tmp_path: Path) -> None:
    enough = [result(tmp_path, staleness, 0.0) for staleness in (1, 3)]
    near = result(tmp_path, 1, 2.5, planned=False, predicted=0.25)
    far = result(tmp_path, 3, 2.5, planned=False, predicted=0.31)
    assert bars([*enough, near, far])[-1].value == pytest.approx(11)
    assert not met([*enough, near, far])["bubble_error_points"]
    unknown = result(tmp_path, 3, 2.5, planned=False, predicted=None)
    assert not met([*enough, near, unknown])["bubble_error_points"]


def test_a_run_is_a_row(tmp_path: Path) -> None:
    cells = row(result(tmp_path, 1, 2.5, planned=False, predicted=0.25))
    assert cells[:4] == ["1", "1", "3", "fewer"]
    assert cells[7:10] == ["80.0", "20.0", "25.0"]
