"""The learner's clockwork: what it publishes, what it trains on, and how it goes on after every kind of end.

After every test that ends a process, the same books are read (`require_sound`): what was acknowledged is counted once.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger.rows import CheckpointRow
from learner.provisioning.estimation.recording import Began, Delivered, Stepped
from learner.rollouts.batch_arrays import batch_arrays
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.overlong import Overlong
from node.learner_role.training.checkpoints import REST
from node.learner_role.training.loop import MAX_LOST
from node.learner_role.training.publisher import REANNOUNCE_S, event_figures
from node.learner_role.training.trainer_process import CallTrainer
from node.processes.outcomes import ChildExit, ChildGaveUp, ChildRefused
from node.processes.spec import RestartLimits
from node.runtime.errors import RunError, UsageError
from protocol.accounting.tally import check_proof, open_tally, proofs_for, tally_of, tree_of
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.versions.announcement import open_announcement, topic_of
from protocol.versions.manifest import SignedManifest
from protocol.work import Grant, LeaseRequest, Rule
from tests.support.environments import one_turn
from tests.support.learner_fixture import (
    HANGS_S,
    VOCABULARY,
    FakePeer,
    FakeTrainer,
    Killed,
    Learner,
    Settings,
    crash,
    crash_once,
    damage,
    forget,
    hello,
    open_learner,
    until,
)
from tests.support.trainer_fixture import OTHER, SWARM, even_share, lease_id, version

pytestmark = pytest.mark.usefixtures("mock_clock")
"""Time stands still; whoever waits for it would wait for ever."""


def books(root: Path) -> list[tuple[Any, ...]]:
    """(lease, step, trained lag, dropped in step) of every admitted record."""
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute(
            "SELECT r.lease, r.step, r.trained_lag, d.step FROM records r LEFT JOIN dropped d USING (lease)"
            " WHERE r.rule = 'admitted'"
        ).fetchall()


def require_sound(learner: Learner, *peers: FakePeer) -> None:
    """Every acknowledged admitted record waits, or was consumed or dropped by one surviving step; no lag is over S."""
    rows = books(learner.root)
    admitted = Counter(
        lease for peer in peers for lease, receipt in peer.receipts.items() for v in receipt.verdicts if v.admitted
    )
    found = Counter(lease for lease, *_ in rows)
    assert admitted <= found, "an acknowledged record is in the ledger"
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        steps = [step for (step,) in db.execute("SELECT step FROM steps ORDER BY step")]
        refused = dict(db.execute("SELECT rule, count(*) FROM records WHERE rule <> 'admitted' GROUP BY rule"))
    was_killed = len(learner.ledger.training.begun()) > 1  # then leases may have ended before their records come
    nobodys_fault = {Rule.STALE.value, Rule.ORPHANED.value} | ({Rule.UNKNOWN_LEASE.value} if was_killed else set())
    assert set(refused) <= nobodys_fault, "honest records are refused for nothing else"
    assert steps == list(range(1, learner.capacity.chain.head.version + 1))
    taken = Counter(step for _, step, _, _ in rows if step is not None)
    batch = learner.settings.prompts * learner.settings.group_size - learner.settings.logged
    assert taken == dict.fromkeys(steps, batch)
    assert all(step is None or dropped is None for _, step, _, dropped in rows)
    assert all(lag <= learner.settings.staleness for _, step, lag, _ in rows if step is not None)
    waiting = Counter(lease for lease, step, _, dropped in rows if step is None and dropped is None)
    assert Counter(row.lease for row in learner.ledger.work.unconsumed()) == waiting
    require_tallies(learner)
    recorded = learner.recorded()
    unrecorded = set(steps) - {event.step for event in recorded if isinstance(event, Stepped)}
    began = sum(isinstance(event, Began) for event in recorded)
    assert len(unrecorded) < began, "each end costs the recording the step that was under way, at most"
    assert all(max(event.lags) <= learner.settings.staleness for event in recorded if isinstance(event, Stepped))


def require_tallies(learner: Learner) -> None:
    """Every record that a surviving step consumed is counted by one tally, which its version's manifest carries."""
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        rows = db.execute("SELECT incarnation, version, after, envelope FROM tallies ORDER BY incarnation, version")
        tallies = [(PolicyVersion(incarnation, number), after, raw) for incarnation, number, after, raw in rows]
        consumed = db.execute("SELECT record, step FROM records WHERE step IS NOT NULL").fetchall()
    counted: list[tuple[bytes, int]] = []
    for place, (name, after, raw) in enumerate(tallies):
        tally = open_tally(raw, SWARM.authority)
        leaves, tree = tree_of(learner.ledger.evidence.trained(after, name.version))
        assert (tally.version, tally.after, tally.records, tally.root) == (name, after, tree.size, tree.root)
        assert after == (tallies[place - 1][0].version if place else 0), "they follow each other without a gap"
        proofs = proofs_for(leaves, tree, range(tree.size))
        counted += [(one.record, one.version.version) for one in (check_proof(proof, tally) for proof in proofs)]
        signed = learner.store.manifest(dict(learner.ledger.training.manifests())[name])
        assert signed is None or tally_of(signed.manifest) == raw
    assert sorted(counted) == sorted(consumed)
    assert tallies[-1][0] == learner.capacity.chain.head


def require_chain(learner: Learner, signed: list[SignedManifest]) -> None:
    """Versions were published in order, none twice, each linked to the last one that its start goes on from."""
    names = [one.version for one in signed]
    assert names == sorted(set(names))
    alive = signed[:1]
    for before, after in pairwise(signed):
        if after.version.incarnation > before.version.incarnation:
            alive = [one for one in alive if one.version.version <= after.version.version]
        if alive:
            assert after.manifest.previous == alive[-1].hash
        alive.append(after)


def skipped(learner: Learner) -> set[int]:
    """Steps whose state was due, and was not published since the versions before it were still on their way."""
    told = learner.logged("versions_skipped")
    return {step for fields in told for step in range(int(fields["first"]), int(fields["last"]) + 1)}  # type: ignore[arg-type]


def manifests(learner: Learner) -> list[SignedManifest]:
    """Collects what is published from now on."""
    seen: list[SignedManifest] = []

    learner.context.signals.version_published.subscribe(seen.append)
    return seen


# A run without trouble.


