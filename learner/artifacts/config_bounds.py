"""Check that a config.json asks for no more layers than the weights have tensors, before a library reads it.

Libraries make lists of a config's layers when they read it, and a module for each when they build the model. Without a
bound, a number in a stranger's file would decide how long that takes. Engine workers load this file by its path, so it
imports nothing of this program.

Invariants:

- A model whose layers each have a tensor is never refused.
- Every function takes no longer than one walk through config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COUNTED = re.compile(r"(layers?|blocks?|labels|depth|kernel_size)$")
"""Names of fields that count things, over which configs and models loop."""

FEWEST = 1024
"""This many of anything is always allowed: looping over them takes no time, and layers may share their tensors."""


def find_excess(config: Any, num_tensors: int) -> str:
    """Return a message that names the field of a config that asks for more layers than the weights have tensors; ""
    when none does."""
    for name, value in whole_numbers(config):
        if COUNTED.search(name) and value > max(FEWEST, num_tensors):
            return f"asks for {name} = {value}, but the weights have {num_tensors} tensors"
    return ""


def whole_numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield every whole number in a config with its name, also in parts and lists; 2.0 and "2" count as well."""
    match value:
        case dict():
            for key, inner in value.items():
                if key == "label2id":  # its keys are words that people chose
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
