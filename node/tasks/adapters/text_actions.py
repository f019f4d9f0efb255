"""Parse what a policy says as an action of a Gymnasium environment: words, numbers, or the text itself.

Pure: a text gives the same action on every machine. If a text names several actions, the last one counts, because
policies reason before they act.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from node.tasks.api.interface import TaskError

MAX_NUMBER_DIGITS = 18
"""Maximum digits of an action's number; longer numbers are ignored."""


class Actions(Protocol):
    """How the policy names an action."""

    @property
    def hint(self) -> str:
        """A sentence that tells the policy what it may say."""

    def read(self, text: str) -> Any:
        """Return the action, or None if the text names none."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """One word for each of the actions `start`, `start` + 1 and so on. Case does not matter."""

    words: tuple[str, ...]
    start: int = 0

    @property
    def hint(self) -> str:
        """See `Actions`."""
        return f"Say one of: {', '.join(self.words)}."

    def read(self, text: str) -> int | None:
        """See `Actions`."""
        found = self._pattern.findall(text)
        return self._numbers[found[-1].casefold()] if found else None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word.casefold(): number for number, word in enumerate(self.words, start=self.start)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.words, key=len, reverse=True)
        return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The number of an action, from `start` on."""

    count: int
    start: int = 0

    @property
    def hint(self) -> str:
        """See `Actions`."""
        return f"Say a whole number from {self.start} to {self.start + self.count - 1}."

    def read(self, text: str) -> int | None:
        """See `Actions`."""
        found = re.findall(rf"(?<![\w.])-?\d{{1,{MAX_NUMBER_DIGITS}}}(?!\w|\.\d)", text, re.ASCII)
        number = int(found[-1]) if found else self.start - 1
        return number if self.start <= number < self.start + self.count else None


@dataclass(frozen=True, kw_only=True)
class Text:
    """The text itself is the action, if the `space` contains it, with or without the white space around it."""

    space: Any

    @property
    def hint(self) -> str:
        """See `Actions`."""
        space = self.space
        letters = "".join(sorted(getattr(space, "character_set", ())))
        among = f" of the letters {letters}" if 0 < len(letters) <= 100 else ""
        return f"Say {space.min_length} to {space.max_length} characters{among}."

    def read(self, text: str) -> str | None:
        """See `Actions`."""
        return next((said for said in (text, text.strip()) if self.space.contains(said)), None)


def words_of(text: str, count: int, start: int) -> Words:
    """Return the words that a spec lists for `count` actions, divided by "|". Raises TaskError."""
    words = tuple(word.strip() for word in text.split("|"))
    if len(words) != count or not all(words):
        raise TaskError(f"actions={text}: names {len(words)} actions, but there are {count}. Divide them by |.")
    if len({word.casefold() for word in words}) < count:
        raise TaskError(f"actions={text}: names an action twice. Give each its own word.")
    return Words(words=words, start=start)


COLORS = dict(enumerate(("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")))
_COLORED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])?")


def name_colors(text: str) -> str:
    """Return the text with a terminal's colours written as tags, such as <red>S</red>. A board may show only by colour
    where the player is. Other escape sequences are removed."""
    return _ESCAPE.sub("", _COLORED.sub(_tagged, text))


def _tagged(found: re.Match[str]) -> str:
    codes = [int(code) for code in found[1].split(";") if code and len(code) < 4]
    name = next((COLORS[code % 10] for code in codes if code // 10 in (3, 4, 9, 10) and code % 10 in COLORS), "")
    return f"<{name}>{found[2]}</{name}>" if name else found[2]
