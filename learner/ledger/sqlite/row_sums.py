"""A sum over all rows of each table, kept in the same file, so that a byte that the disk changed is found at a start.

SQLite looks into the order of its pages, not into what they hold: a flipped bit in a reward is a reward. So each row
has a digest of 64 bits, and each table the sum of those of its rows, modulo 2^64, which does not depend on their order:
what a row adds when it comes it takes when it goes, so a transaction costs by the rows that it changes. (Bellare and
Micciancio, "A New Paradigm for Collision-Free Hashing", 1997, is where such sums are from. They are for disks here, not
against liars: who can write the file can write the sums.)

What always holds: sums and rows are written by one transaction; a table's sum in the file is that of the rows that this
program put there. Only the connection that was given triggers (`Summing`) may write.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from hashlib import blake2b
from typing import Any

import msgspec

SUMS = "CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, sum INTEGER NOT NULL) STRICT;"
"""By table; that of the schema under its own name. Without this table nothing is known of any row, and it is made anew
from what is there."""

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
        """Within the transaction that has made the tables: sum what has no sum yet, and what was just changed; or all,
        `anew`, where another program wrote last."""
        db = self._db
        db.execute(SUMS)
        known = {name for (name,) in db.execute("SELECT name FROM sums")}
        fresh = [name for name in _tables(db) if anew or name not in known or name == "meta"]
        for name in known - {*_tables(db), SCHEMA_TABLE} if anew else ():
            db.execute("DELETE FROM sums WHERE name = ?", (name,))  # of a table that an older format had
        for name in [*fresh, SCHEMA_TABLE]:
            db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (name, _signed(sum_of(db, name))))

    def watch(self) -> None:
        """From now on see every change, by triggers of this connection that the file knows nothing of."""
        db = self._db
        db.execute("PRAGMA recursive_triggers = ON")  # or a row that is replaced would not be seen to go
        for name in _tables(db):
            columns = [column for _, column, *_ in db.execute(f'PRAGMA main.table_info("{name}")')]
            old, new = (", ".join(f'{which}."{column}"' for column in columns) for which in ("old", "new"))
            gone, here = f"row_changes('{name}', -1, {old})", f"row_changes('{name}', 1, {new})"
            for event, told in (("INSERT", here), ("DELETE", gone), ("UPDATE", f"{gone}, {here}")):
                db.execute(
                    f'CREATE TEMP TRIGGER "{name}_{event}" AFTER {event} ON main."{name}" BEGIN SELECT {told}; END'
                )

    def forget(self) -> None:
        """A transaction begins: what an earlier one changed and took back does not count."""
        self._changed.clear()

    def write(self) -> None:
        """A transaction ends: have what it changed in the sums."""
        for name, change in self._changed.items():
            ((before,),) = self._db.execute("SELECT sum FROM sums WHERE name = ?", (name,))
            self._db.execute("UPDATE sums SET sum = ? WHERE name = ?", (_signed(before + change), name))
        self._changed.clear()

    def _note(self, name: str, sign: int, *row: Any) -> None:
        self._changed[name] += sign * _digest(name, self._encode(row))


def differing(db: sqlite3.Connection) -> str:
    """The first table whose rows are not those that were written, in words; "" if all are, or nothing is known. Raises
    sqlite3.DatabaseError, UnicodeDecodeError."""
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
    """The sum of all rows that a table has now."""
    encode, total = msgspec.msgpack.Encoder().encode, 0
    rows = db.execute(_SCHEMA_ROWS if name == SCHEMA_TABLE else f'SELECT * FROM "{name}" NOT INDEXED')
    for row in rows:
        total += _digest(name, encode(row))
    return total % _WORD


def _digest(name: str, row: bytes) -> int:
    return int.from_bytes(blake2b(row, digest_size=8, key=name.encode()).digest(), "little")


def _signed(number: int) -> int:
    """As SQLite's integers are: of 64 bits with a sign."""
    number %= _WORD
    return number - _WORD if number >= _WORD // 2 else number


def _tables(db: sqlite3.Connection) -> list[str]:
    """All tables of the file but the sums, and SQLite's own."""
    named = f"SELECT name FROM main.{SCHEMA_TABLE} WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'sums'"
    return [name for (name,) in db.execute(f"{named} ORDER BY name")]
