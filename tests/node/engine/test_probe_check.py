"""An engine has loaded what it was told to load, or the version before is in service again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from learner.artifacts.version_builder import VersionBuilder
from learner.training.probe import coarsest, describe, probe_batch
from learner.training.server import Trainer
from node.engine.interface import EngineCrashed, EngineRefused, InstalledVersion, InstallFailed
from node.engine.probe_check import require_proven, tolerance
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import open_worker_engine
from node.learner_role.training.publisher import _read_probe
from node.rollout_role.worker import GaveUp, RolloutWorker
from node.runtime.events import EventLog
from protocol.core.ids import LeaseId
from protocol.versions.manifest import SignedManifest
from protocol.versions.probe import Probed, probe_of
from protocol.work import read_record
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.error_groups import first_cause
from tests.integration.test_adapters import ok
from tests.support.learner_fixture import FakeTrainer, Settings, open_learner, until
from tests.support.node_fixtures import VOCAB_SIZE, Models
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import NOW_MS, SWARM, version


def published(trainer: Trainer, model: Path, root: Path, number: int) -> tuple[SignedManifest, Path]:
    """What a learner makes of a model: the export, and the manifest with its probe."""
    ok(trainer, "load", directory=str(model), hyperparameters={"learning_rate": 1e-3, "max_new_tokens": 8})
    directory = root / str(number)
    reply = ok(trainer, "export", directory=str(directory), dtype="float32")
    return signed_with(reply["probe"], directory, number)


def signed_with(probe: dict[str, Any], directory: Path, number: int = 1) -> tuple[SignedManifest, Path]:
    """A manifest of a model directory that tells this probe."""
    publisher = VersionBuilder(learner=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate)
    named = version(f"1.{number}")
    return publisher.publish(directory, named, None, NOW_MS, probed=_read_probe(probe)).signed, directory


async def test_an_engine_proves_what_the_trainer_exported_and_nothing_else(models: Models, tmp_path: Path) -> None:
    trainer = Trainer()
    first, directory = published(trainer, models.first, tmp_path, 1)
    second, _ = published(trainer, models.second, tmp_path, 2)
    async with open_worker_engine(TransformersConfig()) as engine:
        with pytest.raises(EngineCrashed, match="has not loaded anything"):  # and nothing is said of the version
            await require_proven(engine, first)
        await engine.install(InstalledVersion(name=first.version, manifest=first.hash), directory)
        await require_proven(engine, first)
        probed = probe_of(first.manifest)
        assert probed is not None
        found = [one for row in await engine.score(probed.sequences, 1.0) for one in row]
        assert found == pytest.approx(probed.logprobs, abs=1e-4)
        with pytest.raises(InstallFailed, match=r"loaded version 1\.2, .* something else"):
            await require_proven(engine, second)
        beyond, _ = signed_with(describe(VOCAB_SIZE + 1_000_000, [-1.0] * 32, "float32"), directory)
        with pytest.raises(InstallFailed, match=r"cannot score the probe .* vocabulary: its embedding has 64 rows"):
            await require_proven(engine, beyond)


class Broken:
    """An engine whose weights are not numbers."""

    async def score(self, sequences: Any, temperature: float) -> list[tuple[float, ...]]:
        await trio.lowlevel.checkpoint()
        return [(math.nan,) * len(completion) for _, completion in sequences]

    async def describe(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        return {"dtype": "float32"}


async def test_what_is_no_number_proves_nothing(models: Models) -> None:
    unlikely, _ = signed_with(describe(VOCAB_SIZE, [-1e9] * 32, "float32"), models.first)
    with pytest.raises(InstallFailed, match="something else"):
        await require_proven(Broken(), unlikely)


def test_rounding_is_allowed_by_the_coarsest_format_on_either_side() -> None:
    def allowed(told: str, **described: object) -> float:
        return tolerance(Probed(dtype=told, sequences=(), logprobs=()), described)

    exact, half, brain = (allowed("float32", dtype=name) for name in ("float32", "float16", "bfloat16"))
    assert exact < half < brain == allowed("bfloat16", dtype="float32")
    assert allowed("float32", dtype="float8") == brain
    assert allowed("float32", dtype="float32", quantization="fp8") > brain
    assert coarsest(["bfloat16", "float32"]) == coarsest(["float16", "bfloat16"]) == "bfloat16"


def test_a_probe_fits_every_vocabulary() -> None:
    for vocab_size in (1, 40, 152_064):
        tokens = probe_batch(vocab_size)["tokens"]
        assert 0 <= tokens.min() <= tokens.max() < vocab_size
    assert describe(40, [-1e9, 1e-7] * 16, "float32")["logprobs"] == [-100.0, 0.0] * 16


class Misscoring:
    """A role whose engine scores as it was told to, but for the versions in `wrong`."""

    def __init__(self, wrong: frozenset[int]) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.wrong = wrong
        self.made = trio.Event()
        self.delivered: list[bytes] = []

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role = role
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))
        engine: Any = role.engine
        line: Any = role.work_client
        deliver = line.deliver

        async def seen(lease: LeaseId, records: list[bytes]) -> Any:
            self.delivered.extend(records)
            return await deliver(lease, records)

        line.deliver = seen

        async def score(sequences: Any, temperature: float) -> list[tuple[float, ...]]:
            await trio.lowlevel.checkpoint()
            if engine.installed is None:
                raise EngineRefused("nothing_installed", "no policy version is installed")
            off = 0.0
            if engine.installed.name.version in self.wrong:
                with trio.move_on_after(MADE_S):
                    await self.made.wait()
                off = 3.0
            return [(-1.0 - off,) * len(completion) for _, completion in sequences]

        generate = engine.generate

        async def watched(requests: Any) -> Any:
            made = await generate(requests)
            if {span.version.name.version for one in made for span in one.spans} & self.wrong:
                self.made.set()
            return made

        async def describe() -> dict[str, object]:
            await trio.lowlevel.checkpoint()
            return {"dtype": "float32"}

        engine.score, engine.describe, engine.generate = score, describe, watched

    def told(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.log if event == name]


MADE_S = 0.1
"""In which something is made with a version before anybody knows what it is; unless nothing is leased just then."""
PROBE = describe(40, [-1.0] * 32, "float32")


async def test_nothing_is_signed_with_weights_that_are_not_the_versions(tmp_path: Path) -> None:
    network, misscoring = MemoryNetwork(), Misscoring(frozenset({2}))
    async with (
        open_learner(tmp_path, network=network, trainer=FakeTrainer(probe=PROBE)) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, worker, learner, tmp_path, 0.001, misscoring)
        await learner.train()
        nursery.cancel_scope.cancel()
    installed = [fields["version"] for fields in misscoring.told("version_installed")]
    assert "1.2" not in installed
    assert installed[0] == "1.0"
    assert installed[-1] > "1.2"
    [failed] = misscoring.told("install_failed")
    assert failed["version"] == "1.2"
    assert "something else" in failed["reason"]
    records = [read_record(raw, SWARM.authority.swarm).record for raw in misscoring.delivered]
    assert records
    assert 2 not in {span.version.version for record in records for span in record.spans}


class Restarting(Misscoring):
    """The engine ends once, when the third version was proven; then it has loaded that again, or something else."""

    def __init__(self, *, right: bool) -> None:
        super().__init__(frozenset())
        self.right = right
        self.before: list[str] = []

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        super().__call__(role, events)
        engine: Any = role.engine
        generate = engine.generate

        async def ends(requests: Any) -> Any:
            if not self.before and len(self.installed()) >= 3:
                self.before = self.installed()
                self.wrong = frozenset() if self.right else frozenset({engine.installed.name.version})
                engine.crash()
            return await generate(requests)

        engine.generate = ends

    def installed(self) -> list[str]:
        """Versions as they came into service."""
        return [fields["version"] for fields in self.told("version_installed")]

    def signed(self, version: int) -> bool:
        """Whether anything made with that version was delivered."""
        records = [read_record(raw, SWARM.authority.swarm).record for raw in self.delivered]
        return version in {span.version.version for record in records for span in record.spans}


@pytest.mark.parametrize("right", [True, False])
async def test_what_a_restarted_engine_has_loaded_is_proven_again(tmp_path: Path, right: bool) -> None:
    network, restarting = MemoryNetwork(), Restarting(right=right)
    settings, trainer = Settings(steps=100_000, staleness=2), FakeTrainer(probe=PROBE)
    async with (
        open_learner(tmp_path, settings, network=network, trainer=trainer) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, worker, learner, tmp_path, 0.001, restarting)
        nursery.start_soon(learner.train)
        await until(lambda: restarting.before != [])
        if right:
            await until(lambda: len(restarting.installed()) > len(restarting.before))
            assert restarting.installed()[len(restarting.before)] == restarting.before[-1]
            head = learner.capacity.chain.head.version
            await until(lambda: learner.capacity.chain.head.version >= head + 2)
        else:
            [wrong] = restarting.wrong
            await until(lambda: restarting.signed(wrong) or bool(restarting.told("install_failed")))
            assert not restarting.signed(wrong)
            assert restarting.told("install_failed")[0]["version"] == f"1.{wrong}"
        nursery.cancel_scope.cancel()


async def test_what_a_restarted_engine_could_not_load_is_loaded_as_soon_as_it_can(tmp_path: Path) -> None:
    """With one node alone there might never be a next version."""
    network, misscoring = MemoryNetwork(), Misscoring(frozenset())
    async with (
        open_learner(tmp_path, Settings(steps=2), network=network, trainer=FakeTrainer(probe=PROBE)) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, worker, learner, tmp_path, 0.001, misscoring)
        await learner.train()
        await until(lambda: misscoring.role.installed == learner.capacity.chain.head)
        engine: Any = misscoring.role.engine
        engine._installed = None
        engine.restarted.emit(None)
        await until(lambda: misscoring.role.installed == learner.capacity.chain.head)
        nursery.cancel_scope.cancel()


async def test_a_node_that_never_loads_what_it_is_told_says_so_and_gives_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is not tried again, since it would be the same again, and with one node alone no other version comes."""
    network, misscoring = MemoryNetwork(), Misscoring(frozenset({0}))
    async with (
        open_learner(tmp_path, Settings(steps=2), network=network, trainer=FakeTrainer(probe=PROBE)) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(learner.train)
        with (
            pytest.raises(GaveUp, match=r"\(one attempt, because another would fail as well\).* something else"),
            first_cause(),
        ):
            await work_with(worker, learner, tmp_path, 0.001, misscoring)
        assert learner.run.unable().text.startswith(
            "1 of 1 nodes cannot install 1.0: the engine reports that it loaded"
        )
        nursery.cancel_scope.cancel()
    [failed] = misscoring.told("install_failed")
    assert failed["again"] == "not again"
