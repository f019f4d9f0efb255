"""Compare texts by math-verify: the program that `node.tasks.answers.math_comparison` has run behind walls.

A topic is the reference, {"reference": text}; the judgement is whether a text is equal to it. math-verify reads LaTeX
into sympy, which compiles some of it: a sum without end has its terms evaluated by generated Python, in which symbols
stand as they are named (`sympy.core.evalf.hypsum`), and a text may name them.

It stands alone: nothing of this package is visible where it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

USUAL = (
    (r"\boxed{\frac{1}{2}}", r"\boxed{0.5}"),
    (r"\boxed{x^2 + 2x + 1}", r"It is $(x+1)^2$."),
    (r"\boxed{10\sqrt{3} \text{ meters}}", r"\boxed{\sqrt{300}}"),
    (r"\boxed{\{1, 2\}}", r"\boxed{2, 1}"),
    (r"\boxed{(0, 1]}", r"\boxed{0 < x \leq 1}"),
    (r"\boxed{x = 3}", r"\boxed{3}"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\boxed{\begin{pmatrix} 1 \\ 3 \end{pmatrix}}"),
    (r"\boxed{\sin(2x) + \pi}", r"\boxed{2 \sin(x) \cos(x) + \log_2{3}}"),
    ("7", "The answer is 3 + 4, or 7."),
)
"""Compared once at the start: patterns, tables of the parser and what sympy remembers are then there for each text,
which takes a third of a second otherwise."""


def load() -> None:
    """Import the library, and have it do once what it does seldom."""
    logging.disable(logging.CRITICAL)  # it warns that its own limits are off
    for reference, said in USUAL:
        _are_equal(reference, said)


def prepare(topic: Any) -> Callable[[str], bool]:
    """What says whether a text is equal to the reference. The reference is read with each text: it may take for ever,
    too, and there it is ended."""
    return partial(_are_equal, topic["reference"])


def _are_equal(reference: str, said: str) -> bool:
    from math_verify import parse, verify

    found = parse(said, parsing_timeout=None)
    return bool(found) and bool(verify(parse(reference, parsing_timeout=None), found, timeout_seconds=None))
