r"""Read the number that a text gives as its answer, as people write numbers.

The rule, which docs/operate/rewards.md gives to operators:

1. A marked answer (`node.tasks.answers.extraction`) is read as a whole. It may be one number, perhaps with a sign, a
   currency, a unit or words around it, and after the last "=". Anything else is no number: "\sqrt{12}", "2\pi",
   "3 or 4", "5x". Nothing is calculated, and no number is taken out of something larger.
2. If a policy marks nothing, the last number of its text counts, unless that is a part of something that is no number.
   A reference that marks nothing is read as a whole.
3. A number is "1234.5", grouped by commas or LaTeX's spaces ("1,234.5", "1{,}234", "1\,234"), a fraction ("3/4",
   "\frac{3}{4}", "\frac34"), mixed ("3 1/2", "3\frac12"), or has an exponent ("1.2e6", "1.2 \times 10^6") or a scale
   word ("1.2 million"). "50 %" is 50: a percent sign is a unit.

Invariants:

- A value is exact.
- Reading a value takes little time and memory, whatever a stranger wrote: no regular expression backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from node.tasks.answers.extraction import MAX_ANSWER_CHARS, answer_in
from node.tasks.answers.spelling import VULGAR, plain

MAX_NUMERAL_CHARS = 64
MAX_EXPONENT = 99
"""Larger exponents are no answers. 1e999999999 as an exact fraction would take all memory, and strangers write it."""

LOOKED_AT = 512
"""Characters to read before and after the last digit of a text that marks nothing, to find what belongs to it."""

DIGITS = "0123456789" + VULGAR

LOOKED_BACK = 8
"""Tokens to look at before an exponent. A unit has a few words."""

SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Scale words, in any case, also in the plural. A number may have one of them, not two."""

_UNITS = """
    m g s h d l L J N W V A K C F T t cm mm dm km nm in ft yd mi kg mg lb lbs oz ml mL cl dl ms min hr hrs sec Hz kHz
    MHz GHz kW kWh kJ kN Pa kPa mol rad deg mph kph KB MB GB TB cents am pm
"""
UNITS = frozenset(_UNITS.split())
"""Units that may follow a number without a space, or that have one letter. Other letters are unknowns, as in 5x."""

_NOT_AROUND = """
    and or plus minus times over pi sqrt root log ln sin cos tan cot csc exp mod choose squared cubed factorial not
    negative infinity half halves third thirds
    fourths fifths sixths sevenths eighths ninths tenth tenths hundredth hundredths thousandth thousandths
"""
NOT_AROUND = frozenset(_NOT_AROUND.split()) | SCALES.keys() | {f"{scale}s" for scale in SCALES}
"""Words beside a number that make it a part of something else."""

_TRAILING = """
    plus minus pi choose squared cubed factorial half halves third thirds fourths fifths sixths
    sevenths eighths ninths tenth tenths hundredth hundredths thousandth thousandths
"""
LEADING = frozenset(("minus", "negative", "plus", "times", "sqrt", "log", "ln", "sin", "cos", "tan"))
TRAILING = frozenset(_TRAILING.split())
"""Words before and after a number that do this even if nothing is marked. Other words belong to the sentence."""

SIGNS_BEFORE, SIGNS_BEHIND = frozenset("√∛∜±∓÷"), frozenset("√∛∜±∓÷π∞")
"""Characters that make a number beside them a part of something else."""

OPERATORS_BEFORE, OPERATORS_BEHIND = frozenset("+*/"), frozenset("+-*/")
"""These do so only between two operands. Before the first operand they are a sign, a list item, or Markdown. A dash
before a number can also be that of 5-6 days."""

