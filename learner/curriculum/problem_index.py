"""One number names a problem: which task of the mixture, which one there, how hard.

Pure. What always holds: each of these maps is one to one onto the integers from 0 on, so leases, ledger and rewards
need remember nothing but the number, and the curriculum may move while leases are out. With one task, and one level,
the number is the task's own.
"""

from __future__ import annotations


def index_at(ordinal: int, level: int, levels: int) -> int:
    """The index of the problem number `ordinal` at difficulty `level` of a task with `levels` difficulties."""
    return ordinal * levels + level


def place_of(index: int, levels: int) -> tuple[int, int]:
    """The inverse of `index_at`: (ordinal, level)."""
    return divmod(index, levels)


def joint_index(inner: int, part: int, parts: int) -> int:
    """The index, among all of a mixture of `parts` tasks, of the problem `inner` of task number `part`."""
    return inner * parts + part


def part_of(index: int, parts: int) -> tuple[int, int]:
    """The inverse of `joint_index`: (inner, part)."""
    return divmod(index, parts)
