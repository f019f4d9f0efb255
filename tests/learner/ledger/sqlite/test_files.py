"""A ledger file that is deleted, replaced or loses its log while in use: this is detected, and nothing is lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.sqlite.database import LedgerError, snapshot
from learner.ledger.sqlite.files import connect, rescued_files
from tests.support.trainer_fixture import NOW_MS, SWARM


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def without_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def all_of_it(path: Path) -> None:
    for one in path.parent.glob("ledger.sqlite*"):
        one.unlink()


TAKEN: dict[str, Callable[[Path], object]] = {
    "deleted": os.unlink,
    "with its log": all_of_it,
    "replaced": replaced,
    "moved": moved,
    "its log alone": without_log,
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_ledger_that_is_taken_away_ends_the_run_and_nothing_is_lost(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, swarm=SWARM.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, NOW_MS)
        ledger.training.begun_under({"seed": 5})
        TAKEN[name](path)
        for _ in range(2):  # and again: it does not go on after that
            with pytest.raises(LedgerError, match=r"while the learner used it.*rescued-001.*start again"):
                ledger.training.begun_under({"seed": 6})
    (kept,) = rescued_files(path)
    with snapshot(kept) as db:
        assert db.query("SELECT value FROM meta WHERE key = 'settings'") == [(b'{"seed": 5}',)]
    path.unlink(missing_ok=True)
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    kept.rename(path)
    with Ledger(path, swarm=SWARM.authority.swarm) as again:  # as the sentence says
        assert again.training.settings() == {"seed": 5}


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "."):
        for read_only in (True, False):
            with pytest.raises(OSError, match=r"pipe|directory|links"):
                connect(tmp_path / name, timeout_s=1, read_only=read_only)
    with closing(connect(tmp_path / "new", timeout_s=1)) as db:
        db.execute("CREATE TABLE one (two)")
    with pytest.raises(sqlite3.OperationalError), closing(connect(tmp_path / "new", timeout_s=1, read_only=True)) as db:
        db.execute("CREATE TABLE two (two)")
