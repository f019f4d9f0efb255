"""Cut a completion into spans: tokens that the engine generates in one call.

The transformers engine decodes a batch to its end before it starts the next one. So a completion is requested span by
span, and other requests can join between two spans. Each span reads prompt and completion again, which costs at most
what generating a span of the same length does. So spans grow with the text to read. vLLM accepts requests at every
step, and generates a completion in one span.

Invariants:

- Noise depends on seed and position, so that the same request gives the same tokens however it is cut, up to rounding.
- The first choice draws with the request's own seed, as a lease with this seed would.
"""

from __future__ import annotations

from hashlib import blake2b

SPAN_TOKENS = 64
"""Shortest span. Other requests wait this many steps for their turn: a second or two for a model that is large for its
machine."""

MOST_TOKENS = 512
"""Longest span, however long the text before it is: other requests wait for its end."""

SHARE = 4
"""A span has at least a fourth of the tokens that were read for it. Reading a token takes a tenth of the time of
generating one, so reading again costs less than half as much as the span itself."""


def span_tokens(num_read: int, *, joins: bool) -> int | None:
    """Return the tokens of the next span after `num_read` tokens of prompt and completion. None means all that are
    left, if the engine `joins` requests to a running batch."""
    return None if joins else min(max(SPAN_TOKENS, num_read // SHARE), MOST_TOKENS)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of completion number `choice` of a request; 0 <= seed < 2**64."""
    if choice == 0:
        return seed
    data = b"".join(number.to_bytes(8, "little") for number in (seed, choice))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
