"""Milestones in a run: kept beside training, across restarts and kills, and deleted where the disk is full."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection
from node.learner_role.shared.signals import StepTrained
from node.learner_role.training import checkpoints
from node.learner_role.training.resume import find_origin
from node.reports import as_json, as_text, swarm_report
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from tests.node.learner_role.training.test_loop import kill, require_sound
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, open_learner
from tests.support.ledgers import checkpoints_in
from tests.support.trainer_fixture import NOW_MS

pytestmark = pytest.mark.usefixtures("mock_clock")

EVERY_THREE = Settings(steps=12, staleness=2, keep_every=3)
BEST = Settings(steps=12, staleness=2, keep_best=1)

SCORES = {2: 0.4, 5: 0.9, 8: 0.7, 11: 0.6}
"""Scores of versions, by step: the best is in the middle."""


def evaluating(learner: Learner, scores: dict[int, float]) -> None:
    """Evaluate the versions of these steps as soon as they are published."""

    def note(signed: SignedManifest) -> None:
        step = signed.version.version
        if step in scores:
            learner.ledger.training.evaluated(signed.version, NOW_MS, prompts=8, greedy=0.5, sampled=scores[step])

    learner.context.signals.version_published.subscribe(note)


def kept(root: Path) -> list[int]:
    """Return the steps with a checkpoint, after checking that the ledger and the disk agree."""
    rows = checkpoints_in(root / "ledger.sqlite")[1]
    assert sorted(row.directory for row in rows) == sorted(path.name for path in (root / "checkpoints").iterdir())
    return sorted(row.step for row in rows)


async def test_the_first_of_every_so_many_steps_stay(tmp_path: Path) -> None:
    async with open_learner(tmp_path, EVERY_THREE) as learner:
        peer = FakePeer()
        await learner.train(peer)
        assert kept(tmp_path) == [3, 6, 9, 11, 12]
        require_sound(learner, peer)


async def test_the_best_by_evaluation_stays(tmp_path: Path) -> None:
    async with open_learner(tmp_path, BEST) as learner:
        evaluating(learner, SCORES)
        await learner.train(FakePeer())
        assert kept(tmp_path) == [5, 11, 12]


async def test_a_checkpoint_stays_while_its_version_is_being_evaluated(tmp_path: Path) -> None:
    """The score of step 4 comes long after the newest two checkpoints."""
    async with open_learner(tmp_path, BEST) as learner:
        evaluating(learner, {2: 0.4})
        learner.run.evaluating[4] = 1

        def score(news: StepTrained) -> None:
            if news.row.step == 9:
                learner.ledger.training.evaluated(PolicyVersion(1, 4), NOW_MS, prompts=8, greedy=0.5, sampled=0.9)
                learner.run.evaluating[4] = 0

        learner.context.signals.step_trained.subscribe(score)
        await learner.train(FakePeer())
        assert kept(tmp_path) == [4, 11, 12]


async def test_what_a_restart_has_cut_off_was_never_the_best(tmp_path: Path) -> None:
    settings = Settings(steps=12, staleness=2, keep_best=2)
    async with open_learner(tmp_path, settings) as learner:
        evaluating(learner, {2: 0.4, 7: 0.95})
        await kill(learner, "step_trained", "before", 9)
    for name in ("1.7", "1.8"):
        shutil.rmtree(tmp_path / "checkpoints" / name)
    async with open_learner(tmp_path, settings) as again:
        again.sessions.recover_leases()
        await again.train(FakePeer())
        assert again.ledger.training.begun()[1:] == [(2, 2)], "the milestone alone could be read"
        assert kept(tmp_path) == [2, 11, 12]


@pytest.mark.parametrize("settings", [EVERY_THREE, BEST], ids=["every", "best"])
@pytest.mark.parametrize(
    ("call", "moment", "at"),
    [("checkpointed", "before", 8), ("checkpointed", "after", 8), ("checkpoints_removed", "before", 3),
     ("checkpoints_removed", "after", 3), ("step_trained", "after", 9)],
)  # fmt: skip
async def test_killed_anywhere_no_milestone_is_lost(
    tmp_path: Path, settings: Settings, call: str, moment: str, at: int
) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, settings) as learner:
        evaluating(learner, SCORES)
        await kill(learner, call, moment, at, peer)
        before = {row.step for row in learner.ledger.training.checkpoints()}
    wanted = {3, 6} if settings is EVERY_THREE else {5} if at > 3 else set()
    assert {step for step in wanted if step <= max(before)} <= before
    async with open_learner(tmp_path, settings) as again:
        evaluating(again, SCORES)
        again.sessions.recover_leases()
        await again.train(peer)
        assert kept(tmp_path) == ([3, 6, 9, 11, 12] if settings is EVERY_THREE else [5, 11, 12])
        require_sound(again, peer)


async def test_a_milestone_keeps_no_payload_of_what_later_steps_trained_on(tmp_path: Path) -> None:
    """Otherwise a ledger would grow for as long as the run lasts."""

    def payloads() -> int:
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
            return int(db.execute("SELECT count(*) FROM records WHERE envelope IS NOT NULL").fetchone()[0])

    async with open_learner(tmp_path, EVERY_THREE) as learner:
        await learner.train(FakePeer())
    with_milestones = payloads()
    assert kept(tmp_path)[0] == 3
    assert with_milestones <= 4 * Settings().staleness + 3 * 4, (
        "only payloads of the last steps and of waiting rollouts may stay"
    )


async def test_a_start_that_has_nothing_better_goes_on_from_a_milestone(tmp_path: Path) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, EVERY_THREE) as learner:
        await kill(learner, "step_trained", "before", 10, peer)
    for step in (8, 9):
        (tmp_path / "checkpoints" / f"1.{step}" / "trainer.json").write_text("{")
    async with open_learner(tmp_path, EVERY_THREE) as again:
        again.sessions.recover_leases()
        await again.train(peer)
        assert again.ledger.training.begun() == [(1, 0), (2, 6)]
        assert again.capacity.chain.head == PolicyVersion(2, 12)
        assert kept(tmp_path) == [3, 6, 9, 11, 12]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


async def test_milestones_give_way_where_the_disk_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Milestones at intervals go first, from the oldest on, then the best; the newest never goes."""
    settings = Settings(steps=14, staleness=2, keep_every=3, keep_best=1, keep_milestones=9)
    room = [2]  # so many checkpoints must go before there is room

    def usage(path: Path) -> Usage:
        there = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        return Usage(total=0, used=0, free=10**9 if len(seen - there) >= room[0] else 0)

    seen: set[str] = set()
    trainer = FakeTrainer(failing={13})
    async with open_learner(tmp_path, settings, trainer=trainer) as learner:
        evaluating(learner, {4: 0.9})
        emit = learner.training.events.emit

        def emitted(event: str, **fields: Any) -> None:
            if event == "checkpoint_failed":
                seen.update(path.name for path in (tmp_path / "checkpoints").iterdir())
                monkeypatch.setattr(checkpoints.shutil, "disk_usage", usage)
            emit(event, **fields)

        monkeypatch.setattr(learner.training.events, "emit", emitted)
        await learner.train(FakePeer())
        assert [fields["step"] for fields in learner.logged("milestone_given_up")] == [3, 6]
        assert kept(tmp_path) == [4, 9, 12, 14]
        assert learner.logged("checkpoint_failed")[0]["directory"] == "1.13"


