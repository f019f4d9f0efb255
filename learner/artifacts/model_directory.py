"""A model directory as it lies on the disk: configuration, weight files, and what travels with them.

What always holds: no code from the directory is executed and no pickle is read; what is no trainable model is refused
here, by name, before any weight is loaded. No torch: tensors are known by the headers of their files.
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
"""Files that travel with the weights: data that tokenizers read. Code and pickles (.py, .bin, .pt, .pkl) never do."""

VOLATILE_CONFIG = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version"})
"""Config keys that say how a model was stored, not what it computes."""


class BadModel(Exception):
    """A directory is not a model that we can train; the message names it, what is wrong, and the next step."""

    kind = "bad_model"


@dataclass(frozen=True, kw_only=True)
class ModelDirectory:
    """`config` as the author wrote it, `files` by the name of the tensor they hold, `shapes` by the same, `companions`
    by file name.
    """

    path: Path
    config: dict[str, Any]
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]
    companions: Mapping[str, bytes]

    @property
    def meaning(self) -> dict[str, Any]:
        """The config without what says how the model was stored."""
        return {key: value for key, value in self.config.items() if key not in VOLATILE_CONFIG}

    def config_as(self, dtype: str) -> dict[str, Any]:
        """The config of weights stored as `dtype`, and nothing else new: other programs read the author's best."""
        changed = copy.deepcopy(self.config)
        for key in ("torch_dtype", "dtype"):  # the old name and the new
            if key in changed:
                changed[key] = dtype
        if "torch_dtype" not in changed:
            changed["dtype"] = dtype
        return changed

    def spoken_to(self, chat_template: str | None, stop_ids: Sequence[int]) -> ModelDirectory:
        """The same with companions that say so; None, and no ids: as they are. Raises BadModel."""
        companions = dict(self.companions)
        if chat_template is not None:
            companions.pop(OLD_TEMPLATE, None)  # which some loaders take first
            companions[TEMPLATE] = chat_template.encode()
        if stop_ids:
            generation: dict[str, Any] = {}
            if GENERATION_CONFIG in companions:
                generation = _object(self.path / GENERATION_CONFIG, lambda path: companions[path.name])
            companions[GENERATION_CONFIG] = json_bytes({**generation, "eos_token_id": list(stop_ids)})
        return replace(self, companions=companions)


def read_directory(directory: Path) -> ModelDirectory:
    """Look at a causal LM directory (config.json and safetensors, sharded or not). Raises BadModel."""
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
            f"{directory / CONFIG} asks for code of its own (auto_map), which is never run; "
            "use a model that transformers knows"
        )
    if (directory / "adapter_config.json").exists():
        raise BadModel(f"{directory} holds an adapter beside its weights; merge it with peft, or name the base model")
    if "quantization_config" in config:
        raise BadModel(f"{directory} holds quantised weights, which cannot be trained; use the model they came from")
    return config


def _object(file: Path, read: Callable[[Path], bytes]) -> dict[str, Any]:
    """What a file of JSON holds. Raises BadModel, FileNotFoundError."""
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
        raise BadModel(f"{file} is not a sound safetensors file ({one_line(error)}); copy it again") from error


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
    """What `error` says, for a sentence."""
    return " ".join(str(error).split())[:400] or type(error).__name__
