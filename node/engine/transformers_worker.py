"""The engine worker on Hugging Face transformers: a script that reads requests on stdin and answers on stdout.

    python -I transformers_worker.py SAMPLING_PATH SETTINGS_JSON

It stands alone, so that it runs in any virtual environment with torch, transformers >= 4.56, safetensors and numpy: of
ours it loads one file, `protocol/sampling.py`, by path, and it carries its own copy of the few lines of
`protocol.pipe`. (`-I` keeps this script's own folder off sys.path, where our `transformers.py` would hide the
library.)

What always holds: a completion is a function of the installed weights, the prompt and the seed, whatever else is in
its batch, up to float rounding; weights change only between batches and only after everything about the new ones was
checked; nothing from a model directory is executed (safetensors only, no remote code). The process ends as soon as its
stdin does, even in mid-batch.

One thread reads frames; the main thread takes what has queued up since: first installs and other short requests, then
as many completions of however many `generate` requests as fit one batch. A batch prefills each distinct prompt once,
left-padded, spreads that KV cache over the prompt's completions, then decodes one token for all rows at a time,
dropping rows as they finish.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging as transformers_logging

Header = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]
Tensor = torch.Tensor

COMPACT_BELOW = 0.75
"""Finished rows are dropped once fewer than this share of a batch is unfinished: dropping copies the KV cache once,
about what a step costs, and then saves that share of every later step."""
MAX_PREFILL_TOKENS = 32_768
"""Distinct prompts x longest prompt of one batch: activations of a prefill grow with it, unlike those of a decoding
step."""
SCORE_LOGIT_BYTES = 256 * 1024 * 1024
"""Float32 logits that one scoring batch may hold, unless a single sequence needs more."""
MIN_CAPACITY = 64
"""First size of a KV buffer beyond the prompt, in tokens; it grows by half, so that a long budget that is rarely used
costs little."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_PREFIX = "base_model.model."
"""What peft puts before the names of a model's modules."""
ADAPTER_OPTIONS = ("use_rslora", "use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
"""Kinds of adapters that are more than W + scale B A."""
SWAPPED_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Whose tensors have the shapes that a file's header says, and can be copied: packed ones want a full load."""
NO_STOP = -2
"""Fills the table of stop ids; the sampler's NO_TOKEN is -1 and real ids are not negative."""


class Refused(Exception):
    """A request that cannot be done, for a reason that the other end can act on; the worker goes on."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`device` auto|cpu|cuda|cuda:N|mps; `compute_dtype` auto|float32|bfloat16|float16, auto being as stored, but
    float32 on a CPU, where bf16 is both slow and differently rounded from machine to machine; `max_batch` rows;
    `kv_cache_bytes` of one batch, 0 = by device."""

    device: str = "auto"
    compute_dtype: str = "auto"
    attention: str = "sdpa"
    threads: int = 1
    max_batch: int = 256
    kv_cache_bytes: int = 0


# Frames: a copy of protocol/pipe.py, which see. A test holds the two together.

PREFIX = struct.Struct(">IQ")


def encode_frame(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> bytes:
    items = (arrays or {}).items()
    blocks = [np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for _, a in items]
    table = [(name, array.dtype.name, list(array.shape)) for name, array in items]
    head = json.dumps({**header, "arrays": table}, separators=(",", ":")).encode()
    return b"".join([PREFIX.pack(len(head), sum(map(len, blocks))), head, *blocks])


def decode_frame(head: bytes, body: bytes) -> tuple[Header, Arrays]:
    header = json.loads(head)
    arrays: Arrays = {}
    offset = 0
    for name, dtype, shape in header.pop("arrays"):
        kind = np.dtype(dtype).newbyteorder("<")
        if any(size < 0 for size in shape):
            raise ValueError(f"array {name!r} has shape {shape}")
        arrays[name] = np.frombuffer(body, kind, math.prod(shape), offset).reshape(shape)
        offset += arrays[name].nbytes
    if offset != len(body):
        raise ValueError(f"the arrays take {offset} bytes, the body has {len(body)}")
    return header, arrays


def read_frame(stream: BinaryIO) -> tuple[Header, Arrays] | None:
    """Return the next frame of an unbuffered stream; None where it ends."""
    prefix = _read_exactly(stream, PREFIX.size)
    if prefix is None:
        return None
    head_size, body_size = PREFIX.unpack(prefix)
    head, body = _read_exactly(stream, head_size), _read_exactly(stream, body_size)
    return None if head is None or body is None else decode_frame(head, body)


def _read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


# Requests.


@dataclass(eq=False, kw_only=True)
class Row:
    """One completion: what was asked, and once it is done, what came out."""

    call: Call
    prompt: tuple[int, ...]
    seed: int  # int64 with the bits of the u64
    temperature: float
    greedy: bool
    budget: int
    stop_ids: tuple[int, ...]
    length: int = 0
    seconds: float = 0.0
    tokens: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.float32))
    version: Header = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        return self.length > 0 and int(self.tokens[-1]) in self.stop_ids


