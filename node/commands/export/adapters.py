"""Handle low-rank adapters in an export: merge them into their model, or write them alone as peft reads them.

A version of a run that trains an adapter consists of the model's own files and peft's files
(`learner.training.model.lora`). Most programs want one model, so W + (alpha / rank) B A is written in place of W. It is
computed in float32 and rounded once to the type of the file, as engines do when they generate with it.

Invariants:

- No file is changed in place, because an export of a checkpoint holds links to the operator's own model.
- Files that are not a plain low-rank adapter of these weights raise RunError, and nothing of the export is left.
- Memory holds one tensor at a time, and its change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.artifacts.atomic_directory import synced, table_of, write_json
from learner.artifacts.regular_file import open_file, read_file
from learner.artifacts.text_files import parse_json
from learner.artifacts.weight_values import FLOATS, StoredTensor, narrowed, tensors_of, widened
from node.runtime.errors import RunError
from protocol.versions.safetensors_header import LayoutError, Span

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter, with peft's names."""

INDEX = "model.safetensors.index.json"

PREFIX = "base_model.model."
"""The prefix that peft puts before module names in its files."""

BEYOND = ("use_rslora", "use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
"""Kinds of adapters that are more than W + scale B A. No trainer of ours makes one."""

PIECE_BYTES = 1 << 20
"""Bytes that are copied at once."""

MAX_CONFIG_BYTES = 1 << 20
"""Most bytes of an adapter_config.json: it names modules, a hundred bytes each."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The adapter in a directory: the pair (A, B) of each module, and the factor of B A."""

    pairs: dict[str, tuple[StoredTensor, StoredTensor]]
    scale: float

    def change(self, module: str) -> NDArray[np.float32]:
        """Return what is added to the module's weight."""
        down, up = self.pairs[module]
        return np.float32(self.scale) * (up.values() @ down.values())


def has_adapter(directory: Path) -> bool:
    """Return whether a version's files are a model and an adapter."""
    return (directory / CONFIG).is_file()


def merge(directory: Path) -> int:
    """Merge the adapter in `directory` into the model in it; return how many weights it changed.

    Raises RunError, OSError. After an error the directory is unusable.
    """
    adapter = _open(directory)
    files = _weight_files(directory)
    shapes = {one.name: one for one in _tensors(files)}
    for module, (down, up) in adapter.pairs.items():
        found = shapes.get(f"{module}.weight")
        if found is None or found.dtype not in FLOATS or found.shape != (up.shape[0], down.shape[1]):
            raise RunError(
                f"The adapter of {module} cannot be merged here: the model's files have no weight of that name and "
                "shape. Export it with --adapter, and merge it with peft (merge_and_unload)."
            )
    for path in files:
        _rewrite(path, adapter)
    for name in (CONFIG, WEIGHTS):
        (directory / name).unlink()
    return len(adapter.pairs)


def keep_adapter(directory: Path, base: str) -> None:
    """Keep only the adapter of a version's files, with `base` as the name of its base model, and the tokenizer's files.

    Raises RunError, OSError.
    """
    config = _config(directory)
    _open(directory)
    for path in [*_weight_files(directory), directory / INDEX, directory / "config.json"]:
        path.unlink(missing_ok=True)
    (directory / CONFIG).unlink()
    write_json(directory / CONFIG, {**config, "base_model_name_or_path": base})


def _rewrite(path: Path, adapter: Adapter) -> None:
    table = table_of(path)
    if not any(span.name.removesuffix(".weight") in adapter.pairs for span in table.spans):
        return
    draft = path.with_name(f".{path.name}.merged")
    with open_file(path) as source, synced(draft) as target:
        for piece in _pieces(source, table.header_bytes):
            target.write(piece)
        for span in table.spans:
            if (module := span.name.removesuffix(".weight")) != span.name and module in adapter.pairs:
                source.seek(span.end)
                target.write(_merged(path, span, adapter.change(module)))
            else:
                for piece in _pieces(source, span.end - span.start):
                    target.write(piece)
    draft.replace(path)


def _merged(path: Path, span: Span, change: NDArray[np.float32]) -> bytes:
    with np.errstate(over="ignore"):  # values beyond the type's range are found below
        data = narrowed(StoredTensor(path=path, span=span).values() + change, span.dtype)
    if not np.isfinite(widened(data, span.dtype, span.name)).all():
        raise RunError(f"{span.name} with its adapter has values that are not finite. Export an earlier version.")
    return data


def _pieces(source: Any, size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = source.read(min(left, PIECE_BYTES))
        if not piece:
            raise OSError(0, "the file ends too soon", source.name)
        left -= len(piece)
        yield piece


def _weight_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.safetensors") if path.name != WEIGHTS)


def _tensors(files: list[Path]) -> list[StoredTensor]:
    try:
        return list(tensors_of(files))
    except LayoutError as error:
        raise RunError(f"The version's weights cannot be read: {error}. Export another version.") from None


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = parse_json(read_file(directory / CONFIG, MAX_CONFIG_BYTES))
    except ValueError as error:
        raise RunError(f"The version's {CONFIG} is not JSON ({error}). Export another version.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise RunError(f"The version's {CONFIG} does not describe a LoRA adapter. Export another version.")
    return config


def _open(directory: Path) -> Adapter:
    """Read the adapter in `directory`. Raises RunError, OSError."""
    config = _config(directory)
    beyond = [key for key in BEYOND if config.get(key)] + (["bias"] if config.get("bias", "none") != "none" else [])
    try:
        scale = float(config["lora_alpha"]) / float(config["r"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        scale = math.nan
    if beyond or not math.isfinite(scale):
        raise RunError(
            f"The version's {CONFIG} describes a kind of adapter that cannot be merged here "
            f"({', '.join(beyond) or 'its r or lora_alpha'}). Export another version."
        )
    found = {one.name: one for one in _tensors([directory / WEIGHTS])}
    modules = {name.removeprefix(PREFIX).split(".lora_")[0] for name in found}
    pairs = {}
    for module in sorted(modules):
        down, up = (found.pop(f"{PREFIX}{module}.lora_{side}.weight", None) for side in "AB")
        if down is None or up is None or down.dtype not in FLOATS or up.dtype not in FLOATS:
            raise RunError(f"The version's {WEIGHTS} lacks the pair of A and B for {module}. Export another version.")
        if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
            raise RunError(f"In the version's {WEIGHTS}, the shapes of A and B for {module} do not fit together.")
        pairs[module] = (down, up)
    if found:
        raise RunError(f"The version's {WEIGHTS} holds {next(iter(found))!r}, which belongs to no pair of A and B.")
    return Adapter(pairs=pairs, scale=scale)
