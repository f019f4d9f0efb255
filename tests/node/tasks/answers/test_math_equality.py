r"""Compare answers in mathematics: references, equal forms, and that every comparison ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import math_verify
import pytest

from node.tasks.answers.math_comparison import MATH_VERIFY, Comparing
from node.tasks.answers.math_equality import reference_of, same_mathematics, wording
from node.tasks.api.interface import Completion, TaskError
from node.tasks.gate import Gate
from node.tasks.kinds.jsonl import JsonlTask
from node.tasks.registry import open_task
from node.tasks.sandbox import bubblewrap as sandbox
from node.tasks.sandbox import confined_library as confined

PMATRIX = r"\begin{pmatrix} 1 \\ -2 \\ 3 \end{pmatrix}"

ROWS: list[tuple[str, str, bool]] = [
    # a reference is what it is as a whole, words and money included; a part of it is worth nothing
    (r"10\sqrt{3} \text{ meters}", r"\boxed{10\sqrt{3} \text{ meters}}", True),
    (r"10\sqrt{3} \text{ meters}", r"\boxed{\sqrt{300}}", True),
    (r"10\sqrt{3} \text{ meters}", r"It is $10\sqrt{3}$ meters.", True),
    (r"10\sqrt{3} \text{ meters}", r"\boxed{10}", False),
    (r"10\sqrt{3} \text{ meters}", "10", False),
    (r"10 $\sqrt{3}$ meters", r"\boxed{10\sqrt{3}}", True),
    (r"10 $\sqrt{3}$ meters", r"\boxed{\sqrt{3}}", False),
    (r"18+2\pi\text{ units}", r"\boxed{18+2\pi\text{ units}}", True),
    (r"18+2\pi\text{ units}", r"\boxed{2\pi + 18}", True),
    (r"18+2\pi\text{ units}", r"\boxed{18}", False),
    (PMATRIX, rf"\boxed{{{PMATRIX}}}", True),
    (PMATRIX, r"$\begin{pmatrix}1\\-2\\3\end{pmatrix}$", True),
    (PMATRIX, r"\boxed{3}", False),
    (PMATRIX, "3", False),
    (PMATRIX, rf"\boxed{{{PMATRIX.replace('3', '4')}}}", False),
    (r"\$36", r"\boxed{\$36}", True),
    (r"\$36", r"\boxed{36}", True),
    (r"\$36", "Answer: $36", True),
    (r"\$36", r"\boxed{37}", False),
    ("$36$", r"\boxed{36}", True),
    (r"\text{even}", r"\boxed{\text{even}}", True),
    (r"\text{even}", r"\boxed{even}", True),
    (r"\text{even}", "Even.", True),
    (r"\text{even}", r"\boxed{\text{odd}}", False),
    (r"\text{even}", r"\boxed{\text{ev}}", False),
    ("True", r"\boxed{True}", True),
    ("True", r"\boxed{\text{true}}", True),
    ("True", "The answer is True", True),
    ("True", r"\boxed{False}", False),
    ("True", r"\boxed{T}", False),
    (r"\text{June 20}", r"\boxed{\text{June 20}}", True),
    (r"\text{June 20}", r"\boxed{20}", False),
    ("6:00", r"\boxed{6:00}", True),
    ("6:00", r"\boxed{7:00}", False),
    # what is marked
    ("We add 3 and 4.\n#### 7", r"\boxed{7}", True),
    ("We add 3 and 4.\n#### 7", r"\boxed{4}", False),
    (r"so it is \boxed{x^2 + 1}, as $x$ is real", r"\boxed{1+x^2}", True),
    ("The answer is 7.", r"\boxed{7}", True),
    ("Hence the sum of all is $\\frac{7}{2}$.", r"\boxed{3.5}", True),
    (r"Hence the sum of all is \(\frac{7}{2}\).", r"\boxed{2}", False),
    ("$x = 3$ or $x = 4$", r"$x = \boxed{4}$ or $x = \boxed{3}$", True),
    ("$x = 3$ or $x = 4$", r"\boxed{4}", False),
    ("72", "#### 72", True),
    ("72", "#### Conclusion\nSo it is $72$", True),
    ("3, 4", r"$x = \boxed{3}$ or $\boxed{4}$", True),
    ("3", r"\boxed{3} or \boxed{4}", False),
    ("4", r"first \boxed{3}, corrected: \boxed{4}", True),
    # one of several options
    ("(A)", "The answer is (A)", True),
    ("A", "The answer is (A).", True),
    ("A", "Answer: A", True),
    ("A", "**Answer:** A", True),
    ("A", "The correct answer is: (A) twelve", True),
    (r"\text{(C)}", r"\boxed{C}", True),
    (r"\text{(C)}", "(C)", True),
    ("A", "Answer: B", False),
    ("A", "The answer is (B) A twelve", False),
    ("A", "A: the first", True),
    ("A", "A: the first\nB: the second\nI choose B", False),
    # words behind a number are what it counts
    ("18", "#### 18 dollars", True),
    ("18", "The answer is 18 dollars.", True),
    ("18", "The answer is 18 people.", True),
    ("18", "#### 18 books", True),
    ("18", "The answer is 18 miles per hour.", True),
    ("18", "The answer is **18** students.", True),
    ("18", "**Answer: $18$ students**", True),
    ("7", "The answer is 7 years old.", True),
    (r"\frac{1}{2}", r"The answer is $\frac12$ cup.", True),
    (r"10\sqrt{3}", r"\boxed{10\sqrt{3} meters}", True),
    ("18 dollars", r"\boxed{18}", True),
    ("18", "The answer is 18 million.", False),
    ("18", "The answer is 19 people.", False),
    ("18", "The answer is 18 pi.", False),
    ("18", r"\boxed{18 plus x}", False),
    ("10 June", r"\boxed{10 \text{ July}}", False),
    (r"\frac{1}{2} abc", r"\boxed{\frac12 xyz}", False),
    # an answer of several parts counts as a whole
    (r"2 \text{ feet } 6 \text{ inches}", r"\boxed{2}", False),
    (r"2 \text{ feet } 6 \text{ inches}", r"\boxed{2 \text{ feet } 7 \text{ inches}}", False),
    (r"2 \text{ feet } 6 \text{ inches}", r"\boxed{2\text{ feet }6\text{ inches}}", True),
    (r"2 \text{ hours and } 30 \text{ minutes}", r"\boxed{2}", False),
    (r"5 \text{ men and } 6 \text{ women}", r"\boxed{5}", False),
    (r"\frac12 \text{ if } n \text{ is even}, 0 \text{ otherwise}", r"\boxed{\frac12}", False),
    (r"\frac12 \text{ if } n \text{ is even}", r"\boxed{\frac12}", False),
    ("2", r"\boxed{2 \text{ feet } 6 \text{ inches}}", False),
    (r"x \equiv 3 \pmod{7}", r"\boxed{3}", False),
    (r"x \equiv 3 \pmod{7}", r"\boxed{x \equiv 3 \pmod{8}}", False),
    (r"x \equiv 3 \pmod{7}", r"\boxed{x \equiv 3 \pmod 7}", True),
    (r"3 \text{ or } 4", r"\boxed{4, 3}", True),
    (r"12 \text{ cm}^2", r"\boxed{12}", True),
    (r"\frac16", r"\boxed{P(\text{red}) = \frac{1}{6}}", True),
    ("5", r"\boxed{3 \pmod{}}", False),
    # words of scale
    (r"10 \text{ million}", r"\boxed{10}", False),
    ("10", r"\boxed{10 \text{ million}}", False),
    ("10", "It is 10 million.", False),
    (r"10 \text{ million}", r"\boxed{10{,}000{,}000}", True),
    ("10,000,000", "It is 10 million.", True),
    ("5", "With 5 million people it is $5$.", True),
    # what has no value: words, numerals of another base, ratios, times, dates
    ("CAT", r"\boxed{ACT}", False),
    ("BDAC", r"\boxed{ABCD}", False),
    ("AB", r"\boxed{BA}", False),
    ("CAT", r"\boxed{\text{cat}}", True),
    ("2516_8", r"\boxed{2516_9}", False),
    ("2516_8", r"\boxed{2516_{8}}", True),
    ("2516_{10}", r"\boxed{2516_{11}}", False),
    ("3:4", r"\boxed{6:8}", False),
    ("3:4", r"\boxed{3 : 4}", True),
    ("12:30", r"\boxed{2:05}", False),
    ("2024-06-01", r"\boxed{2017}", False),
    # numbers that programs write, and small ones
    ("1.5e-3", r"\boxed{0.0015}", True),
    ("1.5e-3", r"\boxed{1.5 \times 10^{-3}}", True),
    (r"6.02 \times 10^{23}", r"\boxed{6.02e23}", True),
    ("2e-5", r"\boxed{-5+2e}", True),
    (r"1.6 \times 10^{-19}", r"\boxed{1.7 \times 10^{-19}}", False),
    (r"1.6 \times 10^{-19}", r"\boxed{1.6e-19}", True),
    ("0.00012", r"\boxed{0.0001202}", False),
    ("0.0004", r"\boxed{\frac{1}{2500}}", True),
    # equal by value
    ("1/2", r"$\frac{2}{4}$", True),
    (r"\frac{1}{2}", r"so it is \boxed{0.5}", True),
    (r"\sqrt{8}", r"$2\sqrt{2}$", True),
    ("x + 1", r"\boxed{1+x}", True),
    ("y = 2x", r"\boxed{2x}", True),
    ("[1, 5)", r"\boxed{[1,5)}", True),
    ("[1, 5)", r"\boxed{(1,5)}", False),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}", True),
    (r"\{1, 2\}", r"\boxed{2}", False),
    (r"1\,234", r"\boxed{1234}", True),
    ("1234", r"\boxed{1\,234}", True),
    ("235", r"\boxed{1\,234}", False),
    (r"10,\!000", r"\boxed{10{,}000}", True),
    ("31/2", r"\boxed{3 1/2}", False),
    (".5", r"\boxed{5}", False),
    ("72", "71", False),
    ("72", "", False),
    ("72", r"\boxed{}", False),
    ("72", r"\boxed{\frac{7}{2}", False),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "said", "same"), ROWS)
def test_an_answer_is_worth_one_as_a_whole(answer: str, said: str, same: bool) -> None:
    assert same_mathematics(answer, said) is same


def opened(base: Path, *answers: str) -> JsonlTask:
    rows = [{"prompt": f"p{number}", "answer": answer} for number, answer in enumerate(answers)]
    (base / "math.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = open_task("jsonl:math.jsonl:match=math,held_out=0", directory=base)
    assert isinstance(task, JsonlTask)
    return task


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("$$", "reads as nothing"),
        (r"\boxed{}", "reads as nothing"),
        (r"\text{ }", "reads as nothing"),
        ("####", "reads as nothing"),
        (r"\frac{1}{2", "has unmatched braces"),
        ("1}", "has unmatched braces"),
        ("{" * 500 + "1" + "}" * 500, "has unmatched braces, or too many nested brackets"),
        ("If we take $a = 1$ there, we get $b = 2$.", "is prose that marks no answer"),
        ("So there are $3$ or more of them.", "is prose that marks no answer"),
        ("There is no such $n$.", "is prose that marks no answer"),
        ("So it holds for every integer $n$.", "is prose that marks no answer"),
        ("It is true of all $n$.", "is prose that marks no answer"),
        ("It is so only with $n$.", "is prose that marks no answer"),
        ("First we add all that is there to what was there before, and see. " * 3, "is prose that marks no answer"),
    ],
)
def test_a_reference_that_reads_as_nothing_is_refused_with_its_line(tmp_path: Path, answer: str, says: str) -> None:
    with pytest.raises(TaskError, match=rf"math\.jsonl:2: `answer` {says}"):
        opened(tmp_path, "1", answer)


@pytest.mark.parametrize("text", ["The only such one is $7$.", "Hence the sum of all of them is $7$."])
def test_a_sentence_with_one_piece_of_mathematics_says_that_piece(text: str) -> None:
    assert reference_of(text) == "7"


def test_numbers_of_a_file_are_read_without_an_exponent(tmp_path: Path) -> None:
    rows = [{"prompt": str(answer), "answer": answer} for answer in (0.00001, 1e16, 0.5, 100.0)]
    (tmp_path / "math.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = open_task("jsonl:math.jsonl:match=math,held_out=0", directory=tmp_path)
    problems = [task.problem(index) for index in range(len(rows))]
    assert {problem.answer for problem in problems} == {"0.00001", "10000000000000000", "0.5", "100.0"}
    (small,) = (problem for problem in problems if problem.answer == "0.00001")
    for said, worth in ((r"\boxed{0.00001}", 1.0), (r"\boxed{e-5}", 0.0)):
        assert task.reward(small, Completion(text=said, finished=True)) == worth


def test_whatever_may_be_a_reference_is_right_when_it_is_answered(tmp_path: Path) -> None:
    answers = list(dict.fromkeys(answer for answer, _, _ in ROWS))
    task = opened(tmp_path, *answers)
    assert not Gate(task).is_cheap, "it may take any time"
    for index in range(len(answers)):
        problem = task.problem(index)
        assert problem.answer is not None
        completion = Completion(text=rf"so \boxed{{{reference_of(problem.answer)}}}", finished=True)
        assert task.reward(problem, completion) == 1.0
        assert task.reward(problem, Completion(text=completion.text, finished=False)) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"\text{Even}", "even", True),
        ("(B)", r"\textbf{B}", True),
        (r"x \, = 5.", "x=5", True),
        ("3 1/2", "31/2", False),
        (".5", "5", False),
        ("A", "a", False),
        ("2x", "2X", False),
    ],
)
def test_wording_is_what_a_text_says_without_how_it_looks(one: str, other: str, same: bool) -> None:
    assert (wording(one) == wording(other)) is same


# --- every comparison ends --------------------------------------------------------------------------------------------

HARD = [
    "10^{10^{10}}",
    "9^{9^{9^9}}",
    "((9!)!)!",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k}",
    r"\binom{10^{9}}{5 \cdot 10^{8}}",
]


@pytest.fixture(scope="module")
def with_short_limits() -> Iterator[Comparing]:
    process = Comparing(limit_s=3)
    yield process
    process.close()


def test_what_takes_too_long_is_not_equal_and_the_next_question_has_an_answer(with_short_limits: Comparing) -> None:
    assert with_short_limits.are_equal(r"\boxed{5}", r"\boxed{4+1}")
    assert not with_short_limits.are_equal(r"\boxed{5}", r"\boxed{10^{10^{10}}}")
    assert with_short_limits.are_equal(r"\boxed{5}", r"\boxed{4+1}")


@pytest.mark.slow
@pytest.mark.parametrize("said", HARD)
def test_every_comparison_ends(with_short_limits: Comparing, said: str) -> None:
    assert not with_short_limits.are_equal(r"\boxed{5}", rf"\boxed{{{said}}}")


@pytest.mark.slow
def test_a_tower_of_powers_is_worth_nothing_unless_it_is_the_answer(tmp_path: Path) -> None:
    task = opened(tmp_path, "5", "10^{10^{10}}")
    worth = {
        problem.answer: task.reward(problem, Completion(text=r"\boxed{10^{10^{10}}}", finished=True))
        for problem in (task.problem(0), task.problem(1))
    }
    assert worth == {"5": 0.0, "10^{10^{10}}": 1.0}


def test_brackets_without_end_are_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.tasks.answers.math_equality.MATH_VERIFY", None)
    assert not same_mathematics("5", r"\boxed{" + "(" * 5000 + ")" * 5000 + "}")
    assert same_mathematics("5", r"\boxed{5}"), "equal text needs no library"


def test_whoever_asks_at_the_same_time_waits(with_short_limits: Comparing) -> None:
    found: dict[int, bool] = {}

    def ask(number: int) -> None:
        found[number] = with_short_limits.are_equal(r"\boxed{5}", rf"\boxed{{{number}+0}}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number == 5 for number in range(3, 8)}


def test_a_process_that_was_ended_between_two_questions_is_started_again(with_short_limits: Comparing) -> None:
    assert with_short_limits.are_equal("$1$", "$1$")
    assert with_short_limits._inside is not None
    with_short_limits._inside.process.kill()
    with_short_limits._inside.process.wait()
    assert with_short_limits.are_equal("$1$", "$1$")


def test_where_it_cannot_be_started_that_is_told() -> None:
    """As with a library that is broken: the error is the machine's, and says what it was."""
    with pytest.raises(TaskError, match=r"math-verify cannot be started; its output: (?s:.*)no antlr here"):
        Comparing(program="raise ImportError('no antlr here')").are_equal("1", "1")