@pytest.mark.parametrize(
    "settings",
    [
        Settings(staleness=0, ahead=1.0),
        Settings(staleness=0, ahead=2.5),
        Settings(staleness=1, ahead=1.0),
        Settings(staleness=1, ahead=1.3, prompts=3),
        Settings(staleness=2, publish_every=2, steps=7),
        Settings(staleness=3, publish_every=3, steps=8, ahead=4.0),
        Settings(staleness=5, ahead=64.0),
        Settings(staleness=1, prompts=1, group_size=5),
    ],
    ids=str,
)
async def test_a_run_ends_after_its_last_step(tmp_path: Path, settings: Settings) -> None:
    settings = replace(settings, beside=True)
    async with open_learner(tmp_path, settings) as learner:
        seen, peers = manifests(learner), (FakePeer(), FakePeer(key=OTHER, rollouts=1))
        await learner.train(*peers)
        assert learner.run.finished
        assert learner.capacity.chain.head == PolicyVersion(1, settings.steps)
        due = [n for n in range(settings.steps + 1) if n % settings.publish_every == 0 or n == settings.steps]
        published = [one.version.version for one in seen]
        assert (published[0], published[-1], set(published) - set(due)) == (0, settings.steps, set())
        assert set(due) - set(published) <= skipped(learner)
        require_chain(learner, seen)
        require_sound(learner, *peers)
        assert learner.trainer.calls.count("step") == settings.steps
        assert 1 <= learner.trainer.calls.count("save") <= len(published) - 1, "one at a time"
        assert (
            len(learner.capacity.buffer) + learner.capacity.leasing.open_rollouts
            < learner.capacity.pace + settings.group_size
        )


async def test_with_no_staleness_allowed_every_rollout_is_on_policy_and_none_is_wasted(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(staleness=0, ahead=1.0)) as learner:
        peers = (FakePeer(), FakePeer(key=OTHER, rollouts=1))
        await learner.train(*peers)
        assert {lag for _, _, lag, _ in books(tmp_path)} == {0}
        verdicts = Counter(v.rule for peer in peers for receipt in peer.receipts.values() for v in receipt.verdicts)
        assert verdicts == {Rule.ADMITTED: 6 * 4}


async def test_a_version_is_announced_before_its_state_is_durable_and_again_for_those_who_missed_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    trainer = FakeTrainer(requests_to_save=1000)
    async with (
        open_learner(tmp_path, Settings(steps=2), trainer=trainer) as learner,
        learner.transport.network.node("peer") as peer,
        trio.open_nursery() as nursery,
    ):
        await peer.dial(learner.transport.addresses())
        heard = await peer.subscribe(topic_of(SWARM.authority.swarm), lambda broadcast: True)
        await wait_all_tasks_blocked()
        nursery.start_soon(learner.train, FakePeer())
        for name in ("1.0", "1.1", "1.2"):
            announced = open_announcement((await heard.receive()).data, SWARM.authority, now_ms=learner.wall.now_ms())
            assert announced.version == version(name)
            assert learner.store.is_complete(announced.manifest)
            assert (version(name), announced.manifest) in learner.ledger.training.manifests()
        await wait_all_tasks_blocked()
        assert (learner.capacity.chain.head, learner.ledger.training.checkpoints()) == (version("1.2"), [])
        nursery.start_soon(learner.training.publishing.announce_again)
        await wait_all_tasks_blocked()
        repeated = 0
        for _ in range(60):
            mock_clock.jump(REANNOUNCE_S)
            await wait_all_tasks_blocked()
            while heard.statistics().current_buffer_used:
                assert heard.receive_nowait().data == announced.raw
                repeated += 1
        assert repeated == 8  # after 5, 10, 20, 40, 80, 140, 200 and 260 seconds
        nursery.cancel_scope.cancel()


async def test_who_stops_the_learner_does_not_wait_until_a_version_is_hashed(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(logged=4)) as learner:
        await learner.training.begin()
        before, scope = learner.ledger.training.manifests(), trio.CancelScope()

        asked: list[str] = []

        def tally_ms() -> int:  # asked for by the thread that signs the tally
            asked.append("tally")
            return learner.wall.ms

        def hash_ms() -> int:  # and then by the one that is about to hash
            asked.append("hash")
            scope.cancel()
            return learner.wall.ms

        publishing = learner.training.publishing
        publishing.context = replace(learner.context, now_ms=tally_ms, signing_ms=hash_ms)
        learner.capacity.chain = learner.capacity.chain.advance()
        with scope:
            await learner.training.publishing.publish()
        assert (scope.cancelled_caught, asked) == (True, ["tally", "hash"])
        assert learner.ledger.training.manifests() == before
        assert [held.version for held in learner.store.versions()] == [one for one, _ in before]


# The trial.


def trial_of(learner: Learner, *outcomes: Exception | None) -> list[tuple[Path, bytes, list[str]]]:
    """Give the learner a trial that comes to `outcomes`, in turn; what each saw: the directory, its weights, and what
    the trainer had been asked for."""
    seen: list[tuple[Path, bytes, list[str]]] = []
    left = iter(outcomes)

    async def tried(export: Path, loaded: Header, call: CallTrainer) -> None:
        assert loaded["vocab_size"] == VOCABULARY
        weights = (export / "model.safetensors").read_bytes()[-32:]
        seen.append((export, weights, list(learner.trainer.calls)))
        if (error := next(left, None)) is not None:
            raise error
        await call("logprobs", {}, {"tokens": np.zeros(2), "lengths": np.zeros(1), "mask": np.ones(2)})

    learner.trial = tried
    return seen


