"""The packages that `volery new` writes: names, existing files, and the texts of the files."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from node.commands.new.command import (
    MAX_NAME_CHARS,
    TEMPLATES,
    What,
    files_of,
    make_small_model,
    module_name,
    next_steps,
    write_task,
)
from node.config.loader import read_node_config, read_swarm_config
from node.runtime.errors import RunError, UsageError
from node.tasks import registry
from node.tasks.checks.check_task import check_task
from tests.support.disks import file_limit

WHATS: tuple[What, ...] = ("task", "environment")


@pytest.mark.parametrize(
    ("name", "module"), [("my-task", "my_task"), ("my_task", "my_task"), ("a", "a"), ("sum-of-2", "sum_of_2")]
)
def test_a_name_becomes_a_module(name: str, module: str) -> None:
    assert module_name(name) == module


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "cannot be a task's name"),
        ("My-task", "cannot be a task's name. Use lower-case letters"),
        ("2nd", "a letter first"),
        ("my task", "cannot be a task's name"),
        ("my--task", "cannot be a task's name"),
        ("-x", "cannot be a task's name"),
        ("../up", "cannot be a task's name"),
        ("task\n", "cannot be a task's name"),
        ("tâche", "cannot be a task's name"),
        ("a" * (MAX_NAME_CHARS + 1), "at most 40"),
        ("class", "a reserved word of Python"),
        ("match", "a reserved word of Python"),
        ("reverse", "is a built-in task"),
        ("random", "Python already has a module 'random'"),
        ("volery", "Python already has a module 'volery'"),
        ("pytest", "Python already has a module 'pytest', and yours would hide it. Choose another, such as my-pytest."),
    ],
)
def test_a_name_that_cannot_be_used(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        write_task(name, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("what", WHATS)
def test_what_is_written(tmp_path: Path, what: What) -> None:
    files = write_task("my-task", tmp_path / "here" / "there", what)
    assert sorted(one.name for one in files) == sorted(one.name for one in (tmp_path / "here" / "there").iterdir())
    assert {one.name for one in files} == {
        "pyproject.toml", "my_task.py", "test_my_task.py", "README.md", "swarm.toml", "node.toml",
    }  # fmt: skip
    assert not any("$" in one.read_text(encoding="utf-8") for one in files)


def test_every_template_is_used() -> None:
    own = 2  # the module and its test
    files = [files_of("my-task", "my_task", 4001, what) for what in WHATS]
    assert len(files[0]) + own * (len(files) - 1) == len(list(TEMPLATES.iterdir()))
    assert len({tuple(one.values()) for one in files}) == len(files)


@pytest.mark.parametrize("there", ["README.md", "swarm.toml", "my_task.py"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=rf"{there} already exists, and nothing was written\. Choose"):
        write_task("my-task", tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text(encoding="utf-8") == "mine"


def test_other_files_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    write_task("my-task", tmp_path)
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_link_that_leads_nowhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="already exists"):
        write_task("my-task", tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file cannot be made: .*\. Choose another directory with --at\."):
        write_task("my-task", tmp_path / "file")


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        file_limit(600),
        pytest.raises(RunError, match=r"cannot be written: .*\. Choose another directory with --at\."),
    ):
        write_task("my-task", tmp_path / "full")
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.parametrize(("what", "turns"), [("task", 16), ("environment", 3)])
def test_the_configurations_read_back(tmp_path: Path, what: What, turns: int) -> None:
    write_task("my-task", tmp_path, what)
    config = read_swarm_config(tmp_path / "swarm.toml")
    assert config.swarm.name == "my-task"
    assert config.task.spec == "python:my_task:MY_TASK"
    assert config.learn.max_turns == turns
    assert config.model.directory == str(tmp_path / "model")
    assert read_node_config(tmp_path / "node.toml").name == "my-task-node"


@pytest.mark.parametrize(("what", "only"), [("task", "reference"), ("environment", "end")])
def test_the_task_keeps_its_promises(tmp_path: Path, what: What, only: str) -> None:
    # Another name than in other tests: the module stays in this process.
    write_task(f"kept-{what}", tmp_path, what)
    report = check_task(f"python:kept_{what}:KEPT_{what.upper()}", directory=tmp_path, only=only)
    assert report.task == f"kept_{what}"


@pytest.mark.parametrize("what", WHATS)
def test_a_short_name_does_not_stand_for_two_things(tmp_path: Path, what: What) -> None:
    write_task("e2", tmp_path, what)
    body = ast.parse((tmp_path / "e2.py").read_text(encoding="utf-8")).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    values = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert "E2Task" in classes
    assert "E2" in values - classes


@pytest.mark.parametrize("what", WHATS)
def test_the_task_imports_volery_alone(tmp_path: Path, what: What) -> None:
    write_task("my-task", tmp_path, what)
    tree = ast.parse((tmp_path / "my_task.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "dataclasses", "random", "zlib", "volery"}


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task("found-by-name", tmp_path)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, value)] = project["entry-points"]["volery.tasks"].items()
    entry = EntryPoint(name=name, value=value, group="volery.tasks")
    monkeypatch.setattr(registry, "entry_points", lambda **_: EntryPoints([entry]))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.find_kind("found_by_name").name == "found_by_name"


def test_what_to_type_next_can_be_typed() -> None:
    assert next_steps("'my tasks'").startswith("Test it:   cd 'my tasks' && python -m pytest\n")


async def test_a_small_model_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").write_text("a file", encoding="utf-8")
    with pytest.raises(
        RunError, match=r"The small model cannot be made in .*model: .*\. The task is written\. Set your"
    ):
        await make_small_model(tmp_path, "done")
    assert capsys.readouterr().out == ""


async def test_a_model_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    assert await make_small_model(tmp_path, "done") == 0
    assert capsys.readouterr().out == "done\n"
    assert [one.name for one in (tmp_path / "model").iterdir()] == ["config.json"]
