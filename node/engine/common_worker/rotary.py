"""Where rotary embeddings change to other factors for a whole sequence: the rule of `learner.artifacts.model_limits`,
which see. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LONGROPE = ("longrope", "su")


def original_lengths(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lengths of a config.json, or of its part about text, that no sequence may exceed: a cache holds keys
    that were rotated by the factors of short ones."""
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
    """One set of parameters, or one for each kind of layer."""
    if isinstance(rope, Mapping):
        yield rope
        yield from (inner for inner in rope.values() if isinstance(inner, Mapping))
