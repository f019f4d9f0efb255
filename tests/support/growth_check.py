"""Measure what a long life leaves behind: the sizes of a service's containers, and the rows of its ledger."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping, Set
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path

OURS = ("learner.", "node.", "protocol.", "swarm.")
"""Packages whose objects are followed; containers of other libraries are counted in bytes alone."""


def sizes_of(*roots: object) -> dict[str, int]:
    """Return how many elements each container has that attributes of our own objects lead to, by its path.

    Containers are not looked into: their elements count with them, and growth inside these shows in bytes.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting = deque((type(root).__name__, root) for root in roots)
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping | Set | list | deque | bytearray):
            found[path] = len(one)
        elif any(kind.__module__.startswith(OURS) for kind in type(one).__mro__):
            waiting.extend((f"{path}.{name}", value) for name, value in _parts(one))
    return found


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the containers that have more elements than before: path to both sizes."""
    return {path: (before.get(path, 0), size) for path, size in after.items() if size > before.get(path, 0)}


def rows_of(ledger: Path) -> dict[str, int]:
    """Return how many rows each table has."""
    with closing(sqlite3.connect(ledger)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


def _parts(one: object) -> list[tuple[str, object]]:
    named = [field.name for field in fields(one)] if is_dataclass(one) else []
    held = dict(getattr(one, "__dict__", {})) | {name: getattr(one, name) for name in named if hasattr(one, name)}
    return list(held.items())
