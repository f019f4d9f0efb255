"""Match the tensors of a directory with those of a model, in both directions.

transformers renames, fuses or splits some architectures' tensors on loading (the experts of a mixture become one
tensor), and an export must undo that. One part is handled at a time, so no direction needs a second model in memory.

Invariants:

- Every tensor of the model is made of tensors of the directory.
- A round trip through `read` and `revert` gives the directory's names, shapes and numbers again. Names and shapes are
  tested before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from learner.artifacts.model_directory import BadModel, ModelDirectory


@dataclass(kw_only=True)
class Part:
    """Tensors that are converted together. `sources` are names in the directory, each with the pattern that it matched.
    `targets` are names in the model; the first is the one that the sources' names matched. A `converter` of None means
    a plain copy of one tensor to one.
    """

    sources: list[tuple[str, str]]
    targets: list[str]
    converter: Any = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@torch.no_grad()
def correspond(model: Any, directory: ModelDirectory) -> list[Part]:
    """Match the directory's tensors with the model's, in the model's order. Raises BadModel."""
    tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
    parts = _paired(model, tensors, directory)
    filled = {id(tensors[target]) for part in parts for target in part.targets if target in tensors}
    missing = sorted(name for name, tensor in tensors.items() if id(tensor) not in filled)
    if missing:
        raise BadModel(
            f"{directory.path} lacks {len(missing)} tensors that its config requires, {missing[0]!r} first; "
            "copy its weights again"
        )
    places = {name: place for place, name in enumerate(tensors)}
    ordered = sorted(parts, key=lambda part: min(places[target] for target in part.targets))
    for part in ordered:
        _require_round_trip(model, part, tensors, directory)
    return list(_each_once(ordered, tensors))


def _paired(model: Any, tensors: Mapping[str, Tensor], directory: ModelDirectory) -> list[Part]:
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    parts: dict[str, Part] = {}
    for name in sorted(directory.files, key=dot_natural_key):  # experts in the order of their numbers
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, tensors)
        if target not in tensors and name in tensors:
            target, pattern = name, None
        if target not in tensors:
            continue  # the model ignores it, as transformers does
        converter = None if pattern is None else by_pattern[pattern]
        part = parts.setdefault(target, Part(sources=[], targets=[], converter=converter))
        part.sources.append((name, pattern or name))
        part.shapes[name] = directory.shapes[name]
    model._weight_conversions = [one for one in transforms if one.was_used()]  # for `revert_weight_conversion`
    for target, part in parts.items():
        made = _on_shapes(model, part, target, directory) if part.converter else {}
        part.targets = [target, *(name for name in made if name != target)]
    return list(parts.values())


def _on_shapes(model: Any, part: Part, target: str, directory: ModelDirectory) -> dict[str, Tensor]:
    """Return what `part`, whose names matched `target`, makes of empty tensors of its shapes. Raises BadModel."""
    by_name = replace(part, targets=[target])  # a copy: one source may make several targets, and `part` keeps them all
    try:
        return read(model, by_name, lambda name: torch.empty(part.shapes[name], device="meta"))
    except (ValueError, RuntimeError, LookupError) as error:
        raise BadModel(
            f"{directory.path} could not be loaded as a causal language model: {target!r} cannot be made of "
            f"{part.sources[0][0]!r} and the like ({error})"
        ) from error


def read(model: Any, part: Part, get: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Make the model's tensors of `part` from the directory's, which `get` returns by name."""
    if part.converter is None:
        return {part.targets[0]: get(part.sources[0][0])}
    converter = deepcopy(part.converter)
    for name, pattern in part.sources:
        converter.add_tensor(part.targets[0], name, pattern, get(name))
    found = converter.convert(part.targets[0], model=model, config=model.config)
    return {name: one[0] if isinstance(one, list) else one for name, one in found.items()}


@torch.no_grad()
def revert(model: Any, part: Part, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make the directory's tensors of `part`, by name, from the model's."""
    if part.converter is None:
        return {part.sources[0][0]: tensors[part.targets[0]]}
    return dict(revert_weight_conversion(model, dict(tensors)))


def _require_round_trip(model: Any, part: Part, tensors: Mapping[str, Tensor], directory: ModelDirectory) -> None:
    found = _on_shapes(model, part, part.targets[0], directory) if part.converter else None
    for target in part.targets:
        shape = part.shapes[part.sources[0][0]] if found is None else tuple(found[target].shape)
        if target not in tensors or tuple(tensors[target].shape) != shape:
            wanted = tuple(tensors[target].shape) if target in tensors else "no such tensor"
            raise BadModel(
                f"{directory.path} could not be loaded as a causal language model: {part.sources[0][0]!r} makes "
                f"{target!r} of shape {shape}, but its config requires {wanted}"
            )
    if found is not None:
        back = {name: tuple(tensor.shape) for name, tensor in revert(model, part, found).items()}
        if back != part.shapes:
            raise BadModel(
                f"{directory.path}: transformers stores {part.sources[0][0]!r} in a form that cannot be turned back; "
                "this architecture cannot be exported"
            )


def _each_once(parts: Sequence[Part], tensors: Mapping[str, Tensor]) -> Iterator[Part]:
    """Yield tied tensors once, under the first of the names that the directory has for them."""
    seen: set[int] = set()
    for part in parts:
        if not all(id(tensors[target]) in seen for target in part.targets):
            yield part
        seen.update(id(tensors[target]) for target in part.targets)
