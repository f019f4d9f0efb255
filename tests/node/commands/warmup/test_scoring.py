"""Score held-out prompts by right form or by reward, as a range asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest

from learner.curriculum.mixture import Curriculum
from learner.monitoring.eval_scores import Scores
from learner.rollouts.environment import Answered, Ended, EpisodeLimits, Reply
from learner.rollouts.reward_parts import RewardPart
from node.commands.warmup.scoring import Judged, Scoring
from node.engine.fake import FakeConfig, open_fake_engine
from node.learner_role.training.evaluation import EvaluationTerms
from node.runtime.errors import UsageError
from node.tasks.held_out import HeldOutQuestion, answer_on_a_thread
from node.tasks.registry import open_task
from node.tasks.task_suite import TaskSuite, held_out_of
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

NAMED = {"format": (0.9, 0.4), "brevity": (0.1, 0.2)}


def judged(by: str, named: Mapping[str, tuple[float, float]] = NAMED) -> Judged:
    return Judged(by=by, scores=Scores(greedy=0.8, sampled=0.3, pass_at={1: 0.25}, named=named))


@pytest.mark.parametrize(("by", "reached"), [("format", 0.4), ("accuracy", 0.25), ("brevity", 0.2)])
def test_a_range_is_about_sampled_answers(by: str, reached: float) -> None:
    one = judged(by)
    assert one.reached == reached
    assert one.figures == {"by": by, "format": 0.4, "greedy_format": 0.9, "accuracy": 0.25, "score": reached}
    assert one.text.startswith("40.0% of sampled answers in the right form (90.0% of greedy ones), 25.0% right")


def test_a_reward_that_no_task_gives_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="Known are: format, accuracy, brevity"):
        _ = judged("brevty").reached


def test_where_nobody_can_say_what_is_right() -> None:
    one = Judged(by="format", scores=Scores(greedy=nan, sampled=nan, named=NAMED))
    assert isnan(one.accuracy)
    assert one.figures["accuracy"] is None
    assert "right" not in one.text.partition("form")[2]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> TaskSuite:
    directory = tmp_path_factory.mktemp("model")
    write_character_tokenizer(directory)
    codec = TextCodec.load(directory)
    encoded = EncodedTask(task=open_task("reverse:letters=3"), codec=codec)
    limits = EpisodeLimits(turns=1, tokens=64, turn_tokens=8)
    held_out = held_out_of(encoded, 8, limits, name="reverse")
    return TaskSuite(
        codec=codec, tasks={"reverse": encoded}, curriculum=Curriculum(parts=[]), held_out=held_out, looked_at={}
    )


def scoring(suite: TaskSuite, ask: Any = answer_on_a_thread) -> Scoring:
    terms = EvaluationTerms(every_versions=0, temperature=1.0, max_new_tokens=8, stop_ids=suite.codec.stop_ids)
    return Scoring(engine=None, suite=suite, ask=ask, terms=terms, by="format")  # type: ignore[arg-type]


async def forms(suite: TaskSuite, *said: str, ask: Any = answer_on_a_thread) -> list[tuple[Any, ...]]:
    questions = [
        (held, (suite.codec.encode_answer(text),), 20, ()) for held, text in zip(suite.held_out, said, strict=False)
    ]
    replies = await scoring(suite, ask)._asked(questions)
    return [tuple((part.name, part.value, part.weight) for part in getattr(one, "parts", ())) for one in replies]


async def test_the_form_stands_among_the_rewards_and_counts_nothing(suite: TaskSuite) -> None:
    assert await forms(suite, "abc", "ab", "ab1", "xyz") == [(("format", form, 0.0),) for form in (1.0, 0.0, 0.0, 1.0)]


async def test_what_was_cut_off_has_no_form(suite: TaskSuite) -> None:
    [held, *_] = suite.held_out
    tokens = suite.codec.encode_answer("abc")[:-1]
    [reply] = await scoring(suite)._asked([(held, (tokens,), 20, ())])
    assert isinstance(reply, Ended)
    assert [part.value for part in reply.parts] == [0.0]


async def test_a_task_that_says_its_form_itself_is_believed_and_what_goes_on_is_left(suite: TaskSuite) -> None:
    own = RewardPart(name="format", value=0.5)

    async def ask(questions: Sequence[HeldOutQuestion]) -> Sequence[Reply]:
        replies: list[Reply] = [Ended(reward=1.0, parts=(own,)), Answered(tokens=(5,))]
        return replies[: len(questions)]

    assert await forms(suite, "a", "b", ask=ask) == [(("format", 0.5, 1.0),), ()]


async def test_held_out_prompts_are_asked_of_the_version(suite: TaskSuite, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 64}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    async with open_fake_engine(FakeConfig()) as engine:
        found = scoring(suite)
        one = await Scoring(engine=engine, suite=suite, ask=found.ask, terms=found.terms, by="format").score(
            tmp_path, 3
        )
    assert set(one.scores.named) == {"format"}
    assert 0 <= one.reached <= 1
