r"""Decide whether two texts give the same answer in mathematics.

They do if they have the same wording, or if math-verify takes both for equal: it knows fractions, intervals, sets,
matrices and equations. This module decides what the answer of a reference is, because math-verify searches prose for
mathematics: in "10\sqrt{3} \text{ meters}" it would find the 10. Unless a reference marks an answer
(`node.tasks.answers.extraction`), all of it is the answer, with its words and currency signs. An answer with the
wording of the reference is right, whatever math-verify can read. If math-verify would read only a part of a reference,
or a value that the reference does not have, only the wording counts. Numbers with a scale word, and tiny ones, are
compared by `node.tasks.answers.numbers`.

Invariants:

- Every comparison ends.
- If a text makes math-verify execute something, that runs in a sandbox (`node.tasks.answers.math_comparison`).
- A text that cannot be read is no answer: nothing that a policy says raises an exception.
"""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.util import find_spec

from node.installation.extras import line_of_extra
from node.tasks.answers.extraction import MAX_ANSWER_CHARS, answer_in
from node.tasks.answers.math_comparison import MATH_VERIFY
from node.tasks.answers.numbers import NOT_AROUND, SCALES, last_number, whole_number
from node.tasks.answers.spelling import THIN, plain
from node.tasks.api.interface import TaskError

MAX_CHARS = 8192
"""Characters to read at the end of a text without a mark, where its answer is. Reading takes time that grows with the
square of the length."""

MAX_WORDS = 3
"""Maximum words of a sentence after "the answer is", unless it begins with something else. Longer ones explain."""

MAX_PROSE_WORDS = 20
"""Maximum words of a reference without a mark. Longer ones are solutions, which no completion repeats word for word."""

MAX_DEPTH = 64
"""Maximum depth of brackets in an answer. math-verify takes minutes over thousands; mathematics has about ten."""

_WORDS = re.compile(r"[^\W\d_]{2,}")