@dataclass(eq=False)
class Call:
    """One `generate` request; answered when its last row is done, or refused as a whole."""

    id: int
    rows: list[Row] = field(default_factory=list)
    num_left: int = 0
    answered: bool = False

    @classmethod
    def parse(cls, header: Header, arrays: Arrays) -> Call:
        """Read a request: `prompts` int32 flat, `prompt_lengths`; by row `prompt`, `seeds` u64, `temperatures`,
        `greedy`, `budgets`, `stop_set`; header `stop_sets`. Refused("bad_request") when it cannot be generated by any
        model."""
        call = cls(header["id"])
        ends = np.cumsum(arrays["prompt_lengths"]).tolist()
        flat = arrays["prompts"].tolist()
        prompts = [tuple(flat[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        columns = [arrays[name].tolist() for name in ("prompt", "temperatures", "greedy", "budgets", "stop_set")]
        seeds = arrays["seeds"].view(np.int64).tolist()
        for seed, prompt, temperature, greedy, budget, stop_set in zip(seeds, *columns, strict=True):
            if not prompts[prompt]:
                raise Refused("bad_request", "an empty prompt: a model needs at least one token to go on from")
            if budget < 1 or not (greedy or (temperature > 0 and math.isfinite(temperature))):
                raise Refused("bad_request", f"max_new_tokens {budget} and temperature {temperature} must be positive")
            call.rows.append(
                Row(
                    call=call,
                    prompt=prompts[prompt],
                    seed=seed,
                    temperature=temperature,
                    greedy=bool(greedy),
                    budget=budget,
                    stop_ids=tuple(header["stop_sets"][stop_set]),
                )
            )
        call.num_left = len(call.rows)
        return call

    def reply(self) -> tuple[Header, Arrays]:
        """`lengths`, `stopped`, `seconds`, `version` (index into the header's `versions`) by row; `tokens`, `logprobs`
        flat."""
        versions: list[Header] = []
        for row in self.rows:
            if row.version not in versions:
                versions.append(row.version)
        return {"versions": versions}, {
            "lengths": np.array([row.length for row in self.rows], np.int32),
            "tokens": np.concatenate([np.zeros(0, np.int32), *(row.tokens for row in self.rows)]),
            "logprobs": np.concatenate([np.zeros(0, np.float32), *(row.logprobs for row in self.rows)]),
            "stopped": np.array([row.stopped for row in self.rows], np.uint8),
            "seconds": np.array([row.seconds for row in self.rows], np.float64),
            "version": np.array([versions.index(row.version) for row in self.rows], np.int32),
        }


class Intake:
    """What has arrived and was not taken yet. Filled by a thread of its own; ends the process when the stream ends."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._short: deque[tuple[Header, Arrays]] = deque()
        self._generates: deque[tuple[Header, Arrays]] = deque()
        self._cancelled: set[int] = set()
        threading.Thread(target=self._read, name="intake", daemon=True).start()

    def wait(self) -> None:
        """Return once something is there to take."""
        with self._changed:
            self._changed.wait_for(lambda: self._short or self._generates)

    def take_short(self) -> list[tuple[Header, Arrays]]:
        return self._take(self._short)

    def take_generates(self) -> list[tuple[Header, Arrays]]:
        return self._take(self._generates)

    def take_cancelled(self) -> set[int]:
        """Return the ids of requests whose callers have left, each once. Cheap when there are none."""
        if not self._cancelled:
            return set()
        with self._changed:
            cancelled, self._cancelled = self._cancelled, set()
            return cancelled

    def _take(self, queue: deque[tuple[Header, Arrays]]) -> list[tuple[Header, Arrays]]:
        with self._changed:
            frames = list(queue)
            queue.clear()
            return frames

    def _read(self) -> None:
        try:
            while (frame := read_frame(self._stream)) is not None:
                with self._changed:
                    self._file(*frame)
                    self._changed.notify()
        finally:
            # Nobody listens any more, and the main thread may be in a batch: nothing there is worth outliving the node.
            os._exit(0)

    def _file(self, header: Header, arrays: Arrays) -> None:
        match header["op"]:
            case "generate":
                self._generates.append((header, arrays))
            case "cancel":
                self._cancelled.add(header["target"])
            case _:
                self._short.append((header, arrays))


# Weights.


def choose_device(wanted: str) -> torch.device:
    """Return the device named, or for "auto" the best there is: CUDA, then MPS, then CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a model directory, by its index if it has one. Refused("bad_model") when it has
    neither.

    The index comes from the network: a name in it that leaves the directory is refused here, before any library
    follows it.
    """
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("bad_model", f"{index} is not an index of safetensors files: {error}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise Refused("bad_model", f"{index} names {name!r}, which is not a safetensors file of this directory")
        if not (directory / name).is_file():
            raise Refused("bad_model", f"{directory} has no {name}; weights are loaded from safetensors only")
    return [directory / name for name in names]


class Policy:
    """The model in service: its weights, and the version they are."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = choose_device(settings.device)
        self.version: Header | None = None
        self._model: Any = None
        self._config: Header = {}

    @property
    def model(self) -> Any:
        if self._model is None:
            raise Refused("nothing_installed", "no policy version is installed; install one before generating")
        return self._model

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that one token of one row keeps in the KV cache; an upper estimate for architectures that store
        less."""
        config = self.model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * head_dim * self.model.dtype.itemsize)

    def require_generable(self, prompt: Sequence[int], budget: int) -> None:
        """Raise Refused when the installed model cannot go on from `prompt` for `budget` tokens."""
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            # On a GPU an id outside the table would end the process, not the request.
            raise Refused("bad_request", f"a prompt token id is outside the model's vocabulary of {self.vocab_size}")
        limit = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if limit is not None and len(prompt) + budget > limit:
            error = f"{len(prompt)} prompt and {budget} new tokens are over the model's {limit} positions"
            raise Refused("bad_request", error)

    def install(self, directory: Path, version: Header) -> bool:
        """Load a model directory; returns whether the weights went into the model already there.

        Refused("bad_model") when anything is missing, unexpected or of the wrong shape; what was in service then still
        is.
        """
        try:
            files = weight_files(directory)
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            described = {
                k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")
            }
            adapter = open_adapter(directory)
            if adapter is not None and self._model is not None and described == self._config:
                adapter.require_fits(self._model)
            in_place = self._model is not None and described == self._config and self._swap(files)
            if not in_place:
                model = self._load(directory, config)
                if adapter is not None:
                    adapter.require_fits(model)
                self._model, self._config = model, described
            if adapter is not None:
                adapter.merge_into(self._model)
        except Refused:
            raise
        except Exception as error:  # libraries of strangers, which raise anything over a directory from the network
            kind = "out_of_memory" if is_out_of_memory(error) else "bad_model"
            raise Refused(kind, f"{directory} cannot be loaded on {self.device}: {error}") from error
        self.version = version
        return in_place

    def _load(self, directory: Path, config: Any) -> Any:
        with without_adapter(directory) as plain:
            return self._load_plain(directory, plain, config)

    def _load_plain(self, directory: Path, plain: Path, config: Any) -> Any:
        model, report = AutoModelForCausalLM.from_pretrained(
            plain,
            config=config,
            dtype=self._dtype(config),
            attn_implementation=self.settings.attention,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below with their names, instead of raised without
        )
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if found := report.get(fault):
                raise Refused("bad_model", f"{directory}: {fault.replace('_', ' ')} {sorted(map(str, found))[:8]}")
        return model.to(self.device).eval()

    def _dtype(self, config: Any) -> torch.dtype:
        if self.settings.compute_dtype != "auto":
            return getattr(torch, self.settings.compute_dtype)  # type: ignore[no-any-return]
        stored = getattr(config, "dtype", None)
        return stored if isinstance(stored, torch.dtype) and self.device.type != "cpu" else torch.float32

    def _swap(self, files: Sequence[Path]) -> bool:
        """Copy the files' tensors into the model, in place. False, and nothing was touched, when their names are not
        the model's own: libraries rename and fuse tensors, which only a full load knows how to do (and how to
        report)."""
        targets: dict[str, Tensor] = self._model.state_dict()
        # Opening checks the header and the length of every file. (safetensors has no types.)
        readers: list[Any] = [safe_open(path, framework="pt") for path in files]
        sources = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118
        provided = {targets[name].data_ptr() for name in sources if name in targets}
        tied_or_given = all(name in sources or tensor.data_ptr() in provided for name, tensor in targets.items())
        if not tied_or_given or not sources.keys() <= targets.keys():
            return False
        described = {name: reader.get_slice(name) for name, reader in sources.items()}
        if any(one.get_shape() != list(targets[name].shape) for name, one in described.items()):
            return False
        if any(one.get_dtype() not in SWAPPED_DTYPES for one in described.values()):
            return False
        _require_ties_agree(targets, sources)
        with torch.no_grad():
            for name, reader in sources.items():
                targets[name].copy_(reader.get_tensor(name))
        return True

    def describe(self) -> Header:
        model = self._model
        return {
            "device": str(self.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": None if model is None else str(model.dtype).removeprefix("torch."),
            "parameters": 0 if model is None else sum(p.numel() for p in model.parameters()),
            "version": self.version,
        }


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A low-rank adapter (LoRA) as peft writes it: to the weight of each of `modules` belongs `scale` * B @ A."""

    reader: Any
    scale: float
    modules: tuple[str, ...]

    def require_fits(self, model: Any) -> None:
        """Raise Refused when `model` has no such weights, or of other shapes."""
        weights = dict(model.named_parameters())
        for module in self.modules:
            down, up = (self.reader.get_slice(name).get_shape() for name in self._names(module))
            weight = weights.get(f"{module}.weight")
            if weight is None or [up[0], down[1], up[1]] != [*weight.shape, down[0]]:
                raise Refused("bad_model", f"the adapter of {module} does not fit the model's weights")

    @torch.no_grad()
    def merge_into(self, model: Any) -> None:
        """Add it to the weights of `model`, which are the base model's; in float32, rounded once."""
        for module in self.modules:
            weight = model.get_parameter(f"{module}.weight")
            down, up = (self.reader.get_tensor(name).to(weight.device, torch.float32) for name in self._names(module))
            weight.copy_(weight.float() + self.scale * (up @ down))

    def _names(self, module: str) -> tuple[str, str]:
        return f"{ADAPTER_PREFIX}{module}.lora_A.weight", f"{ADAPTER_PREFIX}{module}.lora_B.weight"


def open_adapter(directory: Path) -> Adapter | None:
    """The adapter in `directory`, or None. Refused("bad_model") when it is of a kind that cannot be merged here."""
    if not (directory / ADAPTER_CONFIG).is_file():
        return None
    config = json.loads((directory / ADAPTER_CONFIG).read_text())
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise Refused("bad_model", f"{directory / ADAPTER_CONFIG} describes no LoRA adapter")
    other = [key for key in ADAPTER_OPTIONS if config.get(key)]
    if other or config.get("bias", "none") != "none":
        raise Refused("bad_model", f"{directory / ADAPTER_CONFIG} uses {other or ['bias']}, which are not merged here")
    reader: Any = safe_open(directory / ADAPTER_WEIGHTS, framework="pt")
    names = set(reader.keys())
    modules = {name.removeprefix(ADAPTER_PREFIX).split(".lora_")[0] for name in names}
    adapter = Adapter(reader=reader, scale=config["lora_alpha"] / config["r"], modules=tuple(sorted(modules)))
    if names != {name for module in modules for name in adapter._names(module)} or not math.isfinite(adapter.scale):
        raise Refused("bad_model", f"{directory / ADAPTER_WEIGHTS} holds tensors that are no pairs of A and B")
    return adapter


@contextmanager
def without_adapter(directory: Path) -> Iterator[Path]:
    """A view of `directory` without its adapter: libraries that see one look for its base model elsewhere."""
    if not (directory / ADAPTER_CONFIG).is_file():
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="volery-base-") as name:
        for file in directory.iterdir():
            if file.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)


