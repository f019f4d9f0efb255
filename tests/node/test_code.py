"""Programs as completions: which part is the program, what passes, and what is worth nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.config import VerifierMachine, VerifiersSection
from node.tasks import sandbox
from node.tasks.code import CodeTask, program_of
from node.tasks.port import Completion, TaskError
from node.tasks.registry import open_task
from node.verifier_pool import VERIFIER, PoolTerms, open_pool
from node.verifiers import require_here
from tests.node.test_verifiers import opened as opened_verifiers
from tests.node.test_verifiers import said as asked

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
        ({"prompt": "p", "asserts": "assert ("}, "`asserts` is no Python"),
        ({"prompt": "p", "tests": [{"input": "1"}]}, "missing required field `output`"),
        ({"prompt": "p", "tests": [{"output": "1"}] * 257}, "has 257 tests, and 256 are the most"),
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
        require_here(verifiers.schooling, VerifiersSection())
    elsewhere = VerifiersSection(workers=0, machine=[VerifierMachine(command=["ssh", "there", "volery", "verifier"])])
    require_here(verifiers.schooling, elsewhere)
    sandbox.require_sandbox.cache_clear()
