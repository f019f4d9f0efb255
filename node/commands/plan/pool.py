"""Read POOL, the machines that could be used, from a file.

A TOML file may also tell what happens to them in a simulation, with an `[[absence]]` or `[[change]]` for each event.
A price of 0 is that of a volunteer, and right; a missing price is an error.

Invariants:

- Every value is judged (`node.commands.plan.pool_keys`), no two machines have the same name, and all prices are in one
  currency.
- An error is a UsageError that names the file, the row and the column, and what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learner.provisioning.model.windows import Shown
from node.commands.plan.pool_file import Row, read_tables
from node.commands.plan.pool_keys import ABSENCES, CHANGES, COLUMNS, MAX_MACHINES, NAME_CHARS, SETTINGS, Key, judged
from node.runtime.errors import UsageError
from node.runtime.formatting import plain_name

CURRENCY = re.compile(r"[A-Z]{3}")

USUAL_CURRENCY = "USD"

KIND_CHARS = 24
"""Most characters of a machine's name in a table: the other columns take the rest of 100."""

KINDS_LISTED = 40
"""Rows in the table of machines. Machines that are not chosen are left out first."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One row: `count` equal machines. None means that a value was not given.

    `where` names the row in messages. `is_rate_least`: it may be faster, because the run that it is from never kept it
    busy.
    """

    where: str
    name: str
    price: float
    rate: float
    count: int = 1
    up_mbit: float | None = None
    down_mbit: float | None = None
    broadcast_s: float | None = None
    generation_s: float | None = None
    start_s: float = 0.0
    start_price: float = 0.0
    stops_per_hour: float = 0.0
    back_s: float | None = None
    batch_rollouts: int | None = None
    fixed_share: float = 0.0
    spread: float | None = None
    is_rate_least: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return one name for each machine."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name} #{i}" for i in range(1, self.count + 1))


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One `[[absence]]` or `[[change]]`: what happens to the machines of these names."""

    names: tuple[str, ...]
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The contents of a file: machines, the currency of their prices, the settings of its `[swarm]` table, and events.

    `shown`: the recorded run in which its machines were enough; None for a file.
    """

    machines: tuple[Machine, ...]
    currency: str
    settings: Mapping[str, Any]
    absences: tuple[Happening, ...] = ()
    changes: tuple[Happening, ...] = ()
    shown: Shown | None = None


def read_pool(path: Path) -> Pool:
    """Return the pool in a file that ends in .toml or .csv. Raises UsageError."""
    tables = read_tables(path)
    settings = judged(SETTINGS, tables.swarm, f"{path}, [swarm]")
    pool = pool_of(str(path), rows=[(row.where, row.values) for row in tables.machines], settings=settings)
    return replace(
        pool,
        absences=tuple(_happening(pool, ABSENCES, row) for row in tables.absences),
        changes=tuple(_happening(pool, CHANGES, row) for row in tables.changes),
    )


def _happening(pool: Pool, keys: Sequence[Key], row: Row) -> Happening:
    values = judged(keys, row.values, row.where)
    who = values.pop("machine")
    names = next((one.names for one in pool.machines if one.name == who), None)
    if names is None and any(who in one.names for one in pool.machines):
        names = (who,)
    if names is None:
        several = next((one for one in pool.machines if one.count > 1), None)
        numbered = f"one of several, such as {several.names[0]!r}" if several else "remove this entry"
        raise UsageError(f"{row.where}: there is no machine {who!r}. Write the name in its row, or {numbered}.")
    if len(values) == 1 and "at_s" in values:
        raise UsageError(f"{row.where}: this changes nothing. Give a price, a speed or a delay.")
    if values.get("until_s", math.inf) <= values.get("from_s", 0.0):
        raise UsageError(f"{row.where}: until_s = {values['until_s']:g} is not after from_s = {values['from_s']:g}.")
    return Happening(names=names, values=values)


def pool_of(name: str, *, rows: Sequence[tuple[str, Mapping[str, object]]], settings: Mapping[str, Any]) -> Pool:
    """Return a pool of raw rows, each with its name in messages. Raises UsageError."""
    if not rows:
        raise UsageError(f"{name} contains no machine. Add at least one, with name, price and rate.")
    judged_rows = [(where, judged(COLUMNS, values, _called(where, values))) for where, values in rows]
    currency = _one_currency(name, judged_rows, settings.get("currency"))
    machines = tuple(
        Machine(where=_called(where, row), **{key: value for key, value in row.items() if key != "currency"})
        for where, row in judged_rows
    )
    _require_distinct(machines)
    if (total := sum(machine.count for machine in machines)) > MAX_MACHINES:
        raise UsageError(f"{name} contains {total} machines, and a plan takes at most {MAX_MACHINES}. Remove some.")
    return Pool(machines=machines, currency=currency, settings=settings)


def _called(where: str, values: Mapping[str, object]) -> str:
    name = values.get("name")
    return f"{where} ({plain_name(name, NAME_CHARS)})" if isinstance(name, str) and name.strip() else where


def _one_currency(name: str, rows: Sequence[tuple[str, Mapping[str, Any]]], common: str | None) -> str:
    """Return the one currency of all prices. Rows without one have that of the `[swarm]` table, or the default."""
    seen: dict[str, str] = {} if common is None else {common: f"{name}, [swarm]"}
    for where, row in rows:
        unsaid = "" if "currency" in row or common is not None else ", where none is given"
        seen.setdefault(row.get("currency") or common or USUAL_CURRENCY, f"{_called(where, row)}{unsaid}")
    for currency, where in seen.items():
        if not CURRENCY.fullmatch(currency):
            raise UsageError(f"{where}: currency = {currency!r} is not three capital letters, such as USD.")
    if len(seen) > 1:
        (one, here), (other, there), *_ = seen.items()
        raise UsageError(
            f"{there}: currency {other}, but {one} in {here}. Prices are compared without conversion: give all in one "
            "currency."
        )
    return next(iter(seen))


def _require_distinct(machines: Sequence[Machine]) -> None:
    seen: dict[str, Machine] = {}
    for machine in machines:
        for name in (machine.name, *machine.names):
            if seen.setdefault(name, machine) is not machine:
                raise UsageError(
                    f"{machine.where}: the name {name!r} is also that of {seen[name].where}. Give each its own name; "
                    "for equal machines use `count`."
                )