def _require_ties_agree(targets: Mapping[str, Tensor], sources: Mapping[str, Any]) -> None:
    """Refuse files that hold two different tensors for one that the model shares: whichever were copied last would
    win."""
    by_storage: dict[int, str] = {}
    for name, reader in sources.items():
        other = by_storage.setdefault(targets[name].data_ptr(), name)
        if other != name and not torch.equal(reader.get_tensor(name), sources[other].get_tensor(other)):
            raise Refused("bad_model", f"{name} and {other} are tied in the model's config but differ in its files")


# Generation.


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers leaves it untyped
    """A KV layer in a buffer with room to grow, so that a step appends one token instead of copying all those before
    it.

    `keys` and `values` stay views (B, heads, length, head dim) of what is filled, which is all that the library looks
    at.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room  # tokens that may still come after the prompt
        self._buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            self._grow(key_states, value_states, start, end)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._view(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep rows `beam_idx` (B',), in that order; a row may be named any number of times."""
        length = self.get_seq_length()
        if length:
            self._buffers = [_select_rows(buffer, beam_idx, length) for buffer in self._buffers]
            self._view(length)

    def _grow(self, key_states: Tensor, value_states: Tensor, start: int, end: int) -> None:
        capacity = end + min(self._room, max(MIN_CAPACITY, end // 2))
        old = self._buffers
        self._buffers = [s.new_empty(*s.shape[:-2], capacity, s.shape[-1]) for s in (key_states, value_states)]
        for buffer, filled in zip(self._buffers, old, strict=False):
            buffer[:, :, :start] = filled[:, :, :start]

    def _view(self, end: int) -> None:
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)


def _select_rows(buffer: Tensor, rows: Tensor, length: int) -> Tensor:
    chosen = buffer.new_empty(len(rows), *buffer.shape[1:])
    chosen[:, :, :length] = buffer[:, :, :length].index_select(0, rows)
    return chosen


def new_cache(config: Any, room: int) -> DynamicCache:
    """Return an empty cache with the layers the architecture asks for, plain attention layers replaced by growing
    ones."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@dataclass(eq=False, kw_only=True)
class Live:
    """The rows still decoded, B of them; on the sampler's device but for `positions` and `mask`, which the model
    reads."""

    order: Tensor  # (B,) index of the row in the batch as it began
    seeds: Tensor  # (B,)
    temperatures: Tensor  # (B, 1)
    greedy: Tensor  # (B,) bool
    budgets: Tensor  # (B,)
    stops: Tensor  # (B, S), filled up with NO_STOP
    done: Tensor  # (B,) bool: finished, but not worth dropping yet
    positions: Tensor  # (B, 1) of the next token within its sequence
    mask: Tensor | None  # (B, T + budget): 0 where the prompt was padded; None when none was

    def keep(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            if value is not None:
                setattr(self, name, value.index_select(0, rows.to(value.device)))


class Generator:
    """Decodes batches under one policy. `poll` is asked before every step whether some calls have been answered
    meanwhile."""

    def __init__(self, policy: Policy, sampling: Any, poll: Callable[[], bool]) -> None:
        self._policy = policy
        self._sampling = sampling
        self._poll = poll
        # The sampler needs float64, which Apple's GPUs do not have; a row of logits is small.
        self._sampler_device = torch.device("cpu") if policy.device.type == "mps" else policy.device

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> None:
        """Generate `rows` and fill in their results, but for those whose call was answered meanwhile."""
        started = time.perf_counter()
        budget = max(row.budget for row in rows)
        tokens = torch.zeros(len(rows), budget, dtype=torch.int64, device=self._sampler_device)
        logprobs = torch.zeros(len(rows), budget, dtype=torch.float32, device=self._sampler_device)
        longest = max(len(row.prompt) for row in rows)
        cache = new_cache(self._policy.model.config, budget)
        live, logits = self._prefill(rows, longest, budget, cache)
        for step in range(budget):
            chosen, chosen_logprobs = self._choose(logits, live, step)
            tokens[live.order, step] = chosen
            logprobs[live.order, step] = chosen_logprobs
            ended = (chosen[:, None] == live.stops).any(1) | (chosen < 0) | (live.budgets == step + 1)
            for index in live.order[ended & ~live.done].tolist():
                rows[index].length = step + 1
            live.done |= ended
            if self._poll():
                answered = [rows[index].call.answered for index in live.order.tolist()]
                live.done |= torch.tensor(answered, device=self._sampler_device)
            left = (~live.done).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) <= COMPACT_BELOW * len(live.done):
                live.keep(left)
                cache.reorder_cache(left.to(self._policy.device))
                chosen = chosen.index_select(0, left)
            logits = self._decode(chosen, live, longest + step + 1, cache)
        _store(rows, tokens.cpu().numpy(), logprobs.cpu().numpy())
        _share_time(rows, time.perf_counter() - started)

    def _prefill(self, rows: Sequence[Row], longest: int, budget: int, cache: DynamicCache) -> tuple[Live, Tensor]:
        """Run each distinct prompt once, into `cache`; return the state of all rows and their first logits (B, V)."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        padding = torch.tensor([[longest - len(prompt)] for prompt in prompts])  # (P, 1)
        columns = torch.arange(longest + budget)[None]
        # Without padding there is no mask, and attention takes its fast path.
        mask = (columns >= padding).long().to(self._policy.device) if padding.any() else None
        ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        positions = (columns[:, :longest] - padding).clamp(min=0)
        logits = self._forward(ids, None if mask is None else mask[:, :longest], positions, cache)
        if len(prompts) < len(rows):
            index = {prompt: number for number, prompt in enumerate(prompts)}
            owner = torch.tensor([index[row.prompt] for row in rows], device=self._policy.device)
            cache.reorder_cache(owner)
            logits = logits.index_select(0, owner)
            mask = None if mask is None else mask.index_select(0, owner)
        return self._live(rows, mask), logits

    def _live(self, rows: Sequence[Row], mask: Tensor | None) -> Live:
        device = self._sampler_device
        num_stops = max(1, max(len(row.stop_ids) for row in rows))
        stops = [row.stop_ids + (NO_STOP,) * (num_stops - len(row.stop_ids)) for row in rows]
        temperatures = [[1.0 if row.greedy else row.temperature] for row in rows]
        return Live(
            order=torch.arange(len(rows), device=device),
            seeds=torch.tensor([row.seed for row in rows], device=device),
            temperatures=torch.tensor(temperatures, dtype=torch.float32, device=device),
            greedy=torch.tensor([row.greedy for row in rows], device=device),
            budgets=torch.tensor([row.budget for row in rows], device=device),
            stops=torch.tensor(stops, device=device),
            done=torch.zeros(len(rows), dtype=torch.bool, device=device),
            positions=torch.tensor([[len(row.prompt)] for row in rows], device=self._policy.device),
            mask=mask,
        )

    def _choose(self, logits: Tensor, live: Live, step: int) -> tuple[Tensor, Tensor]:
        """Return the next token (B,) of every row, -1 where there is no distribution, and its logprob (B,)."""
        logits = logits.to(self._sampler_device, torch.float32)
        greedy = bool(live.greedy.any())
        if greedy:
            likely: tuple[Tensor, Tensor] = self._sampling.greedy(torch, logits)
            if bool(live.greedy.all()):
                return likely
        steps = torch.full_like(live.seeds, step)
        drawn: tuple[Tensor, Tensor] = self._sampling.sample(torch, logits, live.seeds, steps, live.temperatures)
        if not greedy:
            return drawn
        return torch.where(live.greedy, likely[0], drawn[0]), torch.where(live.greedy, likely[1], drawn[1])

    def _decode(self, chosen: Tensor, live: Live, length: int, cache: DynamicCache) -> Tensor:
        """Append one token to every row, which then has `length` columns; return the logits of the next (B, V)."""
        mask = None if live.mask is None else live.mask[:, :length]
        logits = self._forward(chosen.clamp(min=0)[:, None], mask, live.positions, cache)
        live.positions += 1
        return logits

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache) -> Tensor:
        output = self._policy.model(
            input_ids=ids.to(self._policy.device),
            attention_mask=mask,
            position_ids=positions.to(self._policy.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]


def _store(rows: Sequence[Row], tokens: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any]) -> None:
    """Cut the results (B, budget) to each row's length. Refused("not_finite") when a row had no distribution."""
    for row, row_tokens, row_logprobs in zip(rows, tokens, logprobs, strict=True):
        row.tokens = row_tokens[: row.length].astype(np.int32)
        row.logprobs = row_logprobs[: row.length].copy()
        if (row.tokens < 0).any():
            error = "the model's logits are not finite: the installed weights are broken, install another version"
            raise Refused("not_finite", error)


