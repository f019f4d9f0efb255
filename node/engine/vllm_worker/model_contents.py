"""Read what a model directory holds from the files' headers, before anything is loaded from it.

Invariant: a directory that passes `require_like` has exactly the tensors of the active version, so that loading it in
place cannot stop halfway.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ..common_worker.errors import Refused
from ..common_worker.lora import Adapter, open_adapter
from ..common_worker.rotary import original_lengths
from ..common_worker.sizes import read_stored, require_counts
from ..common_worker.weight_files import PLAIN_DTYPES, weight_files

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The safetensors types in which a model can be computed, by torch's names."""

IGNORED = ("_name_or_path", "transformers_version")
"""Entries of a config.json that change nothing."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A model directory: its config, the shape and stored dtype of every tensor, and its adapter if it has one."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], str]]
    adapter: Adapter | None

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape, _ in self.tensors.values())

    @property
    def is_packed(self) -> bool:
        """Return whether some tensor is not a plain one of floats: then only a full load can read it."""
        return any(dtype not in PLAIN_DTYPES for _, dtype in self.tensors.values())

    @property
    def computes_in(self) -> str:
        """Return torch's name of the type in which most of the parameters are stored; "auto", which leaves the choice
        to vLLM, if that is not in NAMES. (vLLM itself uses 16 bits for what is stored in 32.)"""
        sizes: Counter[str] = Counter()
        for shape, dtype in self.tensors.values():
            sizes[dtype] += math.prod(shape)
        [(most, _)] = sizes.most_common(1) or [("", 0)]
        return NAMES.get(most, "auto")

    @property
    def original_length(self) -> int | None:
        """Return the tokens that no sequence may exceed; None for the model's own limit. Beyond this length LongRoPE
        uses other factors, and vLLM uses them for every sequence once it may accept longer ones."""
        return min(original_lengths(self.config), default=None)

    def require_like(self, other: Contents) -> None:
        """Raise Refused unless the tensors have the names and shapes of those of `other`."""
        for name in sorted(self.tensors.keys() ^ other.tensors.keys()):
            word = "lacks" if name in other.tensors else "has an unexpected"
            raise Refused("bad_model", f"{self.directory} {word} {name}, unlike the active version")
        for name, (shape, _) in self.tensors.items():
            if shape != other.tensors[name][0]:
                wanted = list(other.tensors[name][0])
                raise Refused("bad_model", f"{self.directory}: {name} has shape {list(shape)} instead of {wanted}")


def read_contents(directory: Path) -> Contents:
    """Read the headers of `directory`. Raises Refused("bad_model") if it is incomplete, damaged or inconsistent."""
    try:
        require_counts(directory / "config.json", read_stored(weight_files(directory)))
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        # Opening checks the header and the length of every file. (safetensors has no types.)
        readers: list[Any] = [safe_open(path, framework="pt") for path in weight_files(directory)]
        sources = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118
        slices = {name: reader.get_slice(name) for name, reader in sources.items()}
        tensors = {name: (tuple(one.get_shape()), str(one.get_dtype())) for name, one in slices.items()}
        adapter = open_adapter(directory)
        if not isinstance(config, dict):
            raise Refused("bad_model", f"{directory / 'config.json'} is not a table")
        if adapter is not None:
            adapter.require_fits({name: shape for name, (shape, _) in tensors.items()})
        _require_tied_agree(directory, config, sources)
    except Refused:
        raise
    except Exception as error:  # third-party libraries may raise anything over a directory from the network
        raise Refused("bad_model", f"{directory} cannot be loaded: {error}") from error
    settings = {key: value for key, value in config.items() if key not in IGNORED}
    return Contents(directory=directory, config=settings, tensors=tensors, adapter=adapter)


def _require_tied_agree(directory: Path, config: dict[str, Any], sources: dict[str, Any]) -> None:
    """Refuse files with two different tensors for one that the model shares, since either could be meant."""
    if config.get("tie_word_embeddings") and HEAD in sources and EMBEDDINGS in sources:
        head, embeddings = (sources[name].get_tensor(name) for name in (HEAD, EMBEDDINGS))
        if not torch.equal(head, embeddings):
            error = f"{directory}: {HEAD} and {EMBEDDINGS} are tied in the model's config but differ in its files"
            raise Refused("bad_model", error)


@contextmanager
def plain_view(contents: Contents) -> Iterator[Path]:
    """Yield a directory with the config and the weight files alone. vLLM reads every safetensors file that it finds,
    also an adapter's, and follows a generation config."""
    index = contents.directory / "model.safetensors.index.json"
    with tempfile.TemporaryDirectory(prefix="volery-model-", dir=os.environ.get("VOLERY_SCRATCH")) as name:
        for file in (contents.directory / "config.json", index, *weight_files(contents.directory)):
            if file.is_file():
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)
