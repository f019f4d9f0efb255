"""Encode the experts that a mixture-of-experts model used for the tokens of a completion, as a record carries them.

Router replay (R3, arXiv 2510.11370): the trainer sends each token through the experts that the engine chose. It uses
its own weights for them, so that gradients reach the router. For each generated token the record names the experts of
the position that predicts it: the prompt's last token for the first one, then each generated token but the last. For
all other tokens, of the prompt or of an environment, the trainer chooses the experts itself.

Layout: for each token and each layer with experts, `top_k` ids. An id is one byte if a layer has at most 256 experts,
else two, little-endian. The order of a layer's ids has no meaning.

Invariants:

- The size is compared before anything is allocated.
- The ids that `unpack_experts` returns exist, and no layer has one twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.core.errors import Fault, PeerError


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The shape of a mixture of experts: `layers` have `experts` each, and each token uses `top_k` of them."""

    layers: int
    experts: int
    top_k: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an id in a record."""
        return np.dtype(np.uint8 if self.experts <= 256 else "<u2")

    @property
    def token_bytes(self) -> int:
        """Bytes that a record carries for each of its tokens."""
        return self.layers * self.top_k * self.dtype.itemsize


def experts_bytes(experts: NDArray[Any]) -> bytes:
    """Return `experts` (T, layers, top_k), uint8 or uint16, as the bytes that a record carries."""
    return experts.astype(experts.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack_experts(raw: bytes, tokens: int, routing: Routing) -> NDArray[Any]:
    """Return the experts (`tokens`, layers, top_k) as a view of `raw`.

    Raises PeerError(MALFORMED) if the size is wrong, an id has no expert, or a layer names one expert twice.
    """
    if len(raw) != tokens * routing.token_bytes:
        raise PeerError(
            Fault.MALFORMED,
            f"record: {len(raw)} bytes of experts, expected {tokens * routing.token_bytes} for {tokens} tokens, "
            f"{routing.layers} layers and {routing.top_k} experts each",
        )
    found = np.frombuffer(raw, routing.dtype).reshape(tokens, routing.layers, routing.top_k)
    if found.size and (largest := int(found.max())) >= routing.experts:
        raise PeerError(Fault.MALFORMED, f"record: expert {largest}, but a layer has {routing.experts} experts")
    ordered = np.sort(found, axis=-1)
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        raise PeerError(Fault.MALFORMED, "record: a layer names an expert twice")
    return found
