"""Tell from a model's config.json how a mixture of experts routes, and find the routers of a loaded model.

Invariants:
- what is not known to route as `replayed weights` below computes has no routing here: it is never replayed by guess;
- the routers of a model come in the order of its layers, and are as many as its config says.

Replayed weights: all architectures here take the softmax of a router's logits and give a token to the `top_k` largest;
the weights of the chosen are these numbers, or their share of the sum of the chosen. No torch, no library: an engine
worker loads this file by its path, in any virtual environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.experts import Routing

SHARED = "shares"
"""The weights of the chosen experts always add up to 1."""

BY_CONFIG = "norm_topk_prob"
"""They do where the config says so under this name."""

KNOWN = {"qwen3_moe": BY_CONFIG, "qwen2_moe": BY_CONFIG, "olmoe": BY_CONFIG, "mixtral": SHARED}
"""Model types whose routers can be replayed, and what their weights add up to."""

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Under which names configs say how many experts a layer has, routed as here or otherwise."""

AUDITED_SHARE = 0.95
"""An audit follows a choice of experts if the live router gives the least likely of them at least this share of what it
gives the least likely of its own. Of choices in which honest engines differed, in bfloat16 and float32, 1 % had less
than 0.93 (`docs/threats.md`). A trainer's share may be lower, since it trains no stranger's claim beyond its bounds. In
an audit a forger would choose among routes until one draws the token that it wants."""

MOST_EXPERTS = 65_535
"""Of a layer: an id takes two bytes at most."""


def has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the model of this config.json, or a part of it, is a mixture of experts, of whatever kind."""
    return any(
        (key in COUNTS and any(type(one) is int and one > 1 for one in (value if isinstance(value, list) else [value])))
        or (isinstance(value, Mapping) and has_experts(value))
        for key, value in config.items()
    )


def routing_in(config: Mapping[str, Any]) -> Routing | None:
    """How the model of this config.json routes; None if it is no mixture of experts, or of an unknown kind."""
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
    """Whether the weights of a token's experts add up to 1, in a model that has a routing."""
    rule = KNOWN[config["model_type"]]
    return rule == SHARED or bool(config.get(rule))


def routers_of(model: Any) -> list[Any]:
    """The routers of a loaded model, in the order of its layers: modules called `gate` beside `experts`."""
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
