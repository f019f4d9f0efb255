"""`volery compact`, called as an operator calls it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from node.cli.application import app
from node.runtime.errors import NodeError, UsageError
from node.runtime.events import Clock
from node.state.learner_state import held_state, open_learner_home
from tests.support.ledgers import demo_run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A learner's state directory, with a ledger that has worked."""
    root = tmp_path / "state"
    home = open_learner_home(root, name="swarm", certificate_days=90, now_ms=Clock.now_ms())
    home.close()
    demo_run(root / "ledger.sqlite", steps=3)
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'swarm'", (bytes(home.authority.swarm),))
        db.execute("DROP TABLE sums")
    return root


def compact(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compact", *map(str, arguments)])


def packed(state: Path) -> tuple[int, int]:
    """Receipts that are packed, and those that are whole."""
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        one, other = (
            db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("packed_receipts", "receipts")
        )
        return int(one), int(other)


def test_it_packs_and_says_what_came_of_it(state: Path) -> None:
    whole = packed(state)[1]
    told = compact(state)
    assert told.exit_code == 0, told.output
    assert told.output.startswith(f"Packed {whole} receipts of leases that ended more than 7 days ago. {state}")
    assert "Nothing was lost" in told.output
    assert packed(state) == (whole, 0)
    assert compact(state).output.startswith("Packed 0 receipts")


def test_younger_ones_are_left(state: Path) -> None:
    whole = packed(state)[1]
    assert compact(state, "--keep-days", 36_500).output.startswith(
        "Packed 0 receipts of leases that ended more than 36500"
    )
    assert packed(state) == (0, whole)


def test_days_are_those_of_the_configuration(state: Path, tmp_path: Path) -> None:
    config = tmp_path / "swarm.toml"
    sections = '[model]\ndirectory = "model"\n[task]\nspec = "reverse:letters=6"\n[learn]\nsteps = 3\n'
    config.write_text(f'[swarm]\nname = "swarm"\nstate = "state"\nkeep_days = 30000\n{sections}')
    assert "more than 30000 days ago" in compact(config).output


def test_nobody_works_there_meanwhile(state: Path) -> None:
    with held_state(state):
        told = compact(state)
    assert isinstance(told.exception, NodeError)
    assert "learner" in str(told.exception)


@pytest.mark.parametrize("case", ["a node", "no ledger", "nothing"])
def test_other_places_are_refused(state: Path, tmp_path: Path, case: str) -> None:
    match case:
        case "a node":
            (tmp_path / "node").mkdir()
            (tmp_path / "node" / "node.key").write_bytes(b"x" * 32)
            told, said = compact(tmp_path / "node"), "only a learner has a ledger"
        case "no ledger":
            os.remove(state / "ledger.sqlite")
            told, said = compact(state), "there is no ledger yet"
        case _:
            told, said = compact(tmp_path / "nothing"), "no such file or directory"
    assert isinstance(told.exception, NodeError | UsageError)
    assert said in str(told.exception)
