"""Offer the checks as pytest tests: a class for authors to subclass."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from unittest import SkipTest

from node.tasks.api.interface import Task, TaskKind
from node.tasks.checks.check_task import INDEXES, MAX_TURNS, check_task


class TaskChecks:
    """A pytest test for each promise of a task. Make a subclass in a test file, and name the task:

        class TestMyTask(TaskChecks):
            task = "python:my_task:MY_TASK"

    The other attributes are arguments of `check_task`, and may be set as well. You may add your own tests to the class.
    A promise that does not apply to this task, such as those about turns for a task of one turn, is skipped.
    """

    task: ClassVar[Task | TaskKind | str]
    indexes: ClassVar[int] = INDEXES
    directory: ClassVar[Path | None] = None
    seed: ClassVar[int] = 0
    model: ClassVar[Path | None] = None
    max_turns: ClassVar[int] = MAX_TURNS
    max_problem_s: ClassVar[float | None] = None
    max_reward_s: ClassVar[float | None] = None

    def test_it_opens(self) -> None:
        self._hold("opens")

    def test_an_index_names_the_same_problem_every_time(self) -> None:
        self._hold("problems")

    def test_another_process_has_the_same_problems(self) -> None:
        self._hold("elsewhere")

    def test_no_held_out_prompt_is_trained_on(self) -> None:
        self._hold("held-out")

    def test_the_fingerprint_changes_with_the_problems(self) -> None:
        self._hold("fingerprint")

    def test_every_answer_is_worth_a_number(self) -> None:
        self._hold("numbers")

    def test_the_same_answer_is_worth_the_same_again(self) -> None:
        self._hold("pure")

    def test_the_reference_answer_is_worth_most(self) -> None:
        self._hold("reference")

    def test_the_same_words_are_answered_alike_again(self) -> None:
        self._hold("answers")

    def test_an_episode_ends(self) -> None:
        self._hold("end")

    def test_every_transcript_begins_with_the_one_before(self) -> None:
        self._hold("transcripts")

    def test_every_prompt_can_be_written_in_tokens(self) -> None:
        self._hold("tokens")

    def test_problems_and_rewards_take_no_longer_than_their_limits(self) -> None:
        self._hold("times")

    def _hold(self, name: str) -> None:
        report = check_task(
            type(self).task,
            self.indexes,
            directory=self.directory,
            seed=self.seed,
            model=self.model,
            max_turns=self.max_turns,
            max_problem_s=self.max_problem_s,
            max_reward_s=self.max_reward_s,
            only=name,
        )
        for result in report.results:
            if result.name == name and result.left_out:
                raise SkipTest(result.left_out)
