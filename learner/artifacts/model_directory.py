"""Read a model directory from the disk: configuration, weight files, and the files that travel with them.

No torch: tensors are known from the headers of their files.

Invariants:

- No code from the directory is executed and no pickle is read.
- A directory that is no trainable model raises BadModel with its name, before any weight is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learner.artifacts.atomic_directory import json_bytes, table_of
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_config, parse_json
from protocol.versions.safetensors_header import LayoutError, Table

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

TEMPLATE, OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"

COMPANIONS = (
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    TEMPLATE,
    OLD_TEMPLATE,
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
)
"""Files that travel with the weights: data that tokenizers read. Code and pickles (.py, .bin, .pt, .pkl) never travel.
"""

VOLATILE_CONFIG = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version"})
"""Config keys that describe how a model was stored, not what it computes."""


class BadModel(Exception):
    """A directory is not a model that can be trained; the message names it, what is wrong, and the next step."""

    kind = "bad_model"


@dataclass(frozen=True, kw_only=True)
class ModelDirectory:
    """A model directory: `config` as its author wrote it, `files` and `shapes` by tensor name, `companions` (contents)
    by file name.
    """

    path: Path
    config: dict[str, Any]
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]
    companions: Mapping[str, bytes]

    @property
    def meaning(self) -> dict[str, Any]:
        """Return the config without the keys that describe how the model was stored."""
        return {key: value for key, value in self.config.items() if key not in VOLATILE_CONFIG}

    def config_as(self, dtype: str) -> dict[str, Any]:
        """Return the config for weights stored as `dtype`, otherwise unchanged, because other programs read the
        author's version best."""
        changed = copy.deepcopy(self.config)
        for key in ("torch_dtype", "dtype"):  # the old name and the new
            if key in changed:
                changed[key] = dtype
        if "torch_dtype" not in changed:
            changed["dtype"] = dtype
        return changed

    def spoken_to(self, chat_template: str | None, stop_ids: Sequence[int]) -> ModelDirectory:
        """Return a copy whose companion files have this chat template and these stop ids; None and an empty list change
        nothing. Raises BadModel."""
        companions = dict(self.companions)
        if chat_template is not None:
            companions.pop(OLD_TEMPLATE, None)  # some loaders prefer the old file
            companions[TEMPLATE] = chat_template.encode()
        if stop_ids:
            generation: dict[str, Any] = {}
            if GENERATION_CONFIG in companions:
                generation = _object(self.path / GENERATION_CONFIG, lambda path: companions[path.name])
            companions[GENERATION_CONFIG] = json_bytes({**generation, "eos_token_id": list(stop_ids)})
        return replace(self, companions=companions)


def read_directory(directory: Path) -> ModelDirectory:
    """Read a causal LM directory (config.json and safetensors, sharded or not). Raises BadModel."""
    config = _read_config(directory)
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _weight_files(directory):
        for span in _table(file).spans:
            files[span.name], shapes[span.name] = file, tuple(span.shape)
    companions = {name: read_file(directory / name) for name in COMPANIONS if (directory / name).is_file()}
    return ModelDirectory(path=directory, config=config, files=files, shapes=shapes, companions=companions)


def _read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise BadModel(f"{directory} is not a directory; give the path of a Hugging Face model directory")
    try:
        config = _object(directory / CONFIG, read_file)
    except FileNotFoundError:
        raise BadModel(f"{directory} has no {CONFIG}; give a directory written by save_pretrained") from None
    if "auto_map" in config:
        raise BadModel(
            f"{directory / CONFIG} asks for its own code (auto_map), which is never run; "
            "use a model that transformers knows"
        )
    if (directory / "adapter_config.json").exists():
        raise BadModel(f"{directory} holds an adapter beside its weights; merge it with peft, or name the base model")
    if "quantization_config" in config:
        raise BadModel(f"{directory} holds quantised weights, which cannot be trained; use the model they came from")
    return config


def _object(file: Path, read: Callable[[Path], bytes]) -> dict[str, Any]:
    """Return the object in a JSON file. Raises BadModel, FileNotFoundError."""
    try:
        found = parse_config(read(file))
    except FileNotFoundError:
        raise
    except NotText as error:
        raise BadModel(f"{file} {error}") from None
    except (OSError, ValueError) as error:
        raise BadModel(f"{file} cannot be read as JSON ({one_line(error)}); copy it again") from error
    if not isinstance(found, dict):
        raise BadModel(f"{file} is not a JSON object; copy it again")
    return found


def _table(file: Path) -> Table:
    try:
        return table_of(file)
    except FileNotFoundError:
        raise BadModel(f"{file} is missing, though {WEIGHTS_INDEX} names it; copy it again") from None
    except (LayoutError, OSError) as error:
        raise BadModel(f"{file} is not a valid safetensors file ({one_line(error)}); copy it again") from error


def _weight_files(directory: Path) -> list[Path]:
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / WEIGHTS_INDEX).is_file():
        raise BadModel(
            f"{directory} has neither {WEIGHTS} nor {WEIGHTS_INDEX}; weights in other formats are not read: "
            "load them with transformers once and write them with save_pretrained"
        )
    try:
        names = set(parse_json(read_file(directory / WEIGHTS_INDEX))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(
            f"{directory / WEIGHTS_INDEX} is not a weight index ({one_line(error)}); copy it again"
        ) from error
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise BadModel(f"{directory / WEIGHTS_INDEX} names files outside the directory, or none; copy it again")
    return [directory / name for name in sorted(names)]


def one_line(error: BaseException) -> str:
    """Return the message of `error` on one line, to put into a sentence."""
    return " ".join(str(error).split())[:400] or type(error).__name__