PIECE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for a piece of mathematics in prose."""

_LETTERS_ALONE = re.compile(r"[^\W\d_]{2,}+(?:[\s,'-]++[^\W\d_]++)*+")
_BETWEEN_NO_WORDS = re.compile(r"(?<!\w) | (?!\w)")
_OPTION = re.compile(r"\(?([A-Z])[).:](?:\s|$)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,\\!|\\[,;: ]|[\u00a0\u2007\u2009\u202f])\d{3})+(?!\d)")
"""Digits with a separator that has no other meaning. math-verify would add the 1 and the 234 of 1\\,234."""

_DISPLAYED = re.compile(r"(?<!\\)\$\$?+([^$]++)\$\$?+|\\\(((?:[^\\]|\\(?!\)))*+)\\\)|\\\[((?:[^\\]|\\(?!\]))*+)\\\]")
"""Mathematics between dollar signs, or between the brackets of LaTeX."""

_MORE = re.compile(
    r"[\d=<>+^_]|\b(?:and|or|not|if|when|where|no|none|except|never)\b|(?<!\bthe )\bonly\b"
    rf"|(?:^\s*+|\bfor\s+)(?:all|any|every|each)\b|\b(?:all|any|every|each)(?:\s+(?!is\b|are\b)\w+)?\s*{PIECE}",
    re.IGNORECASE,
)
"""If one of these is in the prose around a piece of mathematics, the piece alone is not what the sentence says."""

_SCALED = re.compile(
    rf"\d\}}?+\s*+\$?+\**+(?:\\[,;: ]|~|\s)*+(?:\\text\w*+\s*+\{{\s*+)?+(?:{'|'.join(SCALES)})s?\b", re.IGNORECASE
)
"""A number with a scale word. math-verify reads only the number."""

_DIGIT = re.compile(r"\d")
_RUN = re.compile(r"\\(?:text(?:rm|bf|it|normal)?|mathrm|mbox)\s*+\{([^{}]*+)\}")
_RAISED = re.compile(r"[\^_]\s*+(?:\{[^{}]*+\}|\S)")
_COMMAND = re.compile(r"\\(?:[a-zA-Z]++|.)")
_JOINS = frozenset(("and", "or", ""))
"""Words between parts that math-verify reads completely."""

_CONDITION = re.compile(r"\b(?:if|when|where|unless|otherwise)\b", re.IGNORECASE)
_MODULUS = re.compile(r"\\(?:pmod|bmod|mod)(?![a-zA-Z])")
_MODULI = re.compile(r"\\pmod\s*+(?:\{([^{}]*+)\}|(\w))")
_NO_VALUE = re.compile(
    r"\d\s*+_\s*+\{?\s*+\w|\d\s*+:\s*+\d|(?<!\d)\d{4}-\d\d?-\d\d?(?!\d)|(?<![\d/])\d\d?/\d\d?/\d\d(?:\d\d)?(?![\d/])"
)
"""Numbers in another base, ratios, times and dates: math-verify would drop the base, divide, or subtract."""

_LETTERS = re.compile(r"[A-Z]{2,}|(?=(?:[^\W\d_][\s,'-]*+){3})[^\W\d_]{2,}+(?:[\s,'-]++[^\W\d_]++)*+")
"""Letters that form a word or a list of options. math-verify would multiply them, and take CAT for ACT."""

_WORDS_BEHIND = re.compile(r"(?<=[\d}$*])\**+\s++([^\W\d_]{3,}+(?:[\s-]++[^\W\d_]++)*+)\.?\**$")
"""The words after a number, outside LaTeX, such as 18 people. math-verify would multiply their letters."""

_EXPONENT = re.compile(r"(?<![\w.])(?:((?:\d++\.\d*+|\.\d++|1))[eE]([-+]?\d++)|(\d++)[eE](\d++|[-+]0\d++))(?![\w.]\w)")
"""An exponent as programs write it. 2e-5 can also mean twice e, minus 5; a decimal number or 1e-5 cannot."""

TINY = Fraction(1, 1000)
"""Below this value, few of the 6 decimal places that math-verify compares are left."""

RELATIVE = Fraction(1, 10**6)
"""Relative difference to a tiny reference that still counts as equal: what math-verify allows at 1."""

_MONEY = re.compile(r"(?<!\\)\$")
_BEGINS_WITH_WORD = re.compile(r"\s*[^\W\d_]{2,}")


def require_math_verify() -> None:
    """Raise TaskError, with the command to type, if math-verify is not installed or there is no sandbox for it."""
    if find_spec("math_verify") is None:
        line = line_of_extra("tasks")
        raise TaskError(f"match=math needs math-verify, which is not installed here. Type: {line}")
    MATH_VERIFY.require()


def reference_of(text: str) -> str:
    """Return the answer that a reference gives: the one that it marks, or else all of it. Raises ValueError if that
    reads as nothing, or is prose instead of an answer."""
    marked = answer_in(text, _can_be)
    answer = _unmarked(text) if marked is None else marked
    if not wording(answer):
        raise ValueError(f"`answer` reads as nothing: {text[:40]!r}")
    if not _is_balanced(answer) or _depth(answer) > MAX_DEPTH:
        raise ValueError(f"`answer` has unmatched braces, or too many nested brackets: {answer[:40]!r}")
    return answer


def marks_answer(said: str) -> bool:
    """Return whether `said` marks a readable answer, as \\boxed{...} or after ####; see docs/operate/rewards.md."""
    marked = answer_in(said, _can_be)
    return marked is not None and bool(wording(marked[-MAX_ANSWER_CHARS:])) and _depth(marked) <= MAX_DEPTH


def _unmarked(text: str) -> str:
    """Return the answer of a reference without a mark: all of it, or the only piece of mathematics in a sentence.
    Raises ValueError for other prose."""
    inside = [piece for pieces in _DISPLAYED.findall(text) for piece in pieces if piece]
    around = plain(_DISPLAYED.sub(f" {PIECE} ", text))
    words = _WORDS.findall(around)
    if not inside or len(words) < MAX_WORDS:
        if len(words) <= MAX_PROSE_WORDS and len(text) <= MAX_ANSWER_CHARS:
            return text
    elif len(inside) == 1 and not _MORE.search(around):
        return str(inside[0])
    raise ValueError(f"`answer` is prose that marks no answer, as \\boxed{{...}} or after ####: {text[:40]!r}")


def same_mathematics(answer: str, said: str) -> bool:
    """Return whether the answer in `said` equals the reference `answer`. Raises TaskError if math-verify cannot be
    started, and ValueError like `reference_of`."""
    reference = reference_of(answer)
    marked = answer_in(said, _can_be)
    found = said[-MAX_CHARS:] if marked is None else marked
    words, wanted = wording(found[-MAX_ANSWER_CHARS:]), wording(reference)
    if not words or words == wanted:
        return bool(words)
    is_one = marked is not None or "\n" not in found.strip()
    if is_one and len(wanted) == 1 and wanted.isupper() and (option := _OPTION.match(plain(found).strip(" *_"))):
        return option[1] == wanted  # (B) twelve
    if _depth(found) > MAX_DEPTH or _is_worded(reference):
        return False
    if (decided := _by_value(reference, found, marks=marked is not None)) is not None:
        return decided
    behind = _WORDS_BEHIND.search(reference)
    units = behind is None or len(behind[1].split()[0]) > 3  # the letters in 2 abc are unknowns
    if marked is None:
        return MATH_VERIFY.are_equal(_boxed(reference, units=units), found)
    return not _is_of_parts(found) and MATH_VERIFY.are_equal(_boxed(reference, units=units), _boxed(found, units=units))


