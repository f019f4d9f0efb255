"""Make text from peers harmless for a terminal, without hiding any part of it.

Invariants:

- The result has no control characters but line ends, and no invisible characters that change the direction of writing
  or join or separate others.
- Each such character of the input appears as its number.
"""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories whose characters are written as numbers: controls, formats, surrogates, private and unassigned
characters, and separators of lines and paragraphs."""


def visible(text: str) -> str:
    """Return `text` with hidden characters written as their numbers."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in HIDDEN:
        return character
    if character == "\t":
        return "\\t"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str, limit: int) -> str:
    """Return `text` made visible, on one line of at most `limit` characters; a longer one ends with an ellipsis."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(text: str) -> str:
    """Return the first line of `text` that is not blank, or "no reason given" if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
