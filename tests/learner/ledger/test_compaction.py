"""Ledgers that are compacted, and ledgers of old formats: they read the same after any interruption."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from learner.ledger import compaction
from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.sqlite.database import LedgerError
from learner.ledger.sqlite.row_sums import Summing
from learner.ledger.work_tables import put_lease_payload, put_receipt
from learner.trust.relay_credit import Credit
from protocol.core.dates import DAY_MS
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion
from protocol.work import Receipt, Rule, Verdict
from tests.support.disks import file_limit
from tests.support.dying_ledgers import killed_at
from tests.support.ledgers import ALPHA, BETA, START_MS, SWARM, demo_run
from tests.support.plain_ledgers import LEASE_COLUMNS, RECORD_COLUMNS, make_plain
from tests.support.store_fixture import small_swarm

EVER = 1 << 60
KEYS = small_swarm()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a run of some steps, with a restart, and receipts as a learner signs them."""
    path = tmp_path_factory.mktemp("run") / "ledger.sqlite"
    demo_run(path, steps=2)
    with closing(Ledger(path, swarm=SWARM)) as ledger, ledger.transaction() as db:
        for lease in [one.lease for one in ledger.evidence.receipts()]:
            put_receipt(db, lease, signed(ledger, lease))
    return path


def signed(ledger: Ledger, lease: LeaseId) -> bytes:
    rows = ledger.query("SELECT record, idx, rule, reward FROM records WHERE lease = ? ORDER BY rowid", (lease,))
    receipt = Receipt(
        lease=lease,
        peer=ledger.work.lease(lease).peer,
        version=PolicyVersion(1, 3),
        issued_ms=START_MS,
        tokens=28,
        verdicts=[Verdict(record=r, index=i, rule=Rule(rule), reward=reward) for r, i, rule, reward in rows],
        certificate=KEYS.certificate,
    )
    return sign(KEYS.learner, KEYS.authority.swarm, receipt)


