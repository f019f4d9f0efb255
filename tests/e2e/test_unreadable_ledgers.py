"""Run every command that opens a ledger on one that cannot be read: it refuses clearly, and changes not a byte.

The ledger is locked, corrupt, cut short or empty. Or it is no file, not a database, another program's, of a newer
version, or not ours to read. Other tests have rows that no learner writes. The commands are run as people run
them, one after the other, on the state of a learner that has worked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from learner.ledger.sqlite import database as ledger_file
from node.learner_role.preflight import look_at
from node.runtime.events import Clock
from node.state.learner_state import open_learner_home
from tests.e2e.programs import Swarm
from tests.e2e.test_bad_input import check_paragraph
from tests.support.learner_fixture import fast_directory
from tests.support.ledgers import ALPHA, demo_run

RECORD = "00"
"""The beginning of some record's id, or of none."""

PAGE_BYTES = 4096


@pytest.fixture(scope="session")
def worked() -> Iterator[Path]:
    """The ledger of a run of forty steps, with a lease, a plan and refusals."""
    with fast_directory() as directory:
        demo_run(directory / "ledger.sqlite", restart_at=20)
        with closing(sqlite3.connect(directory / "ledger.sqlite")) as db:
            db.execute("UPDATE lease_rows SET status = 'lost' WHERE status = 'open'")
            said = '{"curriculum": {}, "leases": 1, "records": 1}'
            db.execute("INSERT OR REPLACE INTO checkpoints VALUES (40, 1, '1.40', 0, ?)", (said,))
            db.commit()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield directory / "ledger.sqlite"


@pytest.fixture
def ran(swarm: Swarm, worked: Path, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    """A swarm whose learner has worked, and is not running."""
    monkeypatch.setattr(ledger_file, "BUSY_S", 0.01)
    swarm.configure()
    home = open_learner_home(swarm.state, name="swarm", certificate_days=90, now_ms=Clock.now_ms())
    home.close()
    curriculum = json.dumps(look_at(swarm.config).suite.state())
    of_its_tasks = f"UPDATE checkpoints SET state = json_set(state, '$.curriculum', json('{curriculum}'))"
    of_its_swarm = f"UPDATE meta SET value = X'{home.authority.swarm.hex()}' WHERE key = 'swarm'"
    shutil.copyfile(worked, swarm.ledger_file)
    sql(of_its_swarm, of_its_tasks)(swarm.ledger_file)
    (swarm.state / "checkpoints" / "1.40").mkdir(parents=True)
    return swarm


def commands(swarm: Swarm, out: Path) -> dict[str, tuple[object, ...]]:
    """Return every command that opens a ledger, by its name here. `plan`, `simulate` and `drill` open none of a
    swarm's: they take a recording, or make a ledger of their own.
    """
    other = swarm.directory / "fork.toml"
    other.write_text(swarm.config.read_text().replace("[swarm]", f'[swarm]\nstate = "{out / "fork"}"'))
    return {
        "learn": ("learn", swarm.config, "--plain"),
        "learn --resume": ("learn", swarm.config, "--resume"),
        "learn --dry-run": ("learn", swarm.config, "--dry-run"),
        "learn --fork-from": ("learn", other, "--fork-from", swarm.config),
        "report": ("report", swarm.config),
        "report --json": ("report", swarm.config, "--json"),
        "report --csv": ("report", swarm.config, "--csv"),
        "report --html": ("report", swarm.config, "--html", out / "report.html"),
        "report --picture": ("report", swarm.state, "--picture", out / "report.png"),
        "status": ("status", swarm.config),
        "status --json": ("status", swarm.state, "--json"),
        "why": ("why", ALPHA, swarm.config),
        "why --replay": ("why", ALPHA, swarm.config, "--replay"),
        "why LEASE": ("why", "00000000", swarm.config),
        "ban": ("ban", ALPHA, swarm.config),
        "pardon": ("pardon", ALPHA, swarm.config),
        "receipts list": ("receipts", "list", swarm.config),
        "receipts export": ("receipts", "export", swarm.config, "--out", out / "receipts.jsonl", "--proofs"),
        "prove": ("prove", RECORD, swarm.config),
        "reputation export": ("reputation", "export", swarm.config, "--out", out / "reputation.jsonl"),
        "samples": ("samples", swarm.config),
    }


def digests(swarm: Swarm) -> dict[str, str]:
    """Return the digests of the files at the ledger's place and beside it. An empty file beside it is no data."""
    found = sorted(swarm.state.glob("ledger.sqlite*"))
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a directory"
        for path in found
        if not path.name.endswith("-shm") and (path.name == "ledger.sqlite" or path.is_dir() or path.stat().st_size)
    }


