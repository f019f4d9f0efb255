"""Delete files of a learner or a node, running or stopped: it ends with a sentence and loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from learner.ledger.sqlite.files import rescued_files
from tests.e2e.finished import finish, hashed_swarm, surroundings
from tests.e2e.programs import Machine, Program, Swarm, wait_event, wait_for
from tests.e2e.test_bad_input import check_paragraph


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Swarm]:
    """A swarm that is not started yet, with more steps than it will take."""
    machine = Machine(root=tmp_path)
    with surroundings(tmp_path):
        try:
            yield hashed_swarm(machine, steps=4000)
        finally:
            machine.clear()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A swarm whose run is over."""
    root = tmp_path_factory.mktemp("done")
    machine = Machine(root=root)
    with surroundings(root):
        swarm = hashed_swarm(machine)
        try:
            finish(swarm)
            yield swarm
        finally:
            machine.clear()


def refusal(program: Program, code: int, *words: str) -> None:
    assert program.wait() == code, program.story()
    check_paragraph(program.err.read_text(), *words)


@pytest.mark.slow
def test_a_ledger_deleted_under_a_learner_ends_it_and_no_step_is_lost(working: Swarm) -> None:
    learner = working.learn_doomed()
    node = working.join("one")
    working.wait_steps(5, learner, node)
    working.ledger_file.unlink()
    refusal(learner, 1, "ledger.sqlite was removed", "rescued-001", "start again")
    (kept,) = rescued_files(working.ledger_file)
    with closing(sqlite3.connect(kept)) as db:
        ((steps,),) = db.execute("SELECT max(step) FROM steps")
    trained = [event["step"] for event in learner.events("step")]
    assert steps >= max(trained, default=5) >= 5
    again = working.learn_doomed(is_invited=False)
    refusal(again, 1, "is missing or empty", str(kept))
    for beside in working.state.glob("ledger.sqlite-*"):
        beside.unlink()
    kept.rename(working.ledger_file)
    again = working.learn_doomed()
    working.wait_steps(steps + 2, again, node)


@pytest.mark.slow
def test_receipts_deleted_under_a_node_end_it_and_none_is_lost(working: Swarm) -> None:
    learner = working.learn_doomed()
    node = working.join("one")
    wait_event(node, "receipt", learner, after=3)
    books = working.directory / "one" / "receipts.sqlite"
    books.unlink()
    refusal(node, 1, "receipts.sqlite was removed", "rescued-001", "start again")
    (kept,) = rescued_files(books)
    with closing(sqlite3.connect(kept)) as db:
        ((number,),) = db.execute("SELECT count(*) FROM receipts")
    assert number >= 4
    assert learner.is_running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "name", "is_emptied", "code"),
    [
        ("state", "learner.key", False, 2),
        ("state", "genesis", False, 2),
        ("state", "ledger.sqlite", True, 1),
        ("one", "node.key", False, 2),
        ("one", "receipts.sqlite", False, 1),
        ("one", "receipts.sqlite", True, 1),
    ],
)
def test_what_is_gone_at_a_start_is_told_and_not_made_anew(
    done: Swarm, role: str, name: str, is_emptied: bool, code: int
) -> None:
    path = done.directory / role / name
    kept, mode = path.read_bytes(), path.stat().st_mode
    invite = done.invite
    path.unlink()
    if is_emptied:
        path.touch()
    try:
        if role == "state":
            program = done.machine.start("again", done.config, module="tests.e2e.doomed")
        else:
            config = done.directory / "fake.toml"
            program = done.machine.start("again", "join", invite, "--config", config, "--state", path.parent)
        refusal(program, code, str(path), "estore")
        assert not path.exists() or path.stat().st_size == 0
    finally:
        path.write_bytes(kept)
        path.chmod(mode)


@pytest.mark.slow
def test_another_lease_secret_is_told_and_nothing_else_changes(working: Swarm) -> None:
    learner = working.learn_doomed()
    node = working.join("one")
    working.wait_steps(2, learner, node)
    learner.interrupt()
    assert learner.wait() == 130
    (working.state / "lease.secret").unlink()
    again = working.learn_doomed()
    told = wait_for("a trouble", lambda: again.troubles, again, node)
    assert "lease.secret is not the same as before" in told[0]
    working.wait_steps(working.steps_taken + 2, again, node)
