"""One number names a problem: which task of the mixture, which one there, how hard.

Pure. What always holds: this map is one to one onto the integers from 0 on, so leases, ledger and rewards
need remember nothing but the number, and the curriculum may move while leases are out. With one task, and one level,
the number is the task's own.
"""

from __future__ import annotations


def index_at(inner: int, part: int, parts: int) -> int:
    """The index of the problem `inner` of part number `part` of so many: difficulties of a task, tasks of a mixture."""
    return inner * parts + part


def place_of(index: int, parts: int) -> tuple[int, int]:
    """The inverse of `index_at`: (inner, part)."""
    return divmod(index, parts)
