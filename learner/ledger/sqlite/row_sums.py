"""Keep a sum over all rows of each table in the same file, so that a start finds a byte that the disk changed.

SQLite checks the structure of its pages, not what they hold: a reward with a flipped bit is still a reward. So each row
has a digest of 64 bits, and each table the sum of its rows' digests, modulo 2^64. The sum does not depend on the order
of rows. A row adds its digest when it comes and subtracts it when it goes, so a transaction pays for the rows that it
changes only. Such sums are from Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing", 1997. They are
used against disks here, not against liars: anyone who can write the file can write the sums.

Invariants:

- One transaction writes rows and sums together.
- A table's sum in the file is that of the rows that this program wrote.
- Only the connection that has the triggers (`Summing`) writes.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from hashlib import blake2b
from typing import Any

import msgspec

SUMS = "CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, sum INTEGER NOT NULL) STRICT;"
"""One sum for each table, and one for the schema under its own name. If this table is missing, nothing is known of any
row, and the sums are made from the rows that are there."""

SCHEMA_TABLE = "sqlite_master"
_SCHEMA_ROWS = f"SELECT type, name, tbl_name, sql FROM {SCHEMA_TABLE}"

_WORD = 1 << 64


class Summing:
    """Keeps the sums of a database while its one writer changes it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._changed: defaultdict[str, int] = defaultdict(int)
        self._encode = msgspec.msgpack.Encoder().encode
        db.create_function("row_changes", -1, self._note, deterministic=False)

    def begin(self, *, anew: bool) -> None:
        """Sum the tables that have no sum yet or were just changed, within the transaction that made them. With `anew`,
        sum all tables, since another program wrote last."""
        db = self._db
        db.execute(SUMS)
        known = {name for (name,) in db.execute("SELECT name FROM sums")}
        fresh = [name for name in _tables(db) if anew or name not in known or name == "meta"]
        for name in known - {*_tables(db), SCHEMA_TABLE} if anew else ():
            db.execute("DELETE FROM sums WHERE name = ?", (name,))  # a table of an older format
        for name in [*fresh, SCHEMA_TABLE]:
            db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (name, _signed(sum_of(db, name))))

    def watch(self) -> None:
        """See every change from now on, by triggers of this connection that are not stored in the file."""
        db = self._db
        db.execute("PRAGMA recursive_triggers = ON")  # else the removal of a replaced row is not seen
        for name in _tables(db):
            columns = [column for _, column, *_ in db.execute(f'PRAGMA main.table_info("{name}")')]
            old, new = (", ".join(f'{which}."{column}"' for column in columns) for which in ("old", "new"))
            gone, here = f"row_changes('{name}', -1, {old})", f"row_changes('{name}', 1, {new})"
            for event, told in (("INSERT", here), ("DELETE", gone), ("UPDATE", f"{gone}, {here}")):
                db.execute(
                    f'CREATE TEMP TRIGGER "{name}_{event}" AFTER {event} ON main."{name}" BEGIN SELECT {told}; END'
                )

    def forget(self) -> None:
        """Forget the changes of an earlier transaction that was rolled back, as a new one begins."""
        self._changed.clear()

    def write(self) -> None:
        """Add the changes of this transaction to the sums, as it ends."""
        for name, change in self._changed.items():
            ((before,),) = self._db.execute("SELECT sum FROM sums WHERE name = ?", (name,))
            self._db.execute("UPDATE sums SET sum = ? WHERE name = ?", (_signed(before + change), name))
        self._changed.clear()

    def _note(self, name: str, sign: int, *row: Any) -> None:
        self._changed[name] += sign * _digest(name, self._encode(row))


def differing(db: sqlite3.Connection) -> str:
    """Name the first table whose rows are not those that were written; return "" if all match, or there are no sums.
    Raises sqlite3.DatabaseError, UnicodeDecodeError."""
    if not db.execute(f"SELECT 1 FROM {SCHEMA_TABLE} WHERE name = 'sums'").fetchone():
        return ""
    known = dict(db.execute("SELECT name, sum FROM sums"))
    for name in [SCHEMA_TABLE, *_tables(db)]:
        if known.pop(name, None) != _signed(sum_of(db, name)):
            return (
                f"table {name} does not hold what was written there" if name != SCHEMA_TABLE else "its schema changed"
            )
    return f"table {min(known)} is gone" if known else ""


def sum_of(db: sqlite3.Connection, name: str) -> int:
    """Return the sum of all rows that a table has now."""
    encode, total = msgspec.msgpack.Encoder().encode, 0
    rows = db.execute(_SCHEMA_ROWS if name == SCHEMA_TABLE else f'SELECT * FROM "{name}" NOT INDEXED')
    for row in rows:
        total += _digest(name, encode(row))
    return total % _WORD


def _digest(name: str, row: bytes) -> int:
    return int.from_bytes(blake2b(row, digest_size=8, key=name.encode()).digest(), "little")


def _signed(number: int) -> int:
    """Return the number as a signed integer of 64 bits, as SQLite stores it."""
    number %= _WORD
    return number - _WORD if number >= _WORD // 2 else number


def _tables(db: sqlite3.Connection) -> list[str]:
    """Return all tables of the file, except the sums and SQLite's own."""
    named = f"SELECT name FROM main.{SCHEMA_TABLE} WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'sums'"
    return [name for (name,) in db.execute(f"{named} ORDER BY name")]
