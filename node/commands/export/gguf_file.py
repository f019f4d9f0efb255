"""Write an exported model as one GGUF file, which llama.cpp and programs based on it load.

The format and the names of tensors are those of the package `gguf` by llama.cpp's authors (`pip install
'volery[gguf]'`). Matrices are stored as they are, as float16, or in blocks of 32 with eight bits each (Q8_0). Vectors
are always stored as float32, as llama.cpp requires.

Invariants:

- The file appears whole or not at all.
- Memory holds a few rows of a tensor at a time.
- A tensor that has no place in the file, or that is missing, is an error.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from learner.artifacts.weight_values import FLOATS, StoredTensor, bfloat16_bits, tensors_of
from node.commands.export.gguf_model import Shape, read_shape
from node.commands.export.gguf_tokenizer import BY_HAND, Vocabulary, read_vocabulary
from node.installation.extras import line_of_extra
from node.runtime.atomic_files import require_place
from node.runtime.errors import RunError, UsageError
from protocol.versions.safetensors_header import LayoutError

ENDING = ".gguf"

GgufType = Literal["f32", "f16", "bf16", "q8_0"]

OWN_TYPE: Mapping[str, GgufType] = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f32"}
"""How matrices are stored if no type is requested: as they are."""

BLOCK = 32
"""Values of a row that Q8_0 stores together."""

PIECE_VALUES = 1 << 23
"""Values of a tensor in memory at once: 32 MiB as float32, and a few times that while they are converted."""

MAX_CONFIG_BYTES = 1 << 20


def require_gguf(path: Path) -> None:
    """Check before any work whether a new GGUF file can be written to `path`. Raises UsageError, RunError."""
    require_place(path, "--gguf", ending=ENDING, makes_directory=True)
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UsageError(f"--gguf needs the package gguf. Type: {line_of_extra('gguf')}") from None


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A tensor of the model, its name in the file, and how it is stored there."""

    tensor: StoredTensor
    name: str
    kind: GgufType

    @property
    def size_bytes(self) -> int:
        count = int(np.prod(self.tensor.shape))
        return {"f32": 4 * count, "f16": 2 * count, "bf16": 2 * count, "q8_0": count // BLOCK * (BLOCK + 2)}[self.kind]


def write_gguf(directory: Path, path: Path, *, kind: GgufType | None, title: str, licence: str) -> None:
    """Write the model in `directory` to `path`.

    Raises UsageError if the model is not of a known kind, RunError, and OSError if `path` cannot be written.
    """
    shape = read_shape(_json(directory / "config.json"))
    words = read_vocabulary(directory, shape.vocab)
    stops = _stops(directory)
    placed = list(_places(directory, shape, kind))
    draft = path.with_name(f".{path.name}.draft")
    try:
        _write(draft, directory, shape, words, stops, placed, title, licence)
        draft.replace(path)
    except OSError as error:
        if error.strerror is None:  # numpy says how much it wrote, but not why it stopped
            raise OSError(errno.EIO, "it could not be written completely; the disk may be full", str(path)) from None
        raise
    finally:
        draft.unlink(missing_ok=True)


def _places(directory: Path, shape: Shape, kind: GgufType | None) -> Iterator[_Placed]:
    import gguf

    names = gguf.get_tensor_name_map(_arch(shape.arch), shape.layers)
    seen = set[str]()
    try:
        tensors = list(tensors_of(sorted(directory.glob("*.safetensors"))))
    except LayoutError as error:
        raise RunError(f"--gguf: the model's weights cannot be read: {error}.") from None
    for tensor in tensors:
        if shape.tied and tensor.name == "lm_head.weight":
            continue
        name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
        if name is None or name in seen or tensor.dtype not in FLOATS:
            raise UsageError(f"--gguf: the tensor {tensor.name!r} has no place in a file of {shape.arch}. {BY_HAND}")
        seen.add(name)
        yield _Placed(tensor=tensor, name=name, kind=_kind(tensor, kind))
    needed = {"token_embd.weight", "output_norm.weight"} | (set() if shape.tied else {"output.weight"})
    needed |= {f"blk.{n}.{part}.weight" for n in range(shape.layers) for part in _LAYER}
    if missing := sorted(needed - seen):
        raise UsageError(f"--gguf: the model has no {missing[0]}. {BY_HAND}")


_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
"""The parts of each layer of these architectures."""


def _kind(tensor: StoredTensor, wanted: GgufType | None) -> GgufType:
    if len(tensor.shape) < 2:
        return "f32"
    kind = wanted or OWN_TYPE[tensor.dtype]
    return "f16" if kind == "q8_0" and tensor.shape[-1] % BLOCK else kind


def _arch(name: str) -> Any:
    import gguf

    return next(arch for arch, called in gguf.MODEL_ARCH_NAMES.items() if called == name)


def _write(
    draft: Path, directory: Path, shape: Shape, words: Vocabulary, stops: list[int], placed: list[_Placed], title: str,
    licence: str,
) -> None:  # fmt: skip
    import gguf

    writer = gguf.GGUFWriter(None, shape.arch)
    try:
        _describe(writer, shape, title, licence, placed)
        _speak(writer, directory, words, stops)
        if shape.freq_factors:
            writer.add_tensor_info(
                "rope_freqs.weight", (len(shape.freq_factors),), np.dtype(np.float32), 4 * len(shape.freq_factors)
            )
        for one in placed:
            writer.add_tensor_info(
                one.name, one.tensor.shape, np.dtype(np.float32), one.size_bytes, raw_dtype=_gguf_kind(one.kind)
            )
        writer.write_header_to_file(draft)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if shape.freq_factors:
            writer.write_tensor_data(np.array(shape.freq_factors, np.float32))
        for one in placed:
            writer.write_tensor_data(_Pieces(one, shape))
        for file in writer.fout:
            file.flush()
            os.fsync(file.fileno())
    finally:
        writer.close()


@dataclass(frozen=True)
class _Pieces:
    """A tensor that writes itself a few rows at a time, in the form of an array that `gguf` expects."""

    placed: _Placed
    shape: Shape

    @property
    def nbytes(self) -> int:
        return self.placed.size_bytes

    def tofile(self, file: BinaryIO) -> None:
        """Append the whole tensor to `file`. Raises UsageError, OSError."""
        tensor, own = self.placed.tensor, OWN_TYPE[self.placed.tensor.dtype]
        if self.shape.is_arranged(tensor.name):
            file.write(_stored(self.placed, self.shape.arranged(tensor.name, tensor.values())).data)
            return
        rows = tensor.shape[0] if tensor.shape else 1
        at_once = max(1, PIECE_VALUES * rows // max(1, math.prod(tensor.shape)))
        for first in range(0, rows, at_once):
            last = min(first + at_once, rows)
            if self.placed.kind == own and tensor.dtype != "F64":
                file.write(tensor.raw(first, last))
            else:
                file.write(_stored(self.placed, tensor.values(first, last)).data)


def _gguf_kind(kind: GgufType) -> Any:
    import gguf

    return gguf.GGMLQuantizationType[kind.upper()]


def _stored(one: _Placed, values: NDArray[np.float32]) -> NDArray[Any]:
    import gguf

    if one.kind == "bf16":
        return bfloat16_bits(values)
    with np.errstate(over="ignore"):  # values beyond the type's range are found below
        found: NDArray[Any] = gguf.quants.quantize(np.ascontiguousarray(values), _gguf_kind(one.kind))
    if one.kind == "f16" and not np.isfinite(found).all():
        raise UsageError(f"--gguf: {one.tensor.name} has values beyond the range of float16. Add --gguf-type bf16.")
    return found


def _describe(writer: Any, shape: Shape, title: str, licence: str, placed: list[_Placed]) -> None:
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(title)
    if licence:
        writer.add_license(licence)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    if shape.says_head_dim:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    if shape.arch == "llama":
        writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    if shape.rope_scale != 1.0:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.rope_scale)
    kinds = [one.kind for one in placed if len(one.tensor.shape) > 1]
    most = max(set(kinds), key=kinds.count)
    names = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(gguf.LlamaFileType[names[most]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _speak(writer: Any, directory: Path, words: Vocabulary, stops: list[int]) -> None:
    """Write the tokenizer, its special tokens and the chat template."""
    import gguf

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.rules)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types([int(one) for one in words.types])
    try:
        special = gguf.SpecialVocab(directory, load_merges=False, n_vocab=len(words.tokens))
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UsageError(f"--gguf: the model's tokenizer_config.json is malformed ({error!r}). {BY_HAND}") from None
    special.merges = list(words.merges)
    special.add_special_token.setdefault("bos", False)
    if stops:
        named = special.special_token_ids.get("eos")
        first = named if named in stops else stops[0]
        special.special_token_ids["eos"] = first
        for end, token in zip(("eot", "eom"), [one for one in stops if one != first], strict=False):
            special.special_token_ids[end] = token
    special.add_to_gguf(writer, quiet=True)


def _stops(directory: Path) -> list[int]:
    """Return the ids that end a completion, from the generation config; none if it names none."""
    path = directory / "generation_config.json"
    said = _json(path).get("eos_token_id") if path.is_file() else None
    return [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, int)]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_file(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise UsageError(f"--gguf: the model's {path.name} cannot be read ({error}). {BY_HAND}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--gguf: the model's {path.name} is not a JSON object. {BY_HAND}")
    return found
