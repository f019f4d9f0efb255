r"""Find where in a text the answer stands: the same for references and for what a policy says.

Data sets and models mark it. MATH uses \boxed{}, GSM8K a line that begins with ####, and models that converse write
"The answer is ..." or "Answer: ...". A box is meant for nothing else, so whatever is in the last one is the answer,
also if it is none. A heading in Markdown can begin with #### as well, and a sentence can go on after "is" in any way,
so for these the caller says what can be an answer.

Invariants:
- Boxes may hold braces, and are found in one pass, so a text of a million beginnings takes no longer than another.
- Boxes that stand side by side ("\boxed{2} and \boxed{3}") are one answer, of two parts: a policy cannot try its luck
  with several.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_ANSWER_CHARS = 2048
"""Of what is marked. Answers have a line; a proof that somebody boxed need not be read."""

MAX_LINES = 16
"""Marked lines that are looked at from the last one back: the others are headings."""

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_BESIDE = re.compile(
    r"[\s$*]*+(?:\\[)\]][\s$*]*+)?(?:,|,?\s*+(?:and|or)\b)[\s$*]*+(?:\\[(\[][\s$*]*+)?(?:[a-zA-Z]\s*+=\s*+)?"
)
_LINE = re.compile(r"####[ \t]*([^\n]*)")
_HEADING = re.compile(r"[*_\s]*(?:[0-9]{1,3}[.)]\s|[^\W\d_]{2})")
_SAID = re.compile(r"(?<!\bno )\banswer(?:[ \t]+is\b|[*_ \t]*[:=])[*_ \t]*:?([^\n]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;!?](?=\s|$)")


def answer_in(text: str, can_be: Callable[[str], bool]) -> str | None:
    """Return what a text marks as its answer, None where it marks nothing.

    The last box counts, or the last line with #### that `can_be` an answer, whichever comes later. Without both, the
    end of the last sentence with "answer is" or "answer:" counts, if it `can_be` an answer.
    """
    place, box = find_box(text)
    for found in _last(_LINE, text):
        if found.start() < place:
            break
        # A heading begins with a word, or its number, and something follows it.
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
    """(where it begins, what is in it) of the last box, or of the last ones that stand side by side; (-1, None)."""
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
    """(begin, end, begin and end of what is in it) of the boxes that are closed, by their beginnings. Places, since
    boxes in boxes have most of their content in common; of what is in one, MAX_ANSWER_CHARS at most."""
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
    """The last MAX_LINES places of a mark, the last one first."""
    return [*mark.finditer(text)][: -MAX_LINES - 1 : -1]