@dataclass(frozen=True, kw_only=True)
class Damage:
    """How a ledger is damaged, the words that every refusal has, and the commands that need not open it and work all
    the same.
    """

    do: Callable[[Path], None]
    words: tuple[str, ...] = ("ledger.sqlite",)
    holds: Callable[[Path], AbstractContextManager[None]] = field(default=lambda path: nobody(path))
    spared: frozenset[str] = field(default_factory=frozenset)


def overwrite(at: Callable[[int], int], data: bytes) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(at(size))
            file.write(data)

    return do


def every_page_but_the_first(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(1, size // PAGE_BYTES):
            file.seek(page * PAGE_BYTES)
            file.write(b"\xde\xad\xbe\xef" * 64)


def cut(share: float) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share) // PAGE_BYTES * PAGE_BYTES + 100)

    return do


def text(path: Path) -> None:
    path.write_text("SQLite format 4, almost\n" * 500)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sql(*statements: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for statement in statements:
                db.executescript(statement)
            db.execute("DROP TABLE IF EXISTS sums")  # readers of the file must find the change
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return do


def another_program(path: Path) -> None:
    path.unlink()
    sql("CREATE TABLE notes (text TEXT)", "INSERT INTO notes VALUES ('mine')")(path)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock the file as another program would, so that no other program can read it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("SELECT count(*) FROM meta").fetchone()
        yield
        db.execute("ROLLBACK")


def left_by_a_killed_writer(statement: str) -> Callable[[Path], None]:
    """Return a damage: the last write lies in a file beside the ledger, and only there."""

    def do(path: Path) -> None:
        beside = path.with_name(path.name + "-wal")
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(statement)
            kept = path.read_bytes(), beside.read_bytes()
        for one, data in zip((path, beside), kept, strict=True):
            one.write_bytes(data)

    return do


@contextmanager
def another_user(path: Path) -> Iterator[None]:
    """Be a user who may look into the directory, but not read the ledger."""
    for above in path.parents:
        if above.stat().st_mode & 0o005 != 0o005:
            above.chmod(0o755)
    for key in path.parent.glob("*.key"):
        key.chmod(0o600)
    path.chmod(0)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        path.chmod(0o600)


@contextmanager
def nobody(path: Path) -> Iterator[None]:
    """Hold no lock on it."""
    yield


def nothing(path: Path) -> None:
    """Do nothing to it."""


READ_ALL_THE_SAME = frozenset(
    {
        *("report", "report --json", "report --csv", "report --html", "report --picture", "status", "status --json"),
        *("why", "why --replay", "why LEASE", "ban", "pardon", "receipts list", "receipts export", "prove", "samples"),
        *("reputation export", "learn --fork-from"),
    }
)
"""Commands that only read a ledger do not check which program it belongs to."""

LEARNS = frozenset({"learn", "learn --resume", "learn --dry-run", "learn --fork-from"})


UNREADABLE: dict[str, Damage] = {
    "locked": Damage(do=nothing, holds=held, words=("ledger.sqlite", "locked")),
    "a header that is none": Damage(do=overwrite(lambda size: 0, b"not a database, not at all......")),
    "a damaged header": Damage(do=overwrite(lambda size: 16, b"\xff" * 40)),
    "a damaged schema": Damage(do=overwrite(lambda size: 100, b"\xff" * 200)),
    "damaged pages": Damage(do=every_page_but_the_first),
    "cut in half": Damage(do=cut(0.5)),
    "cut to a page": Damage(do=lambda path: os.truncate(path, PAGE_BYTES)),
    "cut inside the header": Damage(do=lambda path: os.truncate(path, 50)),
    "empty": Damage(do=lambda path: os.truncate(path, 0), spared=frozenset({"learn --fork-from"})),
    "a directory": Damage(do=directory),
    "text": Damage(do=text),
    "another program's": Damage(do=another_program, words=("ledger.sqlite", "not a ledger")),
    "newer": Damage(
        do=sql("UPDATE meta SET value = X'3939' WHERE key = 'schema'"),
        words=("format 99", "Use the version of volery that wrote"),
    ),
    "newer, and its learner was killed": Damage(
        do=left_by_a_killed_writer("UPDATE meta SET value = X'3939' WHERE key = 'schema'"), words=("format 99",)
    ),
    "another swarm's": Damage(
        do=sql("UPDATE meta SET value = X'00' WHERE key = 'swarm'"),
        words=("belongs to another swarm",),
        spared=READ_ALL_THE_SAME,
    ),
    "not to be read by this user": Damage(do=nothing, holds=another_user, words=(), spared=LEARNS),
    "no version": Damage(do=sql("DELETE FROM meta WHERE key = 'schema'")),
}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_a_state_that_this_user_may_not_enter_is_named(ran: Swarm, tmp_path: Path) -> None:
    given = {name: one for name, one in commands(ran, tmp_path).items() if name not in LEARNS}
    for command in given.values():  # import everything now: another user may not be able to read the modules
        ran.machine.call(*command)
    with another_user(ran.ledger_file), closed(ran.state):
        for called, command in given.items():
            outcome = ran.machine.call(*command)
            assert outcome.code == 1, (called, outcome)
            check_paragraph(outcome.err, str(ran.state), "Permission denied")


@contextmanager
def closed(directory: Path) -> Iterator[None]:
    """Let only root enter the directory."""
    user = os.geteuid()
    os.seteuid(0)
    directory.chmod(0)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        directory.chmod(0o755)


def needs_root(name: str) -> object:
    """Skip unless root runs the test, since only root can act as another user."""
    skipped = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
    return pytest.param(name, marks=[pytest.mark.root, skipped]) if "this user" in name else name


@pytest.mark.parametrize("name", [needs_root(name) for name in UNREADABLE])
def test_a_ledger_that_cannot_be_read_is_refused_and_left_alone(ran: Swarm, tmp_path: Path, name: str) -> None:
    damage, out = UNREADABLE[name], tmp_path / "out"
    out.mkdir()
    damage.do(ran.ledger_file)
    before, given = digests(ran), commands(ran, out)
    with damage.holds(ran.ledger_file):
        for called, command in given.items():
            if called in damage.spared:
                continue
            outcome = ran.machine.call(*command)
            assert outcome.code in (1, 2), (called, outcome)
            check_paragraph(outcome.err, *damage.words)
            assert outcome.out == "" or called == "learn", "only learn may print, the first line of its view"
            assert list(out.glob("*")) == [], called
    assert digests(ran) == before
    assert not (ran.state / "orders").exists()


def test_the_same_commands_work_on_a_ledger_that_can_be_read(ran: Swarm, tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing. Commands that need a learner which has published say what is
    missing.
    """
    out = tmp_path / "out"
    out.mkdir()
    before = digests(ran)
    for called, command in commands(ran, out).items():
        if called.startswith("learn"):
            continue
        outcome = ran.machine.call(*command)
        assert "Traceback" not in outcome.err, (called, outcome)
        print(called, outcome.code, outcome.err[:150], outcome.out[:50])
    assert digests(ran) == before


# Rows that no learner writes: SQLite finds nothing wrong with them.


@dataclass(frozen=True, kw_only=True)
class Row:
    """A statement that makes a row wrong, the commands that find it, and the names in their messages."""

    change: str
    found_by: frozenset[str]
    column: str


REPORTS = frozenset(
    {"report", "report --json", "report --csv", "report --html", "report --picture", "status", "status --json"}
)
OPEN_AGAIN = "UPDATE lease_rows SET status = 'open' WHERE no = 5; DELETE FROM receipts WHERE no = 5;"
GOES_ON = LEARNS - {"learn --fork-from"}

ROWS: dict[str, Row] = {
    "metrics that are none": Row(
        change="UPDATE steps SET metrics = '{' WHERE step = 30", found_by=REPORTS, column="steps.metrics"
    ),
    "metrics of another kind": Row(
        change="UPDATE steps SET metrics = '[1, 2]' WHERE step = 30", found_by=REPORTS, column="steps.metrics"
    ),
    "a plan that is none": Row(
        change="INSERT INTO plans VALUES (99, 1, 1, 0, 'x', '[]')", found_by=REPORTS, column="plans.active"
    ),
    "evidence that is none": Row(
        change=f"INSERT INTO confidence VALUES ('{ALPHA}', 1, 0, 1, '[\"x\"]', '', 0)",
        found_by=REPORTS | {"why", "why --replay", "reputation export"},
        column="confidence.log_wealth",
    ),
    "a checkpoint that is none": Row(
        change="UPDATE checkpoints SET state = 'null'",
        found_by=LEARNS,
        column="checkpoints.state",
    ),
    "counts of a checkpoint that are none": Row(
        change='UPDATE checkpoints SET state = \'{"curriculum": {}, "leases": "x", "records": 1}\'',
        found_by=LEARNS,
        column="checkpoints.state",
    ),
    "an open lease that was forgotten": Row(
        change=f"{OPEN_AGAIN} DELETE FROM lease_payloads WHERE no = 5;",
        found_by=GOES_ON,
        column="leases.envelope",
    ),
    "an open lease that is none": Row(
        change=f"{OPEN_AGAIN} INSERT OR REPLACE INTO lease_payloads VALUES (5, X'C0FFEE');",
        found_by=GOES_ON,
        column="leases.envelope",
    ),
    "a version that is none": Row(
        change=f"{OPEN_AGAIN} UPDATE lease_rows SET started_version = '1' WHERE no = 5;",
        found_by=GOES_ON,
        column="leases.started_version",
    ),
    "a model that is none": Row(
        change="INSERT OR REPLACE INTO meta VALUES ('base_model', X'7B')",
        found_by=GOES_ON,
        column="meta.base_model",
    ),
    "records of a lease that nobody knows": Row(
        change="DELETE FROM lease_rows WHERE no BETWEEN 10 AND 20", found_by=frozenset(), column=""
    ),
    "no peers": Row(change="DELETE FROM peers", found_by=frozenset(), column=""),
    "receipts that are none": Row(
        change="UPDATE receipts SET receipt = X'01'",
        found_by=frozenset({"receipts list"}),
        column="cannot be read",
    ),
    "a tally that is none": Row(
        change="INSERT INTO tallies VALUES (1, 30, 29, X'00')", found_by=frozenset(), column=""
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_no_learner_writes_ends_a_command_in_a_sentence(ran: Swarm, tmp_path: Path, name: str) -> None:
    row, out = ROWS[name], tmp_path / "out"
    out.mkdir()
    sql("PRAGMA foreign_keys = OFF", row.change)(ran.ledger_file)
    before, given = digests(ran), commands(ran, out)
    for called, command in given.items():
        if called in LEARNS and called not in row.found_by:
            continue  # this command would begin to work
        outcome = ran.machine.call(*command)
        assert "Traceback" not in outcome.err, (called, outcome)
        if called in row.found_by:
            assert outcome.code == 1, (called, outcome)
            check_paragraph(outcome.err, row.column)
        elif outcome.code:
            check_paragraph(outcome.err.replace("\n  ", " "))
        assert digests(ran) == before or called == "learn"