_NEUTRAL = r"""
    approx therefore because implies Rightarrow Longrightarrow rightarrow longrightarrow to iff Leftrightarrow ldots
    dots cdots checkmark square blacksquare Box \
"""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Commands that may stand beside a number without changing it. Any other, as in 2\\pi, makes it a part of more."""

_DIGITS = r"(?>[0-9]{1,3}(?:[,\u2009][0-9]{3})++(?![0-9])|[0-9]++)"
_DECIMAL = rf"(?>{_DIGITS}(?:\.[0-9]++)?+|\.[0-9]++)"
_ABOVE = rf"\s*+(?:\{{\s*+(?P<above>[-+]?+{_DECIMAL})\s*+\}}|(?P<above_digit>[0-9]))"
_BELOW = rf"\s*+(?:\{{\s*+(?P<below>[-+]?+{_DECIMAL})\s*+\}}|(?P<below_digit>[0-9]))"
_SMALL = r"\{\s*+-?[0-9]++\s*+\}|-?[0-9]++"

_TOKEN = re.compile(
    rf"""
    (?P<number>
        (?: (?P<whole> {_DIGITS} ) \s*+ )?+ \\frac {_ABOVE} {_BELOW}
      | (?P<mixed> {_DIGITS} ) [ \u2009]++ (?P<part> [0-9]++ ) / (?P<parts> [0-9]++ ) (?! [/.]?[0-9] )
      | 10 \s*+ \^ \s*+ (?P<ten> {_SMALL} )
      | (?P<decimal> {_DECIMAL} )
        (?: [eE](?P<exponent> [-+]?+[0-9]++ )(?!\w)
          | \s*+ [x*] \s*+ 10 \s*+ \^ \s*+ (?P<power> {_SMALL} ) )?+
        (?: \s?+ / \s?+ (?P<over> [0-9]++ ) )?+
    ) (?: \s*+ (?P<scale> (?i: {"|".join(SCALES)} ) ) s?+ (?!\w) )?+
  | (?P<word> [^\W\d_]\w*+ )
  | (?P<raised> [\^_] \s*+ (?: \{{[^{{}}]*+\}} | -?\w++ | \\[a-zA-Z]++ ) )
  | (?P<command> \\ (?: [a-zA-Z]++ | . ) (?: \s*+\[[^\[\]]*+\] )?+
      (?: \s*+\{{ (?: [^{{}}]++ | \{{[^{{}}]*+\}} )*+ \}} )*+ )
  | (?P<space> \s++ )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_DIGIT = re.compile(r"[0-9]")
