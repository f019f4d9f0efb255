"""Run an engine whose weights are in a worker: `PolicyEngine` as a child process that `common_worker` started.

Invariants:

- `installed` is the version that the worker last reported as installed, even if the caller of `install` was cancelled.
- After a crash the worker loads that version again before any other call reaches it. If the version's directory is
  gone, nothing is installed until the next `install`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import protocol
from node.config.node_config import OnNewVersion
from node.engine.interface import (
    Claim,
    EngineCrashed,
    EngineError,
    EngineRefused,
    FinishReason,
    GeneratedSpan,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    OnTokens,
    Verified,
)
from node.processes.child import SupervisedChild, open_child
from node.processes.child_process import ChildProcess
from node.processes.outcomes import ChildCrashed, ChildGaveUp, ChildRefused, OnEvent
from node.processes.spec import ChildSpec, RestartLimits
from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays, Header

HANG_S = 900.0
"""Seconds without a sign of life after which a generating or scoring worker has hung. It sends one before every step,
at most every ALIVE_S. A step takes milliseconds; the longest, a full prefill of a large model on a slow processor,
takes minutes."""
INSTALL_S = 3600.0
"""The same for an install, in which a worker sends nothing: the largest models, read from the slowest disks."""

LAUNCHER = Path(__file__).with_name("common_worker") / "__main__.py"


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How to run the worker in the directory WORKER beside this file; errors call it `name`.

    `python`: interpreter of an environment with everything that the worker needs. `compute_dtype`:
    auto|float32|bfloat16|float16; auto is float32 on a CPU and the stored type elsewhere. `max_batch`: completions at a
    time. `kv_cache_bytes`: memory for their caches; 0 for what the worker finds free. `ram_bytes`: bound on the memory
    of all its processes together; None for no bound. `on_new_version`: what happens to unfinished completions, where a
    worker can choose. `scratch`: as in `ChildSpec`. `hang_s`: its `timeout_s`.
    """

    WORKER: ClassVar[str]

    name: str = "engine"
    python: Path = Path(sys.executable)
    device: str = "auto"
    compute_dtype: str = "auto"
    threads: int = 1
    nice: int = 0
    max_batch: int = 256
    kv_cache_bytes: int = 0
    ram_bytes: int | None = None
    on_new_version: OnNewVersion = "finish"
    scratch: Path | None = None
    hang_s: float = HANG_S
    restarts: RestartLimits = field(default_factory=RestartLimits)

    def settings(self) -> dict[str, object]:
        """Return the worker's settings as JSON values."""
        names = ("device", "compute_dtype", "threads", "max_batch", "kv_cache_bytes")
        return {name: getattr(self, name) for name in names}

    def environment(self) -> Mapping[str, str]:
        """Return the variables that are added to the worker's environment."""
        return {}

    def spec(self) -> ChildSpec:
        # -I: neither the launcher's folder nor our PYTHONPATH may leak into an environment that is not ours.
        ours = Path(protocol.__file__).parent.parent
        settings = json.dumps(self.settings())
        return ChildSpec(
            name=self.name,
            argv=(str(self.python), "-I", str(LAUNCHER), self.WORKER, str(ours), settings),
            env=self.environment(),
            threads=self.threads,
            nice=self.nice,
            cancel_op="cancel",
            memory_bytes=self.ram_bytes,
            timeout_s=self.hang_s,
            yields_memory=True,
            scratch=self.scratch,
            restarts=self.restarts,
        )


