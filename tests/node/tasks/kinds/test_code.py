"""Programs as completions: find the program, and decide what passes and what earns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.swarm_config import VerifierMachine, VerifiersSection
from node.tasks.api.interface import Completion, TaskError
from node.tasks.kinds.code import CodeProblem, CodeTask, program_of
from node.tasks.registry import open_task
from node.tasks.sandbox import bubblewrap as sandbox
from node.verifiers.dispatch import require_here
from node.verifiers.pool import VERIFIER, PoolTerms, open_pool
from tests.node.verifiers.test_dispatch import opened as opened_verifiers
from tests.node.verifiers.test_dispatch import said as asked

ADD = {
    "prompt": "Read two numbers, print their sum.",
    "tests": [{"input": f"{n} 2\n", "output": f"{n + 2}"} for n in range(3)],
}
INC = {
    "prompt": "Write inc(x).",
    "asserts": ["assert inc(1) == 2", "assert inc(-1) == 0"],
    "answer": "def inc(x): return x + 1",
}
SUMS = "print(sum(map(int, input().split())))"


def opened(base: Path, lines: list[dict[str, Any]], options: str = "held_out=0") -> CodeTask:
    (base / "code.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = open_task(f"code:code.jsonl:{options}", directory=base)
    assert isinstance(task, CodeTask)
    return task


def block(program: str) -> Completion:
    return Completion(text=f"Like this:\n```python\n{program}\n```\nDone.", finished=True)


def worth(task: CodeTask, program: str, index: int = 0) -> float:
    return task.reward(task.problem(index), block(program))


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("first\n```\nprint(1)\n```\nthen\n```py\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\n```output\n1\n```", "print(1)\n"),
        ("print(1)", None),
        ("```python\nprint(1)", None),
        ("```js\nprint(1)\n```", None),
        ("```js\nprint(1)\n```python\nprint(2)\n``` \t\n```py\nprint(3)", None),
        ("```  Python title\n\n```", "\n"),
        ("``` \n```", ""),
        ("```a\n" * 1_000_000, None),
    ],
)
def test_the_program_is_the_last_block(text: str, program: str | None) -> None:
    assert program_of(text) == program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        # lines of Windows
        ("Like this:\r\n```python\r\nif 1:\r\n    print(1)\r\n```\r\nDone.\r\n", "if 1:\n    print(1)\n"),
        ("```\r\nprint(1)\r\n```", "print(1)\n"),
        # below an item of a list, behind its mark, in a quotation
        ("1. So:\n\n   ```python\n   if 1:\n       print(1)\n\n   ```\n2. Done", "if 1:\n    print(1)\n\n"),
        ("- ```python\n  print(1)\n  ```", "print(1)\n"),
        ("10) ```py\n    print(1)\n    ```\n", "print(1)\n"),
        ("\t```python\n\tif 1:\n\t\tprint(1)\n\t```", "if 1:\n\tprint(1)\n"),
        ("   ```python\nprint(1)\n  print(2)\n```", "print(1)\nprint(2)\n"),
        ("> ```python\n> if 1:\n>     print(1)\n> ```", "if 1:\n    print(1)\n"),
        # an output, or a shell, behind it
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\nOutput:\n```python\n1\n```", "print(1)\n"),
        ("```\nprint(1, 2)\n```\nprints\n```\n1 2\n```", "print(1, 2)\n"),
        ("```\nprint([1])\n```\nprints\n```\n[1]\n```", "print([1])\n"),
        ("```\nprint('a')\n```\nprints\n```\na\n```", "print('a')\n"),
        ("```python\nprint(1)\n```\n```bash\npython a.py\n```\n```text\n1\n```", "print(1)\n"),
        ("```python\ndef f(): return 1\n```\nThen `f()` is\n```\n>>> f()\n1\n```", "def f(): return 1\n"),
        ("```python\nprint(\n```", "print(\n"),  # the only one: it fails as what it is
        ("```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```", "print(2)\n"),
        # other fences
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("~~~ python `x`\nprint(1)\n~~~~", "print(1)\n"),
        ("````python\ns = '''\n```\n'''\nprint(s)\n````", "s = '''\n```\n'''\nprint(s)\n"),
        ("```python\ns = '''\n    ```\n'''\nprint(s)\n```", "s = '''\n    ```\n'''\nprint(s)\n"),
        ("```python\nprint(1)\n````", "print(1)\n"),
        ("```{.python}\nprint(1)\n```", "print(1)\n"),
        ("```{python}\nprint(1)\n```", "print(1)\n"),
        ("```Python3 title=a\nprint(1)\n```", "print(1)\n"),
        ("```print(1)```", None),
        ("```python print(1)```\n```\nprint(2)\n```", "print(2)\n"),
        # nesting without end is no program, and is detected at once
        ("```\nprint(1)\n```\n```\n" + "(" * 5_000 + ")" * 5_000 + "\n```", "print(1)\n"),
        ("```\nprint(1)\n```\n```\n" + "-" * 100_000 + "1\n```", "print(1)\n"),
        ("```\nprint(1)\n```\n```\na" + ".b" * 100_000 + "\n```", "print(1)\n"),
    ],
)
def test_the_program_is_found_as_models_write_it(text: str, program: str | None) -> None:
    assert program_of(text) == program


@given(st.text(alphabet="`~> \t\r\n-1.)py=(x", max_size=120))
def test_whatever_is_said_has_a_program_or_none(text: str) -> None:
    program = program_of(text)
    assert program is None or "\r" not in program
    assert program_of(text, bare=True) == (text if program is None else program)


def test_a_program_that_is_shown_with_its_output_runs(tmp_path: Path) -> None:
    task = opened(tmp_path, [ADD])
    shown = f"1. Read and add:\n\n   ```python\n   {SUMS}\n   ```\n\n   For `1 2` it prints\n\n   ```\n   3\n   ```\n"
    for text in (shown, shown.replace("\n", "\r\n")):
        assert task.reward(task.problem(0), Completion(text=text, finished=True)) == 1.0


def test_without_a_block_a_text_is_a_program_only_if_that_was_asked() -> None:
    assert program_of("print(1)", bare=True) == "print(1)"
    assert program_of("so:\n```\nprint(2)\n```", bare=True) == "print(2)\n"


def test_a_program_must_print_what_each_test_wants(tmp_path: Path) -> None:
    task = opened(tmp_path, [ADD])
    assert worth(task, SUMS) == 1.0
    assert worth(task, SUMS + "\nprint()") == 1.0, "white space at the end is of no account"
    assert worth(task, "print(2)") == 0.0, "one of three is not all"
    assert worth(task, SUMS + "\nraise SystemExit(1)") == 0.0
    assert task.reward(task.problem(0), Completion(text=SUMS, finished=True)) == 0.0
    assert task.reward(task.problem(0), Completion(text=block(SUMS).text, finished=False)) == 0.0


def test_the_share_of_tests_counts_if_that_was_asked(tmp_path: Path) -> None:
    task = opened(tmp_path, [{**ADD, **{"asserts": "assert True"}}], "held_out=0,reward=share")
    assert worth(task, "print(2)") == 0.5
    assert worth(task, SUMS) == 0.75, "asserts give it no input"


def test_asserts_run_in_the_programs_names(tmp_path: Path) -> None:
    task = opened(tmp_path, [INC])
    assert worth(task, "def inc(x): return x + 1") == 1.0
    assert worth(task, "print('hm')\ndef inc(x): return 2") == 0.0
    assert worth(task, str(task.problem(0).answer)) == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import builtins; builtins.AssertionError = None\nimport sys; sys.exit()",
        "import atexit, os; atexit.register(os._exit, 0)\ndef inc(x): return 0",
    ],
)
def test_leaving_early_passes_no_asserts(tmp_path: Path, program: str) -> None:
    assert worth(opened(tmp_path, [INC]), program) == 0.0


def test_time_is_bounded_for_each_test_and_for_all(tmp_path: Path) -> None:
    task = opened(tmp_path, [{**ADD, "tests": ADD["tests"] * 50}], "held_out=0,reward=share,time_s=0.2,total_s=0.5")
    assert worth(task, "while True: pass") == 0.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": "p"}, "code.jsonl:1: has neither `tests` nor `asserts`"),
        ({"prompt": "", "asserts": "assert 1"}, "`prompt` is empty"),
        ({"prompt": "p", "asserts": "assert ("}, "`asserts` is not Python"),
        ({"prompt": "p", "asserts": "assert " + "(" * 5_000 + ")" * 5_000}, "`asserts` is not Python"),
        ({"prompt": "p", "asserts": "assert a" + ".b" * 100_000}, "`asserts` is not Python: maximum recursion depth"),
        (
            {"prompt": "p", "asserts": "assert " + "-" * 100_000 + "1"},
            "`asserts` is not Python: it is nested too deeply",
        ),
        ({"prompt": "p", "tests": [{"input": "1"}]}, "missing required field `output`"),
        ({"prompt": "p", "tests": [{"output": "1"}] * 257}, "has 257 tests; the maximum is 256"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        opened(tmp_path, [line])


def test_problems_are_held_out_and_options_belong_to_the_fingerprint(tmp_path: Path) -> None:
    lines = [{**ADD, "prompt": f"{ADD['prompt']} ({number})"} for number in range(10)]
    task = opened(tmp_path, lines, "held_out=0.2")
    assert (task.size, task.num_held_out) == (8, 2)
    assert opened(tmp_path, lines, "held_out=0.2,reward=share").fingerprint != task.fingerprint
    assert opened(tmp_path, lines, "held_out=0.2").fingerprint == task.fingerprint


async def test_in_a_verifier_with_its_own_limit_of_memory(tmp_path: Path) -> None:
    task = opened(tmp_path, [INC])
    spec = "code:code.jsonl:held_out=0,memory_mb=2000"  # more than a verifier may have itself
    terms = PoolTerms(
        tasks={"code": {"spec": spec, "directory": str(tmp_path), "seed": 0}},
        fingerprints={"code": task.fingerprint},
        timeout_s=30.0,
        memory_gb=1.0,
    )
    async with open_pool([("verifier 1", VERIFIER)], terms) as verifiers:
        assert await verifiers.judge("code", asked(block("def inc(x): return x + 1").text)) == 1.0
        assert await verifiers.judge("code", asked(block("while True: pass").text)) == 0.0
        assert await verifiers.judge("code", asked(block("def inc(x): return 5").text)) == 0.0


def test_a_start_without_the_sandbox_is_refused_unless_others_compute_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.jsonl").write_text(json.dumps({**INC, "prompt": "inc"}) + "\n")
    verifiers = opened_verifiers(tmp_path, [], "code:code.jsonl:held_out=0")
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    sandbox.require_sandbox.cache_clear()
    with pytest.raises(TaskError, match="sudo apt-get install -y bubblewrap"):
        require_here(verifiers.suite, VerifiersSection())
    elsewhere = VerifiersSection(workers=0, machine=[VerifierMachine(command=["ssh", "there", "volery", "verifier"])])
    require_here(verifiers.suite, elsewhere)
    sandbox.require_sandbox.cache_clear()


# Asserts in a sandbox of their own

APART = "held_out=0,asserts=apart"

FORGED = {
    "equal to everything": "class T:\n    __eq__ = lambda self, other: True\ndef inc(x): return T()",
    "a number equal to everything": "class T(int):\n    __eq__ = lambda self, other: True\ndef inc(x): return T(5)",
    "another meaning of assert": "import builtins\nbuiltins.AssertionError = None\ndef inc(x): return 0",
    "leaving": "import os\ndef inc(x): os._exit(0)",
    "leaving by an exception": "def inc(x): raise SystemExit(0)",
    "answering for itself": """
