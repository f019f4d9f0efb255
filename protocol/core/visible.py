"""Text of strangers, shown so that it can do nothing to a terminal, and hides nothing.

Pure. What always holds: what comes out has no control characters but line ends, and none that turns the direction of
writing or joins or parts others unseen; each of those that went in is written out as its number.
"""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode that are written out: controls, formats, surrogates, what is private or not assigned, and
separators of lines and paragraphs."""


def visible(text: str) -> str:
    """`text` as said above."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in HIDDEN:
        return character
    if character == "\t":
        return "\\t"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str, limit: int) -> str:
    """`text` as said above, in one line of at most `limit` characters; the last is an ellipsis where it was longer."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_line(text: str) -> str:
    """The first line of `text` that says something; in words, that there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
