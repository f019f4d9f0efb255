"""Send the tokens of a pass through the experts that another engine chose, where the model's own choice is close.

An audit needs this. Two engines round differently, so now and then their routers choose different experts. The token's
log probability then moves by far more than rounding explains, and so do those after it. With the choices of the audited
engine, only rounding differences remain, as in a model without experts.

The choices come from strangers. A choice is followed only if the live router gives its least likely expert at least
AUDITED_SHARE (`learner.artifacts.expert_routing`) of what it gives the least likely expert of its own choice. The sum
over a choice would not suffice: if a token uses eight experts, the last has a small share, and could be any other.

Invariants:

- A position without experts, or whose experts are not followed, is routed as if nothing was attached.
- Outside `replaying` nothing is attached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from learner.artifacts.expert_routing import AUDITED_SHARE, routers_of, routing_in, shares_weights
from protocol.experts import Routing

from ..common_worker.errors import Refused

NOBODY = -1
"""In place of an expert id: the router chooses at this position itself."""


class Replay:
    """Attached to the `routers` of a model. `force` sets the experts that the next pass follows."""

    def __init__(self, routers: list[Any], routing: Routing, *, shares: bool) -> None:
        self.routing = routing
        self._shares = shares
        self._forced: torch.Tensor | None = None
        self._handles = [router.register_forward_hook(self._hook(layer)) for layer, router in enumerate(routers)]

    def force(self, experts: torch.Tensor | None) -> None:
        """Follow `experts` (P, layers, top_k) int64 at the P positions of the next pass. NOBODY marks a position
        without experts. None: the router chooses at every position itself."""
        self._forced = experts

    def close(self) -> None:
        """Detach from the model."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer: int) -> Any:
        def replay(router: Any, inputs: Any, output: Any) -> Any:
            """Return the logits (P, E), weights (P, k) and experts (P, k), including the followed ones."""
            if self._forced is None:
                return None
            if not isinstance(output, tuple):
                raise Refused("bad_request", "this version of transformers has routers whose experts cannot be forced")
            logits, weights, own = output
            return _followed(logits, weights, own, self._forced[:, layer], shares=self._shares)

        return replay


def _followed(
    logits: torch.Tensor, weights: torch.Tensor, own: torch.Tensor, forced: torch.Tensor, *, shares: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = forced[:, :1] != NOBODY
    chosen = torch.where(given, forced, own)
    odds = torch.softmax(logits, dim=-1, dtype=torch.float)
    theirs, ours = odds.gather(1, chosen), odds.gather(1, own)
    follows = given & (theirs.amin(-1, keepdim=True) >= AUDITED_SHARE * ours.amin(-1, keepdim=True))
    if shares:
        theirs = theirs / theirs.sum(dim=-1, keepdim=True)
    return logits, torch.where(follows, theirs.to(weights.dtype), weights), torch.where(follows, chosen, own)


@contextmanager
def replaying(model: Any) -> Iterator[Replay]:
    """Attach to `model`. Raises Refused("bad_request") if it has no routers that are known here."""
    config = model.config.to_dict()
    routing = routing_in(config)
    routers = routers_of(model) if routing is not None else []
    if routing is None or len(routers) != routing.layers:
        name = getattr(model.config, "model_type", type(model).__name__)
        raise Refused("bad_request", f"the experts of a {name} must be followed, but its routers are not known here")
    replay = Replay(routers, routing, shares=shares_weights(config))
    try:
        yield replay
    finally:
        replay.close()
