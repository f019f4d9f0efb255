"""Bound what a config.json may ask for by the weights that are really there, before a library reads it.

Libraries make lists of a config's layers when they read it, and a module for each when they build the model: a number
of a stranger's would decide how long that takes. `learner/artifacts/config_bounds.py` says the same to an operator: a
worker imports nothing of ours, so a test holds the two together.

Invariants:
- A model whose layers each have a tensor is never refused.
- Nothing here takes longer than reading config.json and the headers of the weight files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Refused

COUNTED = re.compile(r"(layers?|blocks?|labels|depth|kernel_size)$")
"""Fields that say how many of something there are, one after the other: what configs and models go through in loops."""

FEWEST = 1024
"""So many of anything are always allowed: going through them takes no time, and layers may share their tensors."""

MOST_CONFIG_BYTES = 16 * 1024 * 1024
"""Of a config.json; those of models have some KB, and labels of classifiers some MB."""


MOST_HEADER_BYTES = 100_000_000
"""Where the safetensors library itself stops."""


@dataclass(frozen=True)
class Stored:
    """What the weight files hold: how many tensors, and bytes."""

    num_tensors: int
    num_bytes: int


def read_stored(files: Sequence[Path]) -> Stored:
    """Read the headers of the weight files. Refused("bad_model") when one has none."""
    num_tensors = num_bytes = 0
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(size, MOST_HEADER_BYTES):
                raise Refused("bad_model", f"{file} ends inside its header, or that has over {MOST_HEADER_BYTES} bytes")
            try:
                num_tensors += len(json.loads(opened.read(length)).keys() - {"__metadata__"})
            except (ValueError, AttributeError, RecursionError) as error:
                raise Refused("bad_model", f"{file} has no header of safetensors: {error}") from error
        num_bytes += size - length
    return Stored(num_tensors, num_bytes)


def require_counts(config: Path, stored: Stored) -> None:
    """Raise Refused("bad_model"), naming the field, when config.json asks for more layers than there are tensors."""
    if config.stat().st_size > MOST_CONFIG_BYTES:
        raise Refused("bad_model", f"{config} has {config.stat().st_size} bytes, {MOST_CONFIG_BYTES} are allowed")
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused("bad_model", f"{config} cannot be read: {error}") from error
    most = max(FEWEST, stored.num_tensors)
    for name, value in whole_numbers(fields):
        if COUNTED.search(name) and value > most:
            asked = f"{config} asks for {name} = {value}, and the weights have {stored.num_tensors} tensors"
            raise Refused("bad_model", asked)


def whole_numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield every number of a config by its name, those of its parts and lists too; a whole float is one as well."""
    match value:
        case dict():
            for key, inner in value.items():
                if key == "label2id":  # its keys are words of people
                    continue
                yield from whole_numbers(inner, f"{name}.{key}" if name else str(key))
        case list():
            for inner in value:
                yield from whole_numbers(inner, name)
        case bool():
            pass
        case int():
            yield name, value
        case float() if value == value // 1:
            yield name, int(value)
        case str() if value.isdecimal() and len(value) < 400:
            yield name, int(value)