import os, socket, sys
for number in range(3, 32):
    try:
        line = socket.socket(fileno=os.dup(number))
        while True:
            line.recv(1 << 16)
            line.sendall(b'["reply", ["tuple", [["list", ["inc"]], null]]]\\n')
    except OSError:
        pass
""",
    "answering nothing": """
import os, socket
for number in range(3, 32):
    try:
        socket.socket(fileno=os.dup(number)).sendall(b"\\n" * 100)
    except OSError:
        pass
""",
    "looking into the asserts": """
import gc, sys
def inc(x):
    line = next(one for one in gc.get_objects() if type(one).__name__ == "_Line")
    for op in ("names", "get"):
        try:
            print(line.ask(op, *(["_line"] if op == "get" else [])))
        except Exception:
            pass
    return 0
""",
}


@pytest.mark.parametrize("how", FORGED)
def test_apart_nothing_that_a_program_does_makes_a_wrong_answer_right(tmp_path: Path, how: str) -> None:
    """Some of these pass where asserts run inside."""
    assert worth(opened(tmp_path, [INC], APART), FORGED[how]) == 0.0


def test_inside_what_is_equal_to_everything_passes(tmp_path: Path) -> None:
    """Why there is `asserts=apart`; where this fails, the guide may say more."""
    assert worth(opened(tmp_path, [INC]), FORGED["equal to everything"]) == 1.0


def test_apart_a_program_does_not_change_what_the_asserts_use(tmp_path: Path) -> None:
    lines = [{"prompt": "p", "asserts": "assert abs(inc(1) - 2) < 1\nassert all(inc(n) > n for n in range(3))"}]
    own = "def abs(x): return 0\ndef all(x): return True\ndef inc(x): return {}\n"
    assert worth(opened(tmp_path, lines, APART), own.format(99)) == 0.0
    assert worth(opened(tmp_path, lines, APART), own.format("x + 1")) == 1.0


PROGRAM = """
from fractions import Fraction
str = type = exec = globals = getattr = None  # its names are its own
total = 0
class Odd(ValueError): pass
class Stack:
    def __init__(self, *values): self.values = [*values]
    def push(self, value): self.values.append(value)
    def pop(self): return self.values.pop()
    def __len__(self): return self.values.__len__()
    def __iter__(self): return iter(self.values)
    def __getitem__(self, place): return self.values[place]