def _share_time(rows: Sequence[Row], seconds: float) -> None:
    """Divide a batch's time among its rows by their tokens, so that the shares add up to the time the engine was
    busy."""
    num_tokens = sum(row.length for row in rows)
    for row in rows:
        row.seconds = seconds * row.length / max(1, num_tokens)


# Scoring.


class Scorer:
    """Logprobs of given completions under the installed weights: one causal pass over prompt and completion."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @torch.inference_mode()
    def run(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        """Request: `tokens` int32 flat, `prompt_lengths`, `completion_lengths`, `temperatures`. Reply: `logprobs`
        float32 flat, log_softmax(logits / T) of every completion token."""
        prompts, completions = arrays["prompt_lengths"].tolist(), arrays["completion_lengths"].tolist()
        ends = np.cumsum(arrays["prompt_lengths"] + arrays["completion_lengths"])
        sequences = np.split(arrays["tokens"].astype(np.int64), ends[:-1])
        if min(prompts, default=1) < 1:
            raise Refused("bad_request", "an empty prompt: the first completion token would have no distribution")
        if (
            len(arrays["tokens"])
            and not 0 <= arrays["tokens"].min() <= arrays["tokens"].max() < self._policy.vocab_size
        ):
            raise Refused("bad_request", f"a token id is outside the vocabulary of {self._policy.vocab_size}")
        results: list[Any] = [None] * len(sequences)
        for batch in self._batches([len(sequence) for sequence in sequences]):
            kept = max(len(sequences[i]) - prompts[i] for i in batch) + 1
            kept = max(kept, max(len(sequences[i]) for i in batch) - min(prompts[i] for i in batch) + 1)
            logits = self._logits([sequences[i] for i in batch], kept)  # (N, kept, V), of the last columns
            first = max(len(sequences[i]) for i in batch) - logits.shape[1]
            for i, row in zip(batch, logits, strict=True):
                start = prompts[i] - 1 - first
                scores = row[start : start + completions[i]].float() / float(arrays["temperatures"][i])
                picked = torch.as_tensor(sequences[i][prompts[i] :], device=scores.device)[:, None]
                results[i] = (scores.gather(1, picked)[:, 0] - scores.logsumexp(-1)).cpu().numpy()
        return {}, {"logprobs": np.concatenate([np.zeros(0, np.float32), *results])}

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """Yield indices, like lengths together, so that a batch's logits stay within SCORE_LOGIT_BYTES."""
        room = SCORE_LOGIT_BYTES // (4 * self._policy.vocab_size)
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > room:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _logits(self, sequences: Sequence[np.ndarray[Any, Any]], kept: int) -> Tensor:
        # Padded on the right and unmasked: a causal model never looks there.
        ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        model = self._policy.model
        return model(  # type: ignore[no-any-return]
            input_ids=torch.from_numpy(ids).to(self._policy.device),
            use_cache=False,
            logits_to_keep=min(kept, ids.shape[1]),
        ).logits


