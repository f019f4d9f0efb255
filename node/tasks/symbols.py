r"""Decide whether two texts give the same answer in mathematics.

They do if they are worded alike, or if math-verify takes both for equal: it knows fractions, intervals, sets, matrices
and equations. This module decides what the answer of a reference is, since math-verify looks for mathematics in prose:
of "10\sqrt{3} \text{ meters}" it would find the 10. A reference is an answer as a whole, with its words and signs of
money, unless it marks one (`node.tasks.answers`). An answer that is worded like the reference is right, whatever
math-verify can read.

Invariants:
- Every comparison ends, whatever is asked, and what a text has math-verify execute, it executes in a sandbox
  (`node.tasks.comparing`).
- A text that cannot be read is no answer: nothing that a policy says raises.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

from node.tasks.answers import MAX_ANSWER_CHARS, answer_in
from node.tasks.comparing import MATH_VERIFY
from node.tasks.port import TaskError
from node.tasks.spelling import THIN, plain

MAX_CHARS = 8192
"""Of the end of a text that marks nothing, where its answer is: what is read takes time with the square of its
length."""

MAX_WORDS = 3
"""Of a sentence after "the answer is", unless it begins with something else than a word: longer ones explain."""

MAX_PROSE_WORDS = 20
"""Of a reference that marks nothing: longer ones are solutions, of which no completion repeats every word."""

MAX_DEPTH = 64
"""Brackets in brackets of an answer: math-verify takes minutes over thousands, and mathematics has ten."""

_WORDS = re.compile(r"[^\W\d_]{2,}")
_LETTERS_ALONE = re.compile(r"[^\W\d_]{2,}+(?:[\s,'-]++[^\W\d_]++)*+")
_BETWEEN_NO_WORDS = re.compile(r"(?<!\w) | (?!\w)")
_OPTION = re.compile(r"\(?([A-Z])[).:](?:\s|$)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,\\!|\\[,;: ]|[\u00a0\u2007\u2009\u202f])\d{3})+(?!\d)")
"""Digits that something parts which parts nothing else; math-verify would add the 1 and the 234 of 1\\,234."""

_DISPLAYED = re.compile(r"(?<!\\)\$\$?+([^$]++)\$\$?+|\\\(((?:[^\\]|\\(?!\)))*+)\\\)|\\\[((?:[^\\]|\\(?!\]))*+)\\\]")
"""Mathematics between dollars, or brackets that LaTeX knows."""

_MORE = re.compile(r"[\d=<>+^_]|\b(?:and|or|not|if|when|where)\b", re.IGNORECASE)
_MONEY = re.compile(r"(?<!\\)\$")
_BEGINS_WITH_WORD = re.compile(r"\s*[^\W\d_]{2,}")


def require_math_verify() -> None:
    """Raises TaskError, with what to type, where math-verify is not installed, or no sandbox for it can be had."""
    if find_spec("math_verify") is None:
        raise TaskError("match=math needs math-verify, which is not installed here. Run: pip install 'volery[tasks]'.")
    MATH_VERIFY.require()


def reference_of(text: str) -> str:
    """The answer that a reference gives: what it marks, else all of it. Raises ValueError where that reads as nothing,
    or is no answer but prose."""
    marked = answer_in(text, _can_be)
    answer = _unmarked(text) if marked is None else marked
    if not wording(answer):
        raise ValueError(f"`answer` reads as nothing: {text[:40]!r}")
    if not _is_balanced(answer) or _depth(answer) > MAX_DEPTH:
        raise ValueError(f"`answer` has braces without their other halves, or too many: {answer[:40]!r}")
    return answer


def _unmarked(text: str) -> str:
    """The answer of a reference that marks none: all of it, or in a sentence, its only piece of mathematics. Raises
    ValueError for other prose."""
    inside = [piece for pieces in _DISPLAYED.findall(text) for piece in pieces if piece]
    around = plain(_DISPLAYED.sub(" ", text))
    words = _WORDS.findall(around)
    if not inside or len(words) < MAX_WORDS:
        if len(words) <= MAX_PROSE_WORDS and len(text) <= MAX_ANSWER_CHARS:
            return text
    elif len(inside) == 1 and not _MORE.search(around):
        return str(inside[0])
    raise ValueError(f"`answer` is prose in which no answer is marked, as \\boxed{{...}} or after ####: {text[:40]!r}")


def same_mathematics(answer: str, said: str) -> bool:
    """Whether `said` ends with what equals the reference `answer`. Raises TaskError where math-verify cannot be
    started, and ValueError as `reference_of`."""
    reference = reference_of(answer)
    marked = answer_in(said, _can_be)
    found = said[-MAX_CHARS:] if marked is None else marked
    words, wanted = wording(found[-MAX_ANSWER_CHARS:]), wording(reference)
    if not words or words == wanted:
        return bool(words)
    if len(wanted) == 1 and wanted.isupper() and (option := _OPTION.match(plain(found).strip(" *_"))):  # (B) twelve
        return option[1] == wanted
    if _depth(found) > MAX_DEPTH:
        return False
    return MATH_VERIFY.are_equal(_boxed(reference), found if marked is None else _boxed(found))


def wording(text: str) -> str:
    """Return what a text says, without what tells only how it looks.

    Spaces, signs of money, brackets around one word or letter, and the end of a sentence are gone. Words are in small
    letters; in mathematics capitals are other letters.
    """
    said = re.sub(r"\s+", " ", plain(text).replace(THIN, " ")).lstrip(" *_#").rstrip(" .,;:*_#")
    if said.startswith("(") and said.endswith(")") and re.fullmatch(r"[^\W_]+", inner := said[1:-1].strip()):
        said = inner
    if _LETTERS_ALONE.fullmatch(said):
        said = said.casefold()
    return _BETWEEN_NO_WORDS.sub("", said)


def _can_be(text: str) -> bool:
    """Whether what follows "####" or "the answer is" can be an answer: mathematics, or a few words."""
    if len(text) > MAX_ANSWER_CHARS or not wording(text):
        return False
    return not _BEGINS_WITH_WORD.match(plain(text)) or len(_WORDS.findall(text)) <= MAX_WORDS


def _depth(text: str) -> int:
    """How many brackets are open at once, at most."""
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _is_balanced(text: str) -> bool:
    """Whether every brace has its other half."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _boxed(answer: str) -> str:
    """The answer as math-verify reads it whole."""
    bare = _MONEY.sub(" ", _GROUPED.sub(lambda one: re.sub(r"\D", "", one[0]), answer)).strip()
    return f"\\boxed{{{bare}}}" if _is_balanced(bare) else bare
