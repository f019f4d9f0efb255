"""Whether two texts give the same answer in mathematics, by math-verify: \\frac{1}{2}, 0.5 and 1/2, intervals, sets.

What always holds: math-verify's own time limits are off, since they want the main thread's alarm; whoever asks has
limits of time and memory around it (`node.verifier_program`), which what strangers write needs here. A text that cannot
be read is no answer. The library is imported when the first texts are compared: it takes a second.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from node.tasks.port import TaskError

_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[|####|(?<![\\a-zA-Z])[a-zA-Z]{3,}")
"""What shows where the mathematics stands in a text, or that there is something beside it: a word, no command."""

MAX_CHARS = 8192
"""Of the end of a text, where its answer is: what is read takes time with the square of its length."""


def require_math_verify() -> None:
    """Raises TaskError, with what to type, where math-verify is not installed."""
    if find_spec("math_verify") is None:
        raise TaskError("match=math needs math-verify, which is not installed here. Run: pip install 'volery[tasks]'.")


def same_mathematics(answer: str, said: str) -> bool:
    """Whether `said` ends with what equals `answer`. Raises whatever math-verify raises."""
    from math_verify import verify

    found = _parsed(said[-MAX_CHARS:])
    return bool(found) and bool(verify(_answer(answer), found, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _answer(text: str) -> Any:
    """A reference answer, of which all is mathematics unless it has a mark of it, or words."""
    return _parsed(text if _MARKED.search(text) else f"\\boxed{{{text}}}")


def _parsed(text: str) -> Any:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns each time that its limits are off
    return parse(text, parsing_timeout=None)