# The service.


class Server:
    """Takes requests, forms batches, answers. Everything but reading happens in the thread that calls `serve`."""

    def __init__(self, settings: Settings, sampling: Any, intake: Intake, output: BinaryIO) -> None:
        self._settings = settings
        self._intake = intake
        self._output = output
        self._policy = Policy(settings)
        self._generator = Generator(self._policy, sampling, self._drop_cancelled)
        self._scorer = Scorer(self._policy)
        self._calls: dict[int, Call] = {}
        self._queue: deque[Row] = deque()
        self._kv_limit_bytes = settings.kv_cache_bytes

    def serve(self) -> NoReturn:
        self._send({"event": "ready", **self._policy.describe()})
        while True:
            if not self._queue:
                self._intake.wait()
            for header, arrays in self._intake.take_short():
                self._answer(header["id"], lambda h=header, a=arrays: self._do(h, a))  # type: ignore[misc]
            self._admit()
            self._drop_cancelled()
            if batch := self._form_batch():
                self._generate(batch)

    def _do(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        match header["op"]:
            case "install":
                started = time.perf_counter()
                in_place = self._policy.install(Path(header["directory"]), header["version"])
                self._kv_limit_bytes = self._settings.kv_cache_bytes or default_kv_cache_bytes(self._policy.device)
                # Even when the caller has left meanwhile: the node's notion of what is in service follows this event.
                self._send({"event": "installed", "version": header["version"], "directory": header["directory"]})
                return {"in_place": in_place, "seconds": time.perf_counter() - started}, {}
            case "score":
                return self._scorer.run(header, arrays)
            case "describe":
                return self._policy.describe(), {}
            case op:
                raise Refused(
                    "unknown_op", f"this worker knows install, generate, score, describe and cancel, not {op!r}"
                )

    def _admit(self) -> None:
        for header, arrays in self._intake.take_generates():
            try:
                call = Call.parse(header, arrays)
            except Refused as refusal:
                self._refuse(header["id"], refusal)
                continue
            self._calls[call.id] = call
            self._queue.extend(call.rows)
            if not call.rows:
                self._finish(call)

    def _drop_cancelled(self) -> bool:
        """Answer cancelled calls, whose rows are then dropped wherever they are. True when there was one."""
        cancelled = [self._calls[id] for id in self._intake.take_cancelled() if id in self._calls]
        for call in cancelled:
            self._refuse_call(call, Refused("cancelled", "the caller has left"))
        return bool(cancelled)

    def _form_batch(self) -> list[Row]:
        """Take queued rows, in order, until one more would pass a bound; at least one. Rows that cannot be generated
        are refused."""
        batch: list[Row] = []
        prompts: set[tuple[int, ...]] = set()
        longest = room = 0
        while self._queue and len(batch) < self._settings.max_batch:
            row = self._queue[0]
            if row.call.answered or not self._accept(row):
                self._queue.popleft()
                continue
            prompts.add(row.prompt)
            longest, room = max(longest, len(row.prompt)), max(room, row.budget)
            kv_bytes = (len(batch) + 1) * (longest + room) * self._policy.kv_token_bytes
            if batch and (kv_bytes > self._kv_limit_bytes or len(prompts) * longest > MAX_PREFILL_TOKENS):
                break
            batch.append(self._queue.popleft())
        return batch

    def _accept(self, row: Row) -> bool:
        try:
            self._policy.require_generable(row.prompt, row.budget)
        except Refused as refusal:
            self._refuse_call(row.call, refusal)
            return False
        return True

    def _generate(self, rows: list[Row]) -> None:
        """Run a batch, in halves if memory runs out; the bound on later batches then shrinks with it."""
        shortage: str | None = None
        try:
            self._generator.run(rows)
        except Refused as refusal:
            for row in rows:
                self._refuse_call(row.call, refusal)
            return
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            shortage = str(error)
        if (
            shortage is not None
        ):  # only now: inside the except clause the traceback still holds the failed batch's tensors
            self._run_smaller(rows, shortage)
            return
        for row in rows:
            row.version = self._policy.version or {}
            self._row_done(row)

    def _run_smaller(self, rows: list[Row], error: str) -> None:
        release_memory(self._policy.device)
        if len(rows) == 1:
            longest = len(rows[0].prompt) + rows[0].budget
            advice = f"not even one completion of {longest} tokens fits the memory of {self._policy.device}"
            self._refuse_call(
                rows[0].call, Refused("out_of_memory", f"{advice}: shorten it or use a smaller model ({error})")
            )
            return
        half = (len(rows) + 1) // 2
        tokens = half * (max(len(row.prompt) for row in rows) + max(row.budget for row in rows))
        self._kv_limit_bytes = min(self._kv_limit_bytes, tokens * self._policy.kv_token_bytes)
        print(f"out of memory with {len(rows)} completions at once; trying {half}", file=sys.stderr, flush=True)
        for part in (rows[:half], rows[half:]):
            if unanswered := [row for row in part if not row.call.answered]:
                self._generate(unanswered)

    def _row_done(self, row: Row) -> None:
        call = row.call
        call.num_left -= 1
        if call.num_left == 0 and not call.answered:
            self._finish(call)

    def _finish(self, call: Call) -> None:
        call.answered = True
        del self._calls[call.id]
        self._answer(call.id, call.reply)

    def _refuse_call(self, call: Call, refusal: Refused) -> None:
        if not call.answered:
            call.answered = True
            del self._calls[call.id]
            self._refuse(call.id, refusal)

    def _answer(self, id: int, do: Callable[[], tuple[Header, Arrays]]) -> None:
        try:
            header, arrays = do()
        except Refused as refusal:
            self._refuse(id, refusal)
        else:
            self._send({**header, "id": id, "ok": True}, arrays)

    def _refuse(self, id: int, refusal: Refused) -> None:
        self._send({"id": id, "ok": False, "kind": refusal.kind, "error": str(refusal)})

    def _send(self, header: Header, arrays: Arrays | None = None) -> None:
        self._output.write(encode_frame(header, arrays))
        self._output.flush()


def is_out_of_memory(error: Exception) -> bool:
    """CUDA has a class for it; a CPU and MPS say so in words."""
    words = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error).lower() for word in words)


def release_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def default_kv_cache_bytes(device: torch.device) -> int:
    """Return how much KV cache one batch may fill: half of what a GPU has free, or a GiB, which no volunteer's machine
    will miss."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return 1024 * 1024 * 1024


def load_sampling(path: str) -> Any:
    """Load `protocol/sampling.py` by its path, without the package around it."""
    spec = importlib.util.spec_from_file_location("volery_sampling", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def take_stdout() -> BinaryIO:
    """Return the pipe to the node, and point fd 1 at stderr, so that a library's print cannot land between two
    frames."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def main(argv: Sequence[str]) -> NoReturn:
    output = take_stdout()
    sampling_path, settings_json = argv
    settings = Settings(**json.loads(settings_json))
    torch.set_num_threads(settings.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    intake = Intake(os.fdopen(0, "rb", buffering=0))
    Server(settings, load_sampling(sampling_path), intake, output).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
