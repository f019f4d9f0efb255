"""Compare texts by math-verify: the program that `node.tasks.answers.math_comparison` runs in a sandbox.

A topic is the reference, {"reference": text}. The judgement is whether a text equals it. The sandbox is needed because
math-verify turns LaTeX into sympy, and sympy compiles some of it: it evaluates the terms of an infinite sum by
generated Python (`sympy.core.evalf.hypsum`). Symbols have their own names there, and a text can choose these names.

The program stands alone, because nothing of this package is visible where it runs.
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
"""Compared once at the start, so that patterns, the parser's tables and sympy's caches exist for every text. Otherwise
the first one takes a third of a second."""


def load() -> None:
    """Import the library, and make it do its one-time work."""
    logging.disable(logging.CRITICAL)  # it warns that its own timeouts are off
    for reference, said in USUAL:
        _are_equal(reference, said)


def prepare(topic: Any) -> Callable[[str], bool]:
    """Return a function that says whether a text equals the reference. It reads the reference with each text, because
    reading that may also take for ever, and there it is ended."""
    return partial(_are_equal, topic["reference"])


def _are_equal(reference: str, said: str) -> bool:
    from math_verify import parse, verify

    found = parse(said, parsing_timeout=None)
    return bool(found) and bool(verify(parse(reference, parsing_timeout=None), found, timeout_seconds=None))
