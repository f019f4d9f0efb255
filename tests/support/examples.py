"""Say how many examples a property test draws: a tenth of them by default, all where VOLERY_ALL_EXAMPLES is set.

`make test` is run many times a day and draws a tenth, always the same ones. `make test-rest` draws all, new ones each
time; continuous integration runs both.
"""

from __future__ import annotations

import os

VARIABLE = "VOLERY_ALL_EXAMPLES"
DRAWS_ALL = bool(os.environ.get(VARIABLE))

AT_LEAST = 20
"""The least number of examples: fewer leave out whole branches of a strategy."""

BY_DEFAULT = 100
"""The number that Hypothesis draws where a test sets none."""


def examples(number: int) -> int:
    """Return how many to draw of `number`."""
    return number if DRAWS_ALL else min(number, max(AT_LEAST, number // 10))
