"""The number that a text gives as its answer, as people write numbers.

What always holds: a value is exact, and reading one takes little time and memory whatever a stranger wrote."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_NUMERAL_CHARS = 64
MAX_EXPONENT = 99
"""Larger numerals are no answers: 1e999999999 as an exact fraction would take all memory, and strangers write them."""

_FRACTION = re.compile(r"(?<!\d)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_MARKED = re.compile(r"####\s*([^\n]{1,256})|\\boxed\{([^{}\n]{1,256})\}")
_NUMERAL = re.compile(
    r"""
    (?: (?<![\w.)]) [-+] )?                                # a sign, but not the minus of "5-3"
    \$?                                                    # "$5" and "-$5"; in "$-5" it stands outside
    (?: (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?:\.\d+)?    # 1,234.5 and 1234.5
      | \.\d+ )                                            # .5
    (?: [eE][-+]?\d+ )?
    (?: /\d+ )?
    """,
    re.VERBOSE | re.ASCII,
)


def last_number(text: str) -> Fraction | None:
    """The value a text gives as its answer, exactly; None when it holds no readable number."""
    plain = _FRACTION.sub(r"\1/\2", text.replace("\N{MINUS SIGN}", "-"))
    marked = _MARKED.findall(plain)
    if marked:
        plain = marked[-1][0] or marked[-1][1]
    numerals = _NUMERAL.findall(plain)
    return _value(numerals[-1]) if numerals else None


def _value(numeral: str) -> Fraction | None:
    cleaned = re.sub(r"[,$]", "", numeral)
    exponent = re.search(r"[eE][-+]?(\d+)", cleaned)
    if len(cleaned) > MAX_NUMERAL_CHARS or (exponent and int(exponent[1]) > MAX_EXPONENT):
        return None
    above, _, below = cleaned.partition("/")
    try:
        return Fraction(above) / Fraction(below or "1")
    except ZeroDivisionError:
        return None
