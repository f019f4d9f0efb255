"""Run vLLM's AsyncLLM: start it with the first version, swap similar versions in place, and restart it for others.

Invariants:

- `version` names the version of every later token.
- While weights are swapped nothing runs, and no cache of the old weights is kept.
- If a version cannot be loaded, the one before stays active. The exception is a swap that fails after all checks
  passed: it leaves no usable weights and raises `Broken`, and the process must end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from learner.artifacts.expert_routing import routing_in
from protocol.core.pipe import Header
from protocol.experts import Routing

from ..common_worker.errors import Broken, Refused
from ..common_worker.generate_call import Row
from ..common_worker.token_events import Drawn, listens
from .expert_recording import ROUTING
from .model_contents import Contents, plain_view
from .sampler import ARGUMENT

SAMPLER = f"{__package__}.sampler:SeededSampler"
EXTENSION = f"{__package__}.weight_swap.WeightSwap"
RECORDING_WORKER = f"{__package__}.recording_worker.RecordingWorker"
HANG_S = 300.0
"""Seconds within which vLLM's core must answer. It answers between two steps. A step takes seconds at most; compiling a
kernel in between may take minutes on a slow machine."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`device`: auto|cpu|cuda. `compute_dtype`: auto|float32|bfloat16|float16; auto is the stored type, but float32 on
    a CPU. `max_model_len`: tokens of prompt and completion; 0 for as many as the model and the memory allow.
    `gpu_memory_utilization`: fraction of a GPU's memory for weights and KV cache. `kv_cache_bytes`: 0 for what that
    leaves, or a GiB on a CPU. `quantization`: as vLLM names it; "" as stored. `max_batch`: completions at a time.
    `eager`: compile nothing."""

    device: str = "auto"
    compute_dtype: str = "auto"
    threads: int = 1
    max_batch: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    kv_cache_bytes: int = 0
    max_model_len: int = 0
    quantization: str = ""
    eager: bool = False


def require_device(wanted: str) -> None:
    """Raise Refused("bad_request") unless this vLLM was built for the device, and finds it."""
    there = current_platform.device_type
    if wanted not in ("auto", there):
        error = f'device = "{wanted}" is not available: this vLLM runs on {there or "nothing here"}; use that or "auto"'
        raise Refused("bad_request", error)


class Engine:
    """vLLM's AsyncLLM and the version in it. One task at a time calls `install`, with nothing running unless `keep`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._llm: Any = None
        self._served: Contents | None = None
        self._labels = count()
        self._versions: dict[str, Header] = {}
        self._routing: Routing | None = None
        self._unsupported = ""
        self._forgotten: list[str] = []
        self.version: Header | None = None
        self.is_starting = False
        """Whether the process that runs, if any, is on trial; `install` decides whether it serves."""

    @property
    def core(self) -> object:
        """Return the object that answers requests now; another object, or None, after a restart."""
        return self._llm

    @property
    def llm(self) -> Any:
        if self._llm is None:
            raise Refused("nothing_installed", "no policy version is installed; install one before generating")
        return self._llm

    @property
    def vocab_size(self) -> int:
        return int(self.llm.model_config.get_vocab_size())

    def swaps(self, contents: Contents) -> bool:
        """Return whether `contents` can replace the active version without a restart."""
        served = self._served
        return served is not None and served.config == contents.config and not contents.is_packed

    async def install(self, contents: Contents, version: Header) -> bool:
        """Activate `contents`; return whether this was done in place. Raises Refused("bad_model"), or Broken."""
        in_place = self.swaps(contents)
        if in_place:
            assert self._served is not None
            contents.require_like(self._served)
            await self._swap(contents)
        else:
            await self._start_anew(contents)
        self._served = contents
        await self._label(version)
        if in_place:
            await self._llm.resume_generation()
        return in_place

    async def _swap(self, contents: Contents) -> None:
        """Swap the weights and leave the engine paused. Without `clear_cache`, later tokens would use the old KV."""
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.collective_rpc("volery_swap", args=(str(contents.directory),))
        except Exception as error:  # vLLM and the libraries below it may raise anything
            raise Broken(f"{contents.directory} passed every check, but loading it failed: {error}") from error

    async def _start_anew(self, contents: Contents) -> None:
        """Stop the running process, since a GPU holds only one, and start another. If that fails, restart the old
        one."""
        served, version = self._served, self.version
        self.is_starting = True
        self._stop()
        try:
            await self._start(contents)
        except Exception as error:  # vLLM and the libraries below it may raise anything
            self._stop()
            if served is not None and version is not None:
                await self._start(served)
                self._served = served
                await self._label(version)
            reason = f"vLLM cannot load {contents.directory}; see its standard error for the reason: {error}"
            raise Refused("bad_model", reason) from error
        finally:
            self.is_starting = False

    async def _start(self, contents: Contents) -> None:
        self._routing = _recorded_routing(contents)
        with plain_view(contents) as view:
            arguments = AsyncEngineArgs(model=str(view), **self._arguments(contents), **_recording(self._routing))
            self._llm = AsyncLLM.from_engine_args(arguments)
        if contents.adapter is not None:
            await self._swap(contents)
            await self._llm.resume_generation()
        self._unsupported = ""
        if self._routing is not None:
            [self._unsupported, *_] = await self._llm.collective_rpc("volery_unsupported")
        # If vLLM has no kernel (for some head sizes on a CPU), it ends at the first token, not at the start.
        trial = SamplingParams(max_tokens=1, logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        async with asyncio.timeout(HANG_S):
            async for _ in self._llm.generate({"prompt_token_ids": [0]}, trial, "trial"):
                pass

    def _stop(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()
        self._llm = self._served = self.version = None

    def _arguments(self, contents: Contents) -> dict[str, Any]:
        settings = self._settings
        is_cpu = current_platform.is_cpu()
        dtype = settings.compute_dtype
        if dtype == "auto":
            dtype = "float32" if is_cpu else contents.computes_in
        lengths = [length for length in (settings.max_model_len, contents.original_length) if length]
        return {
            "skip_tokenizer_init": True,
            "trust_remote_code": False,
            "generation_config": "vllm",
            "load_format": "safetensors",
            "dtype": dtype,
            "quantization": settings.quantization or None,
            "max_model_len": min(lengths, default=-1),
            "max_num_seqs": settings.max_batch,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "kv_cache_memory_bytes": settings.kv_cache_bytes or (1 << 30 if is_cpu else None),
            "enable_prefix_caching": True,
            "enforce_eager": settings.eager,
            # The sampler counts the generated tokens, so a step must be sampled before the next one starts.
            "async_scheduling": False,
            "logits_processors": [SAMPLER],
            "logprobs_mode": "processed_logits",
            "worker_extension_cls": EXTENSION,
            "disable_log_stats": True,
            "enable_log_requests": False,
        }

    async def _label(self, version: Header) -> None:
        label = str(next(self._labels))
        # Labels are never removed: a completion in flight may name any number of versions, and they are small.
        self._versions[label] = version
        await self._llm.update_weight_version(label)
        self.version = version

    def require_generable(self, row: Row) -> None:
        """Raise Refused if the active model cannot continue the row's prompt for its budget."""
        if not 0 <= min(row.prompt) <= max(row.prompt) < self.vocab_size:
            raise Refused("bad_request", f"a prompt token id is outside the model's vocabulary of {self.vocab_size}")
        limit = self.llm.model_config.max_model_len
        if len(row.prompt) + row.budget > limit:
            error = f"{len(row.prompt)} prompt and {row.budget} new tokens exceed the {limit} tokens that fit here"
            raise Refused("bad_request", error)
        if row.with_experts and (self._routing is None or self._unsupported):
            name = self.llm.model_config.hf_config.model_type
            why = self._unsupported or "its routers are not known here"
            raise Refused("bad_request", f"the experts of a {name} were requested, but vLLM reports none: {why}")

    async def complete(
        self,
        id: str,
        row: Row,
        forced: list[int] | None = None,
        tell: Callable[[Sequence[Drawn]], None] = lambda drawn: None,
    ) -> None:
        """Generate a whole row and fill in the result; `forced` tokens are only scored. `tell` receives its tokens as
        they come, if its caller listens.

        Cancelling aborts it and leaves the row unchanged; after `abort` it returns the tokens so far. Raises
        Refused("bad_request") if the experts of some token were not recorded.
        """
        asked = {
            "seed": row.seed,
            "temperature": row.temperature,
            "greedy": row.greedy,
            "forced": forced or [],
            "start": row.start,
            "experts": id if row.with_experts else "",
        }
        params = SamplingParams(
            temperature=0.0,
            max_tokens=row.budget,
            stop_token_ids=list(row.stop_ids),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.CUMULATIVE if listens(row) else RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            extra_args={ARGUMENT: asked},
        )
        try:
            done = await self._draw(id, row, params, tell)
            experts = await self._experts_of(id, len(done.token_ids)) if row.with_experts else None
        except BaseException:
            if row.with_experts:
                self._forgotten.append(id)
            raise
        row.experts = experts
        if done.token_ids:  # none if it was aborted before the first
            row.take(
                done.token_ids,
                done.logprobs.logprobs,
                [(span.end, self._versions[span.version]) for span in done.weight_versions],
            )

    async def _draw(self, id: str, row: Row, params: Any, tell: Callable[[Sequence[Drawn]], None]) -> Any:
        """Return vLLM's final output for the row."""
        told = 0
        async for output in self.llm.generate({"prompt_token_ids": list(row.prompt)}, params, id):
            done = output.outputs[0]
            if listens(row) and len(done.token_ids) > told:
                news = done.token_ids[told:], done.logprobs.logprobs[told : len(done.token_ids)]
                tell([Drawn(row=row, start=told, tokens=news[0], logprobs=news[1])])
                told = len(done.token_ids)
        return done

    async def _experts_of(self, id: str, tokens: int) -> np.ndarray[Any, Any]:
        """Return the experts (tokens, layers, top_k) of a completion's tokens. For an aborted one, those of one more
        token may have been recorded."""
        assert self._routing is not None
        forgotten, self._forgotten = self._forgotten, []
        [raw], *_ = await self._llm.collective_rpc("volery_experts", args=([id], forgotten))
        shape = (-1, self._routing.layers, self._routing.top_k)
        experts = np.frombuffer(raw, self._routing.dtype).reshape(shape)[:tokens]
        if len(experts) != tokens:
            heard = f"the experts of {len(experts)} of {tokens} tokens were recorded"
            raise Refused("bad_request", f"vLLM does not report all experts: {heard}")
        return experts

    async def abort(self, ids: list[str]) -> None:
        """End what `complete` generates under these ids, with the tokens that it has."""
        if self._llm is not None:
            await self._llm.abort(ids)

    @property
    def is_dead(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    async def answer(self) -> None:
        """Wait until vLLM's core has answered a question. It answers between any two steps, unless it hangs."""
        if self._llm is not None:
            await self._llm.get_weight_version()

    def describe(self) -> Header:
        served = self._served
        dtype = None if self._llm is None else str(self._llm.model_config.dtype).removeprefix("torch.")
        return {
            "device": current_platform.device_type,
            "torch": torch.__version__,
            "vllm": vllm.__version__,
            "threads": torch.get_num_threads(),
            "dtype": dtype,
            "quantization": self._settings.quantization,
            "parameters": 0 if served is None else served.parameters,
            "version": self.version,
        }

    def stop(self) -> None:
        try:
            self._stop()
        except Exception as error:  # vLLM may raise anything; the process ends now anyway
            print(f"vLLM did not stop cleanly: {error}", file=sys.stderr, flush=True)


def _recorded_routing(contents: Contents) -> Routing | None:
    """Return the routing of a mixture of experts, if it can be recorded on this platform: `recording_worker` must
    extend its worker."""
    is_extended = current_platform.is_cpu() or current_platform.is_cuda_alike()
    return routing_in(contents.config) if is_extended else None


def _recording(routing: Routing | None) -> Header:
    """Return the extra vLLM arguments that make it record experts."""
    if routing is None:
        return {}
    return {"worker_cls": RECORDING_WORKER, "additional_config": {ROUTING: asdict(routing)}}
