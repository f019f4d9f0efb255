"""Cut a completion into spans: tokens that the engine generates in one call.

The transformers engine decodes a batch to its end before it takes the next one. So a completion is asked for span by
span, and requests of others join between two spans. Each span reads prompt and completion anew, which costs what a
span of the same length does at most; so spans grow with what is to be read. vLLM takes requests in at every step, and
generates a completion in one span.

Invariants:
- noise goes by seed and position, so that the same request gives the same tokens however it is cut, up to rounding;
- the first choice draws with the request's own seed, as a lease with this seed would.
"""

from __future__ import annotations

from hashlib import blake2b

SPAN_TOKENS = 64
"""Others wait so many steps for their turn: a second or two for a model that is large for its machine."""

MOST_TOKENS = 512
"""Of a span, however long the text before it is: others wait for its end."""

SHARE = 4
"""A span has at least a fourth of the tokens that were read for it. Reading a token takes a tenth of the time that
generating one does, so that reading anew costs less than half as much as the span itself."""


def span_tokens(num_read: int, *, joins: bool) -> int | None:
    """Tokens of the next span after `num_read` of prompt and completion; None, all that are left, where the engine
    `joins` requests to a batch under way."""
    return None if joins else min(max(SPAN_TOKENS, num_read // SHARE), MOST_TOKENS)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of completion number `choice` of a request; 0 <= seed < 2**64."""
    if choice == 0:
        return seed
    data = b"".join(number.to_bytes(8, "little") for number in (seed, choice))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
