"""reasoning-gym's problems: drawn by index, divided by digest, scored by the library."""

from __future__ import annotations

import random
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import reasoning_gym

from node.tasks.api.interface import Completion, TaskError
from node.tasks.gate import Gate
from node.tasks.grading import Asked, grade
from node.tasks.kinds import reasoning_gym as gym
from node.tasks.kinds.reasoning_gym import BLOCK, GymTask, answer_of
from node.tasks.registry import open_task
from node.tasks.sandbox import bubblewrap as sandbox

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
        reward = grade(task, asked)
        assert isinstance(reward, float)
        assert reward < 1.0


def test_a_data_set_that_makes_lists_of_its_problems() -> None:
    task = opened("list_functions")
    assert task.problem(5 * BLOCK + 1).prompt


def test_a_problem_is_the_same_each_time() -> None:
    """Else a completion is rewarded for another. This data set draws from the process's random numbers."""
    task = opened("list_functions")
    problems = [task.problem(index) for index in range(60)]
    state = random.getstate()
    assert [task.problem(index) for index in range(60)] == problems
    assert random.getstate() == state, "nobody else's numbers are touched"


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
        ("leg_counting:max_animals=few", "max_animals=few: must be a number, like 10"),
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


# The library executes text only where it can do no harm.

EVAL = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
SYMPY = (
    "countdown",
    "puzzle24",
    "polynomial_multiplication",
    "simple_integration",
    "intermediate_integration",
    "polynomial_equations",
    "simple_equations",
    "advanced_geometry",
)
OTHERS = (
    "basic_arithmetic",
    "bitwise_arithmetic",
    "gsm_symbolic",
    "list_functions",
    "number_sorting",
    "codeio",
    "rearc",
)
RIGHT_AS_A_LIST = {"string_insertion": 0.1, "spiral_matrix": 0.1, "binary_matrix": 0.1, "n_queens": 0.5}


def unconfined(task: GymTask, index: int, text: str) -> float:
    """What the library itself scores, in this process."""
    return float(task._opened(0).score_answer(text, dict(task.problem(index).entry)))


@pytest.mark.parametrize("name", [*EVAL, *SYMPY[:5]])
def test_an_answer_that_is_a_program_writes_no_file(name: str, tmp_path: Path) -> None:
    task, file = opened(name), tmp_path / "written"
    tmp_path.chmod(0o777)
    hostile = f"open({str(file)!r}, 'w').close()"
    unconfined(task, 0, hostile)
    assert file.exists(), "the library executes it"
    file.unlink()
    asked = Asked(index=0, held_out=False, said=(hostile,), finished=True, wants_reward=True)
    assert grade(task, asked) == task.reward(task.problem(0), said("no idea"))
    assert not file.exists()


def test_an_answer_that_is_a_program_reads_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the secret would leave as the answer's own reward, bit by bit."""
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    (tmp_path / "node.key").write_text("a secret")
    task = opened("string_insertion")
    problem = task.problem(0)
    for read in ("str(__import__('os').environ)", f"open({str(tmp_path / 'node.key')!r}).read()"):
        hostile = f"{list(str(problem.answer))} if 'a secret' in {read} else 'x'"
        assert unconfined(task, 0, hostile) == 0.1, "the library lets it"
        assert task.reward(problem, said(hostile)) == 0.0


def test_an_answer_that_is_a_program_reaches_no_network() -> None:
    task = opened("countdown")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        hostile = f"__import__('socket').create_connection(('127.0.0.1', '{listening.getsockname()[1]}')).close()"
        unconfined(task, 0, hostile)
        listening.accept()[0].close()
        task.reward(task.problem(0), said(hostile))
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_an_answer_that_is_a_program_decides_no_reward_but_its_own() -> None:
    task = opened("string_insertion")
    problem = task.problem(0)
    library = "__import__('sys').modules['reasoning_gym.algorithmic.string_insertion']"
    patched = f"setattr({library}.StringInsertionDataset, 'score_answer', lambda *told: 1.0)"
    assert task.reward(problem, said(f"[{patched}, 'x'][1]")) == 0.0
    assert task.reward(problem, said("wrong")) == 0.0
    assert task.reward(problem, said(str(problem.answer))) == 1.0


