"""Which experts a mixture of experts used for the tokens of a completion, as a record carries them.

Router replay (R3, arXiv 2510.11370): the trainer sends each token through the experts that the engine chose. It keeps
its own weights for them, so that gradients reach the router. For each generated token the record names the experts of
the position that predicts it: the prompt's last token for the first one, then each generated token but the last. All
that was read before, of the prompt or of an environment, goes through experts of the trainer's own choice.

Layout: for each token, for each layer with experts, as many ids as the layer asks. An id is one byte where a layer has
at most 256 experts, else two, little-endian. The order of a layer's ids has no meaning.

Invariants:
- the size is compared before anything is allocated;
- the ids that `unpack_experts` returns exist, and no layer has one twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.core.errors import Fault, PeerError


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a mixture of experts routes: `layers` have experts, `experts` each, of which a token asks `top_k`."""

    layers: int
    experts: int
    top_k: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of an id as it travels."""
        return np.dtype(np.uint8 if self.experts <= 256 else "<u2")

    @property
    def token_bytes(self) -> int:
        """What a record carries for each of its tokens."""
        return self.layers * self.top_k * self.dtype.itemsize


def experts_bytes(experts: NDArray[Any]) -> bytes:
    """`experts` (T, layers, top_k), uint8 or uint16, as a record carries them."""
    return experts.astype(experts.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack_experts(raw: bytes, tokens: int, routing: Routing) -> NDArray[Any]:
    """The experts (`tokens`, layers, top_k), a view of `raw`.

    Raises PeerError(MALFORMED) when there are more or fewer, an id that no expert has, or one twice in a layer.
    """
    if len(raw) != tokens * routing.token_bytes:
        raise PeerError(
            Fault.MALFORMED,
            f"record: {len(raw)} bytes of experts; {tokens} tokens, {routing.layers} layers and {routing.top_k} "
            f"experts each take {tokens * routing.token_bytes}",
        )
    found = np.frombuffer(raw, routing.dtype).reshape(tokens, routing.layers, routing.top_k)
    if found.size and (largest := int(found.max())) >= routing.experts:
        raise PeerError(Fault.MALFORMED, f"record: expert {largest}, a layer has {routing.experts}")
    ordered = np.sort(found, axis=-1)
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        raise PeerError(Fault.MALFORMED, "record: a layer that names an expert twice")
    return found
