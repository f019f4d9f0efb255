"""The demo's lessons can be written with the small model's tokens, in the room that an episode has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner.monitoring.eval_scores import Scores
from learner.rollouts.environment import Answered, Ended, EpisodeLimits
from node.commands.demo.lessons import LESSONS, REVERSE, TOOLS, Lesson
from node.commands.demo.recipe import swarm_toml
from node.config.loader import read_swarm_config
from node.tasks.registry import open_task
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec


def encoded(lesson: Lesson, directory: Path) -> EncodedTask:
    lesson.write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(dict(lesson.model)), encoding="utf-8")
    return EncodedTask(task=open_task(lesson.task), codec=TextCodec.load(directory))


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)
def test_an_example_fits_into_every_turn_and_into_the_model(lesson: Lesson, tmp_path: Path) -> None:
    task = encoded(lesson, tmp_path)
    for index in range(20):
        parts = task.example(index)
        assert all(len(tokens) <= lesson.max_new_tokens for tokens, is_said in parts if is_said)
        assert sum(len(tokens) for tokens, _ in parts) <= lesson.positions
        assert parts[0] == (task.prompt(index), False)
        assert parts[-1][1]


def test_an_example_that_calls_is_played_as_it_is_shown(tmp_path: Path) -> None:
    """Token for token, with the real sandbox."""
    task = encoded(TOOLS, tmp_path)
    (prompt, _), (call, _), (answered, is_said), (last, _) = task.example(0)
    assert not is_said
    limits = EpisodeLimits(turns=TOOLS.max_turns, tokens=TOOLS.positions, turn_tokens=TOOLS.max_new_tokens)
    reply = task.reply(0, (call,), len(prompt) + len(call), limits)
    assert isinstance(reply, Answered)
    assert reply.tokens == answered
    transcript = len(prompt) + len(call) + len(answered) + len(last)
    end = task.reply(0, (call, last), transcript, limits, digests=(reply.digest,))
    assert end == Ended(reward=1.0, cut_off=False)


def test_whatever_the_tool_says_can_be_read(tmp_path: Path) -> None:
    task = encoded(TOOLS, tmp_path)
    (prompt, _), (call, _), *_ = task.example(0)
    broken = (*call[:1], *call[-2:])
    limits = EpisodeLimits(turns=4, tokens=4096, turn_tokens=12)
    reply = task.reply(0, (broken,), len(prompt) + len(broken), limits)
    assert isinstance(reply, Answered), "print() prints an empty line"
    twice = (*call[:1], *call[:1], *call[-2:])
    reply = task.reply(0, (twice,), len(prompt) + len(twice), limits)
    assert isinstance(reply, Answered)


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)
def test_its_configuration_is_one_that_a_learner_takes(lesson: Lesson, tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    text = swarm_toml(
        lesson.recipe,
        task=lesson.task,
        held_out=lesson.held_out,
        max_new_tokens=lesson.max_new_tokens,
        port=4001,
        staleness=3,
        seed=0,
    )
    path.write_text(text, encoding="utf-8")
    config = read_swarm_config(path)
    assert config.task.spec == lesson.task
    assert config.learn.max_new_tokens == lesson.max_new_tokens


def test_what_the_model_can_is_told_by_what_the_warm_start_goes_by() -> None:
    scores = Scores(greedy=0.0, sampled=0.31)
    assert TOOLS.share(scores) == "31% (sampled)"
    assert REVERSE.share(scores) == "0% (greedy)"