class WorkerEngine:
    """A `PolicyEngine` in a worker; obtained from `open_worker_engine`. Each install uses the current
    `on_new_version`."""

    def __init__(self, on_new_version: OnNewVersion) -> None:
        self.on_new_version = on_new_version
        self.restarted = Signal[None]()
        self._installed: InstalledVersion | None = None
        self._directory: Path | None = None
        self._child: SupervisedChild | None = None
        self._listeners: dict[int, OnTokens] = {}
        self._streams = count()

    @property
    def installed(self) -> InstalledVersion | None:
        return self._installed

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while it is restarting."""
        return self._service.pid

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        try:
            with _as_engine_errors():
                request = _install_request(version, directory)
                request["on_new_version"] = self.on_new_version
                await self._service.call("install", request, timeout_s=INSTALL_S)
        except EngineRefused as refusal:
            raise InstallFailed(str(refusal)) from refusal

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        if not requests:
            return []
        header, arrays = _generate_request(requests)
        with _as_engine_errors():
            return _generations(*await self._service.call("generate", header, arrays), requests)

    async def interrupt(self) -> None:
        if self.pid is None:
            return  # a process that has ended generates nothing
        with _as_engine_errors():
            await self._service.call("interrupt")

    async def generate_streaming(self, requests: Sequence[GenerationRequest], on_tokens: OnTokens) -> list[Generation]:
        if not requests:
            return []
        header, arrays = _generate_request(requests)
        stream = next(self._streams)
        self._listeners[stream] = on_tokens
        try:
            with _as_engine_errors():
                found = await self._service.call("generate", {**header, "stream": stream}, arrays)
                return _generations(*found, requests)
        finally:
            del self._listeners[stream]

    async def release(self) -> None:
        if self.pid is None:
            return  # a process that has ended holds no memory, and the next one holds none yet
        with _as_engine_errors():
            await self._service.call("release")

    async def rest(self) -> None:
        await self._service.rest()
        self._installed = self._directory = None

    def wake(self) -> None:
        self._service.wake()

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        """Return the logprobs of every completion's tokens under the installed weights; `sequences` are (prompt,
        completion)."""
        arrays = _given(sequences, [temperature] * len(sequences))
        with _as_engine_errors():
            _, reply = await self._service.call("score", arrays=arrays)
        return _by_completion(reply["logprobs"], arrays)

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        arrays = _given([(claim.prompt, claim.tokens) for claim in claims], [claim.temperature for claim in claims])
        arrays["seeds"] = np.array([claim.seed for claim in claims], np.uint64)
        arrays["starts"] = np.array([claim.start for claim in claims], np.int32)
        if any(claim.experts for claim in claims):
            arrays["experts"] = np.frombuffer(b"".join(claim.experts for claim in claims), np.uint8)
            arrays["expert_bytes"] = np.array([len(claim.experts) for claim in claims], np.int64)
        with _as_engine_errors():
            _, reply = await self._service.call("verify", arrays=arrays)
        found = [_by_completion(reply[name], arrays) for name in ("gaps", "logprobs", "leads", "sizes")]
        return [
            Verified(gaps=gaps, logprobs=logprobs, leads=leads, sizes=sizes)
            for gaps, logprobs, leads, sizes in zip(*found, strict=True)
        ]

    async def describe(self) -> Header:
        """Return device, dtype, torch version, threads and parameter count, for people and for a node's greeting."""
        with _as_engine_errors():
            header, _ = await self._service.call("describe")
        return header

    @property
    def _service(self) -> SupervisedChild:
        assert self._child is not None, "engines are obtained from open_worker_engine"
        return self._child

    async def _prepare(self, worker: ChildProcess) -> None:
        """Make a restarted worker load the version that its predecessor had."""
        if self._installed is None or self._directory is None:
            return
        try:
            await worker.call("install", _install_request(self._installed, self._directory), timeout_s=INSTALL_S)
        except ChildRefused:
            self._installed = self._directory = None
        self.restarted.emit(None)

    def _take_event(self, header: Header, arrays: Arrays) -> None:
        if header["event"] == "installed":
            self._installed, self._directory = _version(header["version"]), Path(header["directory"])
        if header["event"] == "tokens" and (listener := self._listeners.get(header["stream"])) is not None:
            _tell(arrays, listener)


@asynccontextmanager
async def open_worker_engine(
    config: WorkerConfig, *, on_event: OnEvent = lambda event: None
) -> AsyncIterator[WorkerEngine]:
    """Start a worker and yield the engine when it is ready, some seconds later. End the worker with the scope.

    Raises EngineCrashed, with the worker's output, if it cannot start.
    """
    engine = WorkerEngine(config.on_new_version)
    opened = open_child(config.spec(), prepare=engine._prepare, on_event=on_event, on_frame=engine._take_event)
    with _as_engine_errors():
        async with opened as child:
            engine._child = child
            yield engine


@contextmanager
def _as_engine_errors() -> Iterator[None]:
    try:
        yield
    except ChildCrashed as error:
        raise EngineCrashed(str(error)) from error
    except ChildGaveUp as error:
        raise EngineError(str(error)) from error
    except ChildRefused as error:
        raise EngineRefused(error.kind, error.error) from error


def _given(sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperatures: Sequence[float]) -> Arrays:
    """Return (prompt, completion) of all sequences as the arrays that workers accept."""
    return {
        "tokens": np.array([token for prompt, tokens in sequences for token in prompt + tokens], np.int32),
        "prompt_lengths": np.array([len(prompt) for prompt, _ in sequences], np.int32),
        "completion_lengths": np.array([len(tokens) for _, tokens in sequences], np.int32),
        "temperatures": np.array(temperatures, np.float64),
    }


