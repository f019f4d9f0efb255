"""Open the same task in another process: one that depends on hashes or the clock differs there."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.tasks.checks.check_task import try_task

TASK = """
from volery import Problem

class Task:
    name, levels = "mine", 1

    def __init__(self, arguments):
        pass

    @property
    def fingerprint(self):
        return FINGERPRINT

    def problem(self, index):
        return Problem(prompt=f"{PROMPT} {2 * index}", answer="a")

    def held_out(self, index):
        return Problem(prompt=f"held out {2 * index + 1}", answer="a")

    def reward(self, problem, completion):
        return float(completion.text == problem.answer)
"""

SOUND = {"FINGERPRINT": '"mine/1"', "PROMPT": "'say'"}


def found(directory: Path, module: str, **parts: str) -> str:
    """Return the faults of a task that is made of `parts` in a module of its own."""
    text = TASK
    for name, code in {**SOUND, **parts}.items():
        text = text.replace(name, code)
    (directory / f"{module}.py").write_text(text, encoding="utf-8")
    return "\n".join(try_task(f"python:{module}:Task", 4, directory=directory, only="elsewhere").faults)


def test_a_task_that_is_the_same_everywhere(tmp_path: Path) -> None:
    assert found(tmp_path, "elsewhere_sound") == ""


def test_a_problem_that_follows_from_a_hash(tmp_path: Path) -> None:
    said = found(tmp_path, "elsewhere_hash", PROMPT="hash('word') % 1000000007")
    assert "elsewhere: index 0 asks something else in another process. It must not depend on `hash`" in said


def test_a_fingerprint_that_follows_from_the_order_of_a_set(tmp_path: Path) -> None:
    said = found(tmp_path, "elsewhere_set", FINGERPRINT='"".join({"one", "two", "three", "four", "five", "six"})')
    assert "elsewhere: the fingerprint is " in said
    assert "in another process" in said


def test_the_environment_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLERY_TEST_HERE", "1")
    assert found(tmp_path, "elsewhere_set_up", PROMPT="__import__('os').environ['VOLERY_TEST_HERE']") == ""


def test_a_task_that_another_process_cannot_open(tmp_path: Path) -> None:
    once = f"Path({str(tmp_path / 'once')!r}).touch(exist_ok=False)"
    text = TASK.replace("FINGERPRINT", "'1'").replace("PROMPT", "7")
    (tmp_path / "elsewhere_once.py").write_text(f"from pathlib import Path\n{once}\n{text}", encoding="utf-8")
    [fault] = try_task("python:elsewhere_once:Task", 4, directory=tmp_path, only="elsewhere").faults
    assert fault.startswith("elsewhere: another process cannot open the task: task 'python': module 'elsewhere_once'")
    assert "FileExistsError" in fault


def test_what_a_library_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    (tmp_path / "elsewhere_loud.py").write_text(
        "print('Welcome!')\n" + TASK.replace("FINGERPRINT", "'1'").replace("PROMPT", "7"), encoding="utf-8"
    )
    assert try_task("python:elsewhere_loud:Task", 4, directory=tmp_path, only="elsewhere").passed
