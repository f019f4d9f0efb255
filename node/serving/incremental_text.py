"""Turn tokens into text while they come, without ever splitting a character.

Byte-level tokenizers cut characters in pieces, and decoders treat the first token of a text differently from others.
So the text of a token is found by decoding the few tokens around it, as vLLM and text-generation-inference do: what is
new is what decoding with it adds to decoding without it, and it is held back while it ends within a character.

Invariants:
- what was handed out is never taken back, and with `finish` all tokens have been told;
- a token is decoded at most MAX_HELD + 1 times, whatever the tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character, or not yet one."""

MAX_HELD = 32
"""Tokens held back at most. A character has four bytes, so it has four tokens; more are no text, but noise."""


class IncrementalText:
    """See the module's paragraph. `decode` gives the text of tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._known: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Return the text that `token` completes, "" while it ends within a character."""
        self._held.append(token)
        text = self._fresh()
        if text.endswith(REPLACEMENT) and len(self._held) < MAX_HELD:
            return ""
        self._settle()
        return text

    def finish(self) -> str:
        """Return what is still held back; no token follows."""
        text = self._fresh() if self._held else ""
        self._settle()
        return text

    def _fresh(self) -> str:
        known = self._decode(self._known) if self._known else ""
        return self._decode([*self._known, *self._held])[len(known) :]

    def _settle(self) -> None:
        if self._held:
            self._known, self._held = self._held, []