def inc(x): return x + 1
def count(to):
    for number in range(to): yield number
def mean(values): return Fraction(sum(values), 2)
def tidy(values, *, more=()): values.sort(); values.extend(more)
def apply(function, value): return function(value)
def half(x):
    if x % 2: raise Odd("odd", x)
    return x // 2
def add(x):
    global total
    total += x
def shapes(): return {"a": (1, 2.5, None), 3: {1, 2}, "b": b"x", "c": [True, [1j]]}
def many(): return 1 << 20000
"""
ASSERTS = """
import math
from fractions import Fraction

def check(candidate):
    assert candidate(1) == 2
    for given, wanted in ((0, 1), (-1, 0)):
        assert candidate(given) == wanted, "with a reason"

check(inc)
assert shapes() == {"a": (1, 2.5, None), 3: {1, 2}, "b": b"x", "c": [True, [1j]]}
assert [*count(3)] == list(count(3)) == [0, 1, 2] and next(count(1)) == 0
assert mean([1, 2]) == Fraction(3, 2) and math.isclose(mean([1, 2]), 1.5)
values = [3, 1, 2]
assert tidy(values, more=(9,)) is None and values == [1, 2, 3, 9]
assert apply(lambda value: [value, inc(value)], 1) == [1, 2]
assert sorted([3, 1, 2], key=inc) == [1, 2, 3]
stack = Stack(1)
stack.push([2])
assert len(stack) == 2 and [*stack] == [1, [2]] and stack[0] == 1 and stack.pop() == [2] and stack.values == [1]
assert isinstance(stack, Stack) and stack != Stack(1) and stack == stack
try:
    half(3)
