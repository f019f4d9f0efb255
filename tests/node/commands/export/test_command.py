"""`volery export` of versions that the store has evicted: made again from a checkpoint, whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.rows import CheckpointRow
from node.commands.export.command import export_version
from node.commands.init.command import write_swarm_config
from node.config.loader import read_swarm_config
from node.runtime.errors import RunError, UsageError
from node.state.learner_state import open_learner_home
from tests.e2e.hashing_trainer import STATE
from tests.support.trainer_fixture import NOW_MS

TRAINER = (sys.executable, "-m", "tests.e2e.hashing_trainer")

WEIGHTS = sha256(b"of step 5").digest()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A learner's swarm.toml and state, with checkpoints of the steps 5 and 9, and no version in its store."""
    path = write_swarm_config(tmp_path / "swarm", name="s", port=4001)
    found = read_swarm_config(path)
    state = Path(found.swarm.state)
    home = open_learner_home(state, name="s", certificate_days=30, now_ms=NOW_MS)
    home.close()
    (state / "store").mkdir(exist_ok=True)
    with Ledger(home.ledger, swarm=home.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, NOW_MS)
        for step in (5, 9):
            made = home.checkpoints / f"1.{step}"
            made.mkdir(parents=True)
            (made / STATE).write_text(json.dumps({"weights": WEIGHTS.hex(), "history": [["x"]] * step}))
            ledger.training.checkpointed(CheckpointRow(step=step, incarnation=1, directory=made.name, state={}), NOW_MS)
    return path


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.parent.iterdir())


def export(config: Path, directory: Path, wanted: str, trainer: Sequence[str] = TRAINER) -> str:
    return export_version(config, directory, wanted, trainer=trainer)


@pytest.mark.parametrize("wanted", ["5", "1.5"])
def test_a_version_is_made_again_of_its_checkpoint(config: Path, tmp_path: Path, wanted: str) -> None:
    out = tmp_path / "out" / "model"
    said = export(config, out, wanted)
    assert WEIGHTS in (out / "model.safetensors").read_bytes()
    assert said.startswith("Wrote version 1.5 (")
    assert f"to {out}, made from its checkpoint" in said
    assert left(out) == ["model"], "and nothing beside it"
    with pytest.raises(UsageError, match="already exists"):
        export(config, out, wanted)


def test_what_is_kept_nowhere_is_named_with_what_is(config: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"--version 7 is not, or no longer, kept here\. The store holds: none; checkpoints: 1\.5, 1\.9\.",
    ):
        export(config, tmp_path / "model", "7")
    with pytest.raises(RunError, match="holds no complete version yet"):
        export(config, tmp_path / "model", "")


def test_a_state_directory_does_not_say_which_model_it_was(config: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"name the swarm\.toml instead of"):
        export(config.parent / "state", tmp_path / "model", "5")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("trainer", "words"),
    [(TRAINER, "restore an older one"), ((sys.executable, "-c", "raise SystemExit(3)"), "trainer process")],
)
def test_where_it_cannot_be_made_nothing_is_left(
    config: Path, tmp_path: Path, trainer: Sequence[str], words: str
) -> None:
    (config.parent / "state" / "checkpoints" / "1.5" / STATE).write_text("{")
    out = tmp_path / "out" / "model"
    with pytest.raises(RunError, match=words) as told:
        export(config, out, "5", trainer)
    assert "Version 1.5 is no longer in the store, and could not be made from its checkpoint" in str(told.value)
    assert left(out) == []