async def test_the_first_version_is_tried_before_anybody_hears_of_it_and_is_the_very_export(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        seen, signed = trial_of(learner), manifests(learner)
        await learner.train(FakePeer())
        [(export, weights, before)] = seen
        assert before == ["load", "export"]
        assert learner.trainer.calls.count("export") == 3, "each version is exported once"
        assert learner.weights_of(signed[0].hash) == weights
        assert not export.exists()
        assert sorted((tmp_path / "exports").iterdir()) == []


async def test_a_trial_that_is_refused_leaves_nothing_to_go_on_from_and_the_next_start_begins_anew(
    tmp_path: Path,
) -> None:
    async with open_learner(tmp_path) as learner:
        trial_of(learner, UsageError("[model] directory: the trial failed"))
        with pytest.raises(UsageError, match="the trial failed"):
            await unwrapped(learner.train)
        assert learner.ledger.training.begun() == []
        assert learner.ledger.training.manifests() == learner.ledger.training.checkpoints() == []
        assert not learner.run.opened.is_set()
        assert learner.run.announcement == b""
    async with open_learner(tmp_path, Settings(steps=1)) as learner:
        trial_of(learner)
        signed, peer = manifests(learner), FakePeer()
        await learner.train(peer)
        assert [str(one.version) for one in signed] == ["1.0", "1.1"]
        require_sound(learner, peer)


async def test_a_start_that_goes_on_is_tried_with_the_weights_of_its_checkpoint_and_a_refusal_costs_nothing(
    tmp_path: Path,
) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(peer)
        last = learner.weights_of(learner.capacity.manifests[version("1.2")])
    async with open_learner(tmp_path, Settings(steps=4)) as learner:
        seen = trial_of(learner, UsageError("[model] directory: the trial failed"))
        before = learner.ledger.training.checkpoints()
        with pytest.raises(UsageError):
            await unwrapped(learner.train)
        assert [weights for _, weights, _ in seen] == [last]
        assert (learner.ledger.training.checkpoints(), len(learner.ledger.training.begun())) == (before, 1)
    async with open_learner(tmp_path, Settings(steps=4)) as learner:
        trial_of(learner)
        await learner.train(peer)
        assert learner.capacity.chain.head == version("2.4")
        require_sound(learner, peer)


async def test_a_trainer_that_is_lost_in_the_trial_is_tried_again_and_one_lost_later_is_not(tmp_path: Path) -> None:
    script = crash_once("logprobs", "before")
    async with open_learner(tmp_path, Settings(steps=3), trainer=FakeTrainer(script=script)) as learner:
        seen, peer = trial_of(learner), FakePeer()
        await learner.train(peer)
        assert len(seen) == 2
        assert len(learner.logged("trainer_restarted")) == 1
        require_sound(learner, peer)
    again = tmp_path / "again"
    again.mkdir()
    async with open_learner(
        again, Settings(steps=3), trainer=FakeTrainer(script=crash_once("step", "before", at=2))
    ) as learner:
        seen, peer = trial_of(learner), FakePeer()
        await learner.train(peer)
        assert len(seen) == 1, "nothing but the process has changed"
        assert len(learner.logged("trainer_restarted")) == 1


async def test_an_export_that_fails_before_the_trial_is_told(tmp_path: Path) -> None:
    def script(op: str, moment: str) -> None:
        if (op, moment) == ("export", "before"):
            raise ChildRefused("disk", "no space left on device")

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        seen = trial_of(learner)
        with pytest.raises(RunError, match=r"^The first version cannot be published: no space left on device\."):
            await unwrapped(learner.train)
        assert seen == []


async def test_who_stops_the_learner_in_its_trial_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:

        async def hangs(export: Path, loaded: Header, call: CallTrainer) -> None:
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        learner.trial = hangs
        nursery.start_soon(learner.train)
    async with open_learner(tmp_path) as learner:
        assert learner.ledger.training.begun() == []


# Checkpoints, which are written while training goes on.


async def test_training_goes_on_while_a_checkpoint_is_written_and_the_run_ends_with_its_last(tmp_path: Path) -> None:
    trainer = FakeTrainer(requests_to_save=5)
    async with open_learner(tmp_path, Settings(steps=9), trainer=trainer) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.train, FakePeer())
        while not learner.run.finished:
            await learner.run.wait_changed()
            if learner.capacity.chain.head.version == 9:
                trainer.requests_to_save = 0
                trainer.write_all()
        saved = [fields["step"] for fields in learner.logged("checkpoint_saved")]
        assert saved == sorted(saved)
        assert 2 <= len(saved) < 9, "some steps had none, since the one before was being written"
        assert saved[-1] == learner.ledger.training.checkpoints()[0].step == 9


@pytest.mark.parametrize("op", ["step", "save"])
async def test_a_checkpoint_says_how_many_leases_the_ledger_has_also_after_a_trainer_was_lost(
    tmp_path: Path, op: str
) -> None:
    async with open_learner(tmp_path, Settings(steps=6)) as learner:
        await learner.train(FakePeer())
        before = learner.run.issued
        assert before == learner.ledger.work.counts()[0]
    trainer = FakeTrainer(script=crash_once(op, "before", 2))
    async with open_learner(tmp_path, Settings(steps=12), trainer=trainer) as again:
        again.sessions.recover_leases()
        assert again.run.issued == before
        await again.train(FakePeer())
        assert again.run.issued == again.ledger.work.counts()[0] > before


async def test_checkpoints_take_a_fifth_of_the_time_at_most(tmp_path: Path, mock_clock: MockClock) -> None:
    """A step takes a second, and a checkpoint as long as three requests, of which a step is one at least."""

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "after"):
            mock_clock.jump(1.0)
            if trainer._steps == 20:
                trainer.requests_to_save = 0
                trainer.write_all()

    trainer = FakeTrainer(script=script, requests_to_save=3)
    settings = Settings(beside=True, steps=20, staleness=3, rest=REST)
    async with open_learner(tmp_path, settings, trainer=trainer) as learner:
        await learner.train(FakePeer())
        saved = [fields["step"] for fields in learner.logged("checkpoint_saved")]
        apart = [later - earlier for earlier, later in pairwise(saved[:-1])]
        assert all(steps >= 1 + REST for steps in apart), saved
        assert saved[-1] == 20, "that of the end is always written"


async def test_a_milestone_does_not_wait_until_checkpoints_have_rested(tmp_path: Path, mock_clock: MockClock) -> None:
    """A step takes a second, and so does a checkpoint: by itself the next would come after a minute."""

    def script(op: str, moment: str) -> None:
        if (op, moment) in (("step", "after"), ("save", "before")):
            mock_clock.jump(1.0)

    settings = Settings(beside=True, steps=20, staleness=3, rest=1000.0, keep_every=4, keep_milestones=9)
    async with open_learner(tmp_path, settings, trainer=FakeTrainer(script=script)) as learner:
        await learner.train(FakePeer())
        saved = [fields["step"] for fields in learner.logged("checkpoint_saved")]
        assert {4, 8, 12, 16, 20} <= {step // 4 * 4 for step in saved}, saved


async def test_a_checkpoint_waits_for_no_verifier_and_what_is_being_judged_counts_as_judged_after_it(
    tmp_path: Path,
) -> None:
    entered, may_go, observed = threading.Event(), threading.Event(), list[int]()

    def slow(prompt: int, completion: tuple[int, ...]) -> float:
        entered.set()
        may_go.wait(HANGS_S)
        return even_share(prompt, completion)

    async with (
        open_learner(tmp_path, Settings(steps=2, prompts=4), environment=one_turn(slow)) as learner,
        trio.open_nursery() as nursery,
    ):
        object.__setattr__(learner.intake.problems, "observe", lambda index, mean: observed.append(index))
        learner.training.curriculum.state = lambda unleased: {"ordinal": 0, "observed": list(observed)}
        await learner.training.begin()
        nursery.start_soon(learner.training.saving.run)
        nursery.start_soon(learner.intake.run, learner.arriving)
        nursery.start_soon(learner.sessions.leases.run)
        nursery.start_soon(FakePeer().work, learner)
        try:
            await until(entered.is_set)
            learner.capacity.chain = learner.capacity.chain.advance()
            await learner.training.saving.complete(version("1.1"))
        finally:
            may_go.set()
        await until(lambda: bool(observed))
        learner.capacity.chain = learner.capacity.chain.advance()
        await learner.training.saving.complete(version("1.2"))
        later, first = learner.ledger.training.checkpoints()
        assert (first.state["observed"], first.records) == ([], 0)
        assert later.records > 0
        for row in (first, later):
            told_again = [index for index, _ in learner.ledger.work.since(row.leases, row.records)[1]]
            known = row.state["observed"] + told_again
            assert set(observed) <= set(known)
            assert len(known) == len(set(known)), "the curriculum must hear of each group once"
        nursery.cancel_scope.cancel()


async def test_a_checkpoint_that_fails_is_told_and_the_next_is_tried(tmp_path: Path) -> None:
    trainer = FakeTrainer(failing={2, 3, 5})
    async with open_learner(tmp_path, Settings(steps=6), trainer=trainer) as learner:
        peer = FakePeer()
        await learner.train(peer)
        assert [fields["directory"] for fields in learner.logged("checkpoint_failed")] == ["1.2", "1.3", "1.5"]
        assert [row.step for row in learner.ledger.training.checkpoints()] == [6, 4]
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1.4", "1.6"]
        require_sound(learner, peer)


@pytest.mark.parametrize("failing", [{2, 3, 4}, {6, 7, 8}])
async def test_checkpoints_that_keep_failing_end_the_run_and_it_goes_on_from_the_last(
    tmp_path: Path, failing: set[int]
) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, Settings(steps=6), trainer=FakeTrainer(failing=failing)) as learner:
        with pytest.raises(
            RunError, match=r"3 checkpoints in a row .*: no space left\. Free its disk, then start again"
        ):
            await unwrapped(learner.train, peer)
        [base] = {row.step for row in learner.ledger.training.checkpoints()[:1]}
        assert base == min(failing) - 1
    async with open_learner(tmp_path, Settings(steps=6)) as again:
        await again.train(peer)
        assert again.ledger.training.begun() == [(1, 0), (2, base)]
        require_sound(again, peer)


