"""vLLM's AsyncLLM: started with the first version, swapped in place by those like it, started anew for others.

What always holds: `version` names what every later token comes from; while weights are swapped nothing runs, and no
cache of the old ones is kept; what cannot be loaded leaves the version before in service. Only a swap that fails after
all checks passed leaves nothing that can be trusted: `Broken`, upon which the process must end.
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
"""Between two steps vLLM's core answers what it is asked. A step takes seconds at most; a kernel compiled on the way,
on a slow machine, perhaps minutes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`device` auto|cpu|cuda; `compute_dtype` auto|float32|bfloat16|float16, auto being as stored, but float32 on a
    CPU; `max_model_len` tokens of prompt and completion, 0 as many as the model and the memory allow;
    `gpu_memory_utilization` of a GPU's memory for weights and KV cache; `kv_cache_bytes`, 0 what that leaves, or a GiB
    on a CPU; `quantization` as vLLM names it, "" as stored; `max_batch` completions computed at a time; `eager`:
    nothing is compiled."""

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
    """Refused("bad_request") unless this vLLM was built for the device, and finds it."""
    there = current_platform.device_type
    if wanted not in ("auto", there):
        error = f'device = "{wanted}" is not there: this vLLM runs on {there or "nothing here"}; name that, or "auto"'
        raise Refused("bad_request", error)


class Engine:
    """See the module's paragraph. `install` is called by one task at a time, with nothing running unless `keep`."""

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
        """What runs, if anything, is on trial; whether it serves, `install` says."""

    @property
    def core(self) -> object:
        """What is asked now; another object, or None, once it was replaced."""
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
        """Whether `contents` can take the place of what is in service without starting anew."""
        served = self._served
        return served is not None and served.config == contents.config and not contents.is_packed

    async def install(self, contents: Contents, version: Header) -> bool:
        """Bring `contents` into service; returns whether in place. Refused("bad_model"), or Broken."""
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
        """Leaves the engine paused. Without `clear_cache` later tokens would be computed from the old weights' KV."""
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.collective_rpc("volery_swap", args=(str(contents.directory),))
        except Exception as error:  # of vLLM and the libraries below it, which raise anything
            raise Broken(f"{contents.directory} passed every check, and then could not be loaded: {error}") from error

    async def _start_anew(self, contents: Contents) -> None:
        """In the place of what runs, since a GPU holds one; that is started again when this one cannot be."""
        served, version = self._served, self.version
        self.is_starting = True
        self._stop()
        try:
            await self._start(contents)
        except Exception as error:  # of vLLM and the libraries below it, which raise anything
            self._stop()
            if served is not None and version is not None:
                await self._start(served)
                self._served = served
                await self._label(version)
            reason = f"{contents.directory} cannot be loaded by vLLM, which said why on its standard error: {error}"
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
        # What vLLM has no kernel for (a CPU: some head sizes) ends it at the first token, not at the start.
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
            # A step is sampled from before the next is begun: the sampler counts what was generated.
            "async_scheduling": False,
            "logits_processors": [SAMPLER],
            "logprobs_mode": "processed_logits",
            "worker_extension_cls": EXTENSION,
            "disable_log_stats": True,
            "enable_log_requests": False,
        }

    async def _label(self, version: Header) -> None:
        label = str(next(self._labels))
        # None is forgotten: a completion in flight may name any number of versions, and they are small.
        self._versions[label] = version
        await self._llm.update_weight_version(label)
        self.version = version

    def require_generable(self, row: Row) -> None:
        """Raise Refused when the model in service cannot go on from the row's prompt for its budget."""
        if not 0 <= min(row.prompt) <= max(row.prompt) < self.vocab_size:
            raise Refused("bad_request", f"a prompt token id is outside the model's vocabulary of {self.vocab_size}")
        limit = self.llm.model_config.max_model_len
        if len(row.prompt) + row.budget > limit:
            error = f"{len(row.prompt)} prompt and {row.budget} new tokens are over the {limit} that fit here"
            raise Refused("bad_request", error)
        if row.with_experts and (self._routing is None or self._unsupported):
            name = self.llm.model_config.hf_config.model_type
            why = self._unsupported or "its routers are not known here"
            raise Refused("bad_request", f"the experts of a {name} were asked for, and vLLM does not tell them: {why}")

    async def complete(
        self,
        id: str,
        row: Row,
        forced: list[int] | None = None,
        tell: Callable[[Sequence[Drawn]], None] = lambda drawn: None,
    ) -> None:
        """Generate a row, from its beginning to its end, and fill in what came out; `forced` tokens are only scored.
        `tell` hears of its tokens as they come, if its caller listens.

        Cancelling aborts it and leaves the row as it was; after `abort` it returns what there is.
        Refused("bad_request") where the experts of some token were not recorded.
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
        if done.token_ids:  # else it was aborted before the first
            row.take(
                done.token_ids,
                done.logprobs.logprobs,
                [(span.end, self._versions[span.version]) for span in done.weight_versions],
            )

    async def _draw(self, id: str, row: Row, params: Any, tell: Callable[[Sequence[Drawn]], None]) -> Any:
        """What vLLM made of the row in the end."""
        told = 0
        async for output in self.llm.generate({"prompt_token_ids": list(row.prompt)}, params, id):
            done = output.outputs[0]
            if listens(row) and len(done.token_ids) > told:
                news = done.token_ids[told:], done.logprobs.logprobs[told : len(done.token_ids)]
                tell([Drawn(row=row, start=told, tokens=news[0], logprobs=news[1])])
                told = len(done.token_ids)
        return done

    async def _experts_of(self, id: str, tokens: int) -> np.ndarray[Any, Any]:
        """Which experts made the tokens of a completion (tokens, layers, top_k). Of one that was aborted those of one
        token more may be recorded."""
        assert self._routing is not None
        forgotten, self._forgotten = self._forgotten, []
        [raw], *_ = await self._llm.collective_rpc("volery_experts", args=([id], forgotten))
        shape = (-1, self._routing.layers, self._routing.top_k)
        experts = np.frombuffer(raw, self._routing.dtype).reshape(shape)[:tokens]
        if len(experts) != tokens:
            heard = f"the experts of {len(experts)} of {tokens} tokens were recorded"
            raise Refused("bad_request", f"vLLM does not tell all experts: {heard}")
        return experts

    async def abort(self, ids: list[str]) -> None:
        """Have what `complete` generates under these ids end with the tokens that it has."""
        if self._llm is not None:
            await self._llm.abort(ids)

    @property
    def is_dead(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    async def answer(self) -> None:
        """Return once vLLM's core has answered a question: it does between any two steps, unless it hangs."""
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
        except Exception as error:  # of vLLM; the process ends now anyway
            print(f"vLLM did not stop in good order: {error}", file=sys.stderr, flush=True)


def _recorded_routing(contents: Contents) -> Routing | None:
    """How a mixture of experts routes that can be recorded here: on a platform whose worker `recording_worker`
    extends."""
    is_extended = current_platform.is_cpu() or current_platform.is_cuda_alike()
    return routing_in(contents.config) if is_extended else None


def _recording(routing: Routing | None) -> Header:
    """What vLLM is told besides, so that experts are recorded."""
    if routing is None:
        return {}
    return {"worker_cls": RECORDING_WORKER, "additional_config": {ROUTING: asdict(routing)}}
