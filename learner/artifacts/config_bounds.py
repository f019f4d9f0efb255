"""Bound what a config.json may ask for by the weights that are really there, before a library reads it.

Libraries make lists of a config's layers when they read it, and a module for each when they build the model: a number
of a stranger's would decide how long that takes. This file stands alone: engine workers load it by its path.

Invariants:
- A model whose layers each have a tensor is never refused.
- Nothing here takes longer than going through config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COUNTED = re.compile(r"(layers?|blocks?|labels|depth|kernel_size)$")
"""Fields that say how many of something there are, one after the other: what configs and models go through in loops."""

FEWEST = 1024
"""So many of anything are always allowed: going through them takes no time, and layers may share their tensors."""


def find_excess(config: Any, num_tensors: int) -> str:
    """Say which field of a config asks for more layers than its weights have tensors; "" when none does."""
    for name, value in whole_numbers(config):
        if COUNTED.search(name) and value > max(FEWEST, num_tensors):
            return f"asks for {name} = {value}, and the weights have {num_tensors} tensors"
    return ""


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