def _by_completion(values: np.ndarray[Any, Any], given: Arrays) -> list[tuple[float, ...]]:
    lengths = given["completion_lengths"]
    return [tuple(part.tolist()) for part in np.split(values, np.cumsum(lengths)[:-1])][: len(lengths)]


def _install_request(version: InstalledVersion, directory: Path) -> Header:
    name = {
        "incarnation": version.name.incarnation,
        "version": version.name.version,
        "manifest": version.manifest.hex(),
        "weights": version.weights,
    }
    return {"directory": str(directory.absolute()), "version": name}


def _version(header: Header) -> InstalledVersion:
    name = PolicyVersion(incarnation=header["incarnation"], version=header["version"])
    manifest = ManifestHash(bytes.fromhex(header["manifest"]))
    return InstalledVersion(name=name, manifest=manifest, weights=header["weights"])


def _generate_request(requests: Sequence[GenerationRequest]) -> tuple[Header, Arrays]:
    """Return a request in which each distinct prompt and set of stop ids occurs once: a group has one of each."""
    prompts = {prompt: i for i, prompt in enumerate(dict.fromkeys(r.prompt for r in requests))}
    stop_sets = {stops: i for i, stops in enumerate(dict.fromkeys(r.stop_ids for r in requests))}
    asks = [request.experts for request in requests]
    experts = {"with_experts": np.array(asks, np.uint8)} if any(asks) else {}
    return {"stop_sets": [sorted(stops) for stops in stop_sets]}, {
        "prompts": np.array([token for prompt in prompts for token in prompt], np.int32),
        "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int32),
        "prompt": np.array([prompts[r.prompt] for r in requests], np.int32),
        "seeds": np.array([r.seed for r in requests], np.uint64),
        "temperatures": np.array([r.temperature for r in requests], np.float64),
        "greedy": np.array([r.greedy for r in requests], np.uint8),
        "budgets": np.array([r.max_new_tokens for r in requests], np.int32),
        "stop_set": np.array([stop_sets[r.stop_ids] for r in requests], np.int32),
        "starts": np.array([r.start for r in requests], np.int32),
        **experts,
    }


def _tell(arrays: Arrays, listener: OnTokens) -> None:
    cuts = np.cumsum(arrays["lengths"])[:-1]
    columns = zip(
        arrays["rows"].tolist(),
        arrays["starts"].tolist(),
        np.split(arrays["tokens"], cuts),
        np.split(arrays["logprobs"], cuts),
        strict=True,
    )
    for row, start, tokens, logprobs in columns:
        listener(row, start, tokens.tolist(), logprobs.tolist())


def _generations(header: Header, arrays: Arrays, requests: Sequence[GenerationRequest]) -> list[Generation]:
    versions = [_version(version) for version in header["versions"]]
    cuts = np.cumsum(arrays["lengths"])[:-1]
    columns = zip(
        np.split(arrays["tokens"], cuts),
        np.split(arrays["logprobs"], cuts),
        arrays["stopped"].tolist(),
        arrays["seconds"].tolist(),
        _spans(arrays["spans"].tolist(), versions, len(arrays["lengths"])),
        _experts(arrays),
        requests,
        strict=True,
    )
    return [
        Generation(
            tokens=tuple(tokens.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish=_finish(stopped, len(tokens), request),
            spans=spans,
            generation_s=seconds,
            experts=experts,
        )
        for tokens, logprobs, stopped, seconds, spans, experts, request in columns
    ]


def _finish(stopped: bool, tokens: int, request: GenerationRequest) -> FinishReason:
    if stopped:
        return FinishReason.STOP
    return FinishReason.LENGTH if tokens >= request.max_new_tokens else FinishReason.PART


def _experts(arrays: Arrays) -> list[np.ndarray[Any, Any] | None]:
    """Return the experts of each completion's tokens; None where they were not requested."""
    if "experts" not in arrays:
        return [None] * len(arrays["lengths"])
    routed = arrays["routed"].astype(bool)
    parts = iter(np.split(arrays["experts"], np.cumsum(arrays["lengths"][routed])[:-1]))
    return [next(parts) if has else None for has in routed]


def _spans(
    rows: Sequence[tuple[int, int, int]], versions: Sequence[InstalledVersion], count: int
) -> list[tuple[GeneratedSpan, ...]]:
    """Return the spans of each completion from `rows` (completion, end, version). A span begins where the one before it
    ends."""
    spans: list[list[GeneratedSpan]] = [[] for _ in range(count)]
    for completion, end, version in rows:
        start = spans[completion][-1].end if spans[completion] else 0
        spans[completion].append(GeneratedSpan(start=start, end=end, version=versions[version]))
    return [tuple(mine) for mine in spans]
