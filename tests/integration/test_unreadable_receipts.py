"""Run every command that opens receipts on a file that cannot be read: it refuses, and changes not a byte.

The damages are those of `tests.e2e.test_unreadable_ledgers`, to the file of a node that has worked.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from node.state import receipt_queries
from tests.e2e.test_unreadable_ledgers import cut, directory, every_page_but_the_first, nothing, overwrite, sql, text
from tests.node.commands.statements.test_command import Ended, made, state_directories, volery

__all__ = ["made", "state_directories"]  # fixtures


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock the file as another program would, so that no other program can read it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("SELECT count(*) FROM meta").fetchone()
        yield
        db.execute("ROLLBACK")


@contextmanager
def nobody(path: Path) -> Iterator[None]:
    yield


DAMAGES: dict[str, tuple[Callable[[Path], None], Callable[[Path], AbstractContextManager[None]], str]] = {
    "locked": (nothing, held, "locked"),
    "a header that is none": (overwrite(lambda size: 0, b"not a database, not at all......"), nobody, "damaged"),
    "a damaged header": (overwrite(lambda size: 16, b"\xff" * 40), nobody, "damaged"),
    "damaged pages": (every_page_but_the_first, nobody, "damaged"),
    "cut in half": (cut(0.5), nobody, "damaged"),
    "empty": (lambda path: os.truncate(path, 0), nobody, ""),
    "a directory": (directory, nobody, ""),
    "text": (text, nobody, "damaged"),
    "newer": (sql("UPDATE meta SET value = X'3939' WHERE key = 'receipts'"), nobody, "Use the volery that wrote it"),
    "another program's": (sql("DELETE FROM meta"), nobody, "not one of receipts"),
}


def commands(node: Path) -> dict[str, tuple[object, ...]]:
    return {
        "report": ("report", node),
        "report --json": ("report", node, "--json"),
        "report --csv": ("report", node, "--csv"),
        "report --html": ("report", node, "--html", "report.html"),
        "status": ("status", node),
        "why": ("why", "00000000", node),
        "receipts list": ("receipts", "list", node),
        "receipts export": ("receipts", "export", node, "--out", "all.jsonl", "--proofs"),
        "prove": ("prove", "00", node),
    }


def require_refused(ended: Ended, path: Path, word: str) -> None:
    assert ended.code == 1, ended
    assert ended.out == ""
    assert ended.err.startswith("volery: error: "), ended
    assert ended.err.endswith(".\n")
    assert "Traceback" not in ended.err
    assert str(path) in ended.err
    assert word in ended.err


@pytest.mark.parametrize("name", DAMAGES)
def test_receipts_that_cannot_be_read_are_refused_and_left_alone(
    state_directories: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(receipt_queries, "BUSY_S", 0.01)
    damage, holds, word = DAMAGES[name]
    path = state_directories / "node" / "receipts.sqlite"
    sql("PRAGMA wal_checkpoint(TRUNCATE)")(path)
    damage(path)
    before = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    with holds(path):
        for command in commands(state_directories / "node").values():
            require_refused(volery(*command), path, word)
    assert (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "") == before
    assert not Path("all.jsonl").exists()
    assert not Path("report.html").exists()
