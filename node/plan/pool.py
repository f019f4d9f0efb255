"""POOL, the file of machines that could be had: TOML with a `[[machine]]` each, or CSV with the same columns.

A TOML may also tell what happens to them in a simulation, with an `[[absence]]` or `[[change]]` each.

What always holds: every column is known, every value is a finite number in its range, no two rows have one name, and
all prices are in one currency. A refusal is a UsageError that names the file, the row and the column, and the next
thing to do. A price of 0 is a volunteer's and is right; a price that is missing is not.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.errors import UsageError
from node.reports.words import plain_name

MAX_FILE_BYTES = 1 << 20
"""Ten thousand rows; who has more has named the wrong file."""

MAX_MACHINES = 1000
"""As many as the exact choice was tried with, in seconds."""

MAX_NUMBER = 1e12

NAME_CHARS = 64

LISTS = ("machine", "absence", "change")
"""Tables of a TOML that there may be many of."""

CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, kw_only=True)
class Key:
    """A column of a pool, or a key of its `[swarm]` table: a number from `low` to `high`, or a text."""

    name: str
    meaning: str
    low: float = 0.0
    above: bool = False
    """`low` itself is out."""
    high: float = MAX_NUMBER
    whole: bool = False
    text: bool = False
    needed: str = ""
    """What to do when it is missing; empty if it may be."""

    def judge(self, value: object, where: str) -> Any:
        """`value` as the key's type. Raises UsageError naming `where`."""
        if self.text:
            return self._text(value, where)
        number = _number(value)
        if number is None:
            raise UsageError(f"{where}: {self.name} = {_shown(value)} is not a number.")
        if not math.isfinite(number):
            raise UsageError(f"{where}: {self.name} = {number} is not a finite number.")
        if number < self.low or (self.above and number == self.low) or number > self.high:
            raise UsageError(f"{where}: {self.name} = {number:g} is out of range: {self._range()}.")
        if self.whole and number != int(number):
            raise UsageError(f"{where}: {self.name} = {number:g} is not a whole number.")
        return int(number) if self.whole else number

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str) or not (text := plain_name(value, NAME_CHARS)):
            raise UsageError(f"{where}: {self.name} = {_shown(value)} is not a text of 1 to {NAME_CHARS} characters.")
        return text

    def _range(self) -> str:
        least = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        return least if self.high == MAX_NUMBER else f"{least}, and at most {self.high:g}"


COLUMNS = (
    Key(name="name", meaning="what the plan calls it", text=True, needed="give every machine a name"),
    Key(name="price", meaning="per hour", needed="give its price per hour, 0 for a volunteer's"),
    Key(name="rate", meaning="rollouts per second", above=True, needed="give mu, admitted rollouts per second"),
    Key(name="count", meaning="so many alike", low=1, high=MAX_MACHINES, whole=True),
    Key(name="up_mbit", meaning="sends"),
    Key(name="down_mbit", meaning="receives", above=True),
    Key(name="broadcast_s", meaning="its T_bcast"),
    Key(name="generation_s", meaning="its T_gen"),
    Key(name="start_s", meaning="until it supplies"),
    Key(name="start_price", meaning="of one start"),
    Key(name="stops_per_hour", meaning="how often it is taken away", high=3600),
    Key(name="back_s", meaning="until it is back", above=True),
    Key(name="batch_rollouts", meaning="what its engine takes at once", low=1, high=1 << 20, whole=True),
    Key(name="fixed_share", meaning="of a full batch's seconds, what one rollout takes", high=1),
    Key(name="spread", meaning="deviation over mean of a batch's seconds", high=10),
    Key(name="currency", meaning="three capital letters", text=True),
)  # fmt: skip

SETTINGS = (
    Key(name="train_s", meaning="T_train", above=True),
    Key(name="rollouts", meaning="R", low=1, high=1 << 40, whole=True),
    Key(name="staleness", meaning="S", high=1000, whole=True),
    Key(name="max_staleness", meaning="the last S of the table", high=100, whole=True),
    Key(name="generation_s", meaning="T_gen"),
    Key(name="broadcast_s", meaning="T_bcast"),
    Key(name="weights_mb", meaning="size of what travels", above=True),
    Key(name="learner_up_mbit", meaning="B0", above=True),
    Key(name="install_s", meaning="from its arrival until a version is in use"),
    Key(name="kappa", meaning="publication period", low=1, high=1000, whole=True),
    Key(name="ahead", meaning="batches leased or waiting", low=1, high=64),
    Key(name="margin", meaning="our gamma", low=1, high=10),
    Key(name="hours", meaning="how long machines are kept", above=True),
    Key(name="learner_price", meaning="per hour"),
    Key(name="group_size", meaning="rollouts of a lease", low=2, high=1024, whole=True),
    Key(name="train_spread", meaning="deviation over mean of T_train", high=10),
    Key(name="publish_s", meaning="what a publication takes of the learner's time"),
    Key(name="currency", meaning="three capital letters", text=True),
)

