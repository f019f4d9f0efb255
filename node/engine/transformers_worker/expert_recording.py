"""Record which experts the routers of a mixture of experts choose, at the last position of each row of a pass.

The logits at this position decide the next token: it is the last token of a prompt, and later the token before. The
trainer replays these choices (`protocol.experts`).

Invariants:

- Recording changes nothing that a model computes.
- Outside `recording` nothing is attached, so engines that need not record lose no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from learner.artifacts.expert_routing import routers_of, routing_in
from protocol.experts import Routing

from ..common_worker.errors import Refused
from ..common_worker.generate_call import Row


class Recorder:
    """Listens to `routers` from its creation until `close`. After each pass whose logits a token is drawn from, `note`
    keeps the choices."""

    def __init__(self, routers: list[Any], routing: Routing) -> None:
        self._top_k = routing.top_k
        self._dtype = torch.uint8 if routing.dtype.itemsize == 1 else torch.int32  # torch computes little in uint16
        self._ids = routing.dtype
        self._chosen: list[torch.Tensor] = [torch.zeros(0)] * len(routers)
        self._owner: torch.Tensor | None = None
        self._noted: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._handles = [router.register_forward_hook(self._hook(place)) for place, router in enumerate(routers)]

    def share(self, owner: torch.Tensor) -> None:
        """Let row i continue from row `owner[i]` of the latest pass."""
        self._owner = owner

    def note(self, order: torch.Tensor) -> None:
        """Note that the next tokens of the rows `order` (B,) are drawn from the latest pass."""
        owner, self._owner = self._owner, None
        passed = len(order) if owner is None else int(owner.max()) + 1
        chosen = torch.stack([one.reshape(passed, -1, self._top_k)[:, -1] for one in self._chosen], dim=1)
        if owner is not None:
            chosen = chosen.index_select(0, owner.to(chosen.device))
        self._noted.append((order, chosen.to(self._dtype)))

    def fill(self, rows: Sequence[Row]) -> None:
        """Set the experts (length, layers, top_k) of each row that requested them."""
        for row in rows:
            if row.with_experts:
                row.experts = np.zeros((row.length, len(self._chosen), self._top_k), self._ids)
        for step, (order, chosen) in enumerate(self._noted):
            for index, experts in zip(order.tolist(), chosen.cpu().numpy(), strict=True):
                found = rows[index].experts
                if found is not None and step < len(found):
                    found[step] = experts

    def close(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, place: int) -> Any:
        def hear(router: Any, inputs: Any, output: Any) -> None:
            # Routers of transformers before 5.0 are linear layers; the experts with the largest logits are chosen.
            chosen = output[2] if isinstance(output, tuple) else output.topk(self._top_k, dim=-1).indices
            self._chosen[place] = chosen

        return hear


@contextmanager
def recording(model: Any) -> Iterator[Recorder]:
    """Listen to the routers of `model`. Raises Refused("bad_request") if it has none that are known here."""
    routing = routing_in(model.config.to_dict())
    routers = routers_of(model) if routing is not None else []
    if routing is None or len(routers) != routing.layers:
        name = getattr(model.config, "model_type", type(model).__name__)
        raise Refused("bad_request", f"the experts of a {name} were requested, but its routers are not known here")
    recorder = Recorder(routers, routing)
    try:
        yield recorder
    finally:
        recorder.close()
