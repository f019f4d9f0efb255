"""Hold the active model: load it from a directory, and replace it by the next version.

Invariants:

- Weights change only after everything about the new ones was checked.
- A swap that fails all the same ends the process (`Broken`), so that nothing is generated with half of it.
- Nothing from a model directory is executed (safetensors only, no remote code).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_utils  # noqa: F401  # takes seconds: now, or while a first version waits to be installed
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from protocol.core.pipe import Header

from ..common_worker.errors import Broken, Refused
from ..common_worker.lora import Adapter, open_adapter, without_adapter
from ..common_worker.sizes import Stored, read_stored, require_counts
from ..common_worker.weight_files import PLAIN_DTYPES, weight_files
from .building import bound_building
from .cpu_matmul import quicken
from .habits import Habits, habits_of
from .memory import bound_memory, is_out_of_memory
from .quantised_loading import build_quantised, fill, held_bytes, place_of, quantise
from .quantised_weights import SCHEMES, Scheme


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`device`: auto|cpu|cuda|cuda:N|mps. `compute_dtype`: auto|float32|bfloat16|float16; auto is the stored type, but
    float32 on a CPU, where bf16 is slow and rounded differently on each machine. `max_batch`: rows. `kv_cache_bytes`:
    of one batch, 0 for the device's default. `vram_share`: share of its GPU's memory that the process may use,
    0 < share <= 1. `ram_bytes`: memory that it may use; the node enforces this. None is no bound for both.
    `quantization`: int8|int4, or "" for weights as they are stored."""

    device: str = "auto"
    compute_dtype: str = "auto"
    threads: int = 1
    max_batch: int = 256
    kv_cache_bytes: int = 0
    ram_bytes: int | None = None
    vram_share: float | None = None
    quantization: str = ""


