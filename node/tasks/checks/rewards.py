"""Check the rewards of many completions, the reference answer among them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from node.tasks.api.interface import Completion, Problem, TaskError
from node.tasks.checks.trial import TRIED, LeftOut, Trial, shown

LONG = 10_000
"""Characters of the longest made-up completion: more than most completions have."""

ODD = "\x00\x1b[2J\u202e\ufffd\N{SLIGHTLY SMILING FACE}"
"""A text that an untrained policy may say: control characters, reversed text direction, unknown characters."""


def made_up(problem: Problem, other: Problem) -> list[Completion]:
    """Return completions that a policy could give to `problem`, without the exact reference. `other` is another
    problem."""
    texts = ["", " ", "0", "a", "I do not know.", "\n" * 8, "9" * LONG, ODD]
    if problem.answer:
        texts += [f"{problem.answer}x", problem.answer * 2, problem.answer[::-1], problem.answer[:-1]]
    if other.answer:
        texts.append(other.answer)
    given = [Completion(text=text, finished=True) for text in dict.fromkeys(texts) if text != problem.answer]
    return [*given, Completion(text=problem.answer or "a", finished=False)]


def numbers(trial: Trial) -> Iterator[str]:
    """Check that every completion gets a number within MAX_REWARD or CANNOT_SAY, even a senseless one, and that at
    least one gets a number."""
    is_known = False
    for index, problem, completion in _cases(trial):
        try:
            is_known = not math.isnan(trial.reward(index, problem, completion)) or is_known
        except TaskError as error:
            is_known = True
            yield str(error)
    if not is_known:
        yield "`reward` returned CANNOT_SAY for every completion. Check that everything that it needs is available."


def pure(trial: Trial) -> Iterator[str]:
    """Check that a completion gets the same reward in any order, and when the task is opened a second time."""
    cases = _cases(trial)
    first = [trial.reward(*case) for case in cases]
    for (index, _, completion), before in zip(reversed(cases), reversed(first), strict=True):
        after = trial.reward_again(index, completion)
        if after != before and not (math.isnan(after) and math.isnan(before)):
            yield (
                f"at index {index} {shown(completion.text)} got the reward {before:g} at first and {after:g} later. "
                "Let `reward` depend only on the problem and the completion."
            )


def reference(trial: Trial) -> Iterator[str]:
    """Check that the reference answer gets more than an empty one, and no made-up completion gets more than it."""
    problems = trial.problems()
    known = [(index, problem) for index, problem in enumerate(problems) if problem.answer is not None]
    if not known:
        raise LeftOut("its problems have no reference answers")
    for index, problem in known:
        if not problem.answer:
            yield (
                f"at index {index} the reference answer is empty, so nothing can get less. Choose problems whose right "
                "answer is not empty, or give this one no `answer`."
            )
            continue
        best, empty = _said(trial, index, problem, problem.answer), _said(trial, index, problem, "")
        if best <= empty:
            yield (
                f"at index {index} the reference answer {shown(problem.answer)} gets {best:g}, and an empty one "
                f"{empty:g}. Let `reward` accept `Problem.answer` as it stands."
            )
        if index >= TRIED:
            continue
        for completion in made_up(problem, problems[(index + 1) % len(problems)]):
            reward = trial.reward(index, problem, completion)
            if reward > best:
                yield (
                    f"at index {index} {shown(completion.text)}{'' if completion.finished else ', unfinished,'} gets "
                    f"{reward:g}, but the reference answer {shown(problem.answer)} only {best:g}."
                )


def _said(trial: Trial, index: int, problem: Problem, text: str) -> float:
    """Return the reward of an episode in which the policy says `text` in every turn."""
    completion = trial.episode(index, problem, text) if trial.gate.has_turns else None
    return trial.reward(index, problem, completion or Completion(text=text, finished=True))


def _cases(trial: Trial) -> list[tuple[int, Problem, Completion]]:
    """Return problems with completions, the reference answers among them."""
    problems = trial.problems(TRIED)
    cases = []
    for index, problem in enumerate(problems):
        completions = made_up(problem, problems[(index + 1) % len(problems)])
        if problem.answer is not None:
            completions.insert(0, Completion(text=problem.answer, finished=True))
        cases += [(index, problem, completion) for completion in completions]
    return cases