_WHO = Key(name="machine", meaning="a machine's name, or that of machines alike", text=True, needed="name a machine")

ABSENCES = (
    _WHO,
    Key(name="from_s", meaning="it is taken away", needed="say when it goes, in seconds from the beginning"),
    Key(name="until_s", meaning="it is back"),
)

CHANGES = (
    _WHO,
    Key(name="at_s", meaning="from then on", needed="say when, in seconds from the beginning"),
    Key(name="price", meaning="per hour"),
    Key(name="speed", meaning="a factor on its rate", above=True, high=1000),
    Key(name="delay", meaning="a factor on its T_bcast", high=1000),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One row: `count` machines alike. `where` is how messages name it; what is None was left out."""

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

    @property
    def names(self) -> tuple[str, ...]:
        """One for each machine."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name} #{i}" for i in range(1, self.count + 1))


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One `[[absence]]` or `[[change]]`: what happens to these machines, by their names."""

    names: tuple[str, ...]
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What a file holds: machines, the currency of their prices, what its `[swarm]` table sets, and what happens."""

    machines: tuple[Machine, ...]
    currency: str
    settings: Mapping[str, Any]
    absences: tuple[Happening, ...] = ()
    changes: tuple[Happening, ...] = ()


@dataclass(frozen=True)
class _Row:
    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class _Tables:
    swarm: Mapping[str, object]
    machines: Sequence[_Row]
    absences: Sequence[_Row] = ()
    changes: Sequence[_Row] = ()


def read_pool(path: Path) -> Pool:
    """The pool in a file that ends in .toml or .csv. Raises UsageError."""
    readers: dict[str, Callable[[Path, str], _Tables]] = {
        ".toml": _read_toml,
        ".csv": _read_csv,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} ends neither in .toml nor in .csv. Name a pool of machines in one of the two forms.")
    tables = reader(path, _text_of(path))
    settings = judged(SETTINGS, tables.swarm, f"{path}, [swarm]")
    pool = pool_of(path.name, rows=[(row.where, row.values) for row in tables.machines], settings=settings)
    return replace(
        pool,
        absences=tuple(_happening(pool, ABSENCES, row) for row in tables.absences),
        changes=tuple(_happening(pool, CHANGES, row) for row in tables.changes),
    )


def _happening(pool: Pool, keys: Sequence[Key], row: _Row) -> Happening:
    values = judged(keys, row.values, row.where)
    who = values.pop("machine")
    names = next((one.names for one in pool.machines if one.name == who), None)
    if names is None and any(who in one.names for one in pool.machines):
        names = (who,)
    if names is None:
        raise UsageError(f"{row.where}: there is no machine {who!r}. Name one as its row does, or {_numbered(pool)}.")
    if len(values) == 1 and "at_s" in values:
        raise UsageError(f"{row.where}: nothing changes. Give a price, a speed or a delay.")
    if values.get("until_s", math.inf) <= values.get("from_s", 0.0):
        raise UsageError(f"{row.where}: until_s = {values['until_s']:g} is not after from_s = {values['from_s']:g}.")
    return Happening(names=names, values=values)


def _numbered(pool: Pool) -> str:
    several = next((one for one in pool.machines if one.count > 1), None)
    return f"one of several as {several.names[0]!r}" if several else "leave this out"


def pool_of(name: str, *, rows: Sequence[tuple[str, Mapping[str, object]]], settings: Mapping[str, Any]) -> Pool:
    """A pool of raw rows, each with how messages name it. Raises UsageError."""
    if not rows:
        raise UsageError(f"{name} holds no machine. Add at least one, with name, price and rate.")
    judged_rows = [(where, judged(COLUMNS, values, _called(where, values))) for where, values in rows]
    currency = _one_currency(name, judged_rows, settings.get("currency"))
    machines = tuple(
        Machine(where=_called(where, row), **{key: value for key, value in row.items() if key != "currency"})
        for where, row in judged_rows
    )
    _require_distinct(machines)
    if (total := sum(machine.count for machine in machines)) > MAX_MACHINES:
        raise UsageError(f"{name} holds {total} machines, and a plan takes at most {MAX_MACHINES}. Leave some out.")
    return Pool(machines=machines, currency=currency, settings=settings)