async def test_a_trainer_that_dies_while_it_writes_the_last_checkpoint_trains_again_what_was_not_durable(
    tmp_path: Path,
) -> None:
    trainer = FakeTrainer(requests_to_save=1000)
    async with open_learner(tmp_path, Settings(steps=3), trainer=trainer) as learner, trio.open_nursery() as nursery:
        peer = FakePeer()
        nursery.start_soon(learner.train, peer)
        while learner.capacity.chain.head != PolicyVersion(1, 3):
            await learner.run.wait_changed()
        await wait_all_tasks_blocked()
        trainer.requests_to_save = 0
        trainer.die()
        while not learner.run.finished:
            await learner.run.wait_changed()
        assert learner.capacity.chain.head == PolicyVersion(2, 3)
        assert learner.ledger.training.checkpoints()[0].step == 3
        require_sound(learner, peer)
        nursery.cancel_scope.cancel()


async def test_what_was_leased_after_the_checkpoint_is_not_leased_to_others_again(tmp_path: Path) -> None:
    """The cursor goes back with the checkpoint, leases do not."""
    peer, trainer = FakePeer(), FakeTrainer(requests_to_save=12)
    async with open_learner(tmp_path, Settings(steps=9, staleness=3), trainer=trainer) as learner:
        await kill(learner, "step_trained", "before", 8, peer)
        assert learner.ledger.training.checkpoints()[0].leases < learner.ledger.work.counts()[0]
    observed: list[int] = []
    async with open_learner(tmp_path, Settings(steps=9, staleness=3)) as again:
        again.training.curriculum.observe = lambda index, mean: observed.append(index)
        again.sessions.recover_leases()
        await again.train(peer)
        given, seen = again.ledger.work.since(0, 0)
        assert len(set(given)) == len(given)
        assert set(observed) <= {index for index, _ in seen}
        assert observed, "groups that were judged after the checkpoint were told to the curriculum again"


async def test_nothing_is_left_of_what_a_run_no_longer_needs(tmp_path: Path) -> None:
    settings = Settings(steps=12, staleness=2, keep_checkpoints=3)
    async with open_learner(tmp_path, settings) as learner:
        await learner.train(FakePeer())
        kept = ["1.10", "1.11", "1.12"]
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == kept
        assert [row.directory for row in learner.ledger.training.checkpoints()] == kept[::-1]
        assert list((tmp_path / "exports").iterdir()) == []
        assert [str(held.version) for held in learner.store.versions()] == ["1.8", *kept], "and the last anchor"
        assert sorted(map(str, learner.capacity.manifests)) == kept


async def test_patches_start_from_the_version_before_and_from_the_last_anchor(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=10, staleness=1)) as learner:
        bases: dict[str, list[str]] = {}
        names = {}

        def note(signed: SignedManifest) -> None:
            names[signed.hash] = str(signed.version)
            bases[str(signed.version)] = [names[patch.base_hash] for patch in signed.manifest.patches]
            everything = range(len(signed.manifest.chunks))
            assert learner.store.missing(signed.hash, everything) == [], "the patches can be served"

        learner.context.signals.version_published.subscribe(note)
        await learner.train(FakePeer())
        told = {fields["version"]: fields for fields in learner.logged("version_published")}
    assert {version: fields["patches"] for version, fields in told.items()} == {v: len(b) for v, b in bases.items()}
    assert all(0 < fields["patch_seconds"] <= fields["seconds"] for fields in told.values() if fields["patches"])
    assert all(0 <= fields["export_seconds"] <= fields["seconds"] for fields in told.values())
    assert bases["1.0"] == []
    assert bases["1.1"] == ["1.0"]
    assert bases["1.2"] == ["1.1", "1.0"]
    assert bases["1.8"] == ["1.7", "1.0"]
    assert bases["1.9"] == ["1.8"]
    assert bases["1.10"] == ["1.9", "1.8"]


async def test_every_rollout_that_is_leased_may_still_be_trained_on_when_its_turn_comes(tmp_path: Path) -> None:
    """With one peer that answers at once, nothing that was leased grows too old: leases ask for the right version."""
    for settings in (Settings(staleness=1, steps=9), Settings(staleness=2, publish_every=2, steps=9, ahead=3.0)):
        root = tmp_path / str(settings.staleness)
        root.mkdir()
        async with open_learner(root, settings) as learner:
            await learner.train(FakePeer(rollouts=100))
            assert not [row for row in books(root) if row[3] is not None]
            assert learner.capacity.chain.head.version == 9


async def test_room_that_comes_from_dropping_is_told_to_those_who_wait_for_it(tmp_path: Path) -> None:
    """Else a swarm whose buffer has grown too old would stand still until somebody asks again."""
    async with open_learner(tmp_path, Settings(staleness=0, ahead=1.0)) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        await learner.sessions.welcome(OTHER.peer_id, hello())
        one = Completion(tokens=(1,), logprobs=(-1.0,), reward=0.0, spans=((1, version("1.9")),))
        old = Group(
            lease=lease_id(1),
            peer=OTHER.peer_id,
            prompt_index=0,
            prompt=(1,),
            completions=(one,) * learner.capacity.pace,
            behaviour=frozenset([version("1.9")]),
        )
        learner.capacity.buffer.add(old)
        grants: list[Grant] = []

        async def ask() -> None:
            grants.append(await learner.sessions.grant(OTHER.peer_id, LeaseRequest(rollouts=4)))
            nursery.cancel_scope.cancel()

        nursery.start_soon(learner.sessions.leases.run)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert grants == []
        nursery.start_soon(learner.training._collect, nursery)
    assert len(grants[0].leases) == 2


async def test_groups_of_another_size_from_before_a_restart_do_not_stop_the_run(tmp_path: Path) -> None:
    """Three groups of three, and batches of four with no room beyond them: rounding down would wait for ever."""
    async with open_learner(tmp_path, Settings(prompts=2, group_size=3, ahead=1.0, steps=2)) as learner:
        await kill(learner, "step_trained", "before")
    async with open_learner(tmp_path, Settings(prompts=4, group_size=2, ahead=1.0, steps=2)) as again:
        await again.train(FakePeer())
        assert again.run.finished


