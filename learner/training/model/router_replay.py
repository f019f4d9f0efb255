"""Send tokens through the experts that an engine chose for them: router replay (R3, arXiv 2510.11370).

An engine and the trainer round differently, so now and then their routers choose different experts where two are nearly
equal. The token then has another log probability by far more than rounding explains. With replay the trainer uses the
engine's choice. The weights of the chosen experts are those of the live router, so gradients reach it.

One rule is not in the paper, because peers are strangers here. A choice is replayed only if the live router gives it at
least LEAST_SHARE of the probability of its own choice. Where an honest engine chose differently, both choices are
nearly equal. A forged choice that the policy would never make is ignored, and the token is routed as without replay.

Invariants:

- Positions without experts, or whose experts are not believed, are routed as if nothing was attached, to the bit.
- A replay in a forward pass is repeated in its recomputation (gradient checkpointing): it stays in force until the next
  pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learner.artifacts.expert_routing import routers_of, routing_in, shares_weights
from learner.artifacts.model_directory import BadModel
from learner.training.batches.routes import NOBODY
from protocol.experts import Routing

LEAST_SHARE = 0.5
"""A choice is replayed if the live router gives it at least this fraction of the probability of its own choice. Where
an honest engine chose differently, both are nearly equal: see `replayed` in `benchmarks/router_replay.py`, and
`replayed_of_forged` for random choices."""


class RouterReplay:
    """Replays experts in a model of `routing`. `force` sets the experts of the next forward pass."""

    def __init__(self, model: nn.Module, routing: Routing, shares: bool) -> None:
        self.routing = routing
        self.layers = [_Layer(router, shares) for router in routers_of(model)]

    def force(self, experts: Tensor | None) -> None:
        """Replay `experts` (P, layers, top_k) int64 at the P positions of the next pass; NOBODY where a position has
        none. With None the live router routes every position."""
        for number, layer in enumerate(self.layers):
            layer.forced = None if experts is None else experts[:, number]
            layer.believed = None

    def counted(self) -> tuple[int, int]:
        """Return how many choices, one per layer and position, the last pass replayed, and how many were given."""
        taken = [one.believed for one in self.layers if one.believed is not None]
        given = [one.forced[:, 0] != NOBODY for one in self.layers if one.forced is not None]
        return _true(taken), _true(given)


class _Layer:
    """One router. It is no module, so that the model's names and tensors do not change."""

    def __init__(self, router: Any, shares: bool) -> None:
        self.forced: Tensor | None = None
        self.believed: Tensor | None = None
        self._shares = shares
        router.register_forward_hook(self._replay)

    def _replay(self, router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
        """Return the router's output (logits (P, E), weights (P, k), experts (P, k)) with the forced experts."""
        if self.forced is None:
            return None
        logits, weights, own = output
        given = self.forced[:, :1] != NOBODY
        chosen = torch.where(given, self.forced, own)
        odds = torch.softmax(logits, dim=-1, dtype=torch.float)
        theirs, ours = odds.gather(1, chosen), odds.gather(1, own)
        if self.believed is None:  # once a pass: its recomputation may round differently, and must decide the same
            self.believed = given & (theirs.sum(-1, keepdim=True) >= LEAST_SHARE * ours.sum(-1, keepdim=True)).detach()
        believed = self.believed
        if self._shares:
            theirs = theirs / theirs.sum(dim=-1, keepdim=True)
        replayed = torch.where(believed, theirs.to(weights.dtype), weights)
        return logits, replayed, torch.where(believed, chosen, own)


def _true(flags: list[Tensor]) -> int:
    return int(torch.stack([one.sum() for one in flags]).sum()) if flags else 0


def attach_replay(model: Any) -> RouterReplay:
    """Attach router replay to `model`. Raises BadModel for an architecture whose routers are not known here."""
    config = model.config.to_dict()
    routing = routing_in(config)
    if routing is None:
        raise BadModel(
            f"router_replay needs a mixture of experts whose routers it knows, but this is a {config['model_type']}: "
            "set [trainer] router_replay = false"
        )
    if (found := len(routers_of(model))) != routing.layers:
        raise BadModel(
            f"router_replay found {found} routers in the model, but its config names {routing.layers} layers with "
            "experts: set [trainer] router_replay = false"
        )
    return RouterReplay(model, routing, shares_weights(config))