def judged(keys: Sequence[Key], values: Mapping[str, object], where: str) -> dict[str, Any]:
    """`values` as the types of `keys`, without those that are empty. Raises UsageError naming `where`."""
    known = {key.name: key for key in keys}
    for name in values:
        if name not in known:
            raise UsageError(f"{where}: there is no {_shown(name)}. Known are: {', '.join(known)}.")
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    for key in keys:
        if key.needed and key.name not in given:
            raise UsageError(f"{where}: {key.name} is missing: {key.needed}.")
    return {name: known[name].judge(value, where) for name, value in given.items()}


def _called(where: str, values: Mapping[str, object]) -> str:
    name = values.get("name")
    return f"{where} ({plain_name(name, NAME_CHARS)})" if isinstance(name, str) and name.strip() else where


def _one_currency(name: str, rows: Sequence[tuple[str, Mapping[str, Any]]], common: str | None) -> str:
    """The one currency of all prices. Rows without one have that of the `[swarm]` table, or the others'."""
    seen: dict[str, str] = {} if common is None else {common: f"{name}, [swarm]"}
    for where, row in rows:
        if (currency := row.get("currency")) is not None:
            seen.setdefault(currency, _called(where, row))
    for currency, where in seen.items():
        if not CURRENCY.fullmatch(currency):
            raise UsageError(f"{where}: currency = {currency!r} is not three capital letters, such as USD.")
    if len(seen) > 1:
        (one, here), (other, there), *_ = seen.items()
        raise UsageError(
            f"{there}: currency {other}, but {one} in {here}. Prices are compared and never converted: give all in one "
            "currency."
        )
    return next(iter(seen), "USD")


def _require_distinct(machines: Sequence[Machine]) -> None:
    seen: dict[str, Machine] = {}
    for machine in machines:
        for name in (machine.name, *machine.names):
            if seen.setdefault(name, machine) is not machine:
                raise UsageError(
                    f"{machine.where}: the name {name!r} is also that of {seen[name].where}. Give each its own; for "
                    "machines alike there is `count`."
                )


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES} bytes: that is no pool of machines.")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a pool of machines.") from None


def _read_toml(path: Path, text: str) -> _Tables:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    for name in raw:
        if name not in ("swarm", *LISTS):
            known = ", ".join(["[swarm]", *(f"[[{one}]]" for one in LISTS)])
            raise UsageError(f"{path}: there is no {_shown(name)}. Known are: {known}.")
    swarm = raw.get("swarm", {})
    if not isinstance(swarm, dict):
        raise UsageError(f"{path}: swarm is not a table; begin it with [swarm].")
    machines, absences, changes = (_list(path, raw, name) for name in LISTS)
    return _Tables(swarm=swarm, machines=machines, absences=absences, changes=changes)


def _list(path: Path, raw: Mapping[str, Any], name: str) -> list[_Row]:
    rows = raw.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: {name} is not a list of tables; begin each {name} with [[{name}]].")
    return [_Row(f"{path}, {name} {number}", row) for number, row in enumerate(rows, start=1)]


def _read_csv(path: Path, text: str) -> _Tables:
    return _Tables(swarm={}, machines=_csv_lines(path, text))


def _csv_lines(path: Path, text: str) -> list[_Row]:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}. The file is no CSV from there on.") from None
    if not rows:
        return []
    _, header = rows[0]
    if doubled := {name for name in header if header.count(name) > 1}:
        raise UsageError(f"{path}, line {rows[0][0]}: the column {_shown(min(doubled))} is there twice.")
    known = {key.name: key for key in COLUMNS}
    if unknown := [name for name in header if name not in known]:
        raise UsageError(f"{path}, line {rows[0][0]}: there is no {_shown(unknown[0])}. Known are: {', '.join(known)}.")
    return list(_csv_rows(path, header, rows[1:]))


def _csv_rows(path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]]) -> Iterator[_Row]:
    for number, row in rows:
        where = f"{path}, line {number}"
        if len(row) > len(header):
            raise UsageError(
                f"{where}: {len(row)} cells under {len(header)} columns. A decimal is written with a point."
            )
        yield _Row(where, dict(zip(header, row, strict=False)))


def _number(value: object) -> float | None:
    """A TOML number, or a CSV cell that holds one; no date, no yes or no."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _shown(value: object) -> str:
    return plain_name(repr(value), NAME_CHARS)