@pytest.mark.parametrize("staleness", [0, 1])
async def test_after_a_batch_that_diverged_its_step_is_taken_with_another(tmp_path: Path, staleness: int) -> None:
    """The version that makes the next batch is the one that made this: on-policy, no other will come."""
    failed: list[str] = []

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "before") and learner.trainer.calls.count("step") == 2:
            failed.append(op)
            raise ChildRefused("diverged", "the loss is infinite")

    async with open_learner(
        tmp_path, Settings(staleness=staleness, ahead=1.0, steps=3), trainer=FakeTrainer(script=script)
    ) as learner:
        await learner.train(FakePeer())
        assert (failed, learner.capacity.chain.head) == (["step"], PolicyVersion(1, 3))
        assert len(learner.logged("batch_dropped")) == 1


# The trainer's process ends.


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("op", "at"), [("load", 1), ("step", 1), ("step", 3), ("save", 1), ("save", 4), ("export", 1), ("export", 4)]
)
async def test_a_trainer_that_crashes_is_loaded_again_and_the_run_ends_well(
    tmp_path: Path, op: str, moment: str, at: int
) -> None:
    trainer = FakeTrainer(script=crash_once(op, moment, at))
    async with open_learner(tmp_path, Settings(publish_every=1), trainer=trainer) as learner:
        seen, peer = manifests(learner), FakePeer()
        await learner.train(peer)
        assert len(learner.logged("trainer_restarted")) == 1
        began = 2 if op != "load" and (op, at) != ("export", 0) else 1
        assert learner.capacity.chain.head == PolicyVersion(began, 6)
        require_chain(learner, seen)
        require_sound(learner, peer)


async def test_a_trainer_that_died_while_nobody_asked_it_anything(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner:
        seen, peer = manifests(learner), FakePeer()

        def note(signed: SignedManifest) -> None:
            if str(signed.version) == "1.3":
                learner.trainer.die()

        learner.context.signals.version_published.subscribe(note)
        await learner.train(peer)
        # Steps go on while a version is published: what is durable by then is gone on from.
        _, (incarnation, base) = learner.ledger.training.begun()
        assert (incarnation, base > 0) == (2, True)
        again = [one.version.version for one in seen if one.version.incarnation == 2]
        assert (again[0], again[-1]) == (base, 6)
        require_chain(learner, seen)
        require_sound(learner, peer)


async def test_a_trainer_that_crashes_while_it_is_loaded_again_is_waited_for(tmp_path: Path) -> None:
    crashes = iter([("step", "before"), ("load", "after"), ("load", "before"), ("restore", "after")])
    awaited = [next(crashes)]

    def script(op: str, moment: str) -> None:
        if awaited[0] == (op, moment):
            awaited[0] = next(crashes, ("", ""))
            raise crash()

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        # The first crash comes before there is a checkpoint, so a second step is what makes a restore happen.
        peer = FakePeer()
        crash_again = iter(["x"])

        def note(signed: SignedManifest) -> None:
            if signed.version.version == 2 and next(crash_again, None):
                learner.trainer.die()

        learner.context.signals.version_published.subscribe(note)
        await learner.train(peer)
        assert awaited[0] == ("", "")
        assert learner.run.finished
        require_sound(learner, peer)


async def test_a_trainer_that_is_given_up_ends_the_run(tmp_path: Path) -> None:
    def script(op: str, moment: str) -> None:
        if op == "step":
            end = ChildExit(name="trainer", returncode=-9, reason=None, stderr_tail=("out of memory",))
            raise ChildGaveUp(end, RestartLimits())

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        with pytest.raises(RunError, match=r"cannot continue(.|\n)*SIGKILL(.|\n)*out of memory"):
            await unwrapped(learner.train, FakePeer())


@pytest.mark.parametrize(("durable", "steps"), [(0, 1), (2, 3)])
async def test_a_trainer_that_is_lost_at_the_same_step_each_time_ends_the_run(
    tmp_path: Path, durable: int, steps: int
) -> None:
    """However long each takes to get there: what restarts a process counts by the clock."""
    lost: list[str] = []

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "before") and learner.capacity.collecting == steps:
            lost.append(op)
            raise crash("out of memory")

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        with pytest.raises(RunError, match=rf"since step {durable} became durable.*out of memory\nRepair the cause"):
            await unwrapped(learner.train, FakePeer())
        assert len(lost) == len(learner.logged("trainer_restarted")) + 1
        assert len(lost) - MAX_LOST in (1, 2), "the first may come before the checkpoint before it is heard of"


async def test_trainers_that_are_lost_after_some_progress_each_are_borne(tmp_path: Path) -> None:
    steps = Counter[int]()

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "before"):
            steps[learner.capacity.collecting] += 1
            if steps[learner.capacity.collecting] == 1:
                raise crash()

    async with open_learner(tmp_path, Settings(steps=MAX_LOST + 3), trainer=FakeTrainer(script=script)) as learner:
        peer = FakePeer()
        await learner.train(peer)
        assert len(learner.logged("trainer_restarted")) == MAX_LOST + 3
        require_sound(learner, peer)


@pytest.mark.parametrize(
    ("op", "kind", "error", "says"),
    [
        ("load", "bad_model", UsageError, r"^\[model\] directory: no weights$"),
        ("load", "bad_request", UsageError, r"^\[trainer\] no weights$"),
        ("load", "internal", RunError, "cannot be loaded: no weights"),
        ("step", "internal", RunError, "refused step 1: no weights"),
        ("save", "disk", RunError, "3 checkpoints in a row could not be written to .*, so all training since step 0"),
        ("export", "disk", RunError, "Version 1.0 cannot be published: no weights"),
    ],
)
async def test_what_the_trainer_refuses_is_told_in_a_paragraph(
    tmp_path: Path, op: str, kind: str, error: type[Exception], says: str
) -> None:
    def script(asked: str, moment: str) -> None:
        if asked == op:
            raise ChildRefused(kind, "no weights")

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        with pytest.raises(error, match=says):
            await unwrapped(learner.train, FakePeer())


# The learner's process ends.


async def unwrapped(task: Callable[..., Any], *args: Any) -> None:
    """Run a task and raise what ended it, without the groups around it."""
    try:
        await task(*args)
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = next(one for one in found.exceptions if not isinstance(one, trio.Cancelled))
        raise found from None


async def kill(learner: Learner, call: str, moment: str, at: int = 1, peer: FakePeer | None = None) -> None:
    """Run until the process is killed just before or after this call to its ledger, for the `at`th time."""
    learner.ledger.dies = (call, moment, at)
    with pytest.raises(Killed):
        await unwrapped(learner.train, peer or FakePeer())


