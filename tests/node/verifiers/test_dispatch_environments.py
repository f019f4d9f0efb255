"""Episodes with environments, asked by the loops of the learner: token for token what a pure task answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from learner.rollouts.environment import Answered, Ended, Question, Reply
from node.config.swarm_config import (
    LearnSection,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.engine.interface import Generation, GenerationRequest
from node.learner_role.training.episode_player import play
from node.runtime.events import EventLog, Field
from node.tasks.api.interface import TaskError
from node.tasks.gate import Place
from node.tasks.task_suite import open_task_suite
from node.tasks.tokenizer import write_character_tokenizer
from node.verifiers.dispatch import Verifiers, require_here
from tests.node.verifiers.test_episodes import WORLDS
from tests.support.paths import ROOT

PURE = {"guess": "guess:numbers=6,tries=4", "lookup": "lookup:keys=2"}
WORDS = {"guess": ["0", "1", "2", "3", "4", "5", "x"], "lookup": ["a?", "b?", "c?", "d?", "00", "12", "?"]}


def opened(
    root: Path, spec: str, log: list[tuple[str, dict[str, Field]]] | None = None, **section: object
) -> Verifiers:
    (root / "model").mkdir(exist_ok=True)
    write_character_tokenizer(root / "model")
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(root / "model")),
        task=TaskSection(spec=spec, held_out=4),
        learn=LearnSection(steps=1, max_new_tokens=4, max_turns=3),
    )
    events = EventLog()
    events.listen(lambda name, fields: log.append((name, dict(fields))) if log is not None else None)
    verifiers = msgspec.convert({"workers": 2, **section}, VerifiersSection)
    return Verifiers(suite=open_task_suite(config, root), section=verifiers, events=events)


@dataclass(kw_only=True)
class Talk:
    """One episode, said word by word to one of both."""

    verifiers: Verifiers
    index: int
    said: list[tuple[int, ...]] = field(default_factory=list)
    read: list[Answered] = field(default_factory=list)

    async def say(self, word: str, *, finished: bool = True) -> Reply:
        codec = self.verifiers.suite.codec
        tokens = codec.encode_answer(word)
        self.said.append(tokens if finished else tokens[:-1])
        [reply] = await self.verifiers.replies([self.question()])
        if isinstance(reply, Answered):
            self.read.append(reply)
        return reply

    def question(self, read: tuple[int, ...] | None = None) -> Question:
        said = tuple(self.said)
        digests = tuple(reply.digest for reply in self.read[: len(said) - 1])
        transcript = sum(map(len, said)) + sum(len(reply.tokens) for reply in self.read[: len(said) - 1]) + 9
        return Question(
            index=self.index, said=said, transcript=transcript, digests=digests if any(digests) else (), read=read
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("task", PURE)
async def test_wrapped_as_an_environment_a_pure_task_answers_the_same_tokens_and_is_worth_the_same(
    tmp_path: Path, task: str, workers: int
) -> None:
    """With verifiers where they are alive, and without where each question is a replay."""
    pure = opened(tmp_path, PURE[task])
    wrapped = opened(tmp_path, f"python:tests.support.turn_environments:{task}", workers=workers)
    luck, rewards = random.Random(f"words/{task}"), set[float]()
    async with wrapped.open(), pure.open():
        for index in range(12):
            first, second = Talk(verifiers=pure, index=index), Talk(verifiers=wrapped, index=index)
            answer = str(pure.suite.tasks[task].task.problem(index).answer)
            while True:
                word, finished = luck.choice([*WORDS[task], answer, answer]), luck.random() < 0.9
                wanted = await first.say(word, finished=finished)
                found = await second.say(word, finished=finished)
                if isinstance(wanted, Ended):
                    assert found == wanted
                    rewards.add(wanted.reward)
                    break
                assert isinstance(found, Answered)
                assert (found.tokens, wanted.digest) == (wanted.tokens, "")
                assert found.digest
    assert rewards == {0.0, 1.0}
    assert wrapped.failures == 0


@dataclass(kw_only=True)
class Speaker:
    """An engine that says what its prompt and its seed draw."""

    codec: Any
    words: Sequence[str]

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        found = []
        for request in requests:
            word = random.Random(f"{request.seed}/{request.prompt}").choice(self.words)
            tokens = self.codec.encode_answer(word)
            found.append(
                Generation(tokens=tokens, logprobs=(0.0,) * len(tokens), finish="stop", spans=(), generation_s=0.0)
            )  # type: ignore[arg-type]
        return found


@pytest.mark.parametrize("task", PURE)
async def test_evaluation_plays_them_on_held_out_problems(tmp_path: Path, task: str) -> None:
    rewards = []
    for spec in (PURE[task], f"python:tests.support.turn_environments:{task}"):
        verifiers = opened(tmp_path, spec)
        async with verifiers.open():
            codec, held_out = verifiers.suite.codec, verifiers.suite.held_out
            terms: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 4, "stop_ids": frozenset()}
            requests = [
                (GenerationRequest(prompt=held.prompt, seed=seed, **terms), held)
                for seed, held in enumerate(held_out * 4)
            ]
            speaker: Any = Speaker(codec=codec, words=WORDS[task])
            rewards.append(await play(speaker, requests, verifiers.held_out_replies))
    assert rewards[0] == rewards[1]
    assert len(rewards[0]) == 16


async def test_the_example_of_the_documents_plays(tmp_path: Path) -> None:
    section = (ROOT / "docs/operate/write-a-task.md").read_text("utf-8").split("## Environments")[1]
    (tmp_path / "my_task.py").write_text(section.split("```python\n")[1].split("```")[0])
    verifiers = opened(tmp_path, "python:my_task:shelves")
    async with verifiers.open():
        talk, boxes = Talk(verifiers=verifiers, index=3), list[int]()
        for name in "ab":
            reply = await talk.say(f"open {name}")
            assert isinstance(reply, Answered)
            boxes.append(int(verifiers.suite.codec.decode(reply.tokens)))
        gate = verifiers.suite.tasks["python"].gate
        total: int = gate.maker(gate.problem(Place(index=3)), gate.seed(Place(index=3))).total  # type: ignore[attr-defined]
        assert await talk.say(f"sum {total}") == Ended(reward=1.0)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "worlds.py").write_text(WORLDS)
    return tmp_path


async def test_what_the_policy_has_read_must_be_answered_again(beside: Path) -> None:
    """As after a restart: nothing is alive, and what was read is in the next lease."""
    log: list[tuple[str, dict[str, Field]]] = []
    verifiers = opened(beside, "python:worlds:Worlds", log, on_failure="drop")
    async with verifiers.open():
        talk = Talk(verifiers=verifiers, index=7)
        read = await talk.say("a")
        assert isinstance(read, Answered)
        assert await verifiers.replies([talk.question(read=read.tokens)]) == [read]
        [other] = await verifiers.replies([talk.question(read=(4, 5))])
    assert isinstance(other, Ended)
    assert (other.void, other.failure.split(":")[0]) == (True, "otherwise")
    [failed] = [fields for name, fields in log if name == "reward_failed"]
    assert (failed["how"], failed["index"]) == ("otherwise", 7)


@pytest.mark.parametrize(("on_failure", "void"), [("zero", False), ("drop", True)])
async def test_a_lost_episode_counts_as_the_operator_has_it(beside: Path, on_failure: str, void: bool) -> None:
    verifiers = opened(beside, "python:worlds:Worlds", on_failure=on_failure, workers=1)
    async with verifiers.open():
        talk = Talk(verifiers=verifiers, index=7)
        assert isinstance(await talk.say("random"), Answered)
        [child] = [child for child in psutil.Process().children() if "node.verifiers.worker" in child.cmdline()]
        child.kill()
        reply = await talk.say("b")
    assert isinstance(reply, Ended)
    assert (reply.reward, reply.void) == (0.0, void)
    assert reply.failure.startswith("otherwise: the environment of task 'python' at index 7 was made again")


async def test_limits_end_an_episode_and_it_has_its_reward(beside: Path) -> None:
    verifiers = opened(beside, "python:worlds:Worlds")
    async with verifiers.open():
        talk = Talk(verifiers=verifiers, index=7)
        assert isinstance(await talk.say("a"), Answered)
        assert isinstance(await talk.say("b"), Answered)
        assert await talk.say("c") == Ended(reward=3.5, cut_off=True), "max_turns = 3 must end the episode"


async def test_without_verifiers_one_that_is_random_is_abandoned_in_its_second_turn(beside: Path) -> None:
    verifiers = opened(beside, "python:worlds:Worlds", workers=0)
    async with verifiers.open():
        talk = Talk(verifiers=verifiers, index=7)
        assert isinstance(await talk.say("random"), Answered)
        reply = await talk.say("b")
    assert isinstance(reply, Ended)
    assert reply.failure.startswith("otherwise: ")


def test_a_task_whose_environment_gives_no_reward_is_refused_before_the_run(beside: Path) -> None:
    (beside / "odd.py").write_text(
        WORLDS.replace('float("nan") if "nan" in self.told else len(self.told) + 0.5', "'much'")
    )
    verifiers = opened(beside, "python:odd:Worlds")
    with pytest.raises(TaskError, match="gave no reward at index 0, but 'much'"):
        require_here(verifiers.suite, VerifiersSection())