def test_a_reward_that_is_none_is_not_believed() -> None:
    """A program can say its own reward, but not more than there is."""
    task = opened("string_insertion")
    claims = {b"1e18": 0.0, b"NaN": 0.0, b"-3": 0.0, b"true and more": 0.0, b'"1"': 0.0, b"[1]": 0.0, b"0.25": 0.25}
    for claim, worth in claims.items():
        tell = f"import os\nfor number in range(3, 32):\n    try: os.write(number, {claim!r})\n    except OSError: pass"
        hostile = f"[exec({tell!r}), __import__('os')._exit(0)]"
        assert task.reward(task.problem(0), said(hostile)) == worth


@pytest.mark.parametrize("name", [*EVAL, *SYMPY, *OTHERS, "propositional_logic", "bf"])
def test_rewards_are_the_librarys_own(name: str) -> None:
    task = opened(name)
    assert task.is_confined
    for index in (0, 1):
        problem = task.problem(index)
        right = str(problem.answer)
        texts = [right, "no idea at all", "", "42", "[1, 2]", f"{right} "]
        if name in RIGHT_AS_A_LIST:
            rows = [row.split() for row in right.split("\n")]
            texts.append(repr(right.split(" ") if name == "spiral_matrix" else list(right)))
            texts.append(repr(rows))
        if name == "polynomial_multiplication":
            texts.append(f"0 + {right}")
        for text in texts:
            try:
                expected = unconfined(task, index, text.strip())
            except Exception:  # as `reward` has it for the others
                expected = 0.0
            assert task.reward(problem, said(text)) == expected, (text, expected)


@pytest.mark.parametrize("name", RIGHT_AS_A_LIST)
def test_a_right_answer_as_a_list_is_worth_what_the_library_says(name: str) -> None:
    task = opened(name)
    problem = task.problem(0)
    right = str(problem.answer)
    as_list: object = {
        "string_insertion": list(right),
        "spiral_matrix": right.split(" "),
    }.get(name, [row.split(" ") for row in right.split("\n")])
    assert task.reward(problem, said(repr(as_list))) == RIGHT_AS_A_LIST[name]


def test_a_task_that_executes_answers_needs_a_sandbox_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gym._SCORES.close()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    wanted = "reasoning-gym may execute what it reads, so it is only run in bubblewrap, which is not installed here"
    task = opened("countdown")
    with pytest.raises(TaskError, match=wanted):
        Gate(task).require()
    with pytest.raises(TaskError, match=wanted):
        task.reward(task.problem(0), said("1"))
    harmless = opened("gcd")
    Gate(harmless).require()
    assert harmless.reward(harmless.problem(0), said(str(harmless.problem(0).answer))) == 1.0


def test_every_score_of_a_version_that_nobody_has_read_is_computed_in_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not opened("gcd").is_confined
    monkeypatch.setattr(gym, "READ_VERSION", "0.1.24")
    task = opened("gcd")
    assert task.is_confined
    assert task.reward(task.problem(0), said(str(task.problem(0).answer))) == 1.0
    names = opened("knights_knaves")  # some parts of its problems are numpy's
    assert names.reward(names.problem(0), said(str(names.problem(0).answer))) == 1.0


def test_a_problem_that_is_no_plain_data_is_refused_rather_than_scored_here(monkeypatch: pytest.MonkeyPatch) -> None:
    task = opened("countdown")
    problem = replace(task.problem(0), entry={"answer": object()})
    with pytest.raises(TaskError, match="something of type object, which cannot be passed to the sandbox"):
        task.reward(problem, said("1"))
