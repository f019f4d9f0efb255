"""Find problems that must not be trained on: those from a date on, and those in a file of excluded texts.

Invariants:

- Texts are compared without case, punctuation and spacing (`normalise`), so a copy with other formatting is found.
- In case of doubt a problem is left out: a date of only a year or a month counts as its last day.
- An error about a line names file and number.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_line, without_mark
from node.tasks.api.interface import TaskError

MAX_GRAMS = 1 << 22
"""Maximum n-grams of excluded texts in memory: some 300 MB, ten times what the common benchmarks have together."""

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?(?![\d])")


def normalise(text: str) -> str:
    """Return the letters, digits and marks of `text`, in NFKC and without case, with one space for all other text."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain).split())


def text_hash(text: str) -> str:
    """Return the SHA-256 of the normalised text in UTF-8, as 64 hexadecimal digits. A file of hashes contains these."""
    return hashlib.sha256(normalise(text).encode()).hexdigest()


def read_date(value: Any) -> date:
    """Return the day that a line or an option names: YYYY, YYYY-MM or YYYY-MM-DD, and any text after it. For a year or
    a month it is the last day. Raises ValueError, which says what is wrong.
    """
    found = _DATE.match(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if found is None:
        raise ValueError(f"{str(value)[:40]!r} is not a date; write YYYY-MM-DD")
    year, month = int(found[1]), int(found[2] or 12)
    try:
        return date(year, month, int(found[3]) if found[3] else calendar.monthrange(year, month)[1])
    except (ValueError, calendar.IllegalMonthError):
        raise ValueError(f"{found[0]!r} is not a day of the calendar") from None


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """Texts that must not be trained on, as hashes of the whole texts, and with `ngram` > 0 of all sequences of so many
    words.

    `path` is the file they come from.
    """

    path: Path
    whole: frozenset[str]
    grams: frozenset[int]
    ngram: int

    def __contains__(self, prompt: object) -> bool:
        return any(
            text_hash(text) in self.whole or any(gram in self.grams for gram in _grams(text, self.ngram))
            for text in texts_of(prompt)
        )


def read_excluded(path: Path, ngram: int) -> Excluded:
    """Read a file with one excluded text per line: the text itself, its `text_hash`, or a JSON object with `hash`,
    `text` or `prompt`. Raises TaskError, which names the line.
    """
    try:
        lines = read_file(path).split(b"\n")
    except OSError as error:
        raise TaskError(
            f"{path}: cannot be read: {error.strerror}. Name a file of texts or hashes in exclude=."
        ) from error
    whole: set[str] = set()
    grams: set[int] = set()
    for number, line in enumerate(lines, start=1):
        if not without_mark(line).strip():
            continue
        try:
            texts = _read_line(line)
        except ValueError as error:
            raise TaskError(f"{path}:{number}: {error}. Correct the line, or remove it.") from error
        whole.update(text.lower() if _HEX.fullmatch(text) else text_hash(text) for text in texts)
        grams.update(gram for text in texts for gram in _grams(text, ngram))
        if len(grams) > MAX_GRAMS:
            raise TaskError(
                f"{path}:{number}: more than {MAX_GRAMS} n-grams up to here. Exclude fewer texts, or ngram=0."
            )
    if not whole:
        raise TaskError(f"{path}: holds no lines. Write one text, or its hash, per line; or leave exclude= out.")
    return Excluded(path=path, whole=frozenset(whole), grams=frozenset(grams), ngram=ngram)


def texts_of(prompt: Any) -> list[str]:
    """Return the texts by which a prompt is compared. These are the text itself, or for messages all of them together
    and each message of the user, because a system prompt does not make it another problem. Raises ValueError if it is
    not a prompt.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list | tuple):
        raise ValueError("`prompt` is neither text nor a list of messages")
    said = [(_of(one, "role"), _of(one, "content")) for one in prompt]
    if not all(isinstance(content, str) for _, content in said):
        raise ValueError("`prompt` holds a message without `content`")
    return ["\n".join(content for _, content in said), *(content for role, content in said if role == "user")]


def _of(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _read_line(line: bytes) -> list[str]:
    """Return the excluded texts in a line, or the hash of one. Raises ValueError, which says what is wrong."""
    try:
        text = without_mark(line).decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    texts = _read_object(text) if text.startswith("{") else [text]
    if not all(map(normalise, texts)):
        raise ValueError("holds a text without letters or digits, which would equal any other such text")
    return texts


def _read_object(text: str) -> list[str]:
    row = parse_line(text.encode(), dict[str, Any])
    if "hash" in row:
        if not isinstance(row["hash"], str) or not _HEX.fullmatch(row["hash"]):
            raise ValueError("`hash` is not 64 hexadecimal digits")
        return [row["hash"]]
    for key in ("text", "prompt"):
        if key in row:
            return texts_of(row[key])
    raise ValueError("has none of the keys `hash`, `text` and `prompt`")


def _grams(text: str, ngram: int) -> Iterator[int]:
    """Yield the hashes of all sequences of `ngram` words; none if that is 0, or if there are fewer words."""
    if ngram == 0:
        return
    words = normalise(text).split()
    for first in range(len(words) - ngram + 1):
        digest = hashlib.blake2b(" ".join(words[first : first + ngram]).encode(), digest_size=8).digest()
        yield int.from_bytes(digest, "big")


def describe_counts(reasons: Iterable[str]) -> str:
    """Return how often each reason occurs, as text: "40 dated 2024-06-01 or later, 3 in exclude.txt"."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())
