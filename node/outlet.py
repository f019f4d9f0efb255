"""Standard output for what Python prints, and for nothing else: C libraries print there as well, unasked.

HiGHS, which finds the cheapest set of peers, tells the file descriptor 1 of its inner life now and then, whatever its
options say, and that would stand in the middle of a live view, or of JSON for a program. What always holds after
`keep_outlet`: `sys.stdout` writes to where it did, and descriptor 1 leads nowhere.
"""

from __future__ import annotations

import os
import sys


def keep_outlet() -> None:
    """Let nothing but `sys.stdout` write to standard output from now on. Does nothing where that is no real file."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return  # a test captures it, or there is none
    if descriptor != 1:
        return
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    outlet = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1)
    sys.stdout = sys.__stdout__ = outlet  # type: ignore[misc]  # both: the size of a terminal is asked of the latter