def _is_worded(reference: str) -> bool:
    """Return whether only the wording of the reference is right, because math-verify would read a part of it, or a
    value that it does not have."""
    said = plain(reference).strip(" \n\t.*_()")
    return _is_of_parts(reference) or _NO_VALUE.search(said) is not None or _LETTERS.fullmatch(said) is not None


def _is_of_parts(answer: str) -> bool:
    """Return whether words stand between parts of an answer. math-verify would then read only the first part."""
    if _MODULUS.search(answer):
        return True
    before, *parts = _RUN.split(_RAISED.sub("", answer))
    if not re.search(r"\w", _COMMAND.sub("", before)):
        return False
    parting = False
    for run, behind in zip(parts[::2], parts[1::2], strict=True):
        is_inside = behind.lstrip().startswith((")", "}"))  # P(\text{red}) is one name
        parting |= not is_inside and run.strip(" ,.").lower() not in _JOINS
        if _CONDITION.search(run) or (parting and _DIGIT.search(behind)):
            return True
    return False


def _by_value(reference: str, found: str, *, marks: bool) -> bool | None:
    """Return whether two numbers are equal that math-verify cannot compare well: those with a scale word, and tiny
    ones. None if math-verify can compare them."""
    wanted, value = whole_number(reference), whole_number(found) if marks else last_number(found)
    scaled = [one.end() for one in _SCALED.finditer(found)][-1:]
    if _SCALED.search(reference) or any(marks or not _DIGIT.search(found, end) for end in scaled):
        return wanted is not None and wanted == value
    if wanted is None or value is None or "%" in reference + found or not 0 < abs(wanted) < TINY:
        return None
    return abs(wanted - value) <= abs(wanted) * RELATIVE


def wording(text: str) -> str:
    """Return a text without what only changes its looks.

    Removes spaces, currency signs, brackets around one word or letter, and the end of a sentence. Words become lower
    case; in mathematics a capital is another letter, and stays.
    """
    said = _MODULI.sub(lambda one: f"(\\bmod {(one[1] or one[2] or '').strip()})", plain(text))
    said = re.sub(r"_\{\s*(\w)\s*\}", r"_\1", said)
    said = re.sub(r"\s+", " ", said.replace(THIN, " ")).lstrip(" *_#").rstrip(" .,;:*_#")
    if said.startswith("(") and said.endswith(")") and re.fullmatch(r"[^\W_]+", inner := said[1:-1].strip()):
        said = inner
    if _LETTERS_ALONE.fullmatch(said):
        said = said.casefold()
    return _BETWEEN_NO_WORDS.sub("", said)


def _can_be(text: str) -> bool:
    """Return whether the text after "####" or "the answer is" can be an answer: mathematics, or a few words."""
    if len(text) > MAX_ANSWER_CHARS or not wording(text):
        return False
    return not _BEGINS_WITH_WORD.match(plain(text)) or len(_WORDS.findall(text)) <= MAX_WORDS


def _depth(text: str) -> int:
    """Return the largest number of brackets that are open at once."""
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _is_balanced(text: str) -> bool:
    """Return whether every brace has its counterpart."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _is_unit(word: str) -> bool:
    """Return whether a word after a number says what is counted. An unknown, a month or a word of mathematics does
    not."""
    return word.islower() and word not in NOT_AROUND and (len(word) > 1 or word == "a")


def _boxed(answer: str, *, units: bool = True) -> str:
    """Return the answer so that math-verify reads all of it. With `units`, words after a number are units."""
    answer = answer.strip().strip("*")
    behind = _WORDS_BEHIND.search(answer) if units else None
    if behind and all(_is_unit(word) for word in re.split(r"[\s-]+", behind[1])):
        answer = f"{answer[: behind.start()]} \\text{{ {behind[1]}}}"
    answer = _EXPONENT.sub(lambda one: rf"{one[1] or one[3]} \times 10^{{{one[2] or one[4]}}}", answer)
    bare = _MONEY.sub(" ", _GROUPED.sub(lambda one: re.sub(r"\D", "", one[0]), answer)).strip()
    return f"\\boxed{{{bare}}}" if _is_balanced(bare) else bare
