"""vLLM itself, in its own environment, keeps the port's promises and generates what the transformers engine does.

Every change has to pass the tests that are not marked slow, a short form with one model; `make test-vllm` runs all.
vLLM is started few times: each takes a minute on a slow machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
from safetensors import safe_open
from safetensors.numpy import save_file

from node.engine.conformance import FIRST, SECOND, check_engine
from node.engine.interface import Generation, GenerationRequest, InstalledVersion, InstallFailed
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.processes.outcomes import ChildDied, ChildEvent, ChildRestarting, ChildStarted
from tests.support.engine_subject import subject_of
from tests.support.node_fixtures import Models
from tests.support.vllm_requests import config, generated_while, requests

TOLERANCE = 1e-4
"""Float32 on both sides: 5e-6 was seen."""
GROWTH_BYTES = 64 * 2**20
"""Bytes by which all processes may grow over 80 swaps of a model that takes 1 MB. A process that kept a copy of the
weights, or of their packed form, would take more."""
ROOM, IN_FLIGHT = 400, 48
"""New tokens of a completion that is to be in flight while weights change, and how many there are: for some seconds,
also where this process is kept waiting by others."""
ATTEMPTS = 5
"""At swaps that something is in flight over: on a busy machine this process may sleep until all is done."""


@pytest.fixture
async def reference() -> AsyncIterator[WorkerEngine]:
    """The transformers engine, in float32."""
    async with open_worker_engine(TransformersConfig()) as engine:
        yield engine


@pytest.fixture
async def engine(vllm_python: Path) -> AsyncIterator[WorkerEngine]:
    async with open_worker_engine(config(vllm_python)) as engine:
        yield engine


def adapted(base: Path) -> Path:
    """The model in `base` with a low-rank adapter beside its weights, as a learner publishes it."""
    directory = base.with_name(f"{base.name}-adapted")
    if not directory.exists():
        shutil.copytree(base, directory)
        module = "model.layers.1.mlp.down_proj"
        generator = np.random.default_rng(1)
        with safe_open(base / "model.safetensors", framework="np") as reader:
            rows, columns = reader.get_slice(f"{module}.weight").get_shape()
        pair = {"A": generator.normal(size=(4, columns)), "B": generator.normal(size=(rows, 4))}
        tensors = {f"base_model.model.{module}.lora_{k}.weight": v.astype(np.float32) / 4 for k, v in pair.items()}
        save_file(tensors, directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    return directory


async def require_same(one: WorkerEngine, other: WorkerEngine, directory: Path, version: InstalledVersion) -> None:
    """Both generate the same tokens from `directory`, with the same logprobs."""
    asked = requests(48, room=40, stops=frozenset({5}))
    await one.install(version, directory)
    await other.install(version, directory)
    for request, mine, theirs in zip(asked, await one.generate(asked), await other.generate(asked), strict=True):
        assert mine.tokens == theirs.tokens, request
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=TOLERANCE)
        assert (mine.finish, mine.spans) == (theirs.finish, theirs.spans)


async def require_made_by(
    reference: WorkerEngine,
    directories: dict[InstalledVersion, Path],
    asked: Sequence[GenerationRequest],
    made: Sequence[Generation],
) -> None:
    """Each token has the logprob that the version of its span gives it after all tokens before."""
    for version, directory in directories.items():
        await reference.install(version, directory)
        for temperature in {1.0 if request.greedy else request.temperature for request in asked}:
            mine = [
                (request, one)
                for request, one in zip(asked, made, strict=True)
                if (1.0 if request.greedy else request.temperature) == temperature
            ]
            scored = await reference.score([(request.prompt, one.tokens) for request, one in mine], temperature)
            for (_, one), right in zip(mine, scored, strict=True):
                for span in one.spans:
                    if span.version == version:
                        part = slice(span.start, span.end)
                        assert one.logprobs[part] == pytest.approx(right[part], abs=TOLERANCE)


async def swap_in_flight(
    engine: WorkerEngine, asked: Sequence[GenerationRequest], models: Models, swaps: int
) -> tuple[list[Generation], list[int]]:
    """Return the completions of `asked` while the two versions are installed in turn, FIRST being in service and coming
    last. Return also the bytes that the processes hold after each.
    """
    made: list[Generation] = []
    sizes: list[int] = []

    async def generate() -> None:
        made.extend(await engine.generate(asked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        for swap in range(swaps):
            # Ends only after steps that took the others along: some tokens are made between any two swaps.
            [short] = await engine.generate(requests(1, room=3))
            version, directory = ((SECOND, models.second), (FIRST, models.first))[swap % 2]
            assert short.spans[0].version == (FIRST, SECOND)[swap % 2]
            await engine.install(version, directory)
            assert engine.installed == version
            sizes.append(resident_bytes(engine))
    return made, sizes


def resident_bytes(engine: WorkerEngine) -> int:
    """Return the resident bytes of the worker and of its child processes."""
    process = psutil.Process(engine.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


async def require_swaps(engine: WorkerEngine, reference: WorkerEngine, models: Models, *, swaps: int) -> None:
    """As often in flight, by `continue`: of every token it is known which version made it."""
    engine.on_new_version = "continue"
    asked = requests(IN_FLIGHT, room=ROOM)
    for _ in range(ATTEMPTS):
        made, _ = await swap_in_flight(engine, asked, models, swaps)
        for one in made:
            assert [span.start for span in one.spans] == [0, *(span.end for span in one.spans[:-1])]
            assert one.spans[-1].end == len(one.tokens)
        await require_made_by(reference, {FIRST: models.first, SECOND: models.second}, asked, made)
        if max(len(one.spans) for one in made) > 2:
            return
    pytest.fail(f"nothing was in flight over two swaps, in {ATTEMPTS} attempts")


async def test_it_generates_what_transformers_does_and_swaps_in_flight(
    engine: WorkerEngine, reference: WorkerEngine, models: Models
) -> None:
    for version, directory in ((FIRST, models.first), (SECOND, models.second), (FIRST, models.first)):
        await require_same(engine, reference, directory, version)
    pairs = [((1, 2, 3), (4, 5, 6, 7)), ((9,), (8,)), (tuple(range(40)), (0,) * 20)]
    for temperature in (1.0, 0.7):
        scores = zip(await engine.score(pairs, temperature), await reference.score(pairs, temperature), strict=True)
        assert all(mine == pytest.approx(theirs, abs=TOLERANCE) for mine, theirs in scores)
    await require_swaps(engine, reference, models, swaps=10)


@pytest.mark.slow
async def test_it_conforms(vllm_python: Path, reference: WorkerEngine, models: Models) -> None:
    events: list[ChildEvent] = []
    async with open_worker_engine(config(vllm_python), on_event=events.append) as engine:
        await reference.install(FIRST, models.first)
        await check_engine(engine, subject_of(engine, models, reference.score, TOLERANCE))
        assert (await engine.describe())["parameters"] > 0
        for directory, reason in (
            (models.without_tensor, "model.norm.weight"),
            (models.misshapen, "model.norm.weight"),
            (models.pickled, "safetensors"),
            (models.absent, "there is no directory"),
        ):
            with pytest.raises(InstallFailed, match=reason) as failure:
                await engine.install(SECOND, directory)
            assert str(directory) in str(failure.value)
        others = (
            (SECOND, models.sharded),
            (FIRST, adapted(models.first)),
            (SECOND, models.untied),
            (FIRST, models.llama),
        )
        for version, directory in others:
            await require_same(engine, reference, directory, version)
    kinds = [type(event) for event in events if isinstance(event, ChildStarted | ChildDied | ChildRestarting)]
    assert kinds == [ChildStarted, ChildStarted, ChildDied, ChildRestarting, ChildStarted], "a rest, and a crash"


@pytest.mark.slow
async def test_what_becomes_of_completions_in_flight(
    engine: WorkerEngine, reference: WorkerEngine, models: Models
) -> None:
    await require_same(engine, reference, adapted(models.second), SECOND)  # vLLM starts without what is then merged
    await engine.install(FIRST, models.first)
    await require_swaps(engine, reference, models, swaps=20)
    # With little in flight: what is computed anew at every swap would otherwise grow with it, and so would its memory.
    _, sizes = await swap_in_flight(engine, requests(4, room=16), models, 100)
    assert sizes[-1] - sizes[20] < GROWTH_BYTES
    asked = requests(IN_FLIGHT, room=ROOM)
    alone = {}
    for version, directory in ((SECOND, models.second), (FIRST, models.first)):
        await engine.install(version, directory)
        alone[version] = [one.tokens for one in await engine.generate(asked)]
    for how, expected in (("finish", FIRST), ("abort", SECOND)):
        engine.on_new_version = how
        for _ in range(ATTEMPTS):
            made = await generated_while(engine, asked, lambda: engine.install(SECOND, models.second))
            await engine.install(FIRST, models.first)
            [versions] = zip(*([span.version for span in one.spans] for one in made), strict=True)  # one each
            assert how == "abort" or set(versions) == {FIRST}
            assert [one.tokens for one in made] == [alone[version][i] for i, version in enumerate(versions)]
            if expected in versions:
                break
        else:
            pytest.fail(f"nothing was in flight, in {ATTEMPTS} attempts")
