"""End a text before any of several strings, while it comes in pieces.

A piece may end within a stop string, so text that may be the beginning of one is held back until more has come.

Invariants:

- No part of a stop string, and nothing that follows it, is handed out.
- The text that is held back is shorter than the longest stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """A text that ends before its first stop string. `found` is true once one has come; nothing is handed out then."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Return the part of the text so far that is not yet returned and precedes every stop string."""
        if self.found or not text:
            return ""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        cut = len(text) - self._begun(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return the text that is held back: no text follows, so it begins no stop string."""
        text, self._held = self._held, ""
        return text

    def _begun(self, text: str) -> int:
        """Return the largest number of characters at the end of `text` that begin a stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
