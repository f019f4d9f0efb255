"""Find the program in what a policy says: a fenced block of Markdown.

Models write fences in many ways: with tildes, with the line ends of Windows, in a list or a quotation. Many show the
program's output in another block after it.

Invariants:

- The time depends only on the length of a text, whatever a stranger wrote.
- Every line of a block loses what stood before the fence, an indent or a quotation mark, and nothing else.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

MAX_BLOCKS = 16
"""Blocks to look at for the program, from the last one back, because parsing one takes time."""

MAX_FENCE_INDENT = 3
"""Spaces by which the end of a block may be further to the right than its beginning, as in CommonMark."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_QUOTE = re.compile(r"[ \t]{0,3}>[ ]?")
_FENCE = re.compile(
    r"""
    (?P<quote> [ \t]{0,3}>[ ]? )?
    (?P<indent> [ \t]*+ (?: (?: [-*+] | [0-9]{1,9}[.)] ) [ \t]++ )?+ )  # in a list, behind its mark or below it
    (?P<fence> (?P<ticks> `{3,}+ ) | ~{3,}+ )
    [ \t]*+ [{]?+ [.]?+ (?P<language> [\w+-]*+ )
    (?(ticks) [^`]*+ | .*+ )
    """,
    re.VERBOSE,
)
_PYTHON = frozenset({"python", "python3", "py", "py3", "python2", "ipython"})


def program_of(text: str, *, bare: bool = False) -> str | None:
    """Return the program in a text. If there is no block, return None, or with `bare` the text itself.

    Considers the blocks that name Python, or, if there are none, those that name no language. Returns the last one that
    does something as a program, or else the last one. A block with output after it is either not a program ("1 2"), or
    one that does nothing ("3").
    """
    blocks = [(language.lower(), program) for language, program in _blocks(text)]
    named = [program for language, program in blocks if language in _PYTHON]
    found = named or [program for language, program in blocks if not language]
    if found:
        return next((program for program in reversed(found[-MAX_BLOCKS:]) if _does_something(program)), found[-1])
    return text if bare else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield (language, content) of each block, as in CommonMark except for its depth of indents.

    It takes one pass. A regular expression would search for the end of every unclosed block, which takes minutes if a
    policy has written nothing but openings.
    """
    begun: re.Match[str] | None = None
    inside: list[str] = []
    for line in _LINE_END.split(text):
        if begun is None:
            begun, inside = _FENCE.fullmatch(line), []
        elif _ends(line, begun):
            yield begun["language"], "".join(inside)
            begun = None
        else:
            inside.append(f"{_without_indent(line, begun)}\n")


def _ends(line: str, begun: re.Match[str]) -> bool:
    """Return whether a line ends the block: only a fence, as long as the opening one, and hardly further to the right.
    A fence inside a program's text is further to the right, and ends nothing."""
    line = _quoted(line, begun)
    fence, indent = line.strip(" \t"), _indent_of(line)
    opened = begun["fence"]
    is_fence = len(fence) >= len(opened) and fence == opened[0] * len(fence)
    return is_fence and indent <= len(begun["indent"]) + MAX_FENCE_INDENT


def _without_indent(line: str, begun: re.Match[str]) -> str:
    """Return a line of a block without what stood before the fence: the indent of a list, the mark of a quotation."""
    line = _quoted(line, begun)
    return line[min(_indent_of(line), len(begun["indent"])) :]


def _quoted(line: str, begun: re.Match[str]) -> str:
    return _QUOTE.sub("", line, count=1) if begun["quote"] else line


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _does_something(program: str) -> bool:
    """Return whether a text is a Python program with at least one statement that is more than a value."""
    try:
        with warnings.catch_warnings(action="ignore"):
            statements = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's limits on nested code of strangers
        return False
    return any(not isinstance(one, ast.Expr) or _calls(one.value) for one in statements)


def _calls(value: ast.expr) -> bool:
    """Return whether an expression calls something, like print(). Only names and numbers are an output."""
    return any(isinstance(one, ast.Call | ast.Await | ast.Yield | ast.NamedExpr) for one in ast.walk(value))
