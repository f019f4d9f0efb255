"""Test the vLLM worker's service, on a library that stands in for vLLM, with that library's failures.

`make test-vllm` tests vLLM itself.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from node.engine.common_worker.errors import Refused
from protocol.core.pipe import Header, read_frame
from tests.support.node_fixtures import VOCAB_SIZE, Models

WORKER = "node.engine.vllm_worker"
REFUSED = 13
"""A token that this library takes for a mistake of its caller's."""
HANGS = 14
"""A token after which it makes two more, and then none until it is aborted."""
LOSES = 15
"""A token after which the experts of one token are lost."""
ROUTED = 2 * 2
"""Bytes of a token's experts of the models here: two layers with experts, two experts each."""


class EngineDeadError(Exception):
    """vLLM's core has ended."""


class Library:
    """What the worker uses of vLLM's AsyncLLM; the core of a model in `dies` ends at its first token."""

    dies: set[str] = set()  # noqa: RUF012

    def __init__(self, config: str) -> None:
        self.config = config
        self.errored = False
        self.model_config = SimpleNamespace(max_model_len=512, get_vocab_size=lambda: VOCAB_SIZE, dtype="torch.float32")
        self.label = ""
        self.aborted: dict[str, asyncio.Event] = {}
        self.drawn: dict[str, int] = {}
        self.fetches = 0
        self.tells = asyncio.Event()
        """Until then nobody is told any experts."""

    async def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        if name != "volery_experts":
            return [""]
        self.fetches += 1
        await self.tells.wait()
        [ids, _] = args
        return [[bytes(ROUTED * self.drawn[id]) for id in ids]]

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        """Nothing runs by itself here."""

    async def resume_generation(self) -> None:
        """Nothing runs by itself here."""

    @classmethod
    def from_engine_args(cls, arguments: Any) -> Library:
        return cls((Path(arguments.model) / "config.json").read_text())

    async def generate(self, prompt: dict[str, list[int]], params: Any, id: str) -> AsyncIterator[Any]:
        for _ in range(20):  # others have a turn
            await asyncio.sleep(0)
        if self.config in self.dies:
            self.errored = True
            raise EngineDeadError("the core has ended")
        if REFUSED in prompt["prompt_token_ids"]:
            raise ValueError("this library does not like it")
        count = params.max_tokens
        if HANGS in prompt["prompt_token_ids"]:
            self.aborted[id] = asyncio.Event()
            await self.aborted[id].wait()
            count = 2
        self.drawn[id] = count - (LOSES in prompt["prompt_token_ids"])
        yield SimpleNamespace(
            outputs=[
                SimpleNamespace(
                    token_ids=[7] * count,
                    logprobs=SimpleNamespace(logprobs=[-1.0] * count),
                    weight_versions=[SimpleNamespace(end=count, version=self.label)],
                )
            ]
        )

    async def abort(self, ids: list[str]) -> None:
        for id in ids:
            self.aborted[id].set()

    async def update_weight_version(self, label: str) -> None:
        self.label = label

    async def get_weight_version(self) -> str:
        """Answered between two steps."""
        for _ in range(40):
            await asyncio.sleep(0)
            if self.errored:
                raise EngineDeadError("the core has ended")
        return self.label

    def shutdown(self) -> None:
        self.errored = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The worker's module, with the library in vLLM's place, and nothing between two looks at it."""
    namespace = SimpleNamespace
    modules = {
        "vllm": {"SamplingParams": namespace, "__version__": "0"},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": namespace},
        "vllm.platforms": {"current_platform": namespace(device_type="cpu", is_cpu=lambda: True)},
        "vllm.sampling_params": {"RequestOutputKind": namespace(FINAL_ONLY=2)},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": Library},
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
        "vllm.v1.sample": {},
        "vllm.v1.sample.logits_processor": {"BatchUpdate": None, "LogitsProcessor": object, "MoveDirectionality": None},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("sampler", "engine", "server"):
        monkeypatch.delitem(sys.modules, f"{WORKER}.{name}", raising=False)
    module = importlib.import_module(f"{WORKER}.server")
    monkeypatch.setattr(module, "WATCH_S", 0.0)
    monkeypatch.setattr(Library, "dies", set())
    yield module
    for name in ("sampler", "engine", "server"):
        sys.modules.pop(f"{WORKER}.{name}", None)


def opened(module: ModuleType) -> tuple[Any, Callable[[], list[Header]]]:
    """A server, and what it has sent."""
    output = io.BytesIO()

    def sent() -> list[Header]:
        output.seek(0)
        return [header for header, _ in iter(lambda: read_frame(output), None)]

    return module.Server(module.Settings(), output), sent


def ask(server: Any, id: int, prompts: list[list[int]], *, experts: bool = False) -> None:
    rows = len(prompts)
    arrays = {
        "prompts": np.array([token for prompt in prompts for token in prompt], np.int32),
        "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int32),
        "prompt": np.arange(rows, dtype=np.int32),
        "seeds": np.arange(rows, dtype=np.uint64),
        "temperatures": np.ones(rows),
        "greedy": np.zeros(rows, np.uint8),
        "budgets": np.full(rows, 3, np.int32),
        "stop_set": np.zeros(rows, np.int32),
        "starts": np.zeros(rows, np.int32),
        "with_experts": np.full(rows, experts, np.uint8),
    }
    server._take({"id": id, "op": "generate", "stop_sets": [[]]}, arrays)


class Left(Exception):
    """The process has ended."""


def leave(code: int, why: str = "") -> NoReturn:
    raise Left(why)


def test_a_request_that_vllm_does_not_take_is_refused_alone(server: ModuleType, models: Models) -> None:
    worker, sent = opened(server)

    async def work() -> None:
        await worker._install(models.first, {"version": 1}, "finish")
        ask(worker, 1, [[1], [REFUSED]])
        ask(worker, 2, [[2]])
        while worker._running:
            await asyncio.wait(list(worker._running))

    asyncio.run(work())
    answers = {header["id"]: header for header in sent() if "id" in header}
    assert answers[2]["ok"]
    assert (answers[1]["ok"], answers[1]["kind"]) == (False, "bad_request")
    assert "this library does not like it" in answers[1]["error"]


def test_an_interrupted_call_has_what_vllm_had_and_what_waits_has_nothing(server: ModuleType, models: Models) -> None:
    worker, sent = opened(server)

    async def work() -> None:
        await worker._install(models.first, {"version": 1}, "finish")
        ask(worker, 1, [[HANGS], [1]])
        while len(worker._engine.llm.aborted) < 1 or len(worker._running) > 1:
            await asyncio.sleep(0)
        worker._gate_open = False  # as while a version is installed
        ask(worker, 2, [[1]])
        worker._take({"op": "interrupt", "id": 3}, {})
        while worker._running or worker._interrupting:
            await asyncio.sleep(0)

    asyncio.run(work())
    answers = {header["id"]: header for header in sent() if "id" in header}
    assert all(answers[id]["ok"] for id in (1, 2, 3))
    assert [answers[id]["versions"] for id in (1, 2)] == [[{"version": 1}], []]


def test_a_completion_that_is_to_begin_again_while_its_experts_are_fetched_has_nothing_until_then(
    server: ModuleType, models: Models
) -> None:
    worker, sent = opened(server)

    async def work() -> None:
        await worker._install(models.mixture, {"version": 1}, "finish")
        ask(worker, 1, [[1], [2]], experts=True)
        library = worker._engine.llm
        while library.fetches < 2:
            await asyncio.sleep(0)
        rows = list(worker._running.values())
        await worker._clear(again=True)  # as a new version does that begins all anew
        assert [(row.length, row.experts) for row in rows] == [(0, None)] * 2
        ask(worker, 2, [[3]], experts=True)
        worker._take({"op": "interrupt", "id": 3}, {})
        while worker._interrupting:
            await asyncio.sleep(0)
        worker._gate_open = True
        library.tells.set()
        ask(worker, 4, [[1], [2]], experts=True)
        while worker._running:
            await asyncio.sleep(0)

    asyncio.run(work())
    answers = {header["id"]: header for header in sent() if "id" in header}
    assert [answers[id]["versions"] for id in (1, 2, 4)] == [[], [], [{"version": 1}]]


def test_a_call_some_of_whose_experts_are_lost_is_refused_alone(server: ModuleType, models: Models) -> None:
    worker, sent = opened(server)

    async def work() -> None:
        await worker._install(models.mixture, {"version": 1}, "finish")
        worker._engine.llm.tells.set()
        ask(worker, 1, [[1], [LOSES]], experts=True)
        ask(worker, 2, [[2]], experts=True)
        ask(worker, 3, [[LOSES]])
        while worker._running:
            await asyncio.wait(list(worker._running))

    asyncio.run(work())
    answers = {header["id"]: header for header in sent() if "id" in header}
    assert answers[2]["ok"]
    assert answers[3]["ok"]
    assert "the experts of 2 of 3 tokens were recorded" in answers[1]["error"]


def test_a_model_whose_core_ends_on_trial_is_refused_and_the_one_before_serves(
    server: ModuleType, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch sees that core end as well, and must not take the worker with it."""
    worker, sent = opened(server)
    monkeypatch.setattr(server, "leave", leave)
    Library.dies = {(models.llama / "config.json").read_text()}

    async def work() -> None:
        watching = asyncio.get_running_loop().create_task(worker._watch())
        await worker._install(models.first, {"version": 1}, "finish")
        for _ in range(3):  # the watch is at different points of its round
            with pytest.raises(Refused, match="vLLM cannot load"):
                await worker._install(models.llama, {"version": 2}, "finish")
            await asyncio.sleep(0)
        ask(worker, 1, [[1]])
        while worker._running:
            await asyncio.wait(list(worker._running))
        assert not watching.done()
        worker._engine.llm.errored = True  # and now the one in service
        with pytest.raises(Left, match="vLLM's core"):
            await watching

    asyncio.run(work())
    [answer] = [header for header in sent() if "id" in header]
    assert answer["ok"]
    assert answer["versions"] == [{"version": 1}]
