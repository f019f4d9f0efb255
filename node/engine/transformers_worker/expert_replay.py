"""Sends the tokens of a pass through the experts that another engine chose for them, where the model nearly did.

An audit needs this. Two engines round differently, so now and then a router of the one chooses other experts than the
router of the other. The token's log probability then moves by far more than rounding explains, and so do those after
it. With the choices of the engine that is audited, what is left is rounding, as in a model without experts.

The choices come from strangers. One is followed only if the live router gives its least likely expert at least
AUDITED_SHARE (`learner.artifacts.expert_routing`) of what it gives the least likely of its own. The sum over a choice
would not do: where a token asks eight experts, the last has little of it, and any other could stand there.

Invariants:
- a position without experts, or whose experts are not followed, is routed as if nothing was attached;
- outside `replaying` nothing is attached.
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
"""In place of an expert: the position routes itself."""


class Replay:
    """Attached to the `routers` of a model. `force` says what the next pass follows."""

    def __init__(self, routers: list[Any], routing: Routing, *, shares: bool) -> None:
        self.routing = routing
        self._shares = shares
        self._forced: torch.Tensor | None = None
        self._handles = [router.register_forward_hook(self._hook(layer)) for layer, router in enumerate(routers)]

    def force(self, experts: torch.Tensor | None) -> None:
        """Follow `experts` (P, layers, top_k) int64 at the P positions of the next pass, NOBODY where a position has
        none; None: every position routes itself."""
        self._forced = experts

    def close(self) -> None:
        """Let go of the model."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer: int) -> Any:
        def replay(router: Any, inputs: Any, output: Any) -> Any:
            """The router's logits (P, E), weights (P, k) and experts (P, k), those that are followed among them."""
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
    """Attach to `model`. Refused("bad_request") when it has no routers that are known here."""
    config = model.config.to_dict()
    routing = routing_in(config)
    routers = routers_of(model) if routing is not None else []
    if routing is None or len(routers) != routing.layers:
        name = getattr(model.config, "model_type", type(model).__name__)
        raise Refused("bad_request", f"experts of a {name} are to be followed, and its routers are not known here")
    replay = Replay(routers, routing, shares=shares_weights(config))
    try:
        yield replay
    finally:
        replay.close()
