"""The policy: a causal language model in fp32, from a Hugging Face directory and back to one.

What always holds: no code from the directory is executed and no pickle is read; every weight comes from the directory
(a missing one is an error, never a random start); the policy is deterministic, its dropout is off; an export holds
the very tensors that the directory held, under the same names, with the same other files, so whatever served the
original can serve the export.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from learner.durable import TensorSource, new_directory, table_of, write_bytes, write_json, write_tensors
from learner.packing import Microbatch, Ragged, microbatches
from learner.requests import ExportDtype
from protocol.tensors import LayoutError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

COMPANIONS = (
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
)
"""Files that travel with the weights: data that tokenizers read. Code and pickles (.py, .bin, .pt, .pkl) never do."""

VOLATILE_CONFIG = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version"})
"""Config keys that say how a model was stored, not what it computes."""

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

ENTROPY_BLOCK = 1 << 22
"""Logits looked at together when the entropy is summed: 16 MiB of temporaries, also for a vocabulary of 150,000."""

SAME_LOGITS = 1e-4
"""Two ways to the same logits differ by rounding, about 1e-6 of the largest; a mask or a scale that was ignored, by
far more.
"""

NO_MODEL = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    ImportError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)
"""What transformers raises about configs and weights that do not fit: it has no type of its own for that."""


class BadModel(Exception):
    """A directory is not a model that we can train; the message names it, what is wrong, and the next step."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """For N targets: `logprobs` [N] = log_softmax(logits / T) of the target, differentiable; `entropy` [N] in nats,
    detached.
    """

    logprobs: Tensor
    entropy: Tensor


class Policy:
    """A loaded model with what is needed to score sequences and to write it out again. Made by `load_policy`."""

    def __init__(self, model: Any, directory: Path, config: dict[str, Any], companions: Mapping[str, bytes]) -> None:
        self.model = model
        self.directory = directory
        self._config = config
        self._companions = companions
        self._head_applies_alone = _head_applies_alone(model)
        self.shares_prompts = self._heeds_masks()

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the model can read."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Trained tensors by name, each once even when tied."""
        return list(self.model.named_parameters())

    @property
    def num_parameters(self) -> int:
        """Trained numbers, tied ones counted once."""
        return sum(parameter.numel() for _, parameter in self.parameters)

    @property
    def fingerprint(self) -> str:
        """Hex digest of what the model computes but for its weights: config, tensor names, shapes."""
        config = {key: value for key, value in self._config.items() if key not in VOLATILE_CONFIG}
        tensors = sorted((name, list(tensor.shape)) for name, tensor in self._tensors())
        return hashlib.sha256(json.dumps([config, tensors], sort_keys=True).encode()).hexdigest()

    def score(self, batch: Microbatch, temperature: float) -> Scores:
        """Return logprobs and entropies of the batch's N targets under the current weights at `temperature`."""
        logits = self._target_logits(batch)  # (N, V)
        if temperature != 1.0:
            logits = logits / temperature
        # gather - logsumexp: the (N, V) log_softmax is never stored, neither here nor for the backward pass.
        norms = torch.logsumexp(logits, dim=-1)
        chosen = logits.gather(1, batch.tokens[:, None]).squeeze(1)
        return Scores(logprobs=chosen - norms, entropy=_entropy(logits.detach(), norms.detach()))

    @torch.no_grad()
    def _heeds_masks(self) -> bool:
        """Tell whether siblings may share a row, by scoring two of them both ways.

        Architectures with windows, recurrent layers or positions of their own may not honour a mask that hides
        siblings; they get a row for each sequence.
        """
        tokens = np.arange(14, dtype=np.int64) % self.vocab_size
        tokens[7:10] = tokens[:3]  # two sequences of 7, with the same prompt of 3
        pair = Ragged(tokens=tokens, lengths=np.array([7, 7]), targets=np.tile(np.arange(7) >= 3, 2))
        together, apart = (
            self._target_logits(next(microbatches(pair, np.ones(2, np.bool_), 64, share_prompts=share)))
            for share in (True, False)
        )
        return bool((together - apart).abs().max() <= SAME_LOGITS * apart.abs().max())

    def _target_logits(self, batch: Microbatch) -> Tensor:
        inputs = {"input_ids": batch.inputs, "use_cache": False}
        if batch.visible is not None:
            inputs |= {"attention_mask": batch.visible, "position_ids": batch.positions}
        if not self._head_applies_alone:
            logits: Tensor = self.model(**inputs).logits
            return _rows(logits, batch.predictors).float()
        # The head is the widest layer by far: it sees predictors only, no prompts and no padding.
        wanted = _rows(self.model.base_model(**inputs).last_hidden_state, batch.predictors)
        head: Tensor = self.model.get_output_embeddings()(wanted)
        return head.float()

    def export(self, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> list[str]:
        """Write the current weights as a model directory that loaders take, and return its file names.

        Equal weights give equal bytes. `directory` must not exist (FileExistsError); it appears whole or not at all.
        Raises OSError.
        """
        shards = cut_shards(self._sources(getattr(torch, dtype)), max_shard_bytes)
        with new_directory(directory) as partial:
            write_json(partial / CONFIG, _with_dtype(self._config, dtype))
            for name, data in self._companions.items():
                write_bytes(partial / name, data)
            _write_shards(partial, shards)
            return sorted(file.name for file in partial.iterdir())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what a checkpoint holds, tied tensors once, under the first of their names."""
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self.model.state_dict().items():
            key = (tensor.data_ptr(), tensor.shape)
            if key not in seen:
                seen.add(key)
                yield name, tensor

    def _sources(self, dtype: torch.dtype) -> list[TensorSource]:
        return [tensor_source(name, t, dtype if t.is_floating_point() else t.dtype) for name, t in self._tensors()]


def load_policy(directory: Path, *, gradient_checkpointing: bool = False) -> Policy:
    """Load a causal LM directory (config.json and safetensors, sharded or not) in fp32. Raises BadModel."""
    config = _read_config(directory)
    stored = _stored_tensors(directory)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, *NO_MODEL) as error:
        raise BadModel(f"{directory} could not be loaded as a causal language model: {_one_line(error)}") from error
    _require_all_weights(directory, model, stored, info)
    _prepare(model, gradient_checkpointing=gradient_checkpointing)
    companions = {name: (directory / name).read_bytes() for name in COMPANIONS if (directory / name).is_file()}
    return Policy(model, directory, config, companions)


def make_model(directory: Path, config: Mapping[str, Any], seed: int) -> int:
    """Write a new Qwen3 model with random weights into `directory` and return its number of parameters.

    `config` holds fields of transformers' Qwen3Config; equal seeds give equal weights. Raises BadModel when a field
    is unknown or unfit or a model is there already, OSError when the disk refuses.
    """
    if (directory / CONFIG).exists() or (directory / WEIGHTS).exists():
        raise BadModel(f"{directory} holds a model already; name another directory")
    unknown = sorted(set(config) - set(Qwen3Config().to_dict()))
    if unknown:
        raise BadModel(f"{', '.join(unknown)}: no such field in a Qwen3 config; see transformers' Qwen3Config")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = Qwen3ForCausalLM(Qwen3Config(**config)).float()
        except NO_MODEL as error:
            raise BadModel(f"these fields do not make a Qwen3 model: {_one_line(error)}") from error
    model.generation_config = GenerationConfig.from_model_config(model.config)
    _save_into(model, directory)
    return sum(parameter.numel() for parameter in model.parameters())


def _save_into(model: Any, directory: Path) -> None:
    """Save beside and move in, config last: without it a directory is not a model, so no kill leaves half of one."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=directory) as name:
        partial = Path(name)
        try:
            model.save_pretrained(partial)
        except SafetensorError as error:
            raise OSError(f"{directory}: {_one_line(error)}") from error
        for file in sorted(partial.iterdir(), key=lambda file: file.name == CONFIG):
            file.rename(directory / file.name)


def cut_shards(tensors: Sequence[TensorSource], max_shard_bytes: int) -> list[list[TensorSource]]:
    """Cut a list of tensors, in order, into shards of at most `max_shard_bytes`; a larger tensor is a shard of its
    own.
    """
    shards: list[list[TensorSource]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size_bytes
    return shards


def tensor_source(name: str, tensor: Tensor, dtype: torch.dtype) -> TensorSource:
    """Describe `tensor` for writing as `dtype`; it is converted only when its turn comes."""

    def read() -> NDArray[np.uint8]:
        flat = tensor.detach().to(device="cpu", dtype=dtype).contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy()

    size_bytes = tensor.numel() * dtype.itemsize
    return TensorSource(
        name=name, dtype=DTYPE_NAMES[dtype], shape=tuple(tensor.shape), size_bytes=size_bytes, read=read
    )


def _write_shards(directory: Path, shards: Sequence[Sequence[TensorSource]]) -> None:
    if len(shards) == 1:
        write_tensors(directory / WEIGHTS, shards[0])
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(directory / file, shard)
        places.update((tensor.name, file) for tensor in shard)
    total = sum(tensor.size_bytes for shard in shards for tensor in shard)
    write_json(directory / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Say the new dtype, and nothing else new: other programs read the author's config best."""
    changed = dict(copy.deepcopy(config))
    for key in ("torch_dtype", "dtype"):  # the old name and the new
        if key in changed:
            changed[key] = dtype
    if "torch_dtype" not in changed:
        changed["dtype"] = dtype
    return changed


def _read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise BadModel(f"{directory} is not a directory; give the path of a Hugging Face model directory")
    try:
        config = json.loads((directory / CONFIG).read_bytes())
    except FileNotFoundError:
        raise BadModel(f"{directory} has no {CONFIG}; give a directory written by save_pretrained") from None
    except (OSError, ValueError) as error:
        raise BadModel(f"{directory / CONFIG} cannot be read as JSON ({_one_line(error)}); copy it again") from error
    if not isinstance(config, dict):
        raise BadModel(f"{directory / CONFIG} is not a JSON object; copy it again")
    if "auto_map" in config:
        raise BadModel(
            f"{directory / CONFIG} asks for code of its own (auto_map), which is never run; "
            "use a model that transformers knows"
        )
    if "quantization_config" in config:
        raise BadModel(f"{directory} holds quantised weights, which cannot be trained; use the model they came from")
    return config


def _stored_tensors(directory: Path) -> set[str]:
    """Names of the tensors in the directory's weight files, from their headers alone."""
    return {span.name for file in _weight_files(directory) for span in _table(file).spans}


def _table(file: Path) -> Any:
    try:
        return table_of(file)
    except FileNotFoundError:
        raise BadModel(f"{file} is missing, though {WEIGHTS_INDEX} names it; copy it again") from None
    except (LayoutError, OSError) as error:
        raise BadModel(f"{file} is not a sound safetensors file ({_one_line(error)}); copy it again") from error


def _weight_files(directory: Path) -> list[Path]:
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / WEIGHTS_INDEX).is_file():
        raise BadModel(
            f"{directory} has neither {WEIGHTS} nor {WEIGHTS_INDEX}; weights in other formats are not read: "
            "load them with transformers once and write them with save_pretrained"
        )
    try:
        names = set(json.loads((directory / WEIGHTS_INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(
            f"{directory / WEIGHTS_INDEX} is not a weight index ({_one_line(error)}); copy it again"
        ) from error
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise BadModel(f"{directory / WEIGHTS_INDEX} names files outside the directory, or none; copy it again")
    return [directory / name for name in sorted(names)]


def _require_all_weights(directory: Path, model: Any, stored: set[str], info: Mapping[str, Any]) -> None:
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadModel(
            f"{directory} lacks {len(missing)} tensors that its config wants, {missing[0]!r} first; "
            "copy its weights again"
        )
    # transformers renames or fuses the tensors of some architectures on loading; an export would then not be what
    # others load. A file may name a tied tensor once or twice, and hold tensors that the model ignores; neither
    # hurts.
    names: dict[int, set[str]] = {}
    for name, tensor in model.state_dict().items():
        names.setdefault(tensor.data_ptr(), set()).add(name)
    renamed = sorted(min(same) for same in names.values() if not same & stored)
    if renamed:
        raise BadModel(
            f"{directory}: transformers stores {renamed[0]!r} under another name than the file does; "
            "this architecture cannot be exported yet"
        )


def _prepare(model: Any, *, gradient_checkpointing: bool) -> None:
    """Turn dropout off, which engines do not have, and trade compute for memory when asked."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    model.eval()
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()  # transformers checkpoints in this mode only; with dropout off it computes the same


@torch.no_grad()
def _head_applies_alone(model: Any) -> bool:
    """Tell whether logits are the head applied to the hidden states, tried on eight tokens.

    Some architectures scale or cap logits after the head; those take the long way, which computes logits of every
    position.
    """
    head = model.get_output_embeddings()
    if head is None:
        return False
    ids = torch.arange(8).reshape(2, 4) % int(model.get_input_embeddings().weight.shape[0])
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits
    return bool((head(hidden) - logits).abs().max() <= SAME_LOGITS * logits.abs().max())


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return rows `index` [N] of (R, L, D) seen as (R * L, D). As an embedding, since index_add, the gradient of
    index_select, adds row by row on CPU: slow.
    """
    return torch.nn.functional.embedding(index, values.flatten(0, 1))


@torch.no_grad()
def _entropy(logits: Tensor, norms: Tensor) -> Tensor:
    """H = logsumexp(l) - sum(p l) for logits (N, V) with their logsumexp [N]; returns [N]."""
    rows = max(1, ENTROPY_BLOCK // logits.shape[1])
    parts = [
        norm - (torch.exp(part - norm[:, None]) * part).sum(dim=-1)
        for part, norm in zip(torch.split(logits, rows), torch.split(norms, rows), strict=True)
    ]
    return torch.cat(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def quiet_transformers() -> None:
    """Keep progress bars and advice out of the log."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