except ValueError as error:
    assert error.args == ("odd", "3")
else:
    assert False
try:
    half(3)
except Odd:
    pass
try:
    half("x")
except TypeError:
    pass
else:
    assert False
add(2)
add(3)
assert total == 5
assert many() == 1 << 20000
"""


def test_apart_asserts_are_about_plain_data_and_what_can_be_called(tmp_path: Path) -> None:
    lines = [{"prompt": "p", "asserts": ASSERTS}]
    assert worth(opened(tmp_path, lines, APART), PROGRAM) == 1.0
    assert (
        worth(opened(tmp_path, lines, APART), PROGRAM.replace("x // 2", "x").replace("number in", "number, in")) == 0.0
    )
    assert opened(tmp_path, lines, APART).fingerprint != opened(tmp_path, lines).fingerprint


@pytest.mark.parametrize("wrong", ["assert half(4) == 3", "assert Stack(1) == Stack(1)", "assert nothing", "inc('a')"])
def test_apart_a_wrong_assert_fails(tmp_path: Path, wrong: str) -> None:
    assert worth(opened(tmp_path, [{"prompt": "p", "asserts": wrong}], APART), PROGRAM) == 0.0


def test_fields_have_any_names(tmp_path: Path) -> None:
    # As in MBPP.
    row = {"text": "Write inc(x).", "code": "def inc(x): return x + 1", "test_list": ["assert inc(1) == 2"], "tests": 3}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(row) + "\n")
    spec = "code:mbpp.jsonl:prompt=text,tests=more.tests,asserts_field=test_list,answer=code"
    with pytest.raises(TaskError, match=r"no line has the field `more\.tests`, which the spec names"):
        open_task(spec, directory=tmp_path)
    row["more"] = {"tests": [{"input": "", "output": ""}]}
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(row) + "\n")
    problem = open_task(spec, directory=tmp_path).problem(0)
    assert isinstance(problem, CodeProblem)
    assert (problem.prompt, problem.answer, problem.asserts) == (row["text"], row["code"], "assert inc(1) == 2")
    assert problem.tests == (("", ""),)


def test_a_line_without_tests_is_told_with_its_fields(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt": "a", "test_list": ["assert f()"]}\n')
    told = r"t\.jsonl:1: has neither `tests` nor `asserts`; its fields are `prompt`, `test_list`\."
    with pytest.raises(TaskError, match=told):
        open_task("code:t.jsonl", directory=tmp_path)
    (tmp_path / "t.jsonl").write_text('{"prompt": "a", "test_list": ["assert ("]}\n')
    with pytest.raises(TaskError, match=r"t\.jsonl:1: `test_list` is not Python"):
        open_task("code:t.jsonl:asserts_field=test_list", directory=tmp_path)