def choose_device(wanted: str) -> torch.device:
    """Return the named device, or for "auto" the best one available: CUDA, then MPS, then CPU. Raises
    Refused("bad_request") if the device is not available."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return torch.device("cuda" if gpus else "mps" if has_mps else "cpu")
    device = torch.device(wanted)
    if (device.type == "cuda" and not 0 <= (device.index or 0) < gpus) or (device.type == "mps" and not has_mps):
        there = f"{gpus} of CUDA, numbered from 0" if gpus else "one of Apple's, mps" if has_mps else "none"
        error = f'device = "{wanted}" is not available: GPUs that torch finds: {there}. Use another, or "cpu" or "auto"'
        raise Refused("bad_request", error)
    return device


STORED = "stored"
"""The format of weights that are held as they were published."""


class Policy:
    """The active model: its weights, and their version."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = choose_device(settings.device)
        bound_memory(self.device, settings.vram_share)
        self.version: Header | None = None
        self._model: Any = None
        self._habits: Habits | None = None
        self._config: Header = {}
        self._format = STORED

    @property
    def model(self) -> Any:
        if self._model is None:
            raise Refused("nothing_installed", "no policy version is installed; install one before generating")
        return self._model

    @property
    def habits(self) -> Habits:
        """Return how the installed architecture is used."""
        _ = self.model
        assert self._habits is not None, "they are set together with the model"
        return self._habits

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def kv_token_bytes(self) -> int:
        """Return the bytes that one token of one row keeps in the KV cache. This is an upper estimate for architectures
        that store less. 0 if the config names no attention heads: recurrent layers' states do not grow."""
        config = self.model.config.get_text_config(decoder=True)
        heads = _number(config, "num_key_value_heads") or _number(config, "num_attention_heads")
        queries = _number(config, "num_attention_heads") or heads
        if not heads:
            return 0
        head_dim = _number(config, "head_dim") or _number(config, "hidden_size") // queries
        return int(2 * _number(config, "num_hidden_layers") * heads * head_dim * self.model.dtype.itemsize)

    def require_generable(self, prompt: Sequence[int], budget: int) -> None:
        """Raise Refused if the installed model cannot continue `prompt` for `budget` tokens."""
        self.require_known(min(prompt), max(prompt))
        self.require_length(len(prompt) + budget, f"{len(prompt)} prompt and {budget} new tokens")

    def require_known(self, least: int, largest: int) -> None:
        """Raise Refused if ids from `least` to `largest` are not all in the model's vocabulary."""
        # On a GPU an id outside the table would end the process, not only the request.
        if not 0 <= least <= largest < self.vocab_size:
            odd = least if least < 0 else largest
            error = f"token id {odd} is outside the model's vocabulary: its embedding has {self.vocab_size} rows"
            raise Refused("bad_request", error)

    def require_length(self, length: int, of_what: str) -> None:
        """Raise Refused if a sequence of `length` tokens, described by `of_what`, is too long for the model."""
        limit = self.habits.positions
        if limit is not None and length > limit:
            raise Refused("bad_request", f"{of_what} exceed the model's {limit} positions")

    def install(self, directory: Path, version: Header) -> bool:
        """Load a model directory; return whether the weights went into the existing model. If `version` names its
        "weights", they are held in that format ("stored" for their own), else in the format of the settings.

        Raises Refused("bad_model") if anything is missing, unexpected or of the wrong shape, and the version before
        stays active. Raises Broken, too.
        """
        form = version.get("weights") or self.settings.quantization or STORED
        try:
            scheme = _scheme_of(form)
            files = weight_files(directory)
            stored = read_stored(files)
            require_counts(directory / "config.json", stored)
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            described = {
                k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")
            }
            adapter = open_adapter(directory)
            swaps = self._model is not None and described == self._config and form == self._format
            if adapter is not None and swaps:
                adapter.require_fits(_shapes(self._model))
            sources = _sources(self._model, files) if swaps else None
            if sources is None:
                if scheme is None:
                    model = self._load_in_full(directory, config, stored, adapter)
                else:
                    model = self._load_quantised(directory, config, stored, adapter, scheme)
                known = self._habits if (described, form) == (self._config, self._format) else None
                self._model, self._habits, self._config = model, known or habits_of(model), described
                self._format = form
        except Refused:
            raise
        except Exception as error:  # third-party libraries may raise anything over a directory from the network
            kind = "out_of_memory" if is_out_of_memory(error) else "bad_model"
            raise Refused(kind, f"{directory} cannot be loaded on {self.device}: {error}") from error
        if sources is not None:
            self._swap(directory, sources, adapter)
        self.version = version
        return sources is not None

    def _load_in_full(self, directory: Path, config: Any, stored: Stored, adapter: Adapter | None) -> Any:
        with bound_building(stored):
            model = self._load(directory, config)
        if adapter is not None:
            adapter.require_fits(_shapes(model))
            adapter.merge_into(model)
        return model

    def _load_quantised(
        self, directory: Path, config: Any, stored: Stored, adapter: Adapter | None, scheme: Scheme
    ) -> Any:
        """Load without ever holding all weights in full, if the files use the model's own names."""
        model = build_quantised(config, scheme, self._dtype(config), self.device, stored, self.settings.ram_bytes)
        if (sources := _sources(model, weight_files(directory))) is None:
            del model
            model = self._load_in_full(directory, config, stored, adapter)
            quantise(model, scheme)
            return model
        if adapter is not None:
            adapter.require_fits(_shapes(model))
        fill(model, sources, adapter)
        return model

    def _load(self, directory: Path, config: Any) -> Any:
        with without_adapter(directory) as plain:
            model, report = AutoModelForCausalLM.from_pretrained(
                plain,
                config=config,
                dtype=self._dtype(config),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below with their names
            )
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if found := report.get(fault):
                raise Refused("bad_model", f"{directory}: {fault.replace('_', ' ')} {sorted(map(str, found))[:8]}")
        model = model.to(self.device).eval()
        quicken(model)
        return model

    def _dtype(self, config: Any) -> torch.dtype:
        if self.settings.compute_dtype != "auto":
            return getattr(torch, self.settings.compute_dtype)  # type: ignore[no-any-return]
        stored = getattr(config, "dtype", None)
        return stored if isinstance(stored, torch.dtype) and self.device.type != "cpu" else torch.float32

    @torch.no_grad()
    def _swap(self, directory: Path, sources: Mapping[str, Any], adapter: Adapter | None) -> None:
        """Copy the tensors into the existing model. Raises Broken, since half of them may have been copied by then."""
        targets: dict[str, torch.Tensor] = self._model.state_dict()
        try:
            if self._format != STORED:
                fill(self._model, sources, adapter)
                return
            for name, reader in sources.items():
                targets[name].copy_(reader.get_tensor(name))
            if adapter is not None:
                adapter.merge_into(self._model)
        except Exception as error:  # after any error of torch or safetensors, half of the weights may have been copied
            raise Broken(f"{directory} passed every check, but loading it failed: {error}") from error

    def describe(self) -> Header:
        model = self._model
        return {
            "device": str(self.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": None if model is None else str(model.dtype).removeprefix("torch."),
            "parameters": 0 if model is None else sum(p.numel() for p in model.parameters()),
            "quantization": "" if self._format == STORED else self._format,
            "weight_bytes": 0 if model is None else held_bytes(model),
            "version": self.version,
        }


def _scheme_of(form: str) -> Scheme | None:
    """Return None for weights as stored. Raises Refused("bad_request") if this engine does not know the format."""
    if form != STORED and form not in SCHEMES:
        known = ", ".join([STORED, *SCHEMES])
        raise Refused("bad_request", f"this engine holds weights as {known}, not as {form!r}")
    return SCHEMES.get(form)


def _number(config: Any, name: str) -> int:
    """Return the integer that `config` has under `name`, else 0: some configs have a list, one entry for each layer."""
    found = getattr(config, name, None)
    return found if isinstance(found, int) else 0


def _shapes(model: Any) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in model.named_parameters()}


def _sources(model: Any, files: Sequence[Path]) -> dict[str, Any] | None:
    """Return the reader of each of the files' tensors, if they can be copied in place. None if their names are not the
    model's own: libraries rename and fuse tensors, and only a full load can do that (and report on it)."""
    targets: dict[str, torch.Tensor] = model.state_dict()
    # Opening checks the header and the length of every file. (safetensors has no types.)
    readers: list[Any] = [safe_open(path, framework="pt") for path in files]
    sources = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118
    provided = {place_of(targets[name]) for name in sources if name in targets}
    tied_or_given = all(name in sources or place_of(tensor) in provided for name, tensor in targets.items())
    if not tied_or_given or not sources.keys() <= targets.keys():
        return None
    described = {name: reader.get_slice(name) for name, reader in sources.items()}
    if any(one.get_shape() != list(targets[name].shape) for name, one in described.items()):
        return None
    if any(one.get_dtype() not in PLAIN_DTYPES for one in described.values()):
        return None
    _require_ties_agree(targets, sources)
    return sources


def _require_ties_agree(targets: Mapping[str, torch.Tensor], sources: Mapping[str, Any]) -> None:
    """Refuse files with two different tensors for one that the model shares: the one copied last would win."""
    by_storage: dict[int, str] = {}
    for name, reader in sources.items():
        other = by_storage.setdefault(place_of(targets[name]), name)
        if other != name and not torch.equal(reader.get_tensor(name), sources[other].get_tensor(other)):
            raise Refused("bad_model", f"{name} and {other} are tied in the model's config but differ in its files")
