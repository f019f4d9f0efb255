"""Publish versions while the trainer trains on: in order, and bounded.

Nothing is left when a process ends in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from learner.provisioning.estimation.broadcasts import UNDER_WAY
from learner.provisioning.estimation.learner_time import TimeKind
from node.runtime.errors import RunError
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from tests.node.learner_role.training.test_loop import manifests, require_chain, require_sound, skipped, unwrapped
from tests.support.learner_fixture import FakePeer, FakeTrainer, Killed, Settings, crash_once, open_learner

LONG = 2
"""So many more requests an export takes: the next step, and others."""


async def test_the_trainer_trains_on_while_a_version_is_exported(tmp_path: Path) -> None:
    trainer = slow_trainer(steps=6)
    async with open_learner(tmp_path, Settings(beside=True, steps=6, staleness=3), trainer=trainer) as learner:
        seen, peer = manifests(learner), FakePeer()
        trained: list[tuple[int, int]] = []

        def note(signed: SignedManifest) -> None:
            trained.append((signed.version.version, learner.capacity.chain.head.version))

        learner.context.signals.version_published.subscribe(note)
        await learner.train(peer)
        assert any(head > version for version, head in trained[1:]), "steps went on"
        assert trained[-1] == (6, 6), "the last one is waited for"
        require_chain(learner, seen)
        require_sound(learner, peer)
        assert set(range(7)) - {version for version, _ in trained} <= skipped(learner)


def slow_trainer(*, steps: int, more: Callable[[str, str], None] = lambda op, moment: None) -> FakeTrainer:
    """One whose exports take LONG more requests, until it has taken its last step, and has nothing else to do."""

    def script(op: str, moment: str) -> None:
        more(op, moment)
        if (op, moment) == ("step", "after") and trainer._steps == steps:
            trainer.requests_to_export = 0
            trainer.export_all()

    trainer = FakeTrainer(script=script, requests_to_export=LONG)
    return trainer


@pytest.mark.parametrize(("staleness", "kappa"), [(0, 1), (1, 1), (2, 2), (4, 2)])
async def test_slow_publications_are_never_queued_and_nothing_stands_still(
    tmp_path: Path, staleness: int, kappa: int
) -> None:
    """An export that takes longer than kappa steps: the newest state is published when there is room again."""
    most: list[int] = []

    def script(op: str, moment: str) -> None:
        most.append(len(learner.training.publishing._under_way))

    trainer = FakeTrainer(script=script)
    settings = Settings(beside=True, steps=10, staleness=staleness, publish_every=kappa)
    async with open_learner(tmp_path, settings, trainer=trainer) as learner:
        seen, peer, sealing = manifests(learner), FakePeer(), trio.Lock()
        seal = learner.training.publishing._announce_version

        async def slowly(*arguments: Any) -> None:
            async with sealing:
                for _ in range(50):  # others go on meanwhile
                    await trio.lowlevel.checkpoint()
                await seal(*arguments)

        learner.training.publishing._announce_version = slowly  # type: ignore[method-assign]
        await learner.train(peer)
        assert max(most) <= UNDER_WAY
        assert seen[-1].version == PolicyVersion(1, 10)
        require_chain(learner, seen)
        require_sound(learner, peer)
        due = {step for step in range(11) if step % kappa == 0 or step == 10}
        assert due - {one.version.version for one in seen} <= skipped(learner)


async def test_a_trainer_that_dies_with_a_snapshot_in_flight_takes_its_version_along(tmp_path: Path) -> None:
    trainer = slow_trainer(steps=5, more=crash_once("step", "before", 2))
    async with open_learner(tmp_path, Settings(beside=True, steps=5, staleness=4), trainer=trainer) as learner:
        seen, peer = manifests(learner), FakePeer()
        await learner.train(peer)
        names = [str(one.version) for one in seen]
        # 1.1 was being exported when the trainer ended: nobody has heard of it, and nothing is left of it.
        assert names[0] == "1.0"
        assert not any(name.startswith("1.") for name in names[1:])
        assert names[-1] == "2.5"
        assert not list((tmp_path / "exports").iterdir())
        require_chain(learner, seen)
        require_sound(learner, peer)


async def test_a_trainer_that_dies_while_only_its_version_is_waited_for_is_noticed(tmp_path: Path) -> None:
    """Nobody asks it anything then, and no rollout comes that the version would have brought."""
    trainer = slow_trainer(steps=4)
    settings = Settings(beside=True, steps=4, staleness=0, ahead=1.0)
    async with open_learner(tmp_path, settings, trainer=trainer) as learner:
        seen, peer = manifests(learner), FakePeer()

        async def die() -> None:
            kinds: list[TimeKind] = []
            turn = learner.context.time.turn

            def note(kind: TimeKind) -> None:
                kinds.append(kind)
                turn(kind)

            learner.context.time.turn = note  # type: ignore[method-assign]
            while trainer.calls[-1:] != ["save"] or kinds[-1] is not TimeKind.PUBLICATION:
                await trio.lowlevel.checkpoint()
            trainer.requests_to_export = 0
            trainer.die()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            await learner.train(peer)
        assert [str(one.version) for one in seen] == ["1.0", "2.1", "2.2", "2.3", "2.4"]
        require_chain(learner, seen)
        require_sound(learner, peer)


async def test_an_export_that_fails_beside_training_ends_the_run_and_says_why(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(beside=True, steps=5)) as learner:
        told = learner.trainer.on_frame

        def fail(header: dict[str, Any], arrays: Any) -> None:
            if header["event"] == "exported" and not header["directory"].endswith("1.0"):
                header = {"event": "export_failed", "directory": header["directory"], "kind": "disk", "error": "full"}
            told(header, arrays)

        learner.trainer.on_frame = fail
        said = r"^Version 1\.[1-5] cannot be published: full\. Check the disk of .*exports\.$"
        with pytest.raises(RunError, match=said):
            await unwrapped(learner.train, FakePeer())
        assert [str(version) for version, _ in learner.ledger.training.manifests()] == ["1.0"]


async def test_with_no_staleness_allowed_the_learner_is_blocked_by_its_publication(tmp_path: Path) -> None:
    """Nothing that nodes could make meanwhile is admissible, so it is not they who are waited for."""
    async with open_learner(tmp_path, Settings(beside=True, steps=3, staleness=0, ahead=1.0)) as learner:
        kinds: list[TimeKind] = []
        turn = learner.context.time.turn

        def note(kind: TimeKind) -> None:
            kinds.append(kind)
            turn(kind)

        learner.context.time.turn = note  # type: ignore[method-assign]
        await learner.train(FakePeer())
        assert TimeKind.PUBLICATION in kinds
        assert TimeKind.WAITING in kinds


STATES = {
    "snapshot taken": lambda learner: before(learner.training.publishing, "_bring_out"),
    "exported": lambda learner: before(learner.training.publishing, "_tally"),
    "tally signed": lambda learner: before(learner.training.publishing, "_seal"),
    "sealed": lambda learner: before(learner.training.publishing, "_adopt"),
    "adopted": lambda learner: before(learner.ledger.training, "version_published"),
    "in the ledger": lambda learner: before(learner.training.publishing, "_announce_version"),
    "announced": lambda learner: before(learner.training.publishing, "clean"),
}
"""In which state a version is when the process is killed: the call that would take it to the next one."""


def before(of: Any, name: str) -> tuple[Any, str]:
    return of, name


@pytest.mark.parametrize("trains", [False, True], ids=["between steps", "with the next step running"])
@pytest.mark.parametrize("state", STATES)
async def test_killed_in_every_state_of_a_publication(tmp_path: Path, state: str, trains: bool) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, Settings(beside=True, steps=6, staleness=3)) as learner:
        of, name = STATES[state](learner)
        call = getattr(of, name)
        calls = iter(range(2))  # the first version, and the one after it
        trained = trio.Event()
        learner.context.signals.step_trained.subscribe(lambda news: trained.set() if news.row.step == 2 else None)

        def killed_now() -> bool:
            return next(calls, None) is None

        if name in ("_bring_out", "_announce_version", "clean"):

            async def dying(*arguments: Any) -> Any:
                if killed_now():
                    if trains:
                        await trained.wait()
                    raise Killed
                return await call(*arguments)

            setattr(of, name, dying)
        else:

            def dying_thread(*arguments: Any, **options: Any) -> Any:
                if killed_now():
                    if trains:
                        trio.from_thread.run(trained.wait)
                    raise Killed
                return call(*arguments, **options)

            setattr(of, name, dying_thread)
        with pytest.raises(Killed):
            await unwrapped(learner.train, peer)
        known = [str(version) for version, _ in learner.ledger.training.manifests()]
        announced = learner.run.announcement
    async with open_learner(tmp_path, Settings(beside=True, steps=6, staleness=3)) as again:
        assert again.run.announcement != announced or not announced
        seen = manifests(again)
        again.sessions.recover_leases()
        await again.train(peer)
        names = [str(one.version) for one in seen]
        assert not set(names) & set(known), "a name is never given twice"
        assert names[-1] == "2.6"
        assert again.store.is_complete(seen[-1].hash)
        assert not list((tmp_path / "exports").iterdir())
        require_sound(again, peer)
