"""Turn tokens into text while they come, without ever splitting a character.

Byte-level tokenizers cut characters into pieces, and decoders treat the first token of a text differently from others.
So the text of a token is the difference between decoding its neighbours with and without it, as in vLLM and
text-generation-inference. It is held back while it ends within a character.

Invariants:

- Text that was handed out is never taken back. After `finish` all tokens have been handed out.
- A token is decoded at most MAX_HELD + 1 times, whatever the tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""The character that decoders write for bytes that are no character, or not yet one."""

MAX_HELD = 32
"""Most tokens that are held back. A character has up to four bytes, so up to four tokens; more are noise, not text."""


class IncrementalText:
    """The text of a sequence of tokens, as far as it is complete. `decode` returns the text of tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._known: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Return the text that `token` completes; "" while it ends within a character."""
        self._held.append(token)
        text = self._fresh()
        if text.endswith(REPLACEMENT) and len(self._held) < MAX_HELD:
            return ""
        self._settle()
        return text

    def finish(self) -> str:
        """Return the text that is still held back; no token may follow."""
        text = self._fresh() if self._held else ""
        self._settle()
        return text

    def _fresh(self) -> str:
        known = self._decode(self._known) if self._known else ""
        return self._decode([*self._known, *self._held])[len(known) :]

    def _settle(self) -> None:
        if self._held:
            self._known, self._held = self._held, []