@pytest.fixture
def path(run: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copyfile(run, tmp_path / "ledger.sqlite")
    return tmp_path / "ledger.sqlite"


def told(path: Path) -> dict[str, Any]:
    """All leases and records, and all receipts as they were signed, by every way to read them."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        columns = LEASE_COLUMNS.replace("receipt,", "receipt IS NOT NULL,")
        leases = db.execute(f"SELECT {columns} FROM leases ORDER BY rowid").fetchall()
        records = db.execute(f"SELECT {RECORD_COLUMNS} FROM records ORDER BY rowid").fetchall()
    with read_ledger(path) as ledger:
        given = [(one.rowid, one.lease, one.peer, one.receipt) for one in ledger.evidence.receipts()]
        assert [ledger.evidence.receipt_for(lease) for _, lease, _, _ in given] == [raw for *_, raw in given]
        assert [ledger.work.receipt_of(lease, peer) for _, lease, peer, _ in given] == [raw for *_, raw in given]
        newest = ledger.evidence.newest_receipts(1000, ALPHA)
        assert set(newest) == {raw for _, _, peer, raw in given if peer == ALPHA}
        return {"leases": leases, "records": records, "receipts": given, "newest": newest}


def compacted(path: Path, before_ms: int = EVER, most: int = 7) -> int:
    """Pack, a few in each round, and shrink; return how many were packed."""
    packed = 0
    with closing(Ledger(path, swarm=SWARM)) as ledger:
        while found := ledger.compaction.pack_receipts(before_ms, most):
            packed += found
        ledger.compaction.shrink()
    return packed


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_what_is_compacted_reads_as_before(path: Path) -> None:
    before = told(path)
    assert compacted(path) == len(before["receipts"]) > 25
    assert told(path) == before
    assert count(path, "receipts") == 0
    assert compacted(path) == 0
    with closing(Ledger(path, swarm=SWARM)) as ledger:
        assert ledger.work.counts() == (len(before["leases"]), len(before["records"]))


def test_younger_ones_stay_whole(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        closed = sorted(ms for (ms,) in db.execute("SELECT closed_ms FROM leases WHERE receipt IS NOT NULL"))
    limit = closed[len(closed) // 2]
    older = sum(ms < limit for ms in closed)
    assert 0 < older < len(closed)
    assert compacted(path, limit) == older
    assert count(path, "receipts") == len(closed) - older


def test_a_receipt_that_is_revised_after_it_was_packed_is_the_new_one(path: Path) -> None:
    compacted(path)
    lease = LeaseId(told(path)["receipts"][3][1])
    with closing(Ledger(path, swarm=SWARM)) as ledger:
        with ledger.transaction() as db:
            put_receipt(db, lease, b"\x95 another")
        assert ledger.evidence.receipt_for(lease) == b"\x95 another"
        assert ledger.compaction.pack_receipts(EVER) == 1
        assert ledger.evidence.receipt_for(lease) == b"\x95 another"
    assert len(told(path)["receipts"]) == count(path, "packed_receipts")


def test_a_packed_receipt_that_the_disk_changed_is_said(path: Path) -> None:
    compacted(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE packed_receipts SET receipt = CAST(substr(receipt, 1, 30) AS BLOB)")
        db.execute("DROP TABLE sums")
    with pytest.raises(
        LedgerError, match=r"ledger\.sqlite: packed_receipts\.receipt has a value that no learner writes"
    ):
        told(path)


def test_without_room_nothing_is_shrunk_and_nothing_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = told(path), os.statvfs

    def full(place: Path) -> os.statvfs_result:
        found = list(real(place))
        found[4] = 0  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(compaction.os, "statvfs", full)
    with pytest.raises(LedgerError, match="only 0 are free there"):
        compacted(path)
    assert told(path) == before
    assert count(path, "receipts") == 0, "they are packed"


def test_a_disk_that_is_full_at_any_point_of_a_compaction_costs_nothing(path: Path, tmp_path: Path) -> None:
    """No file may grow beyond so many bytes; then there is room again, and the same goes on from there."""
    before, size = told(path), path.stat().st_size
    failed, room = 0, 0
    while True:
        here = tmp_path / str(room) / path.name
        here.parent.mkdir()
        shutil.copyfile(path, here)
        with suppress(LedgerError), file_limit(max(room, 1)):
            compacted(here)
            break
        failed += 1
        assert told(here) == before
        compacted(here)
        assert told(here) == before
        assert count(here, "receipts") == 0
        room += size // 12
    assert failed >= 5
    assert told(here) == before


# Killed at every statement.


@pytest.mark.rest
def test_killed_at_any_statement_of_a_compaction_nothing_is_lost(path: Path, tmp_path: Path) -> None:
    before, died = told(path), 0

    def work(ledger: Ledger) -> None:
        ledger.compaction.pack_receipts(EVER, 5)
        ledger.compaction.shrink()

    for statement in range(1, 1000):
        copy = tmp_path / f"killed-{statement}.sqlite"
        shutil.copyfile(path, copy)
        if not killed_at(copy, SWARM, statement, work):
            break
        died += 1
        assert told(copy) == before, f"killed at statement {statement}"
        compacted(copy)
        assert told(copy) == before
        assert count(copy, "receipts") == 0
        copy.unlink()
    assert died > 20


# Formats of before.


@pytest.mark.parametrize("schema", [1, 2, 6, 7])
def test_a_ledger_of_before_is_taken_over_and_reads_as_before(path: Path, schema: int) -> None:
    before = told(path)
    with closing(sqlite3.connect(path)) as db:
        fresh = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    make_plain(path, schema)
    with closing(sqlite3.connect(path)) as db:
        old = db.execute(f"SELECT {LEASE_COLUMNS} FROM leases ORDER BY rowid").fetchall()
        assert [row[:11] for row in old] == [row[:11] for row in before["leases"]]
    assert told(path) == before, "a program that only reads must see the same"
    Ledger(path, swarm=SWARM).close()
    assert told(path) == before
    with closing(sqlite3.connect(path)) as db:
        made = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    assert {" ".join(sql.replace('"', "").split()) for sql in made} == {" ".join(sql.split()) for sql in fresh}
    with closing(Ledger(path, swarm=SWARM)) as ledger:  # found sound, and written to as any other
        ledger.work.leases_closed([LeaseId(lease[1]) for lease in before["leases"]], "lost", START_MS + DAY_MS)


@pytest.mark.rest
def test_killed_while_it_is_taken_over_it_is_the_old_one_or_the_new_one(path: Path, tmp_path: Path) -> None:
    before = told(path)
    make_plain(path)

    class Dying(Ledger):
        statement = 0

        def _prepare(self) -> None:
            left = iter(range(self.statement))
            self._db.set_trace_callback(lambda sql: None if next(left, None) is not None else os._exit(9))
            super()._prepare()

    for statement in range(1, 2000, 4):
        copy = tmp_path / f"killed-{statement}.sqlite"
        shutil.copyfile(path, copy)
        if (child := os.fork()) == 0:
            try:
                Dying.statement = statement
                Dying(copy, swarm=SWARM)
            finally:
                os._exit(0)
        if not os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            break
        assert told(copy) == before, f"killed at statement {statement}"
        Ledger(copy, swarm=SWARM).close()
        assert told(copy) == before
        copy.unlink()
    assert statement > 40


def test_a_ledger_of_before_that_the_disk_changed_is_not_taken_over(path: Path) -> None:
    make_plain(path)
    with closing(sqlite3.connect(path)) as db, db:
        Summing(db).begin(anew=True)  # as format 7 has them
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE records SET reward = 0.75 WHERE rowid = 3")
    with pytest.raises(LedgerError, match="table records does not hold what was written there"):
        Ledger(path, swarm=SWARM)


def test_a_receipt_of_a_lease_that_is_not_there_is_nobodys(path: Path) -> None:
    before = told(path)
    with closing(Ledger(path, swarm=SWARM)) as ledger, ledger.transaction() as db:
        put_receipt(db, LeaseId(b"?" * 16), b"\x95 a stranger's")
        put_lease_payload(db, LeaseId(b"?" * 16), b"a stranger's")
    assert told(path) == before


def test_notes_keep_their_numbers(path: Path) -> None:
    """Nodes ask for those beyond the last that they have: SQLite must not number them anew."""
    with closing(Ledger(path, swarm=SWARM)) as ledger:
        credits = [
            Credit(receiver=ALPHA, manifest=ManifestHash(bytes([number]) * 32), shares={BETA: 5}, raw=b"receipt")
            for number in range(6)
        ]
        ledger.peers.relays_credited(credits, START_MS, lambda one: b"note %d" % one.manifest[0])
        with ledger.transaction() as db:
            db.execute("DELETE FROM credit_notes WHERE rowid IN (1, 4)")
        notes = ledger.evidence.notes_for(BETA, 0, 99)
        assert [number for number, _ in notes] == [2, 3, 5, 6]
        ledger.compaction.shrink()
        assert ledger.evidence.notes_for(BETA, 0, 99) == notes
