"""Find the length at which rotary embeddings change their factors for a whole sequence.

The rule is that of `learner.artifacts.model_limits`. A test checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LONGROPE = ("longrope", "su")


def original_lengths(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lengths in a config.json, or in its part about text, that no sequence may exceed. The cache holds keys
    that were rotated by the factors of short sequences."""
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    for rope in _ropes(config.get("rope_parameters") or config.get("rope_scaling")):
        if rope.get("rope_type", rope.get("type")) not in LONGROPE:
            continue
        if all(rope.get(f"short_{name}") == rope.get(f"long_{name}") for name in ("factor", "mscale")):
            continue
        for place in (rope, config):
            length = place.get("original_max_position_embeddings")
            if isinstance(length, int) and length > 0:
                yield length


def _ropes(rope: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the one set of parameters, or the set of each kind of layer."""
    if isinstance(rope, Mapping):
        yield rope
        yield from (inner for inner in rope.values() if isinstance(inner, Mapping))
