"""The interpreter's search for cycles of objects, made seldom for a process that runs for days.

By default it looks after every 700 new objects, and again and again through all that imports have brought: 5 % of what
a relaying node computes. What always holds: cycles are still found; what was there when the program began is no longer
looked through.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 10_000
"""Between two looks at the youngest: some megabytes of garbage at most, as none of ours keeps chunks in cycles."""


def look_seldom() -> None:
    """Call it once, when everything is imported and nothing has begun."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
