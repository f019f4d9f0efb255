r"""Find the answer in a text, in the same way for references and for what a policy says.

Data sets and models mark it. MATH uses \boxed{}, GSM8K a line that begins with ####, and chat models write "The answer
is ..." or "Answer: ...". A box has no other purpose, so the content of the last one is the answer, even if it looks
like none. A Markdown heading can also begin with ####, and a sentence can go on after "is" in any way. For these two,
the caller says what can be an answer.

Invariants:

- Boxes may contain braces. They are found in one pass, so a text of a million openings takes no longer than another.
- Boxes side by side ("\boxed{2} and \boxed{3}") are one answer of two parts, so that a policy cannot try its luck with
  several answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_ANSWER_CHARS = 2048
"""Maximum characters of a marked answer. Answers have a line; a proof in a box need not be read."""

MAX_LINES = 16
"""Marked lines to look at, from the last one back. The others are headings."""

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_BESIDE = re.compile(
    r"[\s$*]*+(?:\\[)\]][\s$*]*+)?(?:,|,?\s*+(?:and|or)\b)[\s$*]*+(?:\\[(\[][\s$*]*+)?(?:[a-zA-Z]\s*+=\s*+)?"
)
_LINE = re.compile(r"####[ \t]*([^\n]*)")
_HEADING = re.compile(r"[*_\s]*(?:[0-9]{1,3}[.)]\s|[^\W\d_]{2})")
_SAID = re.compile(r"(?<!\bno )\banswer(?:[ \t]+is\b|[*_ \t]*[:=])[*_ \t]*:?([^\n]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;!?](?=\s|$)")


def answer_in(text: str, can_be: Callable[[str], bool]) -> str | None:
    """Return the answer that a text marks, or None if it marks none.

    The last box counts, or the last line with #### that `can_be` an answer, whichever comes later. If there is neither,
    the end of the last sentence with "answer is" or "answer:" counts, if it `can_be` an answer.
    """
    place, box = find_box(text)
    for found in _last(_LINE, text):
        if found.start() < place:
            break
        # A heading begins with a word or a number, and text follows it.
        if (not _HEADING.match(found[1]) or not text[found.end() :].strip()) and can_be(found[1]):
            return found[1].strip()
    if box is not None:
        return box
    for found in _last(_SAID, text) if "answer" in text.casefold() else ():
        sentence = _SENTENCE_END.split(found[1], maxsplit=1)[0]
        if can_be(sentence):
            return sentence.strip()
    return None


def find_box(text: str) -> tuple[int, str | None]:
    """Return (begin, content) of the last box, or of the last boxes side by side; (-1, None) if there is no box."""
    boxes = _boxes(text)
    if not boxes:
        return -1, None
    begin, _, first, last = boxes[-1]
    parts = [text[first:last]]
    for earlier, end, first, last in reversed(boxes[:-1]):
        if end > begin or not _BESIDE.fullmatch(text, end, begin):
            break
        parts.append(text[first:last])
        begin = earlier
    return begin, ", ".join(reversed(parts))[:MAX_ANSWER_CHARS]


def _boxes(text: str) -> list[tuple[int, int, int, int]]:
    """Return (begin, end, begin of content, end of content) of all closed boxes, sorted by begin. These are positions,
    because nested boxes share most of their content. A content has at most MAX_ANSWER_CHARS."""
    places = [place for place in (text.find("\\boxed"), text.find("\\fbox")) if place >= 0]
    if not places:
        return []
    opened: list[tuple[int, int] | None] = []
    found = []
    for brace in _BRACE.finditer(text, min(places)):
        if brace["box"]:
            opened.append(brace.span())
        elif brace["open"]:
            opened.append(None)
        elif brace["close"] and opened and (box := opened.pop()) is not None:
            found.append((box[0], brace.end(), box[1], min(brace.start(), box[1] + MAX_ANSWER_CHARS)))
    return sorted(found)


def _last(mark: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Return the last MAX_LINES matches of a mark, the last one first."""
    return [*mark.finditer(text)][: -MAX_LINES - 1 : -1]
