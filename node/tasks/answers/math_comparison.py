"""Ask math-verify whether two texts are equal, behind walls (`node.tasks.sandbox.confined_library`).

sympy, which it is made of, executes parts of what it reads. Its own limits are alarms besides, which nothing hears that
is inside one of Python's large integers, as 10^{10^{10}} is, and which no thread but the main one can set.

Invariants: as of `node.tasks.sandbox.confined_library`. What has no answer is not equal.
"""

from __future__ import annotations

from pathlib import Path

from node.tasks.sandbox.confined_library import LIMIT_S, Confined

PROGRAM = Path(__file__).with_name("math_comparison_program.py")


class Comparing(Confined):
    """math-verify, started when it is first asked. One question at a time: whoever else asks waits."""

    def __init__(self, *, limit_s: int = LIMIT_S, program: str | None = None) -> None:
        """`program` is another than math-verify's, for tests."""
        source = PROGRAM.read_text(encoding="utf-8") if program is None else program
        super().__init__(source, "math-verify", limit_s=limit_s)

    def are_equal(self, reference: str, said: str) -> bool:
        """Whether two texts are equal as math-verify reads them. Waits. Raises TaskError where it cannot be started."""
        return self.ask({"reference": reference}, said) is True


MATH_VERIFY = Comparing()
"""The process of this one: tasks have no end at which theirs could be closed."""