def test_a_process_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "WALL_S", 0.5)
    with pytest.raises(TaskError, match="its output: nothing"):
        Comparing(program="import time\ntime.sleep(600)").are_equal("1", "1")


def sum_that_runs(command: str) -> str:
    """An answer whose evaluation runs a command of the shell.

    math-verify takes any text in \text{} for the name of a symbol, and sympy makes a program of a sum without end, in
    which symbols stand as they are named. Parentheses and quotes are taken out of the name, so nothing is called by
    them: a class is made to call a function where it is indexed.
    """
    index = "poly1d.__class_getitem__"
    letters = "+".join(f"poly1d[{ord(letter)}]" for letter in command)
    name = (
        f"[[x]for[{index}]in[[chr]]for[c]in[[{letters}]]"
        f"for[{index}]in[[testing._private.utils.os.system]]for[x]in[[poly1d[c]]]]"
    )
    return rf"\sum_{{n=0}}^{{\infty}}\frac{{\text{{{name}}}^n}}{{n!}}+1"


def test_an_answer_that_is_a_program_writes_no_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    unconfined, written = tmp_path / "unconfined", tmp_path / "written"
    parsed = math_verify.parse(rf"\boxed{{{sum_that_runs(f'touch {unconfined}')}}}", parsing_timeout=None)
    math_verify.verify(math_verify.parse(r"\boxed{\sqrt{2}}", parsing_timeout=None), parsed, timeout_seconds=None)
    assert unconfined.exists(), "the library executes it"
    for reference in (r"\sqrt{2}", "7", "x+1"):
        assert not same_mathematics(reference, rf"\boxed{{{sum_that_runs(f'touch {written}')}}}")
        assert same_mathematics(reference, rf"\boxed{{{reference}+0}}")
    assert not written.exists()


def test_without_a_sandbox_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = opened(tmp_path, "5")
    MATH_VERIFY.close()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    wanted = "math-verify may execute what it reads, so it is only run in bubblewrap, which is not installed here"
    with pytest.raises(TaskError, match=wanted):
        task.require()
    with pytest.raises(TaskError, match=wanted):
        task.reward(task.problem(0), Completion(text=r"\boxed{4+1}", finished=True))
