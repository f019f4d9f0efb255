"""Where a run begins: what `--resume` refuses, and what a fork takes with it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.rows import CheckpointRow
from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection, TaskSection
from node.learner_role.training.resume import fork, require_checkpoint, require_memory, unfork
from node.runtime.errors import RunError, UsageError
from node.state.learner_state import open_learner_home
from node.tasks.api.interface import TaskError
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from tests.support.learner_fixture import FakePeer, Settings, open_learner
from tests.support.ledgers import checkpoints_in
from tests.support.trainer_fixture import NOW_MS


def config(state: Path) -> SwarmConfig:
    return SwarmConfig(
        swarm=SwarmSection(name="a fork", state=str(state)),
        model=ModelSection(directory="model"),
        task=TaskSection(spec="reverse"),
        learn=LearnSection(steps=9),
    )


def run(root: Path, *steps: int) -> Path:
    """A state directory whose ledger keeps these checkpoints."""
    home = open_learner_home(root, name="a run", certificate_days=1, now_ms=NOW_MS)
    home.close()
    with Ledger(home.ledger, swarm=home.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, NOW_MS)
        for step in steps:
            row = CheckpointRow(
                step=step, incarnation=1, directory=f"1.{step}", state={"ordinal": 10 * step}, leases=7, records=9
            )
            ledger.training.checkpointed(row, NOW_MS)
            (home.checkpoints / row.directory / "deep").mkdir(parents=True)
            (home.checkpoints / row.directory / "trainer.json").write_text(json.dumps({"steps": step}))
            (home.checkpoints / row.directory / "deep" / "state").write_bytes(bytes([step]))
    return root


def nothing(state: Mapping[str, Any]) -> None:
    pass


def test_what_there_is_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--resume: .*/none has no checkpoint to continue from\. Check \[swarm"):
        require_checkpoint(tmp_path / "none")
    with pytest.raises(UsageError, match="has no checkpoint"):
        require_checkpoint(run(tmp_path / "young"))
    require_checkpoint(run(tmp_path / "old", 3))
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "ledger.sqlite").write_bytes(b"no ledger" * 100)
    with pytest.raises(RunError, match="is damaged, or no ledger"):
        require_checkpoint(tmp_path / "odd")


def test_a_learner_that_has_worked_does_not_begin_anew_without_its_ledger(tmp_path: Path) -> None:
    require_memory(tmp_path / "none")
    require_memory(run(tmp_path / "young"))
    state = run(tmp_path / "old", 3)
    require_memory(state)
    kept = (state / "ledger.sqlite").read_bytes()
    for spoil in (lambda path: path.unlink(), Path.touch, blank):
        spoil(state / "ledger.sqlite")
        with pytest.raises(RunError, match=r"ledger\.sqlite is missing or empty, but .*checkpoints shows"):
            require_memory(state)
    (state / "ledger.sqlite").write_bytes(kept[: len(kept) // 2])
    with pytest.raises(RunError, match="is damaged"):
        require_memory(state)


def test_a_learner_that_was_killed_while_it_made_its_ledger_begins(tmp_path: Path) -> None:
    state = run(tmp_path / "young")
    blank(state / "ledger.sqlite")
    require_memory(state)
    with pytest.raises(UsageError, match="has no checkpoint"):
        require_checkpoint(state)
    with Ledger(state / "ledger.sqlite", swarm=bytes(32)) as ledger:
        assert ledger.training.begin_incarnation(0, NOW_MS) == 1


def blank(path: Path) -> None:
    """A database without a table, as it is in the first moment of its life."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")


@pytest.mark.parametrize(("at", "step"), [("", 5), ("@4", 4), ("@5", 5)])
def test_a_fork_is_a_swarm_of_its_own_that_begins_with_a_checkpoint(tmp_path: Path, at: str, step: int) -> None:
    origin, state, seen = run(tmp_path / "origin", 3, 4, 5), tmp_path / "deeper" / "fork", []
    before = {path: path.read_bytes() for path in origin.rglob("*") if path.is_file()}
    assert fork(f"{origin}{at}", config(state), seen.append, NOW_MS) == step
    assert seen == [{"ordinal": 10 * step}]
    swarm, [row] = checkpoints_in(state / "ledger.sqlite")
    assert (row.step, row.incarnation, row.directory, row.state) == (step, 1, f"1.{step}", seen[0])
    assert (row.leases, row.records) == (0, 0), "its own ledger has none"
    assert (state / "checkpoints" / f"1.{step}" / "deep" / "state").read_bytes() == bytes([step])
    assert json.loads((state / "checkpoints" / f"1.{step}" / "trainer.json").read_text()) == {"steps": step}
    assert swarm != checkpoints_in(origin / "ledger.sqlite")[0]
    for name in ("operator.key", "learner.key", "lease.secret", "genesis"):
        assert (state / name).read_bytes() != (origin / name).read_bytes()
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        [(came_from,)] = db.execute("SELECT value FROM meta WHERE key = 'forked_from'")
    assert came_from == checkpoints_in(origin / "ledger.sqlite")[0]
    assert {path: path.read_bytes() for path in origin.rglob("*") if path.is_file() and path in before} == before
    assert [path.name for path in state.parent.iterdir()] == ["fork"]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("@6", r"no such checkpoint\. It has checkpoints of steps: 5, 4"),
        ("/nowhere", "no such file or directory, and no node here has that name"),
    ],
)
def test_a_fork_of_what_is_not_there(tmp_path: Path, at: str, says: str) -> None:
    origin = run(tmp_path / "origin", 4, 5)
    with pytest.raises(UsageError, match=says):
        fork(f"{origin}{at}", config(tmp_path / "fork"), nothing, NOW_MS)
    assert not (tmp_path / "fork").exists()


