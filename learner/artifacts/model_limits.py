"""Tell from a model's config.json how long a sequence may be, and how many token ids there are. No torch, no library.

Beyond its positions a model fails, or computes something else for a whole sequence than for the same sequence token by
token. An engine that generates then disagrees with every audit. LongRoPE (arXiv 2402.13753) changes to other factors
for the whole sequence at `original_max_position_embeddings`, while a cache holds keys that were rotated by the first
factors. Dynamic NTK scaling does so at `max_position_embeddings`, which is the limit anyway.

Invariants:

- For every architecture that transformers lists as a causal language model, the result is what an engine finds in the
  loaded model (`tests/architectures`).
- A model whose LongRoPE factors are equal has no lower limit because of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAMES = (
    "max_position_embeddings",
    "n_positions",  # GPT-2, GPT-J, CodeGen, CTRL
    "max_seq_len",  # MPT, DBRX
    "context_length",  # RWKV
    "model_max_length",  # Kimi Linear
    "max_target_positions",  # Whisper
)
"""Names under which configs give the length of the longest sequence in tokens, the usual name first. BLOOM's
`seq_length` and `n_ctx` are left out, because nothing computes with them."""

PARTS = ("text_config", "decoder", "generator")
"""Names under which a config of several parts holds the part that generates."""

BEHIND_PADDING = frozenset(
    {
        "camembert",
        "data2vec-text",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Model types that number a sequence's first token after the id of the padding token, as fairseq does. They have that
many positions fewer than position embeddings."""

LONGROPE = ("longrope", "su")
"""Names that configs use for LongRoPE, today and in the first Phi-3 models."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The length of the longest sequence in tokens; `why` is a sentence if that is less than the model's positions."""

    tokens: int
    why: str = ""


def positions_in(config: Mapping[str, Any]) -> Positions | None:
    """Return the limit of the model with this config.json; None when it does not say."""
    config = text_part(config)
    named = next((size for name in NAMES if (size := _whole(config.get(name)))), None)
    found = [] if named is None else [Positions(tokens=named - first_position(config))]
    found += [Positions(tokens=length, why=_changes_at(length)) for length in original_lengths(config)]
    return min(found, key=lambda one: one.tokens, default=None)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that is about text; the whole config if it has no parts."""
    return next((part for name in PARTS if isinstance(part := config.get(name), Mapping)), config)


def first_position(config: Mapping[str, Any]) -> int:
    """Return the position of a sequence's first token, as the model counts positions."""
    if config.get("model_type") not in BEHIND_PADDING:
        return 0
    return (_whole(config.get("pad_token_id")) or 0) + 1


def original_lengths(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the lengths at which rotary embeddings change to other factors for the whole sequence."""
    for rope in _ropes(config.get("rope_parameters") or config.get("rope_scaling")):
        if rope.get("rope_type", rope.get("type")) not in LONGROPE:
            continue
        if all(rope.get(f"short_{name}") == rope.get(f"long_{name}") for name in ("factor", "mscale")):
            continue
        lengths = (_whole(place.get("original_max_position_embeddings")) for place in (rope, config))
        yield from (length for length in lengths if length)


def _ropes(rope: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each set of rotary parameters: one for all layers, or one for each kind of layer."""
    if isinstance(rope, Mapping):
        yield rope
        yield from (inner for inner in rope.values() if isinstance(inner, Mapping))


def _changes_at(length: int) -> str:
    return (
        f"Beyond {length} tokens (original_max_position_embeddings) its LongRoPE changes factors for the whole "
        "sequence, so a node that generates with a cache would fail every audit. To go further, write the values of "
        "long_factor into short_factor in its config.json: then all lengths use them"
    )


def _whole(size: Any) -> int | None:
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
