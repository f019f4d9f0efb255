"""The public names: each is there, none costs torch before it is used, and the old ones work with a warning."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import volery

TASK = """
from dataclasses import dataclass
from node.tasks.port import Completion, Problem

@dataclass(frozen=True)
class Parrot:
    name: str = "parrot"
    levels: int = 1
    fingerprint: str = "parrot/1"

    def problem(self, index): return Problem(prompt=f"say {2 * index}", answer=str(2 * index))
    def held_out(self, index): return Problem(prompt=f"say {2 * index + 1}", answer=str(2 * index + 1))
    def reward(self, problem, completion): return float(completion.text == problem.answer)

def parrot(arguments): return Parrot()
"""
"""As an author wrote it for the release before."""


@pytest.mark.parametrize("name", volery._PUBLIC)
def test_a_public_name_is_there_and_is_listed(name: str) -> None:
    assert getattr(volery, name) is not None
    assert name in dir(volery)


@pytest.mark.parametrize("name", volery._PUBLIC)
def test_a_public_name_is_told_in_the_manual(name: str) -> None:
    """A class has a docstring of its own. Other names, such as a number, can only be described in the package's
    docstring.
    """
    found = getattr(volery, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else None
    assert len(own or "") > 20 or f"`{name}`" in (volery.__doc__ or "")
    assert not (own or "").startswith(f"{name}("), "this is the text of a dataclass without a docstring"


def test_help_is_a_manual_of_a_page_or_two() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import volery; help(volery)"], capture_output=True, text=True, check=True
    ).stdout
    assert "help(volery.TaskArguments)" in shown
    assert "__eq__" not in shown
    assert len(shown.splitlines()) < 100


def test_the_kit_for_tests_is_public() -> None:
    kit = importlib.import_module("volery.testing")
    assert {"check_task", "TaskChecks", "Report"} <= set(kit.__all__)
    for name in kit.__all__:
        assert len(getattr(kit, name).__doc__ or "") > 20
        assert "volery tasks check" in (kit.__doc__ or "")


def test_types_are_told_of_the_names_that_are_there_and_of_no_others() -> None:
    told = re.findall(r"import (\w+) as \1$", Path(volery.__file__).read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(volery._PUBLIC)


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'volery' has no attribute 'Tusk'"):
        _ = volery.Tusk


def test_importing_it_loads_nothing_and_a_task_needs_no_torch() -> None:
    code = (
        "import json, sys, volery; "
        "before = [name for name in sys.modules if name.split('.')[0] in ('node', 'learner', 'torch')]; "
        "volery.Task; print(json.dumps([before, 'torch' in sys.modules, 'node.tasks.api.interface' in sys.modules]))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [[], False, True]


def test_the_old_name_gives_the_same_with_a_warning() -> None:
    sys.modules.pop("node.tasks.port", None)
    with pytest.warns(FutureWarning, match=r"node\.tasks\.port is called volery now.*from volery import"):
        old = importlib.import_module("node.tasks.port")
    assert old.Task is volery.Task
    assert old.TaskError is volery.TaskError


def test_a_task_of_the_release_before_still_runs_and_its_author_is_warned(tmp_path: Path) -> None:
    (tmp_path / "old_task.py").write_text(TASK, encoding="utf-8")
    code = (
        "from node.tasks.registry import open_task; from volery import Completion; "
        "task = open_task('python:old_task:parrot', seed=0); "
        "print(task.reward(task.problem(3), Completion(text='6', finished=True)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.stdout == "1.0\n", ran.stderr
    assert "FutureWarning: node.tasks.port is called volery now" in ran.stderr
