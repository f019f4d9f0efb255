"""Held-out prompts asked of published versions: which ones, how they are scored, and what a crash costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger import Ledger
from node.engine.fake import FakeConfig, FakeEngine
from node.engine.port import EngineCrashed, GenerationRequest, InstallFailed
from node.evaluation import EVALUATION_SEED, Evaluation, EvaluationTerms, HeldOut, Scores, evaluate
from node.events import EventLog, Field
from protocol.ids import PolicyVersion
from protocol.manifest import SignedManifest
from swarm.store import ChunkStore
from tests.learner.working import NOW_MS, SWARM
from tests.swarm.storing import small_model, write_model

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
        self.evaluation = Evaluation(
            engine=engine, store=store, ledger=ledger, prompts=PROMPTS, terms=terms(every), now_ms=lambda: NOW_MS,
            events=events,
        )  # fmt: skip

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
        await parts.evaluation.run(parts.publish(1))
        greedy, sampled = parts.engine.asked[:20], parts.engine.asked[20:]
        assert [request.prompt for request in greedy] == [request.prompt for request in sampled]
        assert all(request.greedy for request in greedy)
        assert not any(request.greedy for request in sampled)
        assert [request.seed for request in sampled] == list(range(EVALUATION_SEED, EVALUATION_SEED + 20))
        assert {(r.temperature, r.max_new_tokens, r.stop_ids) for r in parts.engine.asked} == {(0.7, 3, frozenset({1}))}


async def test_scores_are_mean_rewards_and_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        await parts.evaluation.run(parts.publish(1))
        completions = await FakeEngine.generate(parts.engine, parts.engine.asked)
        first = [completion.tokens[0] / 63 for completion in completions]
        expected = Scores(greedy=sum(first[:20]) / 20, sampled=sum(first[20:]) / 20)
        assert parts.evaluation.latest == expected
        assert expected.greedy != expected.sampled
        assert parts.rows() == [(1, 1, NOW_MS, 20, expected.greedy, expected.sampled)]
        [(name, fields)] = parts.log
        assert (name, fields["version"], fields["greedy"]) == ("evaluated", "1.1", round(expected.greedy, 4))


async def test_two_figures_differ_by_the_policy_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        one, two = parts.publish(1), parts.publish(2)
        await parts.evaluation.run(one)
        first = parts.evaluation.latest
        await parts.evaluation.run(two)
        assert parts.evaluation.latest != first
        await parts.evaluation.run(one)
        assert parts.evaluation.latest == first


@pytest.mark.parametrize(("every", "due"), [(0, [0]), (1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (10, [0])], ids=str)
async def test_which_versions_are_due(tmp_path: Path, every: int, due: list[int]) -> None:
    async with opened(tmp_path, every=every) as parts:
        assert [number for number in range(7) if parts.evaluation.is_due()] == due


async def test_a_version_published_while_one_is_evaluated_is_skipped(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, NotingEngine(seconds_per_token=1.0)) as parts, trio.open_nursery() as nursery:
        first, last = parts.publish(1), parts.publish(2)
        assert parts.evaluation.is_due()
        nursery.start_soon(parts.evaluation.run, first)
        await wait_all_tasks_blocked()
        assert not parts.evaluation.is_due()
        nursery.start_soon(parts.evaluation.run, last)  # the last one waits its turn
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
        await parts.evaluation.run(parts.publish(1))
        assert len(parts.rows()) == 1
        assert parts.log[0] == ("engine_crashed", {"reason": "the engine process was killed by SIGKILL"})
        parts.engine.crashes = 2
        await parts.evaluation.run(parts.publish(2))
        assert len(parts.rows()) == 1
        assert parts.log[-1][0] == "evaluation_failed"


async def test_an_evaluation_that_fails_ends_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as parts:
        parts.engine.fails = True
        await parts.evaluation.run(parts.publish(1))
        assert parts.log == [("evaluation_failed", {"version": "1.1", "reason": "it does not fit"})]
        assert parts.evaluation.latest is None
        gone = SWARM.publish(small_model(9), version=9)
        await parts.evaluation.run(gone)
        assert parts.log[-1][1]["version"] == "1.9"
        assert parts.rows() == []


async def test_a_reward_of_the_installed_policy(tmp_path: Path) -> None:
    """`evaluate` scores what is installed, whatever that is."""
    async with opened(tmp_path) as parts:
        await parts.evaluation.run(parts.publish(3))
        assert await evaluate(parts.engine, PROMPTS, terms()) == parts.evaluation.latest
        assert parts.engine.installed is not None
        assert parts.engine.installed.name == PolicyVersion(1, 3)
