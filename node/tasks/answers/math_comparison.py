"""Ask math-verify whether two texts are equal, in a sandbox (`node.tasks.sandbox.confined_library`).

math-verify is built on sympy, which executes parts of what it reads. Its own timeouts are alarms. Python does not see
an alarm while it computes one large integer such as 10^{10^{10}}, and only the main thread can set one.

Invariants: those of `node.tasks.sandbox.confined_library`. Texts for which there is no answer are not equal.
"""

from __future__ import annotations

from pathlib import Path

from node.tasks.sandbox.confined_library import LIMIT_S, Confined

PROGRAM = Path(__file__).with_name("math_comparison_program.py")


class Comparing(Confined):
    """A process of math-verify, started when it is first asked. One question at a time: other callers wait."""

    def __init__(self, *, limit_s: int = LIMIT_S, program: str | None = None) -> None:
        """`program`: the source of another program instead of math-verify's, for tests."""
        source = PROGRAM.read_text(encoding="utf-8") if program is None else program
        super().__init__(source, "math-verify", limit_s=limit_s)

    def are_equal(self, reference: str, said: str) -> bool:
        """Return whether two texts are equal as math-verify reads them. Waits. Raises TaskError if it cannot be
        started."""
        return self.ask({"reference": reference}, said) is True


MATH_VERIFY = Comparing()
"""The instance that all tasks of this process share. Tasks are never closed, so they could not close their own."""
