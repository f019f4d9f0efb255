"""Name a problem by one number: which task of the mixture, which problem of that task, at which difficulty.

Pure. Leases, ledger and rewards need to remember only this number, so the curriculum may move on while leases are out.
With one task and one level, it is the task's own number.

Invariants:

- The map from (inner, part) to the index is one to one onto the integers from 0 on.
"""

from __future__ import annotations


def index_at(inner: int, part: int, parts: int) -> int:
    """Return the index of problem `inner` of part number `part` out of `parts`. Parts are difficulties of a task, or
    tasks of a mixture."""
    return inner * parts + part


def place_of(index: int, parts: int) -> tuple[int, int]:
    """Return the inverse of `index_at`: (inner, part)."""
    return divmod(index, parts)
