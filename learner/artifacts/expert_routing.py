"""Tell from a model's config.json how a mixture of experts routes, and find the routers of a loaded model.

Replayed weights: in all architectures here a router takes the softmax of its logits and gives a token to the `top_k`
experts with the largest probability. The weights of these experts are the probabilities themselves, or their shares of
the sum over the chosen experts. No torch, no library: an engine worker loads this file by its path, in any virtual
environment.

Invariants:

- A model type that is not known to route in this way has no routing here: its routing is never replayed by guess.
- The routers of a model come in the order of its layers, and there are as many as its config says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.experts import Routing

SHARED = "shares"
"""The weights of the chosen experts always add up to 1."""

BY_CONFIG = "norm_topk_prob"
"""The weights add up to 1 if the config says so under this name."""

KNOWN = {"qwen3_moe": BY_CONFIG, "qwen2_moe": BY_CONFIG, "olmoe": BY_CONFIG, "mixtral": SHARED}
"""Model types whose routers can be replayed, and what their weights add up to."""

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configs give the number of experts in a layer, for any kind of routing."""

AUDITED_SHARE = 0.95
"""An audit follows a choice of experts if the live router gives the least likely chosen expert at least this share of
the probability of the least likely expert in its own choice. Where honest engines chose differently, in bfloat16 and
float32, 1 % of the choices had a share below 0.93 (`docs/explain/threats.md`). The trainer's limit may be lower,
because its bounds limit what a stranger's claim can do. In an audit a forger would try routes until one draws the
wanted token."""

MOST_EXPERTS = 65_535
"""Maximum number of experts in one layer: an expert's id takes at most two bytes."""


def has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the model of this config.json, or a part of it, is a mixture of experts of any kind."""
    return any(
        (key in COUNTS and any(type(one) is int and one > 1 for one in (value if isinstance(value, list) else [value])))
        or (isinstance(value, Mapping) and has_experts(value))
        for key, value in config.items()
    )


def routing_in(config: Mapping[str, Any]) -> Routing | None:
    """Return how the model of this config.json routes; None if it is no mixture of experts, or of an unknown kind."""
    if config.get("model_type") not in KNOWN:
        return None
    experts = _number(config, "num_local_experts") or _number(config, "num_experts")
    top_k, layers = _number(config, "num_experts_per_tok"), _number(config, "num_hidden_layers")
    step = _number(config, "decoder_sparse_step") or 1
    plain = config.get("mlp_only_layers") or []
    sparse = sum(1 for layer in range(layers) if (layer + 1) % step == 0 and layer not in plain)
    if not sparse or not 0 < top_k <= experts <= MOST_EXPERTS:
        return None
    return Routing(layers=sparse, experts=experts, top_k=top_k)


def shares_weights(config: Mapping[str, Any]) -> bool:
    """Return whether the weights of a token's experts add up to 1, for a model that has a routing."""
    rule = KNOWN[config["model_type"]]
    return rule == SHARED or bool(config.get(rule))


def routers_of(model: Any) -> list[Any]:
    """Return the routers of a loaded model in the order of its layers: modules called `gate` beside `experts`."""
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        owner, _, own = name.rpartition(".")
        if own == "gate" and hasattr(modules[owner], "experts"):
            found.append(module)
    return found


def _number(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    return found if type(found) is int else 0
