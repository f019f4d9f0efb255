"""Tasks: problems by index, rewards, the two sides, specs, and files with mistakes in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks import registry
from node.tasks.answers.numbers import last_number
from node.tasks.api.interface import (
    Answer,
    Chat,
    ChatMessage,
    Completion,
    FiniteTask,
    Problem,
    Task,
    TaskError,
    TaskKind,
    Turn,
    TurnTask,
)
from node.tasks.api.options import usage
from node.tasks.gate import Gate
from node.tasks.kinds.generated import GeneratedTask, is_held_out
from node.tasks.registry import find_kind, list_kinds, open_task

GENERATED = [
    "reverse", "reverse:letters=3,alphabet=8", "sort", "sort:digits=3", "product", "arithmetic", "arithmetic:levels=1",
    "guess", "guess:numbers=100,tries=7", "lookup", "lookup:keys=4",
]  # fmt: skip


def said(text: str, *, finished: bool = True) -> Completion:
    return Completion(text=text, finished=finished)


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def number_rows(count: int) -> list[dict[str, object]]:
    return [{"prompt": f"what is {number}?", "answer": str(number)} for number in range(count)]


def prompts(problems: Sequence[Problem]) -> set[object]:
    return {problem.prompt for problem in problems}


# --- generated tasks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", GENERATED)
def test_training_and_held_out_prompts_never_meet(spec: str) -> None:
    one, other = open_task(spec, seed=1), open_task(spec, seed=2)
    training = prompts([task.problem(index) for task in (one, other) for index in range(400)])
    held_out = prompts([one.held_out(index) for index in range(400)])
    assert training
    assert held_out
    assert not training & held_out


@pytest.mark.parametrize("spec", GENERATED)
def test_an_index_names_one_problem_whatever_was_asked_before(spec: str) -> None:
    asked = open_task(spec, seed=3)
    forwards = [asked.problem(index) for index in range(20)]
    assert [open_task(spec, seed=3).problem(index) for index in reversed(range(20))] == forwards[::-1]


@pytest.mark.parametrize("spec", GENERATED)
def test_seed_orders_training_and_leaves_held_out_alone(spec: str) -> None:
    one, other = open_task(spec, seed=1), open_task(spec, seed=2)
    assert [one.problem(index) for index in range(20)] != [other.problem(index) for index in range(20)]
    assert [one.held_out(index) for index in range(20)] == [other.held_out(index) for index in range(20)]
    assert one.fingerprint != other.fingerprint


def test_problems_stay_what_they_were() -> None:
    # A run that resumes after an upgrade has the same problems and rewards: these values never change.
    assert open_task("reverse", seed=0).problem(17) == Problem(prompt="rev:sgkbuw=", answer="wubkgs")
    assert open_task("sort", seed=0).held_out(17) == Problem(prompt="sort:40395=", answer="03459")
    assert open_task("arithmetic", seed=0).problem(17) == Problem(prompt="50-53=", answer="-3")


def test_demo_has_512_different_held_out_prompts() -> None:
    task = open_task("reverse")
    assert len(prompts([task.held_out(index) for index in range(512)])) == 512


def test_reverse_asks_for_the_word_backwards() -> None:
    problem = open_task("reverse:letters=9").problem(0)
    assert isinstance(problem.prompt, str)
    word = problem.prompt.removeprefix("rev:").removesuffix("=")
    assert len(word) == 9
    assert problem.answer == word[::-1]


def test_sort_asks_for_ascending_digits() -> None:
    problem = open_task("sort:digits=7").problem(0)
    assert isinstance(problem.prompt, str)
    assert problem.answer == "".join(sorted(problem.prompt.removeprefix("sort:").removesuffix("=")))


def test_arithmetic_answers_are_right_at_every_level() -> None:
    task = open_task("arithmetic")
    for index in range(200):
        problem = task.problem(index)
        assert isinstance(problem.prompt, str)
        assert problem.answer == str(eval(problem.prompt.removesuffix("=")))


@pytest.mark.parametrize("spec", GENERATED)
def test_only_the_exact_finished_answer_is_worth_one(spec: str) -> None:
    task = open_task(spec)
    problem = task.problem(0)
    assert problem.answer is not None
    assert task.reward(problem, said(problem.answer)) == 1.0
    for wrong in (said(problem.answer, finished=False), said(problem.answer + " "), said(""), said("x")):
        assert task.reward(problem, wrong) == 0.0


# --- several turns ----------------------------------------------------------------------------------------------------


def play(task: Task, problem: Problem, *said: str) -> tuple[list[Answer], float]:
    """Return the answers to each of `said`, until the end, and the reward."""
    assert isinstance(task, TurnTask)
    turns: list[Turn] = []
    for text in said:
        answered = task.answer_turn(problem, tuple(turns), text)
        if answered is None:
            completion = Completion(text=text, finished=True, turns=tuple(turns))
            return [turn.answered for turn in turns], task.reward(problem, completion)
        turns.append(Turn(said=text, answered=answered))
    raise AssertionError("the episode goes on")


def test_a_number_is_found_by_larger_and_smaller() -> None:
    task = open_task("guess")
    for index in range(50):
        problem = task.problem(index)
        low, high, said = 0, 9, list[str]()
        while low <= high:  # halve the range, which takes four guesses at most
            said.append(str((low + high) // 2))
            low, high = (low, int(said[-1]) - 1) if said[-1] > str(problem.answer) else (int(said[-1]) + 1, high)
        found = said.index(str(problem.answer))
        answers, reward = play(task, problem, *said)
        assert (len(answers), reward) == (found, 1.0)
        assert answers == ["+" if guess < str(problem.answer) else "-" for guess in said[:found]]


def test_a_guess_that_is_no_number_costs_a_try_and_the_last_one_ends_it() -> None:
    task = open_task("guess:numbers=100,tries=3")
    problem = Problem(prompt="guess:abcd=", answer="42")
    assert play(task, problem, "4²", "1000", "0") == (["?", "?"], 0.0)
    assert play(task, problem, "", "42") == (["?"], 1.0)
    assert task.reward(problem, Completion(text="42", finished=False)) == 0.0


def test_what_is_not_in_the_prompt_is_looked_up() -> None:
    task = open_task("lookup")
    problem = Problem(prompt="look:bd=", answer="35")
    assert play(task, problem, "d?", "b?", "35") == (["5", "3"], 1.0)
    assert play(task, problem, "x?", "??", "53") == (["?", "?"], 0.0)
    assert play(task, problem, "what?") == ([], 0.0)
    assert play(task, problem, *["b?"] * 5) == (["3"] * 4, 0.0), (
        "there must be two questions for each letter, and no more"
    )


def test_a_side_without_prompts_is_an_error() -> None:
    task = GeneratedTask(name="tiny", label="tiny", seed=0, draw=lambda _dice, _level: ("a", "a"))
    empty = task.problem if is_held_out("a") else task.held_out
    with pytest.raises(TaskError, match="too few different problems"):
        empty(0)


# --- specs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("revers", ["'revers'", "did you mean 'reverse'", "arithmetic", "jsonl", "sort"]),
        ("", ["''", "reverse"]),
        ("reverse:leters=3", ["'leters'", "did you mean 'letters'", "alphabet"]),
        ("reverse:letters", ["'letters'", "key=value", "reverse[:letters=6,alphabet=26]"]),
        ("reverse:letters=six", ["letters=six", "whole number"]),
        ("reverse:letters=1", ["letters=1", "2 to 256"]),
        ("reverse:letters=3,letters=4", ["'letters'", "twice"]),
        ("jsonl", ["needs PATH", "jsonl:PATH"]),
        ("jsonl:", ["needs PATH"]),
        ("jsonl:x.jsonl:match=fuzzy", ["match=fuzzy", "exact, numeric"]),
        ("jsonl:x.jsonl:held_out=nan", ["held_out=nan", "0 to 0.9"]),
        ("jsonl:nowhere.jsonl", ["nowhere.jsonl", "cannot be read"]),
    ],
)
def test_a_wrong_spec_says_what_would_be_right(spec: str, words: list[str]) -> None:
    with pytest.raises(TaskError) as caught:
        open_task(spec)
    assert [word for word in words if word not in str(caught.value)] == []


def test_options_reach_the_task() -> None:
    problem = open_task("reverse:letters=12, alphabet=4").problem(0)
    assert problem.answer is not None
    assert len(problem.answer) == 12
    assert set(problem.answer) <= set("abcd")


@pytest.mark.parametrize("name", ["plain.jsonl", "a=b.jsonl", "with:colon.jsonl"])
def test_path_of_a_spec_is_relative_to_its_directory(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / name, *number_rows(4))
    assert open_task(f"jsonl:{name}", directory=tmp_path).name == "jsonl"
    numeric = open_task(f"jsonl:{name}:match=numeric,held_out=0.5", directory=tmp_path)
    assert numeric.reward(numeric.problem(0), said(f"it is {numeric.problem(0).answer}.0")) == 1.0


def test_usage_shows_argument_and_defaults() -> None:
    said = usage(find_kind("jsonl"))
    assert said.startswith("jsonl:PATH[:prompt=prompt,answer=answer,match=exact,chat=auto,held_out=0.1,date=date,")


class Installed:
    """Stands in for a package's module that entry points name."""

    KIND = TaskKind(name="theirs", summary="from a package", build=lambda _arguments: open_task("sort"))
    NO_KIND = "something else"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide three entry points, as if installed: a good one, one that is no kind, and one with a built-in's name."""
    points = EntryPoints(
        EntryPoint(name=name, value=f"{__name__}:{value}", group=registry.ENTRY_POINT_GROUP)
        for name, value in [("theirs", "Installed.KIND"), ("odd", "Installed.NO_KIND"), ("sort", "Installed.KIND")]
    )
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points.select(group=group))