KILLS = [
    (call, moment, at)
    for call, ats in {
        "begin_incarnation": (1,),
        "leases_issued": (1, 4),
        "deliveries_judged": (1, 5),
        "step_trained": (1, 4),
        "checkpointed": (1, 3),
        "version_published": (1, 2, 4),
        "checkpoints_removed": (1,),
    }.items()
    for at in ats
    for moment in ("before", "after")
]


BESIDE = [
    (call, moment, at, True)
    for call, moment, at in KILLS
    if at <= 2 or call not in ("version_published", "checkpointed")  # fewer are made where steps go on meanwhile
]


@pytest.mark.parametrize(("call", "moment", "at", "beside"), [*((*kill, False) for kill in KILLS), *BESIDE])
async def test_killed_anywhere_the_next_process_goes_on_from_the_last_durable_state(
    tmp_path: Path, call: str, moment: str, at: int, beside: bool
) -> None:
    peer, settings = FakePeer(), Settings(staleness=2, steps=7, beside=beside)
    async with open_learner(tmp_path, settings) as learner:
        await kill(learner, call, moment, at, peer)
        kept = learner.ledger.training.checkpoints()
        versions = learner.ledger.training.manifests()
        open_before = {row.lease for row in learner.ledger.work.open_leases()}
        base = kept[0].step if kept else 0
        known = {
            name: learner.weights_of(manifest) for name, manifest in versions if learner.store.is_complete(manifest)
        }
    async with open_learner(tmp_path, settings) as again:
        again.sessions.recover_leases()
        assert set(again.capacity.leasing.open) == open_before, "leases go on"
        seen = manifests(again)
        await again.train(peer)
        incarnations = again.ledger.training.begun()
        assert again.capacity.chain.head == PolicyVersion(len(incarnations), 7)
        if len(incarnations) > 1:
            assert incarnations[-1] == (2, base)
        first = seen[0]
        assert first.version == PolicyVersion(len(incarnations), base)
        surviving = [manifest for name, manifest in versions if name.version <= base]
        assert first.manifest.previous == (surviving[-1] if surviving else b"")
        for name, weights in known.items():
            if name.version == base:
                require_chain(again, [first])
                assert first_weights(again, first.hash, weights)
        require_chain(again, seen)
        require_sound(again, peer)
        assert not peer.undelivered


def first_weights(learner: Learner, manifest: ManifestHash, weights: bytes) -> bool:
    """Whether the version has these weights; true as well when it was evicted since."""
    return not learner.store.is_complete(manifest) or learner.weights_of(manifest) == weights


async def test_the_same_step_has_the_same_weights_under_the_next_incarnation(tmp_path: Path) -> None:
    settings = Settings(steps=3)
    async with open_learner(tmp_path, settings) as learner:
        seen = manifests(learner)
        await learner.train(FakePeer())
        before = learner.weights_of(seen[-1].hash)
    async with open_learner(tmp_path, settings) as again:
        seen = manifests(again)
        await again.train()
        assert [str(one.version) for one in seen] == ["2.3"]
        assert again.weights_of(seen[0].hash) == before
        assert again.trainer.calls == ["load", "restore", "export"], "a run that has ended trains no more"
        assert [fields["new_bytes"] for fields in again.logged("version_published")] == [0]


async def test_what_a_kill_left_half_done_is_removed(tmp_path: Path) -> None:
    """Killed when a version was published and its checkpoint written, which the ledger was just to be told."""
    adopted: dict[int, threading.Event] = defaultdict(threading.Event)
    lost: list[int] = []
    async with open_learner(tmp_path, Settings(steps=5)) as learner:
        learner.context.signals.version_published.subscribe(lambda signed: adopted[signed.version.version].set())
        write_down = learner.training.saving._write_down

        def dying(row: CheckpointRow, *others: Any) -> None:
            if learner.ledger.training.checkpoints():
                assert adopted[row.step].wait(60)
                lost.append(row.step)
                raise Killed
            write_down(row, *others)

        learner.training.saving._write_down = dying  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await unwrapped(learner.train, FakePeer())
        (known,) = (row.step for row in learner.ledger.training.checkpoints())
        there = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert there == {f"1.{known}", f"1.{lost[0]}"}
        (orphan,) = (held for held in learner.store.versions() if held.version.version == lost[0])
        (tmp_path / "exports" / "1.9").mkdir(exist_ok=True)  # it may have got as far by itself
    async with open_learner(tmp_path, Settings(steps=5)) as again:
        seen = manifests(again)
        await again.train(FakePeer())
        assert (str(seen[0].version), str(seen[-1].version)) == (f"2.{known}", "2.5")
        assert there.isdisjoint(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert list((tmp_path / "exports").iterdir()) == []
        assert orphan.hash not in {held.hash for held in again.store.versions()}


@pytest.mark.parametrize("staleness", [0, 2])
async def test_groups_that_teach_nothing_are_credited_and_never_trained_on(tmp_path: Path, staleness: int) -> None:
    """Half of the fake peers' groups of two have one reward only. After a kill the ledger is sound all the same."""
    peer = FakePeer()
    settings = Settings(steps=8, staleness=staleness, informative_only=True)
    async with open_learner(tmp_path, settings) as learner:
        await kill(learner, "step_trained", "after", 4, peer)
    async with open_learner(tmp_path, settings) as again:
        again.sessions.recover_leases()
        await again.train(peer)
        require_sound(again, peer)
        steps = [fields for name, fields in again.log if name == "step"]
        judged = again.logged("delivery_judged")
        recorded = [event for event in again.recorded() if isinstance(event, Delivered)]
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        groups = db.execute(
            "SELECT min(reward) < max(reward), max(r.step) IS NOT NULL, max(d.reason) FROM records r"
            " LEFT JOIN dropped d USING (lease) WHERE rule = 'admitted' GROUP BY r.lease"
        ).fetchall()
    alike = [group for group in groups if not group[0]]
    assert len(alike) > 5
    assert all(group[1:] in [(0, "uninformative"), (0, None)] for group in alike), "None: after the last batch"
    assert all(differs for differs, trained, _ in groups if trained)
    assert sum(int(str(step["uninformative"])) for step in steps) > 0
    assert {event["dropped"] for event in judged} == {None, "uninformative"}
    assert {event.dropped for event in recorded} == {0, 2}
    assert again.recorder.observatory.kept < 0.9


# Settings that change while the run goes on


async def test_another_learning_rate_is_that_of_the_next_step(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    async with open_learner(tmp_path, Settings(steps=4, logged=4), trainer=trainer) as learner:

        def change(op: str, moment: str) -> None:
            if (op, moment, len(trainer.trained)) == ("step", "after", 2):
                learner.operator.settings.change("learning_rate", 3e-5, "the test")

        trainer.script = change
        await learner.train()
    assert trainer.rates == [None, None, 3e-5, 3e-5]


async def test_versions_that_are_held_back_are_saved_and_only_the_first_and_last_are_published(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=4, logged=4)) as learner:
        seen = manifests(learner)
        learner.operator.settings.change("publish", 0, "the test")
        await learner.train()
    assert [one.version.version for one in seen] == [0, 4]
    assert [fields["step"] for fields in learner.logged("checkpoint_saved")] == [1, 2, 3, 4], "a kill costs no more"


async def test_a_version_that_was_held_back_is_published_as_soon_as_it_may_be(tmp_path: Path) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, Settings(steps=4, staleness=1)) as learner, trio.open_nursery() as nursery:
        seen = manifests(learner)
        learner.operator.settings.change("publish", 0, "the test")
        nursery.start_soon(learner.train, peer)
        await until(lambda: learner.capacity.chain.head.version == 2)
        assert [one.version.version for one in seen] == [0], "so every other rollout is too old"
        learner.operator.settings.change("publish", 1, "the test")
        await until(lambda: learner.run.finished)
        assert [one.version.version for one in seen] == [0, 2, 3, 4]
        require_sound(learner, peer)


