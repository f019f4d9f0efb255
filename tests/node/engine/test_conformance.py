"""Both engines keep the port's promises, and the transformers engine some of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Literal

import pytest
import trio
from trio.testing import MockClock

from node.config.node_config import EngineSection
from node.engine.common_worker.keepalive import ALIVE_S, Alive
from node.engine.conformance import BAD, FIRST, SECOND, Subject, check_engine, check_streams, check_verifying
from node.engine.factory import open_engine
from node.engine.fake import FakeConfig, open_fake_engine
from node.engine.interface import EngineCrashed, EngineRefused, GenerationRequest, InstallFailed
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import HANG_S, open_worker_engine
from node.processes.outcomes import ChildDied, ChildEvent, ChildRestarting, ChildStarted
from node.processes.spec import RestartLimits
from node.runtime.events import EventLog
from tests.support.engine_subject import subject_of
from tests.support.node_fixtures import VOCAB_SIZE, Models

AT_ONCE = RestartLimits(first_delay_s=0.0)
REQUEST = GenerationRequest(
    prompt=(1, 2, 3), seed=1, temperature=1.0, max_new_tokens=8, stop_ids=frozenset(), greedy=False
)


async def test_the_fake_conforms(tmp_path: Path, autojump_clock: MockClock) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "empty").mkdir()
    async with open_fake_engine(FakeConfig(vocab_size=VOCAB_SIZE, seconds_per_token=0.01)) as engine:

        async def crash() -> None:
            engine.crash()

        subject = Subject(
            first=tmp_path,
            second=tmp_path,
            bad=(tmp_path / "empty", tmp_path / "absent"),
            vocab_size=VOCAB_SIZE,
            crash=crash,
        )
        await check_engine(engine, subject)
        await check_verifying(engine, subject)
        await check_streams(engine, subject)


async def test_the_transformers_engine_conforms(models: Models) -> None:
    events: list[ChildEvent] = []
    async with open_worker_engine(TransformersConfig(restarts=AT_ONCE), on_event=events.append) as engine:
        await check_engine(engine, subject_of(engine, models, engine.score))
        await check_verifying(engine, subject_of(engine, models, engine.score))
        await check_streams(engine, subject_of(engine, models, engine.score))
        # Other architectures, tied and not, with a full load between the swaps in place.
        for directory in (models.untied, models.llama):
            await engine.install(SECOND, directory)
            [generation] = await engine.generate([REQUEST])
            [scored] = await engine.score([(REQUEST.prompt, generation.tokens)], 1.0)
            assert generation.logprobs == pytest.approx(scored, abs=1e-4)
        assert (await engine.describe())["parameters"] > 0
        for directory, reason in (
            (models.without_tensor, "model.norm.weight"),
            (models.misshapen, "model.norm.weight"),
            (models.pickled, "safetensors"),
            (models.absent, "there is no directory"),
        ):
            with pytest.raises(InstallFailed, match=reason) as failure:
                await engine.install(BAD, directory)
            assert str(directory) in str(failure.value)
    kinds = [type(event) for event in events if isinstance(event, ChildStarted | ChildDied | ChildRestarting)]
    assert kinds == [ChildStarted, ChildStarted, ChildDied, ChildRestarting, ChildStarted], "a rest, and a crash"


async def test_a_version_whose_directory_is_gone_is_not_in_service_after_a_crash(
    models: Models, tmp_path: Path
) -> None:
    directory = tmp_path / "evicted"
    shutil.copytree(models.first, directory)
    async with open_worker_engine(TransformersConfig(restarts=AT_ONCE)) as engine:
        await engine.install(FIRST, directory)
        shutil.rmtree(directory)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineCrashed, match="killed by SIGKILL"):
            await engine.generate([REQUEST])
        with pytest.raises(EngineRefused, match="install one") as refused:
            await engine.generate([REQUEST])
        assert refused.value.kind == "nothing_installed"
        assert engine.installed is None
        await engine.install(SECOND, models.second)
        [generation] = await engine.generate([REQUEST])
        assert generation.spans[0].version == SECOND


async def test_an_engine_that_hangs_is_started_again_with_its_version(models: Models) -> None:
    async with open_worker_engine(TransformersConfig(restarts=AT_ONCE, hang_s=20.0)) as engine:
        await engine.install(FIRST, models.first)
        first = await engine.generate([REQUEST])
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match="it hangs"):
            await engine.generate([REQUEST])
        [again] = await engine.generate([REQUEST])
        assert (again.tokens, again.spans) == (first[0].tokens, first[0].spans)


def test_a_worker_says_that_it_lives_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    alive = Alive(said.append)
    for now[0] in (100.0, 109.0, 110.0, 111.0, 119.0, 121.0):
        alive.step()
    assert said == [{"event": "alive"}] * 2
    assert 2 * ALIVE_S < HANG_S, "one that is lost in a stall is none that hangs"


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
async def test_an_engine_has_its_temporary_files_in_the_state_directory(
    tmp_path: Path, kind: Literal["transformers", "vllm"]
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(
        '#!/bin/sh\necho "$VOLERY_SCRATCH has $(ls "$VOLERY_SCRATCH" | wc -l), $TMPDIR." >&2\nexit 3\n'
    )
    interpreter.chmod(0o755)
    scratch = tmp_path / "tmp" / "evaluation"
    (scratch / "of-before").mkdir(parents=True)
    libraries = scratch if kind == "transformers" else Path(tempfile.gettempdir())
    section = EngineSection(kind=kind, python=str(interpreter))
    with pytest.raises(EngineCrashed, match=re.escape(f"{scratch} has 0, {libraries}.")):
        async with open_engine(section, EventLog(), name="evaluation", state=tmp_path):
            raise AssertionError("it started")
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_an_engine_that_cannot_start_says_what_it_said(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    interpreter.chmod(0o755)
    with pytest.raises(EngineCrashed, match="no torch here") as crash:
        async with open_worker_engine(TransformersConfig(python=interpreter)):
            raise AssertionError("it started")
    assert "exit code 3" in str(crash.value)
    with pytest.raises(EngineCrashed, match=r'the evaluation process(.|\n)*device = "cuda:99" is not available'):
        async with open_worker_engine(TransformersConfig(name="evaluation", device="cuda:99")):
            raise AssertionError("it started")
    with pytest.raises(EngineCrashed, match="could not start"):
        async with open_worker_engine(TransformersConfig(python=tmp_path / "absent")):
            raise AssertionError("it started")
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("form", ["int8", "int4"])
async def test_the_transformers_engine_conforms_with_quantised_weights(models: Models, form: str) -> None:
    config = TransformersConfig(restarts=AT_ONCE, quantization=form)
    async with open_worker_engine(config) as engine:
        await check_engine(engine, subject_of(engine, models, engine.score))
        await check_verifying(engine, subject_of(engine, models, engine.score))
        described = await engine.describe()
        assert described["quantization"] == form
        for directory in (models.untied, models.llama, models.sharded):
            await engine.install(SECOND, directory)
            [generation] = await engine.generate([REQUEST])
            [scored] = await engine.score([(REQUEST.prompt, generation.tokens)], 1.0)
            assert generation.logprobs == pytest.approx(scored, abs=1e-4)
