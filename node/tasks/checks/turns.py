"""Check episodes of several turns. The checks do not apply to a task of one turn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from node.tasks.api.interface import Problem, Turn
from node.tasks.checks.tokens import written
from node.tasks.checks.trial import TRIED, LeftOut, Trial, shown

PLAYED = 4
"""Turns of an episode to ask a second time. A mistake shows in the first ones."""

USELESS = ("", "i do not know.", "?")
"""Texts that an untrained policy may say, in letters that the small tokenizer has."""

Asked = tuple[int, Problem, tuple[Turn, ...], str]
"""(index, its problem, the turns before, what was said): the arguments of one question."""


def turns_pure(trial: Trial) -> Iterator[str]:
    """Check that the same turns get the same answer in any order, and when the task is opened a second time."""
    _require_turns(trial)
    questions = [one for index, problem in enumerate(trial.problems(TRIED)) for one in _played(trial, index, problem)]
    first = [trial.answer_turn(*one) for one in questions]
    for (index, _, turns, said), before in zip(reversed(questions), reversed(first), strict=True):
        after = trial.answer_again(index, turns, said)
        if after != before:
            yield (
                f"at index {index}, turn {len(turns) + 1}, {shown(said)} was answered {shown(before)} at first and "
                f"{shown(after)} later. Let `answer_turn` depend only on its arguments."
            )


def turns_end(trial: Trial) -> Iterator[str]:
    """Check that an episode ends and gets a reward if the policy says nothing useful."""
    _require_turns(trial)
    for index, problem in enumerate(trial.problems(TRIED)):
        for said in (*USELESS, *filter(None, [problem.answer])):
            episode = trial.episode(index, problem, said)
            if episode is None:
                yield (
                    f"the episode of index {index} is not over after {trial.max_turns} turns in which the policy said "
                    f"{shown(said)}. Return None from `answer_turn` after a number of turns."
                )
            else:
                trial.reward(index, problem, episode)


def transcripts_grow(trial: Trial) -> Iterator[str]:
    """Check that every turn's transcript begins with the one before, token for token, when all turns are replayed."""
    _require_turns(trial)
    for index, problem in enumerate(trial.problems(TRIED)):
        for said in (*USELESS, *filter(None, [problem.answer])):
            before: tuple[int, ...] = ()
            for number in range(1, PLAYED + 1):
                transcript = _transcript(trial, index, problem, said, number)
                if transcript is None:
                    break
                if transcript[: len(before)] != before:
                    yield (
                        f"at index {index} the transcript of turn {number} does not begin with that of turn "
                        f"{number - 1}, where the policy said {shown(said)}. An earlier answer must not change."
                    )
                before = transcript


def _transcript(trial: Trial, index: int, problem: Problem, said: str, number: int) -> tuple[int, ...] | None:
    """Return the tokens of the first `number` turns of an episode, replayed; None if it ends before. Raises LeftOut."""
    turns: tuple[Turn, ...] = ()
    tokens = written(trial, partial(trial.codec.encode_prompt, problem))
    for _ in range(number):
        answered = trial.answer_turn(index, problem, turns, said)
        if answered is None:
            return None
        turns = (*turns, Turn(said=said, answered=answered))
        tokens += written(trial, partial(trial.codec.encode_answer, said))
        tokens += written(trial, partial(trial.codec.encode_turn, problem, answered))
    return tokens


def _played(trial: Trial, index: int, problem: Problem) -> Iterator[Asked]:
    """Yield the questions of some short episodes."""
    for said in (*USELESS, *filter(None, [problem.answer])):
        turns: tuple[Turn, ...] = ()
        for _ in range(PLAYED):
            yield index, problem, turns, said
            answered = trial.answer_turn(index, problem, turns, said)
            if answered is None:
                break
            turns = (*turns, Turn(said=said, answered=answered))


def _require_turns(trial: Trial) -> None:
    if not trial.gate.has_turns:
        raise LeftOut("it has one turn")
