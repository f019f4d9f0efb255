r"""Give each answer one spelling: remove LaTeX's formatting commands and currency signs, unify spaces and superscripts.

Invariants:

- The result says the same as the text; only its looks are removed.
- The time depends only on the length of a text: no regular expression backtracks.
"""

from __future__ import annotations

import re
import unicodedata

THIN = "\N{THIN SPACE}"
"""Stands for every space that does not separate words: those of LaTeX, and those of typesetters between digits."""

VULGAR = "\u00bc\u00bd\u00be" + "".join(map(chr, range(0x2150, 0x215F)))
"""Characters that are fractions: a half, three quarters and so on."""

MAX_DEPTH = 3
"""Maximum nesting of commands around letters, as in \\textbf{\\text{...}}."""

_LETTERS = re.compile(
    r"\\(?:text|textrm|textbf|textit|texttt|textsf|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox|"
    r"operatorname|boldsymbol|bm|emph|underline)\s*+\{([^{}]*+)\}"
)
_RAISED = {ord(raised): plain for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)}
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]++")
_EN_DASH_MINUS = re.compile(r"(?<![\w)\]}.%])\N{EN DASH}(?=\.?\d|\\?\$|\\[dt]?frac)")
"""A dash that is the sign of a number. Between two words or numbers it is a dash."""
_VULGAR = re.compile(f"[{VULGAR}]")

_SPELLED = [
    (re.compile(r"\\(?:displaystyle|textstyle|limits|rm|bf|it|left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\!"), ""),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s*+\{\s*+([a-zA-Z]{1,8})\s*+\}\s*+\{\s*+([a-zA-Z]{1,8})\s*+\}"), r"\1/\2"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,;: ]|~|\\(?:thinspace|quad|qquad)(?![a-zA-Z])|[\u00a0\u2007\u2009\u202f]"), THIN),
    (re.compile(r"(?<=[-+])\s?+(?:\\?\$|[€£¥₹])\s?+"), ""),  # the minus of -$5 belongs to the number
    (re.compile(r"\\?\$|[€£¥₹]|\\[()\[\]]|\*\*|__|`"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-zA-Z])|[·⋅∙\u00d7]"), "*"),
    (re.compile(r"\^?\s?+\{?\s?+\\(?:circ|degree|textdegree)(?![a-zA-Z])\s?+\}?"), "°"),
]


def plain(text: str) -> str:
    """Return `text` without what only changes its looks. Lines stay lines."""
    for _ in range(MAX_DEPTH):
        text = _LETTERS.sub(r" \1 ", text)
    text = text.replace("\N{MINUS SIGN}", "-").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = _EN_DASH_MINUS.sub("-", text).replace("\N{HORIZONTAL ELLIPSIS}", "...")
    text = _RAISED_RUN.sub(lambda run: f"^{run[0].translate(_RAISED)}", text)
    text = _VULGAR.sub(lambda one: " " + unicodedata.normalize("NFKC", one[0]).replace("\N{FRACTION SLASH}", "/"), text)
    for spelled, simply in _SPELLED:
        text = spelled.sub(simply, text)
    return text
