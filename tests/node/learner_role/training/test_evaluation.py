"""Held-out prompts asked of published versions: which ones, how they are scored, and what a crash costs."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger.ledger import Ledger
from learner.monitoring.eval_scores import Scores
from learner.rollouts.environment import Answered, Ended, Reply, Said
from learner.rollouts.reward_parts import RewardPart, total
from node.engine.fake import FakeConfig, FakeEngine
from node.engine.interface import EngineCrashed, GenerationRequest, InstalledVersion, InstallFailed
from node.learner_role.shared.run_state import LiveSettings
from node.learner_role.training.evaluation import (
    EVALUATION_SEED,
    SAMPLE_STRIDE,
    TOGETHER,
    Evaluation,
    EvaluationTerms,
    evaluate,
)
from node.reports import swarm_report
from node.runtime.events import EventLog, Field
from node.tasks.held_out import HeldOut
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from tests.support.learner_fixture import context_of
from tests.support.store_fixture import small_model, write_model
from tests.support.trainer_fixture import NOW_MS, SWARM

PROMPTS = [HeldOut(prompt=(number, 5), reward=lambda tokens: tokens[0] / 63) for number in range(20)]


def terms(every: int = 1) -> EvaluationTerms:
    return EvaluationTerms(every_versions=every, temperature=0.7, max_new_tokens=3, stop_ids=frozenset({1}))


class NotingEngine(FakeEngine):
    """A fake that notes what it is asked, and crashes or fails as often as it is told to."""

    def __init__(self, seconds_per_token: float = 0.0) -> None:
        super().__init__(FakeConfig(seconds_per_token=seconds_per_token))
        self.asked: list[GenerationRequest] = []
        self.crashes = 0
        self.fails = False
        self.released_after: list[int] = []

    async def release(self) -> None:
        self.released_after.append(len(self.asked))
        if self.fails:
            raise EngineCrashed("it is gone")

    async def install(self, version: Any, directory: Path) -> None:
        if self.fails:
            raise InstallFailed("it does not fit\ninto memory")
        await super().install(version, directory)

    async def generate(self, requests: Any) -> Any:
        self.asked += requests
        if self.crashes:
            self.crashes -= 1
            raise EngineCrashed("the engine process was killed by SIGKILL\n  | out of memory")
        return await super().generate(requests)


class Parts:
    """An evaluation and everything around it."""

    def __init__(self, root: Path, ledger: Ledger, store: ChunkStore, engine: NotingEngine, every: int) -> None:
        self.root, self.store, self.ledger, self.engine = root, store, ledger, engine
        self.log: list[tuple[str, dict[str, Field]]] = []
        events = EventLog()
        events.listen(lambda name, fields: self.log.append((name, fields)))
        state = SimpleNamespace(evaluating=Counter(), live=LiveSettings())
        self.evaluation = Evaluation(
            context=context_of(ledger=ledger, store=store, events=events, state=state),
            engine=engine,
            prompts=PROMPTS,
            terms=terms(every),
        )

    def publish(self, number: int) -> SignedManifest:
        files = small_model(number)
        signed = SWARM.publish(files, version=number)
        self.store.adopt(signed, write_model(self.root / f"export-{number}", files))
        return signed

    def rows(self) -> list[tuple[Any, ...]]:
        with self.ledger.transaction() as db:
            return db.execute("SELECT * FROM evaluations ORDER BY version").fetchall()


@asynccontextmanager
async def opened(root: Path, engine: NotingEngine | None = None, every: int = 1) -> AsyncIterator[Parts]:
    ledger = Ledger(root / "ledger.sqlite", swarm=SWARM.authority.swarm)
    with ChunkStore.open(root / "store", SWARM.authority) as store:
        yield Parts(root, ledger, store, engine or NotingEngine(), every)
    ledger.close()


async def test_every_prompt_is_asked_greedily_and_once_at_the_training_temperature(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        await parts.evaluation.evaluate(parts.publish(1))
        greedy, sampled = parts.engine.asked[:20], parts.engine.asked[20:]
        assert [request.prompt for request in greedy] == [request.prompt for request in sampled]
        assert all(request.greedy for request in greedy)
        assert not any(request.greedy for request in sampled)
        assert [request.seed for request in sampled] == list(range(EVALUATION_SEED, EVALUATION_SEED + 20))
        assert {(r.temperature, r.max_new_tokens, r.stop_ids) for r in parts.engine.asked} == {(0.7, 3, frozenset({1}))}


async def test_rewards_are_computed_beside_the_node(tmp_path: Path) -> None:
    """A verifier may take its time: five hundred at once would keep the node from its peers for so long."""
    threads = set[int]()

    def reward(tokens: tuple[int, ...]) -> float:
        threads.add(threading.get_ident())
        return 0.0

    async with opened(tmp_path) as parts:
        parts.evaluation.prompts = [HeldOut(prompt=(1, 2), reward=reward)]
        await parts.evaluation.evaluate(parts.publish(1))
    assert threads
    assert threading.get_ident() not in threads


async def test_scores_are_mean_rewards_and_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        await parts.evaluation.evaluate(parts.publish(1))
        completions = await FakeEngine.generate(parts.engine, parts.engine.asked)
        first = [completion.tokens[0] / 63 for completion in completions]
        right = sum(value >= 1 for value in first[20:]) / 20
        expected = Scores(greedy=fmean(first[:20]), sampled=fmean(first[20:]), pass_at={1: right})
        assert parts.evaluation.latest == expected
        assert expected.greedy != expected.sampled
        assert parts.rows() == [(1, 1, NOW_MS, 20, expected.greedy, expected.sampled)]
        [(name, fields)] = parts.log
        assert (name, fields["version"], fields["greedy"]) == ("evaluated", "1.1", round(expected.greedy, 4))
        assert fields["pass_1"] == right


def judged(number: int) -> HeldOut:
    """One of two tasks: right is a first token that is even."""
    return HeldOut(
        prompt=(number % 60, 5), reward=lambda tokens: float(tokens[0] % 2 == 0), task=("a", "b")[number % 2]
    )


async def test_of_several_samples_and_tasks_each_task_has_its_own_scores(tmp_path: Path) -> None:
    held = [judged(number) for number in range(200)]
    chosen = replace(terms(), samples=4, ks=(1, 2, 4))
    async with opened(tmp_path) as parts:
        parts.evaluation.prompts, parts.evaluation.terms = held, chosen
        await parts.evaluation.evaluate(parts.publish(1))
        scores = parts.evaluation.latest
        assert scores is not None
        seeds = [request.seed - EVALUATION_SEED for request in parts.engine.asked if not request.greedy]
        assert seeds == [i + SAMPLE_STRIDE * j for j in range(4) for i in range(200)], "the same every time"
        assert len(parts.engine.asked) == 1000 > TOGETHER
        assert scores.pass_at[1] == pytest.approx(scores.sampled)
        assert scores.pass_at[1] < scores.pass_at[2] < scores.pass_at[4]
        assert set(scores.tasks) == {"a", "b"}
        for what in ("greedy", "sampled"):
            mean = sum(getattr(one, what) for one in scores.tasks.values()) / 2
            assert getattr(scores, what) == pytest.approx(mean)
        events = [(name, fields["version"], fields.get("task")) for name, fields in parts.log]
        assert events == [("evaluated_task", "1.1", "a"), ("evaluated_task", "1.1", "b"), ("evaluated", "1.1", None)]
        [told] = swarm_report(parts.ledger.path).evaluations
        assert (told.greedy, told.samples, told.pass_at) == (scores.greedy, 4, scores.pass_at)
        assert told.tasks["b"] == {
            "greedy": scores.tasks["b"].greedy, "sampled": scores.tasks["b"].sampled,
            **{f"pass@{k}": scores.tasks["b"].pass_at[k] for k in (1, 2, 4)},
        }  # fmt: skip


def partly_said(number: int) -> HeldOut:
    """Return a problem: every third has no reward, and of the others every other one has a style."""

    def reply(said: Said, transcript: int) -> Reply:
        if number % 3 == 0:
            return Ended(reward=0.0, failure="unsaid: the judge sleeps", void=True)
        parts = (
            RewardPart(name="right", value=float(number % 3 == 1)),
            RewardPart(name="style", value=0.5 if number % 2 else math.nan, weight=0.0),
        )
        return Ended(reward=total(parts), parts=parts)

    return HeldOut(prompt=(number, 5), reward=lambda tokens: 0.0, reply=reply)


async def test_what_nobody_can_say_is_left_out_and_each_name_has_its_mean(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.evaluation.prompts = [partly_said(number) for number in range(30)]
        await parts.evaluation.evaluate(parts.publish(1))
        assert parts.evaluation.latest is not None
        assert (parts.evaluation.latest.greedy, parts.evaluation.latest.pass_at) == (0.5, {1: 0.5})
        named = [fields for name, fields in parts.log if name == "evaluated_reward"]
        assert [(one["name"], one["greedy"], one["sampled"]) for one in named] == [
            ("right", 0.5, 0.5),
            ("style", 0.5, 0.5),
        ]
        [told] = swarm_report(parts.ledger.path).evaluations
        assert told.named == {name: {"greedy": 0.5, "sampled": 0.5} for name in ("right", "style")}


async def test_where_nobody_can_say_anything_an_evaluation_fails(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.evaluation.prompts = [partly_said(0)] * 3
        await parts.evaluation.evaluate(parts.publish(1))
        [(name, fields)] = parts.log
        assert (name, fields["reason"]) == (
            "evaluation_failed",
            "the completions of 3 held-out prompts have no rewards: unsaid: the judge sleeps",
        )
        assert parts.rows() == []


async def test_episodes_are_played_to_their_end(tmp_path: Path) -> None:
    """As many rounds as the longest has turns; each asks those that go on, of the whole transcript."""
    heard: dict[int, list[tuple[Said, int]]] = {}

    def held_out(number: int) -> HeldOut:
        def reply(said: Said, transcript: int) -> Reply:
            heard.setdefault(number, []).append((said, transcript))
            return Ended(reward=len(said)) if said[-1][0] % 2 or len(said) > 3 else Answered(tokens=(7, len(said)))

        return HeldOut(prompt=(number, 5), reward=lambda tokens: 0.0, reply=reply)

    engine = NotingEngine()
    async with opened(tmp_path, engine) as parts:
        signed = parts.publish(1)
        await engine.install(
            InstalledVersion(name=signed.version, manifest=signed.hash), parts.store.directory(signed.hash)
        )
        scores = await evaluate(engine, [held_out(number) for number in range(20)], terms())
        first = dict(heard)
        heard.clear()
        assert await evaluate(engine, [held_out(number) for number in range(20)], terms()) == scores
    assert heard == first, "the same every time"
    turns = [len(said) for each in first.values() for said, _ in each]
    assert max(turns) > 2
    assert scores.greedy + scores.sampled == sum(sum(1 for _ in each) for each in first.values()) / 20
    later = [request for request in engine.asked if len(request.prompt) > 2]
    assert all(request.prompt[:2] in {(number, 5) for number in range(20)} for request in later)
    assert all(request.prompt[-2] == 7 for request in later), "it ends with the answer"
    sampled = [request.seed for request in engine.asked if not request.greedy]
    assert len(set(sampled)) == len(sampled) / 2, "every turn has a seed of its own"
    for number, each in first.items():
        for said, transcript in each:
            assert transcript == 2 + sum(map(len, said)) + 2 * (len(said) - 1), number


async def test_two_figures_differ_by_the_policy_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        one, two = parts.publish(1), parts.publish(2)
        await parts.evaluation.evaluate(one)
        first = parts.evaluation.latest
        await parts.evaluation.evaluate(two)
        assert parts.evaluation.latest != first
        await parts.evaluation.evaluate(one)
        assert parts.evaluation.latest == first


@pytest.mark.parametrize(("every", "due"), [(0, [0]), (1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (10, [0])], ids=str)
async def test_which_versions_are_due(tmp_path: Path, every: int, due: list[int]) -> None:
    async with opened(tmp_path, every=every) as parts:
        assert [number for number in range(7) if parts.evaluation.is_due(PolicyVersion(1, number))] == due


async def test_another_period_counts_from_the_next_version(tmp_path: Path) -> None:
    async with opened(tmp_path, every=1) as parts:
        assert [number for number in range(3) if parts.evaluation.is_due(PolicyVersion(1, number))] == [0, 1, 2]
        parts.evaluation.state.live.every_versions = 3
        assert [number for number in range(3, 10) if parts.evaluation.is_due(PolicyVersion(1, number))] == [3, 6, 9]
        parts.evaluation.state.live.every_versions = 0
        assert not parts.evaluation.is_due(PolicyVersion(1, 10))


async def test_a_version_published_while_one_is_evaluated_is_skipped(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, NotingEngine(seconds_per_token=1.0)) as parts, trio.open_nursery() as nursery:
        first, last = parts.publish(1), parts.publish(2)
        assert parts.evaluation.is_due(first.version)
        nursery.start_soon(parts.evaluation.evaluate, first)
        await wait_all_tasks_blocked()
        assert not parts.evaluation.is_due(PolicyVersion(1, 2))
        [(name, fields)] = parts.log
        assert (name, fields["version"]) == ("evaluation_skipped", "1.2")
        assert parts.evaluation.is_due(last.version, last=True), "the last is waited for"
        nursery.start_soon(parts.evaluation.evaluate, last)  # the last one waits its turn
        await wait_all_tasks_blocked()
        assert set(parts.store.evict(set())) == set(), "both are kept meanwhile"
        while len(parts.rows()) < 2:
            mock_clock.jump(3.0)
            await trio.to_thread.run_sync(int)
    assert {row["version"] for name, row in parts.log if name == "evaluated"} == {"1.1", "1.2"}
    assert parts.engine.installed is not None
    assert parts.engine.installed.name == PolicyVersion(1, 2), "in turn"


async def test_an_engine_that_crashes_is_asked_once_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.engine.crashes = 1
        await parts.evaluation.evaluate(parts.publish(1))
        assert len(parts.rows()) == 1
        assert parts.log[0] == ("engine_crashed", {"reason": "the engine process was killed by SIGKILL"})
        parts.engine.crashes = 2
        await parts.evaluation.evaluate(parts.publish(2))
        assert len(parts.rows()) == 1
        assert parts.log[-1][0] == "evaluation_failed"


async def test_an_evaluation_that_fails_ends_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.engine.fails = True
        await parts.evaluation.evaluate(parts.publish(1))
        assert parts.log == [("evaluation_failed", {"version": "1.1", "reason": "it does not fit"})]
        assert parts.evaluation.latest is None
        gone = SWARM.publish(small_model(9), version=9)
        await parts.evaluation.evaluate(gone)
        assert parts.log[-1][1]["version"] == "1.9"
        assert parts.rows() == []


async def test_memory_is_given_back_when_an_evaluation_ends_and_however_it_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        await parts.evaluation.evaluate(parts.publish(1))
        assert parts.engine.released_after == [40], "once, after all was asked"
        parts.engine.crashes = 2
        await parts.evaluation.evaluate(parts.publish(2))
        assert parts.engine.released_after == [40, 120]
        parts.engine.fails = True
        await parts.evaluation.evaluate(parts.publish(3))
        assert parts.engine.released_after == [40, 120, 120]
        assert parts.log[-1] == ("evaluation_failed", {"version": "1.3", "reason": "it does not fit"})


async def test_a_score_is_kept_although_memory_could_not_be_given_back(tmp_path: Path) -> None:
    class Leaving(NotingEngine):
        async def release(self) -> None:
            raise EngineCrashed("it is gone")

    async with opened(tmp_path, Leaving()) as parts:
        await parts.evaluation.evaluate(parts.publish(1))
        assert parts.evaluation.latest is not None
        assert len(parts.rows()) == 1


async def test_a_reward_of_the_installed_policy(tmp_path: Path) -> None:
    """`evaluate` scores what is installed, whatever that is."""
    async with opened(tmp_path) as parts:
        await parts.evaluation.evaluate(parts.publish(3))
        assert await evaluate(parts.engine, PROMPTS, terms()) == parts.evaluation.latest
        assert parts.engine.installed is not None
        assert parts.engine.installed.name == PolicyVersion(1, 3)


async def test_who_shares_the_engine_waits_for_no_whole_evaluation_and_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.learner_role.training.evaluation.TOGETHER", 8)
    async with opened(tmp_path) as parts:
        first, other = parts.publish(1), parts.publish(2)
        await parts.evaluation.evaluate(first)
        alone, turns = parts.rows(), []

        async def share() -> None:
            while True:
                async with parts.evaluation.lock:
                    turns.append(len(parts.engine.asked))
                    version = InstalledVersion(name=other.version, manifest=other.hash)
                    await parts.engine.install(version, parts.store.directory(other.hash))
                    await trio.lowlevel.checkpoint()

        parts.engine.asked.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(share)
            await parts.evaluation.evaluate(first)
            nursery.cancel_scope.cancel()
        assert set(turns) >= {8, 16, 24, 32}, "between any two of its turns"
        assert parts.rows() == alone