@pytest.mark.usefixtures("packages")
def test_packages_offer_tasks_through_entry_points() -> None:
    assert open_task("theirs").name == "sort"
    with pytest.raises(TaskError, match=r"'odd'.*is not a volery\.TaskKind"):
        open_task("odd")
    with pytest.raises(TaskError, match="theirs"):
        open_task("unknown")


@pytest.mark.usefixtures("packages")
def test_listing_shows_all_kinds_and_every_failure() -> None:
    kinds, errors = list_kinds()
    assert [kind.name for kind in kinds] == sorted([*registry.BUILT_IN, "theirs"])
    assert find_kind("sort") is registry.BUILT_IN["sort"]
    assert sorted("built-in" in str(error) for error in errors) == [False, True]


# --- files ------------------------------------------------------------------------------------------------------------


def test_an_index_names_a_line_for_ever(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.jsonl", *number_rows(50))
    task = open_task("jsonl:t.jsonl:held_out=0.2", directory=tmp_path)
    assert isinstance(task, FiniteTask)
    assert task.size == 40
    first, second = [task.problem(i).prompt for i in range(40)], [task.problem(i).prompt for i in range(40, 80)]
    assert len(set(first)) == 40
    assert first == second
    assert set(first).isdisjoint(task.held_out(index).prompt for index in range(10))
    assert task.held_out(0) == task.held_out(10)
    assert not isinstance(open_task("reverse"), FiniteTask)


def test_a_prompt_that_occurs_twice_lies_on_one_side(tmp_path: Path) -> None:
    rows = number_rows(10) + [{**row, "answer": "another"} for row in number_rows(10)]
    write_lines(tmp_path / "t.jsonl", *rows)
    task = open_task("jsonl:t.jsonl:held_out=0.5", directory=tmp_path)
    training = prompts([task.problem(index) for index in range(10)])
    assert len(training) == 5
    assert not training & prompts([task.held_out(index) for index in range(10)])


@pytest.mark.parametrize(
    ("match", "answers", "lines"),
    [
        ("exact", ["x", "y", "x ", "z"], "1 and 2"),
        ("exact", ["x", "x\n"], ""),
        ("numeric", ["1000", "1,000", "#### 1000", "10"], "1 and 4"),
        ("numeric", ["1000", "1{,}000"], ""),
        ("math", [r"\text{Even}", "even", r"\boxed{even}", "odd"], "1 and 4"),
        ("math", ["$x+1$", "x + 1"], ""),
    ],
)
def test_lines_that_contradict_each_other_are_told(tmp_path: Path, match: str, answers: list[str], lines: str) -> None:
    write_lines(tmp_path / "t.jsonl", *({"prompt": "p", "answer": answer} for answer in answers))
    task = open_task(f"jsonl:t.jsonl:match={match},held_out=0", directory=tmp_path)
    assert isinstance(task, FiniteTask)
    told = [note for note in task.notes if "want different answers" in note]
    wanted = f"{tmp_path / 't.jsonl'}: lines that ask the same want different answers (lines {lines})"
    assert [note.startswith(wanted) for note in told] == ([True] if lines else [])


def test_of_many_contradictions_the_first_are_told(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "answer": str(n)} for n in range(9)]
    write_lines(tmp_path / "t.jsonl", *rows, *({**row, "answer": "9"} for row in rows))
    task = open_task("jsonl:t.jsonl", directory=tmp_path)
    assert isinstance(task, FiniteTask)
    assert "(lines 1 and 10, 2 and 11, 3 and 12, ..., 9 pairs in all)" in task.notes[1]


