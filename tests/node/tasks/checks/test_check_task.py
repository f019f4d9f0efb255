"""The kit for authors: a sound task passes, and each check finds the task that breaks its promise, in a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from node.tasks.api.interface import (
    Answer,
    ChatMessage,
    Completion,
    Option,
    Problem,
    TaskArguments,
    TaskError,
    TaskKind,
    Turn,
)
from node.tasks.checks.check_task import CHECKS, NAMES, check_task, try_task
from node.tasks.checks.report import MAX_FAULTS, Report
from node.tasks.tokenizer import TextCodec, write_character_tokenizer
from tests.support.paths import ROOT


@dataclass(kw_only=True)
class Sound:
    """Twice an even number. Its held-out prompts are odd numbers."""

    seed: int = 0
    step: int = 2
    asked: int = 0
    name: str = "sound"
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"sound/{self.step}/{self.seed}"

    def problem(self, index: int) -> Problem:
        self.asked += 1
        number = 2 * self.step * (index + 10 * self.seed)
        return Problem(prompt=f"{number}*2=", answer=str(2 * number))

    def held_out(self, index: int) -> Problem:
        return Problem(prompt=f"{2 * index + 1}*2=", answer=str(4 * index + 2))

    def reward(self, problem: Problem, completion: Completion) -> float:
        return float(completion.finished and completion.text == problem.answer)


@dataclass(kw_only=True)
class Talking(Sound):
    """The same in turns: it counts them, and ends after three."""

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        return None if len(turns) >= 2 else f"{len(turns)}"


def found(task: Any, only: str, **options: Any) -> str:
    """The faults of one check, a line each."""
    return "\n".join(try_task(task, 8, only=only, **options).faults)


def outcomes(report: Report) -> dict[str, str]:
    return {result.name: result.outcome for result in report.results}


def kind_of(make: type[Sound]) -> TaskKind:
    """A kind that builds `make`, with an option `step` and its seed."""

    def build(arguments: TaskArguments) -> Sound:
        return make(step=arguments.integer("step"), seed=arguments.seed)

    step = Option(key="step", default=2, help="between two numbers", minimum=1, maximum=9)
    return TaskKind(name="sound", summary="", build=build, options=(step,))


def test_a_sound_task_passes() -> None:
    report = check_task(kind_of(Sound))
    assert report.passed
    assert outcomes(report) == {
        **dict.fromkeys(NAMES, "holds"),
        **dict.fromkeys(("elsewhere", "answers", "end", "transcripts", "times"), "left out"),
    }
    assert report.problem.count >= 32
    assert report.reward.longest_s >= report.reward.median_s > 0


def test_a_sound_task_of_several_turns_passes() -> None:
    report = check_task(Talking())
    assert {outcomes(report)[name] for name in ("answers", "end", "transcripts")} == {"holds"}


def test_the_report_names_every_promise_and_every_fault() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return math.nan

    report = try_task(Broken(), 4)
    shown = str(report)
    for promise, _ in CHECKS.values():
        told = [line for line in shown.splitlines() if promise in line]
        assert told or any(result.promise == promise and result.left_out for result in report.results)
    assert "fails  numbers" in shown
    made = [result.outcome for result in report.results if result.outcome != "left out"]
    assert len(made) < len(report.results)
    assert shown.endswith(f"{made.count('fails')} of {len(made)} checks failed."), "as many as a good run would count"
    with pytest.raises(AssertionError, match=r"task 'sound' breaks promises:\nnumbers: .* gave the reward nan"):
        report.require()


def test_only_some_faults_of_a_kind_are_told() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def problem(self, index: int) -> Problem:
            return self.held_out(index)

    assert len(try_task(Broken(), only="held-out").faults) == MAX_FAULTS


def test_the_example_of_the_page_keeps_its_promises(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operate" / "write-a-task.md").read_text("utf-8")
    section = page.split("## A task\n")[1].split("### Attributes")[0]
    blocks = re.findall(r"(?s)```python\n(.*?)```", section)
    (tmp_path / "task_of_the_page.py").write_text("\n".join(blocks), encoding="utf-8")
    for spec in ("Twice:letters=5", "Twice", "TWICE:letters=3"):
        report = check_task(f"python:task_of_the_page:{spec}", directory=tmp_path)
        assert {name for name, outcome in outcomes(report).items() if outcome == "left out"} == {
            "answers", "end", "transcripts", "times",
        }, spec  # fmt: skip


# One task for each promise that can be broken


def test_what_is_no_task() -> None:
    assert "opens: task 'object' lacks name, levels" in found(object(), "opens")


def test_a_task_that_lacks_what_it_needs() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def require(self) -> None:
            raise TaskError("needs a library. Run: pip install it.")

    report = try_task(Broken())
    assert report.faults == ("opens: needs a library. Run: pip install it.",)
    assert outcomes(report) == {"opens": "fails"}, "nothing else is asked"


def test_a_spec_that_names_nothing() -> None:
    assert "opens: there is no task 'revers' (did you mean 'reverse'?)" in found("revers", "opens")


def test_a_kind_whose_build_fails() -> None:
    def build(arguments: TaskArguments) -> Sound:
        raise KeyError("step")

    kind = TaskKind(name="broken", summary="", build=build)
    assert "opens: task 'broken' cannot be built: KeyError: 'step'" in found(kind, "opens")


def test_a_kind_that_needs_an_argument_is_given_as_a_spec() -> None:
    kind = TaskKind(name="file", summary="", build=lambda _: Sound(), argument="PATH")
    assert "task 'file' needs PATH. Give a spec: file:PATH." in found(kind, "opens")


def test_a_problem_that_depends_on_what_was_asked_before() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def problem(self, index: int) -> Problem:
            self.asked += 1
            return Problem(prompt=f"{2 * self.asked}*2=", answer="4")

    said = found(Broken(), "problems")
    assert "index 7 asked '16*2=' at first and '18*2=' later" in said
    assert "Let `problem` depend on" in said


def test_a_finite_task_that_does_not_begin_anew() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        size: int = 5
        num_held_out: int = 2
        notes: tuple[str, ...] = ()
        pass_rates: tuple[float, ...] | None = None

    assert "`size` is 5, but index 5 asks something else than index 0." in found(Broken(), "problems")


def test_a_held_out_prompt_that_is_trained_on() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def held_out(self, index: int) -> Problem:
            return self.problem(index + 3)

    assert "index 3 asks the same as the held-out index 0, '12*2='" in found(Broken(), "held-out")


def test_a_held_out_prompt_that_another_seed_trains_on() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def problem(self, index: int) -> Problem:
            return Problem(prompt=f"{2 * index + (self.seed > 0)}*2=", answer="4")

    assert "asks the same as the held-out index 0" in found(kind_of(Broken), "held-out")


def test_held_out_problems_that_follow_from_the_seed() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def held_out(self, index: int) -> Problem:
            return Problem(prompt=f"odd {self.seed} {index}", answer="4")

    assert "the held-out index 0 asks something else with another seed" in found(kind_of(Broken), "held-out")


def test_a_task_that_holds_nothing_out_is_not_at_fault() -> None:
    @dataclass(kw_only=True)
    class Whole(Sound):
        def held_out(self, index: int) -> Problem:
            raise TaskError("nothing is held out here.")

    report = try_task(Whole())
    assert report.passed
    assert outcomes(report)["held-out"] == "left out"


def test_held_out_problems_that_fail() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def held_out(self, index: int) -> Problem:
            return Problem(prompt=["a", "b"][index])

    assert "failed at held-out index 0: " not in found(Broken(), "held-out")
    assert "failed at held-out index 2: IndexError" in found(Broken(), "held-out")


def test_a_fingerprint_that_changes_by_itself() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        @property
        def fingerprint(self) -> str:
            self.asked += 1
            return f"broken/{self.asked}"

    assert "fingerprint: it is 'broken/1' at first and 'broken/2' later" in found(Broken(), "fingerprint")


def test_a_fingerprint_that_forgets_an_option_and_the_seed() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        @property
        def fingerprint(self) -> str:
            return "broken"

    said = found(kind_of(Broken), "fingerprint")
    assert "with step=3 index 0 is another problem" not in said, "index 0 asks 0 * 2 for any step"
    assert "with step=3 index 1 is another problem under the same fingerprint. Put `step` into " in said
    assert "with another seed index 0 is another problem" in said
    assert "Put the seed into the fingerprint." in said


@pytest.mark.parametrize(
    ("worth", "told"),
    [
        (math.nan, "gave the reward nan"),
        (1e30, "gave the reward 1e+30"),
        ("1", "`reward` must return a number"),
        (None, "ends without `return`"),
    ],
)
def test_a_reward_that_is_no_number(worth: object, told: str) -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> Any:
            return 1.0 if completion.text == problem.answer else worth

    said = found(Broken(), "numbers")
    assert told in said
    assert "What the policy said: ''." in said


def test_a_reward_that_fails_at_what_a_policy_says() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return float(int(completion.text) == int(problem.answer or ""))

    said = found(Broken(), "numbers")
    line = Broken.reward.__code__.co_firstlineno + 1
    assert re.search(
        rf"failed at index 0: ValueError: .* \(test_check_task\.py, line {line}\)\. Correct the task\.", said
    )
    assert "acknowledged" not in said, "no learner runs here"


def test_an_exception_is_told_by_the_first_check_alone() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return 1 / 0

    report = try_task(Broken(), 4)
    assert outcomes(report)["numbers"] == "fails"
    [why] = [result.left_out for result in report.results if result.name == "pure"]
    assert why == "the task failed as in `numbers`."
    assert outcomes(try_task(Broken(), 4, only="pure"))["pure"] == "fails"


def test_a_reward_that_remembers() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            self.asked += 1
            return float(self.asked)

    assert "Let `reward` depend only on the problem and the completion." in found(Broken(), "pure")


def test_a_reference_answer_that_is_worth_nothing() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return float(completion.text == f"#### {problem.answer}")

    assert "at index 1 the reference answer '8' gets 0, and an empty one 0. Let" in found(Broken(), "reference")


def test_an_empty_reference_answer_is_not_blamed_on_the_reward() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def problem(self, index: int) -> Problem:
            return Problem(prompt=f"say nothing {2 * index}", answer="" if index == 2 else "x")

    said = found(Broken(), "reference")
    assert "at index 2 the reference answer is empty" in said
    assert "or give this one no `answer`." in said
    assert "Let `reward` accept" not in said


def test_an_answer_that_is_worth_more_than_the_reference() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return min(float(len(completion.text)), 100.0)

    assert "gets 100, but the reference answer '0' only 1." in found(Broken(), "reference")


def test_an_unfinished_answer_that_is_worth_more() -> None:
    @dataclass(kw_only=True)
    class Broken(Sound):
        def reward(self, problem: Problem, completion: Completion) -> float:
            return (2.0 - completion.finished) * (completion.text == problem.answer)

    assert "'0', unfinished, gets 2, but the reference answer '0' only 1." in found(Broken(), "reference")


def test_a_task_without_reference_answers_is_not_at_fault() -> None:
    @dataclass(kw_only=True)
    class Without(Sound):
        def problem(self, index: int) -> Problem:
            return Problem(prompt=f"say {2 * index}")

    report = try_task(Without())
    assert report.passed
    assert outcomes(report)["reference"] == "left out"


def test_a_task_that_answers_otherwise_the_second_time() -> None:
    @dataclass(kw_only=True)
    class Broken(Talking):
        def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
            self.asked += 1
            return None if len(turns) >= 3 else f"{self.asked}"

    assert "Let `answer_turn` depend only on its arguments." in found(Broken(), "answers")
    grown = found(Broken(), "transcripts")
    assert "at index 0 the transcript of turn 2 does not begin with that of turn 1" in grown


def test_an_episode_without_end() -> None:
    @dataclass(kw_only=True)
    class Broken(Talking):
        def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
            return "again"

    assert "is not over after 5 turns in which the policy said ''. Return None" in found(Broken(), "end", max_turns=5)


def test_an_answer_that_is_none() -> None:
    @dataclass(kw_only=True)
    class Broken(Talking):
        def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Any:
            return {"role": "user", "content": "again"}

    assert "`answer_turn` must return text, or messages" in found(Broken(), "answers")


def test_a_prompt_that_the_small_model_cannot_write_is_not_at_fault() -> None:
    @dataclass(kw_only=True)
    class Loud(Talking):
        def problem(self, index: int) -> Problem:
            return Problem(prompt=f"SAY {2 * index}", answer=str(index))

    report = try_task(Loud(), 4)
    assert report.passed
    assert {outcomes(report)[name] for name in ("tokens", "transcripts")} == {"left out"}
    [told] = [result.left_out for result in report.results if result.name == "tokens"]
    assert told.startswith(
        "the demo's small model: its tokenizer has no token for 'S' in 'SAY 0' (its characters: 'abc"
    )
    assert "). Name the directory of your model to check this" in told


def test_a_prompt_that_the_authors_model_cannot_write(tmp_path: Path) -> None:
    @dataclass(kw_only=True)
    class Chatting(Sound):
        def problem(self, index: int) -> Problem:
            return Problem(prompt=(ChatMessage(role="user", content=f"say {2 * index}"),), answer=str(index))

    write_character_tokenizer(tmp_path)
    assert "tokens: index 0: " in (said := found(Chatting(), "tokens", codec=TextCodec.load(tmp_path)))
    assert "has no chat template" in said


def test_a_task_that_takes_longer_than_it_may() -> None:
    report = try_task(Sound(), 4, max_problem_s=0.0, max_reward_s=1000.0)
    [fault] = report.faults
    assert fault.startswith("times: a problem took ")
    assert fault.endswith("; the limit is 0 s.")
    assert outcomes(try_task(Sound(), 4, max_problem_s=1000.0, only="times")) == {"opens": "holds", "times": "holds"}


def test_a_cheap_task_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("node.tasks.checks.check_task"), "SLOW_CHEAP_S", 0.0)

    @dataclass(kw_only=True)
    class Cheap(Sound):
        is_cheap: bool = True

    assert "Leave `is_cheap` out." in str(try_task(Cheap(), 2))
    assert "is_cheap" not in str(try_task(Sound(), 2))


def test_a_check_that_there_is_none_of() -> None:
    with pytest.raises(ValueError, match="there is no check 'rewards'; the checks are opens, problems"):
        try_task(Sound(), only="rewards")
