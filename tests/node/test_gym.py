"""reasoning-gym's problems: drawn by index, divided by digest, scored by the library."""

from __future__ import annotations

import pytest
import reasoning_gym

from node.tasks.gym import BLOCK, GymTask, answer_of
from node.tasks.judging import Asked, judged
from node.tasks.port import Completion, TaskError
from node.tasks.registry import open_task

FIVE = ("leg_counting:max_animals=4", "chain_sum:min_terms=2,max_terms=2", "spell_backward", "gcd", "number_sorting")


def opened(spec: str, seed: int = 0) -> GymTask:
    task = open_task(f"reasoning_gym:{spec}", seed=seed)
    assert isinstance(task, GymTask)
    return task


def said(text: str, *, finished: bool = True) -> Completion:
    return Completion(text=text, finished=finished)


@pytest.mark.parametrize("spec", FIVE)
def test_a_problem_has_its_answer_and_it_is_worth_one(spec: str) -> None:
    task = opened(spec)
    for problem in (task.problem(0), task.problem(3 * BLOCK), task.held_out(1)):
        assert task.reward(problem, said(str(problem.answer))) == 1.0
        assert task.reward(problem, said(f"so <answer> {problem.answer} </answer>")) == 1.0
        assert task.reward(problem, said(str(problem.answer), finished=False)) == 0.0
        assert task.reward(problem, said("no idea at all")) < 1.0


def test_problems_follow_from_index_and_seed_and_those_held_out_from_the_index() -> None:
    one, again, other = opened("chain_sum"), opened("chain_sum"), opened("chain_sum", seed=1)
    assert [one.problem(index) for index in range(9)] == [again.problem(index) for index in range(9)]
    assert one.problem(0) != other.problem(0)
    assert one.held_out(0) == other.held_out(0)
    assert one.fingerprint == again.fingerprint
    assert one.fingerprint != other.fingerprint
    training = {one.problem(index).prompt for index in range(400)}
    held_out = {one.held_out(index).prompt for index in range(50)}
    assert len(training) > 390
    assert not training & held_out


@pytest.mark.parametrize("spec", ["propositional_logic", "prime_factorization", "boxnet", "game_of_life"])
def test_what_a_data_set_cannot_read_is_worth_nothing_and_is_no_mistake_of_the_task(spec: str) -> None:
    """Some of them raise at an answer of another form: the policy's mistake, which must not end a run."""
    task = opened(spec)
    for text in ("(" * 5_000 + "1" + ")" * 5_000, "[" * 5_000 + "]" * 5_000, '{"a": 1}', "null", "[1, 2]", "\0"):
        asked = Asked(index=0, held_out=False, said=(text,), finished=True, wants_reward=True)
        reward = judged(task, asked)
        assert isinstance(reward, float)
        assert reward < 1.0


def test_a_data_set_that_makes_lists_of_its_problems() -> None:
    task = opened("list_functions")
    assert task.problem(5 * BLOCK + 1).prompt


def test_five_tasks_of_a_mixture_keep_their_data_sets_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """arc_agi takes a second to open one: where tasks close each other's, each problem takes as long."""
    tasks = [opened(spec) for spec in FIVE]
    for task in tasks:
        task.problem(1)
        task.held_out(0)

    def create(name: str, **settings: object) -> object:
        raise AssertionError(f"{name} is opened again")

    monkeypatch.setattr(reasoning_gym, "create_dataset", create)
    for _ in range(3):
        for task in tasks:
            problem = task.problem(1)
            assert task.reward(problem, said(str(problem.answer))) == 1.0
            task.held_out(0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("leg_countin", r"no 'leg_countin' \(did you mean 'leg_counting'\?\).*It has: .*zebra_puzzles"),
        ("leg_counting:max_animal=4", r"no key 'max_animal' \(did you mean 'max_animals'\?\).*Keys: min_animals"),
        ("leg_counting:max_animals=few", "max_animals=few: must be a number, as 10 is"),
        ("leg_counting:max_animals=1", "cannot be opened: AssertionError"),
        ("leg_counting:seed=4", "no key 'seed'"),
    ],
)
def test_a_mistake_is_told_with_what_would_have_been_right(spec: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        opened(spec)


def test_the_answer_is_what_is_marked_or_all() -> None:
    assert answer_of("<answer>1</answer> or rather <answer>\n2 </answer>") == "2"
    assert answer_of(" 42\n") == "42"
    assert answer_of("<answer>1</answer><answer>2") == "1"
    assert answer_of("</answer><answer> <answer>2</answer>") == "<answer>2"
    assert answer_of("<answer>" * 1_000_000).startswith("<answer>"), "in one pass"