def test_of_programs_the_tests_are_compared(tmp_path: Path) -> None:
    write_lines(tmp_path / "c.jsonl", *({"prompt": "p", "tests": [{"output": output}]} for output in "112"))
    task = open_task("code:c.jsonl:held_out=0", directory=tmp_path)
    assert isinstance(task, FiniteTask)
    assert "(lines 1 and 3)" in task.notes[1]


def test_a_single_prompt_leaves_nothing_to_hold_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.jsonl", *number_rows(1))
    task = open_task("jsonl:t.jsonl", directory=tmp_path)
    assert task.problem(5) == task.problem(0)
    with pytest.raises(TaskError, match=r"t\.jsonl: no line is held out"):
        task.held_out(0)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"prompt": "a"}', "has no field `answer`; its fields are `prompt`"),
        (b'{"answer": "a"}', "has no field `prompt`; its fields are `answer`"),
        (b'{"prompt": "", "answer": "a"}', "`prompt` is empty"),
        (b'{"prompt": "a", "answer": "  "}', "`answer` is empty"),
        (b'{"prompt": 3, "answer": "a"}', "in field `prompt`"),
        (b'{"prompt": "a", "answer": [1]}', "in field `answer`"),
        (b'{"prompt": [{"role": "wizard", "content": "a"}], "answer": "a"}', "role 'wizard'"),
        (b'{"prompt": [], "answer": "a"}', "`prompt` is empty"),
        (b'["a"]', "got `array`"),
        (b'{"prompt": "a", ', "not JSON"),
        (b'{"prompt": "\xff", "answer": "a"}', "not UTF-8"),
    ],
)
def test_a_bad_line_is_named(line: bytes, complaint: str, tmp_path: Path) -> None:
    good = b'{"prompt": "1+1", "answer": 2, "source": "ignored"}\n'
    (tmp_path / "bad.jsonl").write_bytes(good + b"\n" + good + line + b"\n" + good)
    with pytest.raises(TaskError) as caught:
        open_task("jsonl:bad.jsonl", directory=tmp_path)
    assert "bad.jsonl:4: " in str(caught.value)
    assert complaint in str(caught.value)