# Logs


def targets_of(arrays: Arrays) -> list[int]:
    """Tokens of each sequence that a policy generated."""
    return [int(part.sum()) for part in np.split(arrays["mask"], np.cumsum(arrays["lengths"])[:-1])]


async def test_each_batch_has_its_share_of_logs_tagged_and_no_rollouts_of_theirs_are_counted(tmp_path: Path) -> None:
    trainer, peer = FakeTrainer(), FakePeer()
    async with open_learner(tmp_path, Settings(steps=4, prompts=4, logged=4), trainer=trainer) as learner:
        await learner.train(peer)
        require_sound(learner, peer)
        assert trainer.calls.count("logprobs") == 4, "once a batch, before the step"
        for arrays in trainer.trained:
            assert arrays["origins"].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
            assert arrays["group_sizes"].tolist() == [2] * 4
            logged = arrays["behaviour_logprobs"][np.repeat(arrays["origins"] == 1, targets_of(arrays))]
            assert set(logged.tolist()) <= {-0.25, -0.5, -0.75}, "told, or the trainer's"
        steps = [event for name, event in learner.log if name == "step"]
        assert {step["rollouts"] for step in steps} == {4}
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        metrics = json.loads(db.execute("SELECT metrics FROM steps").fetchone()[0])
    assert metrics["offline_sequences"] == 4
    assert metrics["by_lag"]["offline"] == {"reward": 0.5}


async def test_logs_alone_need_nobody_and_lease_nothing(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    async with open_learner(tmp_path, Settings(steps=5, logged=4), trainer=trainer) as learner:
        await learner.train()
        assert learner.capacity.chain.head == PolicyVersion(1, 5)
        firsts = [int(prompt) for arrays in trainer.trained for prompt in arrays["tokens"] if prompt >= 40]
        assert sorted(firsts) == sorted([40 + n for n in range(5)] * 4), "two passes, each prompt twice in each"
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM leases").fetchone() == (0,)
        assert db.execute("SELECT sum(rollouts), sum(tokens), avg(reward) FROM steps").fetchone() == (0, 0, 0.5)


@pytest.mark.parametrize(("call", "at"), [("step_trained", 1), ("step_trained", 4), ("checkpointed", 2)])
async def test_killed_anywhere_logs_go_on_where_the_checkpoint_was(tmp_path: Path, call: str, at: int) -> None:
    """The trainer's weights are a hash of all that it was trained on: those of a run that nobody killed."""
    settings, whole, parts = Settings(steps=6, logged=4), FakeTrainer(), FakeTrainer()
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    async with open_learner(tmp_path / "whole", settings, trainer=whole) as learner:
        await learner.train()
    async with open_learner(tmp_path / "parts", settings) as learner:
        await kill(learner, call, "after", at)
    async with open_learner(tmp_path / "parts", settings, trainer=parts) as learner:
        await learner.train()
    assert parts._weights == whole._weights


async def test_a_trainer_that_dies_before_any_checkpoint_gets_the_same_logs_again(tmp_path: Path) -> None:
    whole = FakeTrainer()
    for name in ("whole", "dying"):
        (tmp_path / name).mkdir()
    async with open_learner(tmp_path / "whole", Settings(steps=3, logged=4), trainer=whole) as learner:
        await learner.train()
    dying = FakeTrainer(script=crash_once("step", "after"))
    async with open_learner(tmp_path / "dying", Settings(steps=3, logged=4), trainer=dying) as learner:
        await learner.train()
    assert dying._weights == whole._weights


async def test_a_trainer_that_dies_before_any_checkpoint_finds_the_curriculum_as_it_was_at_the_start(
    tmp_path: Path,
) -> None:
    """It is told again of every group that was admitted, so what it had learnt of them must be gone."""
    trainer = FakeTrainer(script=crash_once("step", "after"))
    async with open_learner(tmp_path, Settings(steps=2), trainer=trainer) as learner:
        restored: list[object] = []
        begun = learner.training.curriculum.state()
        learner.training.curriculum.restore = restored.append
        await learner.train(FakePeer())
        assert learner.logged("trainer_restarted")
        assert restored == [begun, begun]


async def test_the_curriculum_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=4)) as learner:
        await kill(learner, "step_trained", "before", 3)
        state = learner.ledger.training.checkpoints()[0].state
    async with open_learner(tmp_path, Settings(steps=4)) as again:
        await again.training.begin()
        assert again.prompts == [state["ordinal"]]


@pytest.mark.parametrize("first_by_turns", [False, True])
async def test_the_mode_may_change_at_a_restart(tmp_path: Path, first_by_turns: bool) -> None:
    """To sequential: what waits and is too old is dropped, what comes late is refused, and the run goes on."""
    by_turns = Settings(staleness=0, ahead=1.0, steps=8)
    overlapping = Settings(staleness=3, publish_every=2, ahead=3.0, steps=8)
    before, after = (by_turns, overlapping) if first_by_turns else (overlapping, by_turns)
    peer = FakePeer()
    async with open_learner(tmp_path, before) as learner:
        await kill(learner, "step_trained", "after", 5, peer)
        base = learner.ledger.training.checkpoints()[0].step
    async with open_learner(tmp_path, after) as again:
        again.sessions.recover_leases()
        await again.train(peer)
        assert again.run.finished
        lags = {lag for _, step, lag, _ in books(tmp_path) if step is not None and step > base}
        assert max(lags) <= after.staleness


async def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_nothing_is_lost(tmp_path: Path) -> None:
    peer = FakePeer()
    async with open_learner(tmp_path, Settings(steps=9, staleness=4)) as learner:
        await kill(learner, "step_trained", "before", 6, peer)
        assert [row.step for row in learner.ledger.training.checkpoints()] == [5, 4]
    damage(tmp_path / "checkpoints" / "1.5")
    async with open_learner(tmp_path, Settings(steps=9, staleness=4)) as again:
        seen = manifests(again)
        await again.train(peer)
        [unusable] = again.logged("checkpoint_unusable")
        assert str(unusable["directory"]).endswith("1.5")
        assert again.ledger.training.begun() == [(1, 0), (2, 4)]
        assert str(seen[0].version) == "2.4"
        assert not (tmp_path / "checkpoints" / "1.5").exists()
        require_sound(again, peer)