def test_a_fork_never_touches_a_state_directory_that_is_in_use(tmp_path: Path) -> None:
    origin, state = run(tmp_path / "origin", 4), run(tmp_path / "other", 2)
    with pytest.raises(UsageError, match=r"is not empty, and a fork is a new swarm\. Choose another \[swarm\] state"):
        fork(str(origin), config(state), nothing, NOW_MS)
    with pytest.raises(UsageError, match="is not empty"):
        fork(str(origin), config(origin), nothing, NOW_MS)
    assert [row.step for row in checkpoints_in(state / "ledger.sqlite")[1]] == [2]


def test_a_fork_never_takes_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "fork").write_text("mine")
    with pytest.raises(UsageError, match="is a file, and a fork is a new swarm"):
        fork(str(run(tmp_path / "origin", 4)), config(tmp_path / "fork"), nothing, NOW_MS)
    assert (tmp_path / "fork").read_text() == "mine"


def test_a_fork_to_other_tasks_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    def restore(state: Mapping[str, Any]) -> None:
        raise TaskError("the task is not the one this run began with")

    with pytest.raises(TaskError):
        fork(str(run(tmp_path / "origin", 4)), config(tmp_path / "fork"), restore, NOW_MS)
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_a_checkpoint_that_was_replaced_meanwhile_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    origin = run(tmp_path / "origin", 4)

    def restore(state: Mapping[str, Any]) -> None:
        shutil.rmtree(origin / "checkpoints" / "1.4")

    with pytest.raises(RunError, match=r"trainer\.json: No such file"):
        fork(str(origin), config(tmp_path / "fork"), restore, NOW_MS)
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_a_fork_that_could_not_begin_is_taken_back_and_one_that_has_begun_is_not(tmp_path: Path) -> None:
    origin = run(tmp_path / "origin", 4)
    fork(str(origin), config(tmp_path / "fork"), nothing, NOW_MS)
    unfork(tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    fork(str(origin), config(tmp_path / "fork"), nothing, NOW_MS)
    with Ledger(
        tmp_path / "fork" / "ledger.sqlite", swarm=checkpoints_in(tmp_path / "fork" / "ledger.sqlite")[0]
    ) as led:
        led.training.begin_incarnation(4, NOW_MS)
    unfork(tmp_path / "fork")
    assert (tmp_path / "fork" / "genesis").exists()


@pytest.mark.usefixtures("mock_clock")
async def test_training_goes_on_in_a_fork_where_the_other_run_was(tmp_path: Path) -> None:
    """The same weights, the same step, under the second incarnation of a ledger that has no steps before."""
    for name in ("origin", "fork"):
        (tmp_path / name).mkdir()
    async with open_learner(tmp_path / "origin", Settings(steps=3)) as learner:
        await learner.train(FakePeer())
        weights = learner.weights_of(learner.ledger.training.manifests()[-1][1])
        [row, *_] = learner.ledger.training.checkpoints()
    async with open_learner(tmp_path / "fork", Settings(steps=6)) as forked:
        forked.ledger.training.forked(own(row), b"another swarm", NOW_MS)
        (tmp_path / "origin" / "checkpoints" / row.directory).rename(_made(tmp_path / "fork") / row.directory)
        seen: list[SignedManifest] = []

        def note(signed: SignedManifest) -> None:
            seen.append(signed)
            if len(seen) == 1:
                assert forked.weights_of(signed.hash) == weights

        forked.context.signals.version_published.subscribe(note)
        await forked.train(FakePeer())
        assert [str(one.version) for one in seen] == ["2.3", "2.4", "2.5", "2.6"]
        assert forked.capacity.chain.head == PolicyVersion(2, 6)
        assert forked.ledger.training.begun() == [(1, 0), (2, 3)]
        assert forked.prompts[0] > row.state["ordinal"], "its task went on where the other was"


def own(row: CheckpointRow) -> CheckpointRow:
    return CheckpointRow(step=row.step, incarnation=1, directory=row.directory, state=row.state)


def _made(root: Path) -> Path:
    (root / "checkpoints").mkdir()
    return root / "checkpoints"
