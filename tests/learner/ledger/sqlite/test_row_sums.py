"""Bytes that the disk changed in a ledger are found before a learner writes to it; sound ones raise no alarm."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.ledger.ledger import Ledger
from learner.ledger.sqlite.database import LedgerError, require_sound
from learner.ledger.sqlite.row_sums import Summing, differing
from tests.support.ledgers import SWARM, demo_run

FLIPS = 60


def contents(path: Path) -> list[list[Any]]:
    """Everything that the ledger tells, by table."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        return [db.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall() for (name,) in tables]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worked") / "ledger.sqlite"
    demo_run(path, restart_at=20)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def test_a_flipped_byte_that_says_something_else_is_found(worked: Path, tmp_path: Path) -> None:
    """Wherever in the file: refused, or every row reads as it did."""
    rng, path, sound = Random(5), tmp_path / "ledger.sqlite", worked.read_bytes()
    told, refused = contents(worked), 0
    for _ in range(FLIPS):
        changed = bytearray(sound)
        changed[rng.randrange(len(sound))] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        try:
            require_sound(path, SWARM)
        except LedgerError:
            refused += 1
        else:
            assert contents(path) == told
        for beside in tmp_path.glob("ledger.sqlite-*"):
            beside.unlink()
    assert refused > FLIPS // 10, "or this shows nothing"


def test_a_sound_ledger_is_taken_up_and_goes_on(worked: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copyfile(worked, path)
    for _ in range(2):
        with Ledger(path, swarm=SWARM) as ledger:
            ledger.training.begun_under({"seed": 3})
    require_sound(path, SWARM)


def test_who_changes_a_row_by_hand_says_so(worked: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copyfile(worked, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE steps SET reward = 9 WHERE step = 3")
    with pytest.raises(LedgerError, match=r"table steps does not hold what was written.*DROP TABLE sums"):
        Ledger(path, swarm=SWARM)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE sums")
    Ledger(path, swarm=SWARM).close()
    require_sound(path, SWARM)


STATEMENTS = st.sampled_from(
    [
        "INSERT INTO one VALUES ({a}, {b}, 'text') ON CONFLICT DO NOTHING",
        "INSERT OR REPLACE INTO one VALUES ({a}, {b}, x'00ff')",
        "INSERT INTO one VALUES ({a}, {b}, 1.5) ON CONFLICT DO UPDATE SET b = excluded.b + 1",
        "UPDATE one SET b = {b} WHERE a <= {a}",
        "UPDATE OR IGNORE one SET a = a + 10 WHERE b = {b}",
        "DELETE FROM one WHERE a = {a}",
        "DELETE FROM one",
        "INSERT INTO two SELECT a, b FROM one",
    ]
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.tuples(STATEMENTS, st.integers(0, 4), st.integers(0, 4)), max_size=4), st.booleans()),
        max_size=8,
    )
)
def test_the_sums_are_those_of_the_rows_after_every_transaction(
    lives: list[tuple[list[tuple[str, int, int]], bool]],
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("CREATE TABLE one (a INTEGER PRIMARY KEY, b INTEGER, c)")
        db.execute("CREATE TABLE two (a INTEGER, b INTEGER)")
        summing = Summing(db)
        summing.begin(anew=False)
        summing.watch()
        for statements, is_kept in lives:
            db.execute("BEGIN")
            summing.forget()
            for statement, a, b in statements:
                db.execute(statement.format(a=a, b=b))
            summing.write()
            db.execute("COMMIT" if is_kept else "ROLLBACK")
            assert differing(db) == ""
