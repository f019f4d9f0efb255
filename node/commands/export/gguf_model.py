"""Describe a model for a GGUF file: the architecture's settings, and the names of its tensors.

Settings and names follow llama.cpp's convert_hf_to_gguf.py, for the architectures whose logits were compared with those
of llama.cpp (`tests/integration/test_gguf.py`). A setting that llama.cpp would ignore is refused: a file that computes
something else is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.commands.export.gguf_tokenizer import BY_HAND
from node.runtime.errors import UsageError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""llama.cpp's name of the architecture, by the name of the class in transformers."""

BY_TYPE = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"} | {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The class for a config.json that names none, by model type."""

QUERIES, KEYS = "self_attn.q_proj.weight", "self_attn.k_proj.weight"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a GGUF file says about a model.

    Args:
        freq_factors: divisors of the rotary frequencies for llama.cpp; () if all are 1.
        rope_scale: factor by which positions are stretched.
    """

    arch: str
    layers: int
    context: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    says_head_dim: bool
    vocab: int
    eps: float
    rope_theta: float
    tied: bool
    rope_scale: float = 1.0
    freq_factors: tuple[float, ...] = ()

    def is_arranged(self, name: str) -> bool:
        """Return whether llama.cpp needs the rows of a tensor in another order."""
        return self.arch == "llama" and name.endswith((QUERIES, KEYS))

    def arranged(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a tensor in llama.cpp's order: there Llama's rotary pairs are adjacent, here half a head apart."""
        if not self.is_arranged(name):
            return values
        heads = self.heads if name.endswith(QUERIES) else self.kv_heads
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)


def read_shape(config: Mapping[str, Any]) -> Shape:
    """Return what a config.json says. Raises UsageError if llama.cpp would compute something else, or might."""
    try:
        return _shape(config)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"--gguf: a setting is missing in the model's config.json ({error!r}). {BY_HAND}") from None


def _shape(config: Mapping[str, Any]) -> Shape:
    said = config.get("architectures") or [BY_TYPE.get(config.get("model_type", ""), config.get("model_type"))]
    arch = ARCHITECTURES.get(said[0])
    if arch is None:
        raise UsageError(
            f"--gguf: the architecture {said[0]!r} is not supported, only {', '.join(ARCHITECTURES)}. {BY_HAND}"
        )
    _require_usual(config)
    heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or width // heads)
    theta, scale, factors = _rope(config, arch, head_dim)
    return Shape(
        arch=arch,
        layers=int(config["num_hidden_layers"]),
        context=int(config["max_position_embeddings"]),
        width=width,
        feed_forward=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        says_head_dim=config.get("head_dim") is not None,
        vocab=int(config["vocab_size"]),
        eps=float(config["rms_norm_eps"]),
        rope_theta=theta,
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_scale=scale,
        freq_factors=factors,
    )


def _require_usual(config: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting that llama.cpp ignores in these architectures."""
    slides = int(config.get("sliding_window") or 0) if config.get("use_sliding_window", True) else 0
    unusual = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "sliding_window": 0 < slides < int(config["max_position_embeddings"]),
        "layer_types": bool({*(config.get("layer_types") or ())} - {"full_attention"}),
        "partial_rotary_factor": float(_rope_of(config).get("partial_rotary_factor") or 1.0) != 1.0,
    }
    if odd := [name for name, is_odd in unusual.items() if is_odd]:
        raise UsageError(
            f"--gguf: the model's config.json has {odd[0]} = {config.get(odd[0])!r}, which is not supported. {BY_HAND}"
        )


def _rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that transformers 5 calls rope_parameters, and others rope_theta and rope_scaling."""
    flat = {"rope_theta": config.get("rope_theta"), "partial_rotary_factor": config.get("partial_rotary_factor")}
    return {**flat, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}


def _rope(config: Mapping[str, Any], arch: str, head_dim: int) -> tuple[float, float, tuple[float, ...]]:
    """Return the base of the rotary frequencies, the factor of positions, and the divisor of each frequency."""
    rope = _rope_of(config)
    kind, theta = rope.get("rope_type") or rope.get("type") or "default", float(rope.get("rope_theta") or 10_000.0)
    if kind == "default":
        return theta, 1.0, ()
    if kind == "linear":
        return theta, float(rope["factor"]), ()
    if kind == "llama3" and arch == "llama":
        return theta, 1.0, _llama3_factors(rope, theta, head_dim)
    raise UsageError(f"--gguf: rotary positions of the kind {kind!r} are not supported. {BY_HAND}")


def _llama3_factors(rope: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """Return the factors of Llama 3.1: `factor` for long waves, 1 for short ones, a value between for the others."""
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    old = float(rope["original_max_position_embeddings"])
    found = []
    for place in range(0, head_dim, 2):
        wave = 2 * math.pi * theta ** (place / head_dim)
        if wave < old / high:
            found.append(1.0)
        elif wave > old / low:
            found.append(factor)
        else:
            smooth = (old / wave - low) / (high - low)
            found.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return tuple(found)