def test_numeric_match_wants_numbers_as_answers(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.jsonl", {"prompt": "a", "answer": 1.5}, {"prompt": "b", "answer": "none"})
    with pytest.raises(TaskError, match=r"t\.jsonl:2: `answer` holds no number"):
        open_task("jsonl:t.jsonl:match=numeric", directory=tmp_path)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n\n", encoding="utf-8")
    with pytest.raises(TaskError, match="holds no lines"):
        open_task("jsonl:t.jsonl", directory=tmp_path)


def test_exact_match_ignores_only_space_around(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.jsonl", {"prompt": "capital?", "answer": "New York"})
    task = open_task("jsonl:t.jsonl", directory=tmp_path)
    problem = task.problem(0)
    assert task.reward(problem, said(" New York\n")) == 1.0
    assert [task.reward(problem, each) for each in (said("new york"), said("New York", finished=False))] == [0.0, 0.0]


def test_chat_follows_the_option_and_conversations_always_use_the_template(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "t.jsonl",
        {"prompt": "a", "answer": "b"},
        {"prompt": [{"role": "user", "content": "c"}], "answer": "d"},
    )
    task = open_task("jsonl:t.jsonl:chat=never,held_out=0", directory=tmp_path)
    by_answer = {problem.answer: problem for problem in (task.problem(0), task.problem(1))}
    assert by_answer["b"].chat is Chat.NEVER
    assert by_answer["d"].chat is Chat.ALWAYS
    assert by_answer["d"].prompt == (ChatMessage(role="user", content="c"),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The total is $1,234.50.", Fraction("1234.5")),
        ("5 - 3 = 2.", Fraction(2)),
        ("x=5-3", Fraction(3)),
        ("it fell to -7", Fraction(-7)),
        ("\N{MINUS SIGN}4", Fraction(-4)),
        ("first 3, then 4\n#### 72\n", Fraction(72)),
        (r"so \boxed{\frac{1}{2}}, not 7", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("50%", Fraction(50)),
        ("6.02e23", Fraction("6.02e23")),
        ("1e999999999", None),
        ("9" * 1000, None),
        ("1/0", None),
        ("none", None),
        ("", None),
    ],
)
def test_last_number_reads_numbers_as_people_write_them(text: str, value: Fraction | None) -> None:
    assert last_number(text) == value


@given(st.text(alphabet="0123456789.,-+eE/$ #\\{}boxedfrac", max_size=200))
def test_last_number_never_fails(text: str) -> None:
    value = last_number(text)
    assert value is None or abs(value) < 10**200


@given(st.integers(-(10**9), 10**9))
def test_last_number_reads_every_grouping(number: int) -> None:
    assert last_number(f"= {number}") == last_number(f"= {number:,}") == last_number(f"= {number}.0") == number


OWN = """
from node.tasks.api.interface import Option, Problem, TaskArguments, TaskKind


class Echo:
    name, levels, fingerprint = "echo", 1, "echo"

    def __init__(self, arguments):
        self.word = arguments.options.get("word", "") * int(arguments.options.get("times", 1))

    def problem(self, index):
        return Problem(prompt=f"say {self.word} {index}")

    def held_out(self, index):
        return Problem(prompt=f"now say {self.word} {index}")

    def reward(self, problem, completion):
        return float(completion.text == self.word)


def broken(arguments):
    raise ValueError("out of words")


def half(arguments):
    return object()


TIMES = Option(key="times", default=2, help="how often", minimum=1, maximum=9)
KIND = TaskKind(name="echo", summary="", build=Echo, options=(TIMES,))
"""


def test_a_task_of_ones_own_is_a_class_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "own_echo.py").write_text(OWN)
    task = open_task("python:own_echo:Echo:word=ho,times=3", directory=tmp_path)
    assert task.problem(4).prompt == "say hohoho 4"
    assert task.reward(task.problem(4), said("hohoho")) == 1.0
    kind = open_task("python:own_echo:KIND", directory=tmp_path)
    assert vars(kind) == {"word": ""}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("python:own_echo", "'own_echo' is not MODULE:NAME"),
        ("python:no_such_module:Echo", r"module 'no_such_module' cannot be imported: ModuleNotFoundError.*looked for"),
        ("python:own_echo:Ecko", "has no class, function or TaskKind called 'Ecko'"),
        ("python:own_echo:broken", "cannot be built: ValueError: out of words"),
        ("python:own_echo:half", "lacks name, levels, fingerprint, problem, held_out, reward"),
        ("python:own_echo:KIND:times=0", "times=0: must lie in 1 to 9"),
        ("python:own_echo:KIND:time=3", r"no key 'time' \(did you mean 'times'\?\)"),
    ],
)
def test_a_mistake_around_a_task_of_ones_own_is_told(tmp_path: Path, spec: str, says: str) -> None:
    (tmp_path / "own_echo.py").write_text(OWN)
    with pytest.raises(TaskError, match=says):
        open_task(spec, directory=tmp_path)


@pytest.mark.parametrize(
    ("answer", "said_", "same"),
    [
        (r"\frac{1}{2}", r"so it is \boxed{0.5}", True),
        ("1/2", r"$\frac{2}{4}$", True),
        (r"\sqrt{8}", r"$2\sqrt{2}$", True),
        ("x + 1", r"\boxed{1+x}", True),
        ("72", "#### 72", True),
        ("72", "71", False),
        ("72", "", False),
    ],
)
def test_mathematics_is_equal_by_value(tmp_path: Path, answer: str, said_: str, same: bool) -> None:
    (tmp_path / "math.jsonl").write_text(json.dumps({"prompt": "p", "answer": answer}) + "\n")
    task = open_task("jsonl:math.jsonl:match=math,held_out=0", directory=tmp_path)
    assert not Gate(task).is_cheap, "a task that may take any time must not count as cheap"
    assert task.reward(task.problem(0), said(said_)) == float(same)
    assert task.reward(task.problem(0), Completion(text=said_, finished=False)) == 0.0