_WORD = re.compile(r"[^\W\d_]{2,}[23]?")
_SPACED = re.compile(r"[-+]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_LEADING_SIGN = re.compile(r"\A([-+])\s+")
_SIDES = re.compile(r"(?<![<>!])=|≈|\\approx(?![a-zA-Z])")
_BRACED = re.compile(r"\{([^{}]*+)\}")
_MONEY_SCALED = re.compile(r"((?:\\?\$|[€£¥₹])[0-9][0-9.,]*+)(?:\s?+\\text\{\s*+)?[KkMmBbTt]n?(?![\w^/]|\s*+\$)")
_SEVERAL = re.compile(r"[,;]|\b(?:and|or)\b")
_AROUND = " \t\n*_\"'"
_ENDS = ".,;:"

Token = re.Match[str]


def last_number(text: str) -> Fraction | None:
    """Return the exact value that a text gives as its answer, or None if it gives none."""
    marked = answer_in(text, _can_be)
    return _of_sentences(text) if marked is None else whole_number(marked)


def reference_number(text: str) -> Fraction | None:
    """Return the value of a reference, which marks its answer or is only the answer; None if that is no number."""
    marked = answer_in(text, _can_be)
    return whole_number(text if marked is None else marked)


def whole_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number, perhaps with words and units around it; None if it is not."""
    return _whole_number(text) if len(text) <= MAX_ANSWER_CHARS else None


@lru_cache(maxsize=4096)
def _whole_number(text: str) -> Fraction | None:
    """Return the same for a text that is short enough to be cached."""
    *left, right = _SIDES.split(_plain(text))
    if any(_SEVERAL.search(side) for side in left):
        return None
    right = right.strip(_AROUND)
    if not right.endswith(".."):
        right = right.rstrip(_ENDS).rstrip(_AROUND)
    if right.startswith("(") and right.endswith(")") and "," not in right:
        right = right[1:-1].strip(_AROUND)
    if braced := _BRACED.fullmatch(right):
        right = braced[1].strip(_AROUND)
    if _SPACED.fullmatch(right := _LEADING_SIGN.sub(r"\1", right)):
        right = right.replace(" ", "")
    tokens = [*_TOKEN.finditer(right)]
    numbers = [place for place, token in enumerate(tokens) if token["number"]]
    if len(numbers) != 1 or _is_name(tokens, numbers[0]) or _is_part(tokens, numbers[0]):
        return None
    return _value(tokens, numbers[0]) if _are_words(tokens, numbers[0]) else None


def _plain(text: str) -> str:
    """Return `text` in one spelling. A letter that scales money, as in $5K, becomes an unknown command."""
    return plain(_MONEY_SCALED.sub(r"\1\\scaled ", text))


def _can_be(text: str) -> bool:
    return whole_number(text) is not None


def _of_sentences(text: str) -> Fraction | None:
    """Return the last number of a text that marks nothing."""
    end = max(text.rfind(digit) for digit in DIGITS)
    tokens = [*_TOKEN.finditer(_plain(text[max(0, end - LOOKED_AT) : end + LOOKED_AT]))] if end >= 0 else []
    for place in range(len(tokens) - 1, -1, -1):
        token = tokens[place]
        if token["number"]:
            if _is_name(tokens, place):
                continue
            return None if _is_part(tokens, place) else _value(tokens, place)
        of_more = token["command"] or (token["raised"] and not _raises_unit(tokens, place))
        if of_more and _DIGIT.search(token[0]):
            return None
    return None


# --- Tokens beside a number -------------------------------------------------------------------------------------------


def _near(tokens: Sequence[Token], place: int, step: int) -> tuple[Token | None, bool]:
    """Return the next token to the left (step -1) or right (1), and whether there are spaces between. The token is None
    if there is none, or if it is on another line."""
    place += step
    spaced = 0 <= place < len(tokens) and tokens[place]["space"] is not None
    if spaced and "\n" in tokens[place][0]:
        return None, True
    place += step if spaced else 0
    return (tokens[place] if 0 <= place < len(tokens) else None), spaced


def _is_name(tokens: Sequence[Token], place: int) -> bool:
    """Return whether the number is part of a word, as in 3rd, 3D or 4x4, and is no quantity."""
    after, spaced = _near(tokens, place, 1)
    if after is None or spaced or not after["word"] or _is_unit(after[0]):
        return False
    return len(after[0]) > 1 or after[0].isupper()


def _is_part(tokens: Sequence[Token], place: int) -> bool:
    """Return whether the number is a part of something that is not just a number."""
    (before, apart), (after, spaced) = _near(tokens, place, -1), _near(tokens, place, 1)
    if any(one is not None and _is_more(one) for one in (before, after)):
        return True
    if before is not None and ((before["number"] and not apart) or (before[0] == "{" and _opens_more(tokens, place))):
        return True
    if _is_joined(tokens, place - 1, place - 2) or _is_joined(tokens, place + 1, place + 2):
        return True
    if _is_operand(tokens, place, before, after):
        return True
    if after is None:
        return False
    if after["word"]:
        return len(after[0]) == 1 and not _is_unit(after[0]) and not (spaced and after[0] in "aI")
    if spaced:
        return False
    return after["raised"] is not None or after["number"] is not None or after[0] in "^_"


def _is_operand(tokens: Sequence[Token], place: int, before: Token | None, after: Token | None) -> bool:
    """Return whether signs or words beside the number calculate with it, or say that it has no end."""
    if before is not None and (before[0] in SIGNS_BEFORE or before[0].lower() in LEADING):
        return True
    behind = "" if after is None else after[0]
    if behind in SIGNS_BEHIND or behind.lower() in TRAILING or behind.lower().removesuffix("s") in SCALES:
        return True
    if before is not None and before[0] in OPERATORS_BEFORE:
        beyond, _ = _near(tokens, tokens.index(before), -1)
        if beyond is not None and (beyond["number"] or beyond["raised"] or beyond[0] in ")]}%" or _is_letter(beyond)):
            return True
    if after is not None and after[0] in OPERATORS_BEHIND:
        beyond, _ = _near(tokens, tokens.index(after), 1)
        if beyond is not None and (beyond["number"] or _is_letter(beyond) or _is_more(beyond)):
            return True
    return "." in tokens[place][0] and [token[0] for token in tokens[place + 1 : place + 3]] == [".", "."]


def _is_letter(token: Token) -> bool:
    """Return whether the token is an unknown: one letter that is neither a word nor a unit."""
    return token["word"] is not None and len(token[0]) == 1 and token[0] not in "aAI" and not _is_unit(token[0])


def _is_more(token: Token) -> bool:
    """Return whether the token is a command that changes the meaning of the token beside it."""
    return token["command"] is not None and token["command"][1:].strip() not in NEUTRAL


def _is_joined(tokens: Sequence[Token], sign: int, other: int) -> bool:
    """Return whether a sign without spaces joins the number to another one, as in 3:45, 1,2345 and 1/2/2024."""
    if not (0 <= other < len(tokens) and 0 <= sign < len(tokens)) or tokens[sign][0] not in ",:./":
        return False
    return tokens[other]["number"] is not None or (tokens[sign][0] == "/" and tokens[other]["command"] is not None)


def _opens_more(tokens: Sequence[Token], place: int) -> bool:
    """Return whether the braces that open before the number belong to a power, an index or a command."""
    while place > 0 and (tokens[place - 1]["space"] or tokens[place - 1][0] == "{"):
        place -= 1
    return place > 0 and (tokens[place - 1]["command"] is not None or tokens[place - 1][0] in "^_")


def _raises_unit(tokens: Sequence[Token], place: int) -> bool:
    """Return whether an exponent belongs to a unit: the words before it lead back to a number, as in 18 square m^2."""
    back = [token for token in reversed(tokens[max(0, place - LOOKED_BACK) : place]) if not token["space"]]
    if not back or not back[0]["word"] or not (_is_unit(back[0][0]) or len(back[0][0]) > 1):
        return False
    beyond = (token for token in back if not (token["word"] or token["raised"] or token[0] in "/*.-"))
    return (first := next(beyond, None)) is not None and first["number"] is not None


def _is_unit(word: str) -> bool:
    """Return whether a word is the symbol of a unit, perhaps squared or cubed: m, m2."""
    return word in UNITS or (word[-1:] in "23" and word[:-1] in UNITS)


def _are_words(tokens: Sequence[Token], place: int) -> bool:
    """Return whether everything but the number at `place` is words, units, and what may stand between them."""
    return all(
        one == place or tokens[one]["space"] or _is_beside(tokens, one, behind=one > place)
        for one in range(len(tokens))
    )


def _is_beside(tokens: Sequence[Token], place: int, *, behind: bool) -> bool:
    """Return whether the token may stand beside a whole answer, before the number or `behind` it."""
    token = tokens[place]
    (before, _), (after, _) = _near(tokens, place, -1), _near(tokens, place, 1)
    if word := token["word"]:
        if word.lower() in NOT_AROUND:
            return False
        return word in "aA" or (behind and _is_unit(word)) or _WORD.fullmatch(word) is not None
    is_word = before is not None and (before["word"] is not None or before["raised"] is not None)
    if token["raised"]:
        return behind and is_word
    match token[0]:
        case "%" | "°":
            return behind
        case "-" | "+":
            sign = after is not None and after["number"] is not None and not is_word
            return sign if not behind else token[0] == "-" and after is not None and after["word"] is not None
        case "/" | "*":
            return behind and after is not None and after["word"] is not None
        case "(":
            return after is not None and after["word"] is not None
        case "." | ":" | "," | ")" | "'":
            return is_word
        case _:
            return False


# --- Values -----------------------------------------------------------------------------------------------------------


def _value(tokens: Sequence[Token], place: int) -> Fraction | None:
    """Return the value of the number at `place` with its sign; None if it is too large or divides by 0."""
    token = tokens[place]
    if any(len(part) > MAX_NUMERAL_CHARS for part in token.groupdict("").values()):
        return None
    value = _unsigned(token)
    if value is None:
        return None
    value *= SCALES.get((token["scale"] or "").lower(), 1)
    before = tokens[place - 1] if place else None
    if before is None or before[0] not in ("-", "+"):
        return value
    beyond = tokens[place - 2] if place > 1 else None
    binary = beyond is not None and (beyond["number"] or beyond["word"] or beyond["raised"] or beyond[0] in ".)]}")
    return -value if before[0] == "-" and not binary else value


def _unsigned(token: Token) -> Fraction | None:
    try:
        if token["ten"]:
            return _scaled(Fraction(1), token["ten"])
        if token["mixed"]:
            return _mixed(token["mixed"], Fraction(token["part"]) / Fraction(token["parts"]))
        if token["decimal"]:
            value = _scaled(_read(token["decimal"]), token["exponent"] or token["power"] or "0")
            return None if value is None else value / Fraction(token["over"] or "1")
        below = _read(token["below"] or token["below_digit"])
        return _mixed(token["whole"], _read(token["above"] or token["above_digit"]) / below)
    except ZeroDivisionError:
        return None


def _read(numeral: str) -> Fraction:
    return Fraction(re.sub(r"[,\u2009]", "", numeral))


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    power = int(exponent.strip("{} "))
    return value * Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None


def _mixed(whole: str | None, part: Fraction) -> Fraction | None:
    """Return a fraction plus the whole number before it, if any. None if they do not go together, as 3 and 5/2."""
    if whole is None:
        return part
    return _read(whole) + part if 0 < part < 1 else None