@pytest.mark.parametrize("spoil", [damage, forget])
async def test_without_any_readable_checkpoint_training_does_not_silently_begin_anew(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.train(FakePeer())
    for name in ("1.2", "1.3"):
        spoil(tmp_path / "checkpoints" / name)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    async with open_learner(tmp_path, Settings(steps=5)) as again:
        with pytest.raises(RunError, match=r"None of the 2 checkpoints in .*checkpoints can be used.*choose another"):
            await again.training.run()
        assert again.ledger.training.begun() == [(1, 0)]
        assert len(again.ledger.training.checkpoints()) == 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == left


@pytest.mark.parametrize("named", [True, False])
async def test_a_checkpoint_of_another_model_or_program_is_no_reason_to_go_back_to_an_older_one(
    tmp_path: Path, named: bool
) -> None:
    newest = tmp_path / "checkpoints" / "1.3"

    def script(op: str, moment: str) -> None:
        if op == "restore":
            raise ChildRefused("foreign_checkpoint", f"{newest} is another model's" if named else "of another model")

    peer = FakePeer()
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.train(peer)
    before = sorted(tmp_path.rglob("checkpoints/*/*"))
    async with open_learner(tmp_path, Settings(steps=5), trainer=FakeTrainer(script=script)) as again:
        with pytest.raises(RunError) as caught:
            await again.training.run()
        told = f"{newest} is another model's" if named else f"{newest}: of another model"
        assert str(caught.value) == f"This run cannot continue: {told}."
        assert again.ledger.training.begun() == [(1, 0)]
        assert [row.step for row in again.ledger.training.checkpoints()] == [3, 2]
    assert sorted(tmp_path.rglob("checkpoints/*/*")) == before
    async with open_learner(tmp_path, Settings(steps=5)) as right:
        await right.train(peer)
        assert right.ledger.training.begun() == [(1, 0), (2, 3)]


async def test_a_state_directory_may_be_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    async with open_learner(old, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
    old.rename(new)
    async with open_learner(new, Settings(steps=3)) as again:
        await again.train(FakePeer())
        assert again.ledger.training.begun() == [(1, 0), (2, 2)]


# The disk is full.


async def version_bytes(root: Path) -> int:
    """What a version takes."""
    root.mkdir()
    async with open_learner(root, Settings(steps=1)) as learner:
        await learner.train(FakePeer())
        return max(held.total_bytes for held in learner.store.versions())


async def test_a_full_store_ends_the_run_and_what_was_durable_stays(tmp_path: Path) -> None:
    size, peer = await version_bytes(tmp_path / "measured"), FakePeer()
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(peer)
    async with open_learner(tmp_path, Settings(steps=4, quota_bytes=size * 3 // 2)) as learner:
        with pytest.raises(RunError, match=r"Version 2\.3 cannot be published\. .*Set \[store\] quota_gb to"):
            await unwrapped(learner.train, peer)
        last = learner.ledger.training.manifests()[-1]
        assert learner.store.is_complete(last[1])
        base = learner.ledger.training.checkpoints()[0].step
        assert last[0].version == 2
        assert 2 <= base <= 4, "later states may be durable, though nobody got them"
    async with open_learner(tmp_path, Settings(steps=4)) as again:
        await again.train(peer)
        assert again.ledger.training.begun() == [(1, 0), (2, 2), (3, base)]
        require_sound(again, peer)


async def test_under_a_quota_older_versions_make_room(tmp_path: Path) -> None:
    size = await version_bytes(tmp_path / "measured")
    async with open_learner(tmp_path, Settings(steps=4, quota_bytes=size * 5 // 2)) as learner:
        await learner.train(FakePeer())
        newest = learner.ledger.training.manifests()[-1]
        assert learner.store.is_complete(newest[1])
        assert len(learner.store.versions()) <= 2
        assert [held.pinned for held in learner.store.versions()][-1]


async def test_an_export_that_is_not_whole_ends_the_run(tmp_path: Path) -> None:
    def script(op: str, moment: str) -> None:
        if (op, moment) == ("written", "after"):
            weights = tmp_path / "exports" / "1.0" / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-4])

    async with open_learner(tmp_path, trainer=FakeTrainer(script=script)) as learner:
        with pytest.raises(RunError, match=r"Version 1.0 cannot be published: model.safetensors"):
            await learner.training.run()
        assert learner.ledger.training.manifests() == []


# Batches as the trainer gets them.


def test_a_batch_as_arrays() -> None:
    def group(number: int, *completions: Completion) -> Group:
        return Group(
            lease=lease_id(number),
            peer=OTHER.peer_id,
            prompt_index=number,
            prompt=tuple(range(number)),
            completions=completions,
            behaviour=frozenset(made for completion in completions for _, made in completion.spans),
        )

    def completion(tokens: tuple[int, ...], reward: float, **changes: Any) -> Completion:
        whole = {"logprobs": (-0.25,) * len(tokens), "spans": ((len(tokens), version("1.4")),)}
        return Completion(tokens=tokens, reward=reward, **whole | changes)

    old_and_new = ((1, version("1.2")), (2, version("2.4")))
    spoken = {"logprobs": (-1.0, -2.0), "spans": ((2, version("1.3")),)}
    turns = completion((6, 0, 0, 6), 0.5, generated=((0, 1), (3, 4)), **spoken)
    groups = (
        group(2, completion((7, 8), 1.0), completion((9,), 0.0)),
        group(1, completion((5, 5, 5), 0.5, spans=old_and_new), turns),
    )
    arrays = batch_arrays(Batch(groups=groups, lags={}, dropped={}), version("2.5"), Overlong())
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "tokens": ("int32", [0, 1, 7, 8, 0, 1, 9, 0, 5, 5, 5, 0, 6, 0, 0, 6]),
        "lengths": ("int32", [4, 3, 4, 5]),
        "mask": ("uint8", [0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1]),
        "behaviour_logprobs": ("float32", [-0.25] * 6 + [-1.0, -2.0]),
        "lags": ("int32", [1, 1, 1, 3, 1, 1, 2, 2]),
        "rewards": ("float32", [1.0, 0.0, 0.5, 0.5]),
        "group_sizes": ("int32", [2, 2]),
        "origins": ("uint8", [0, 0, 0, 0]),
        "trained": ("uint8", [1, 1, 1, 1]),
    }


@pytest.mark.parametrize(
    ("lags", "told"),
    [
        ([], None),
        (["0"], "0: 0"),
        (["0", "1", "offline"], "0: 0, 1: 0.1, offline: 0.2"),
        (list(map(str, range(12))), "0: 0, 2: 0.2, 4: 0.4, 6: 0.6, 8: 0.8, 10: 1"),
    ],
)
def test_a_steps_event_tells_of_lags_what_fits(lags: list[str], told: str | None) -> None:
    by_lag = {lag: {"kl": place / 10} for place, lag in enumerate(lags)}
    figures = event_figures({"entropy": 0.123456, "by_lag": by_lag | {"99": {"reward": 1.0}}})
    assert figures == {"entropy": 0.1235} | ({} if told is None else {"kl_by_lag": told})