async def test_a_checkpoint_that_fails_with_room_to_spare_costs_no_milestone(tmp_path: Path) -> None:
    async with open_learner(tmp_path, EVERY_THREE, trainer=FakeTrainer(failing={10})) as learner:
        await learner.train(FakePeer())
        assert learner.logged("milestone_given_up") == []
        assert kept(tmp_path) == [3, 6, 9, 11, 12]


async def test_reports_and_forks_know_them(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    async with open_learner(origin, Settings(steps=12, staleness=2, keep_every=6, keep_best=1)) as learner:
        evaluating(learner, SCORES)
        await learner.train(FakePeer())
    report = swarm_report(origin / "ledger.sqlite")
    assert [(one.step, one.evaluated, one.sampled) for one in report.checkpoints] == [
        (5, 5, 0.9), (6, None, None), (11, 11, 0.6), (12, None, None),
    ]  # fmt: skip
    text = " ".join(as_text(report).split())
    assert "checkpoints kept from training steps 5 (sampled 0.900), 6, 11 (sampled 0.600), 12" in text
    assert '"checkpoints": [' in as_json(report)
    (origin / "learner.key").touch()
    config = SwarmConfig(
        swarm=SwarmSection(name="fork", state=str(tmp_path / "fork")),
        model=ModelSection(directory="model"),
        learn=LearnSection(steps=12),
    )
    row = find_origin(f"{origin}@5", config, lambda state: None).row
    assert (row.step, row.directory) == (5, "1.5")


def steps_of(rows: Iterable[Any]) -> list[int]:
    return [row.step for row in rows]


async def test_other_keys_are_heeded_from_the_next_checkpoint_on(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=9, staleness=2, keep_every=3)) as learner:
        await learner.train(FakePeer())
        assert kept(tmp_path) == [3, 6, 8, 9]
    async with open_learner(tmp_path, Settings(steps=10, staleness=2, keep_every=6)) as again:
        again.sessions.recover_leases()
        assert steps_of(again.ledger.training.checkpoints()) == [9, 8, 6, 3], "a start removed a checkpoint"
        await again.train(FakePeer())
        assert kept(tmp_path) == [6, 9, 10]
