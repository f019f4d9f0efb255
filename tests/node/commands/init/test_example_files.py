"""Examples are parsed, without conflicts, and their tasks open; `volery init --example` writes them under other names.

The pages' commands are parsed, and their links lead somewhere.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.cli.application import app
from node.commands.demo.lessons import REVERSE
from node.commands.demo.recipe import swarm_toml
from node.commands.init import small_model
from node.commands.init.command import free_port
from node.commands.init.example_files import ADVICE, EXAMPLES, SOURCE, ExampleName, commands_of, files_of
from node.commands.init.named_model import NamedModel
from node.config.loader import read_node_config, read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.runtime.atomic_files import write_new
from node.runtime.errors import UsageError
from node.tasks.registry import open_task, read_spec
from tests.support.command_line import single_commands
from tests.support.paths import ROOT

HERE = ROOT / "examples"
PAGES = sorted(HERE.rglob("README.md"))
each = pytest.mark.parametrize("name", EXAMPLES)


def written(name: ExampleName, directory: Path, model: NamedModel | None = None) -> Path:
    """Write the example and return its swarm.toml."""
    write_new(files_of(name, directory, swarm="ours", port=4242, model=model), ADVICE)
    return directory / "swarm.toml"


def test_what_a_wheel_holds_are_the_repositorys_examples() -> None:
    assert SOURCE.is_symlink()
    assert SOURCE.resolve() == HERE
    swarms = {path.parent.name for path in HERE.glob("*/swarm.toml")}
    assert swarms == set(EXAMPLES)
    assert {path.name for path in HERE.iterdir()} == {*swarms, "gaming-pc", "README.md"}
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1/README.md\)", (HERE / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted({*swarms, "gaming-pc"})


def test_every_example_can_be_named() -> None:
    told = CliRunner().invoke(app, ["init", "--help"]).stdout
    assert f"--example {'|'.join(EXAMPLES)}" in told


# Configurations


@each
def test_a_configuration_has_no_conflict(name: ExampleName, tmp_path: Path) -> None:
    ours = read_swarm_config(written(name, tmp_path / "ours"))
    theirs = read_swarm_config(HERE / name / "swarm.toml")
    assert ours.swarm.name == "ours"
    assert all("/tcp/4242" in address for address in ours.network.listen)
    assert len(ours.network.listen) == len(theirs.network.listen)
    assert Path(ours.model.directory).parent == tmp_path / "ours"
    same = [part for part in SwarmConfig.__struct_fields__ if part not in ("swarm", "network", "model")]
    assert [getattr(ours, part) for part in same] == [getattr(theirs, part) for part in same]


@pytest.mark.parametrize("path", sorted(HERE.rglob("node.toml")), ids=lambda path: path.parent.name)
def test_a_volunteers_file_has_no_conflict(path: Path) -> None:
    assert read_node_config(path).name


def make_data(name: ExampleName, directory: Path) -> None:
    """Make the data of an example from a few rows in the form of the file that its page fetches."""
    data = directory / "data"
    data.mkdir()
    match name:
        case "gsm8k":
            rows = [{"question": f"{n}+{n}?", "answer": f"It is <<{n}+{n}>>.\n#### {2 * n}"} for n in range(20)]
            for file in ("train.jsonl", "test.jsonl"):
                (data / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
                rows = rows[:5]
        case "math":
            problems = [{"problem": f" {n}+{n}? ", "answer": str(2 * n), "solution": "..."} for n in range(20)]
            others = [{"problem": "x?", "answer": answer, "solution": ""} for answer in ("x^2", "(1, 2)", "", "1e400")]
            (data / "deepscaler.json").write_text(json.dumps([*problems, *others, problems[0]]))
        case "code":
            row = {"task_id": 1, "test_setup_code": "", "test_list": ["assert f(1) == 1", "assert f(2) == 2"]}
            rows = [{**row, "text": f"Write f, number {n}.", "code": "def f(x):\r\n    return x"} for n in range(20)]
            (data / "mbpp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (maker := directory / "make_data.py").exists():
        runpy.run_path(str(maker), run_name="__main__")


@each
def test_its_task_opens(name: ExampleName, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = read_swarm_config(written(name, tmp_path / "ours"))
    make_data(name, tmp_path / "ours")
    assert config.task.spec is not None
    task = open_task(config.task.spec, directory=tmp_path / "ours")
    kind, arguments = read_spec(config.task.spec, directory=tmp_path / "ours", seed=0)
    assert task.name in (kind.name, arguments.argument, f"{kind.name}:{arguments.argument}")
    if name in ("math", "code"):
        assert "Wrote 20" in capsys.readouterr().out
    if name in ("gsm8k", "math", "code"):
        assert task.size == {"gsm8k": 15, "math": 18, "code": 18}[name]


@pytest.mark.parametrize("file", sorted(HERE.rglob("make_data.py")), ids=lambda path: path.parent.name)
def test_what_makes_data_needs_python_alone(file: Path) -> None:
    imported = set(re.findall(r"^(?:from|import) (\w+)", file.read_text(), re.M))
    assert imported <= {"__future__", "json", "re", "pathlib"}


def test_the_small_example_is_the_demos_recipe() -> None:
    """So its curve is the demo's, which was measured."""
    ours = read_swarm_config(HERE / "reverse" / "swarm.toml")
    demo = tomllib.loads(swarm_toml(REVERSE.recipe, port=1, staleness=3, seed=0))
    for section in ("task", "learn", "trainer", "evaluate", "trust", "provisioning"):
        told = {key: getattr(getattr(ours, section), key) for key in demo[section]}
        assert told == demo[section], section
    assert ours.task.spec == small_model.TASK
    assert (ours.task.held_out, ours.learn.max_new_tokens) == (small_model.HELD_OUT, small_model.MAX_NEW_TOKENS)


# Writing them


@each
def test_the_commands_are_those_of_the_directory(name: ExampleName, tmp_path: Path) -> None:
    page = files_of(name, tmp_path / "my dir", swarm="ours", port=1)[tmp_path / "my dir" / "README.md"]
    commands = commands_of(page)
    assert f"volery learn {shlex.quote(str(tmp_path / 'my dir'))}" in commands
    assert not any(command.startswith("volery init") for command in commands)
    assert "my-swarm" not in page
    assert "](../" not in page, "a link that leads nowhere from another directory"


def test_a_directory_with_a_strange_name_does_not_spoil_the_file(tmp_path: Path) -> None:
    for name in ('a"b\nsteps = 1', "a\\b", "a'b"):
        assert read_swarm_config(written("gsm8k", tmp_path / name)).learn.steps == 300


def test_another_model_is_fetched_instead(tmp_path: Path) -> None:
    other = NamedModel(directory=tmp_path / "Qwen3-1.7B", fetched_from="Qwen/Qwen3-1.7B")
    config = read_swarm_config(written("math", tmp_path, other))
    assert config.model.directory == str(tmp_path / "Qwen3-1.7B")
    commands = commands_of((tmp_path / "README.md").read_text())
    assert commands[0] == other.fetch
    assert commands[1].startswith("hf download agentica-org/"), "the data is still fetched"
    here = files_of("math", tmp_path, swarm="n", port=1, model=NamedModel(directory=tmp_path / "mine"))
    assert not any("Qwen3-4B" in command for command in commands_of(here[tmp_path / "README.md"]))


@each
def test_nothing_is_overwritten(name: ExampleName, tmp_path: Path) -> None:
    for file in files_of(name, Path(), swarm="n", port=1):
        place = tmp_path / f"beside-{file}"
        place.mkdir()
        (place / file).write_text("mine")
        with pytest.raises(UsageError, match="already exists, and nothing was written"):
            written(name, place)
        assert [(one.name, one.read_text()) for one in place.iterdir()] == [(str(file), "mine")]


def test_the_command_writes_and_says_what_is_next(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["init", str(tmp_path / "ours"), "--example", "gsm8k"])
    assert run.exit_code == 0, run
    assert f"hf download Qwen/Qwen3-0.6B --local-dir {tmp_path / 'ours' / 'Qwen3-0.6B'}" in run.stdout
    config = read_swarm_config(tmp_path / "ours" / "swarm.toml")
    assert config.swarm.name == "ours"
    assert config.network.listen[0].endswith(f"/{free_port(tmp_path / 'ours')}")


@pytest.mark.parametrize("more", [["--data", "x.jsonl"], ["--minimal"], ["--force"]])
def test_an_example_is_whole(tmp_path: Path, more: list[str]) -> None:
    refused = CliRunner().invoke(app, ["init", str(tmp_path / "ours"), "--example", "gsm8k", *more])
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "ours").exists()


# Pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_has_one_screen_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert len(text.splitlines()) <= 50
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve()
        assert there.exists(), target
        assert not anchor or re.search(rf"^#+ {anchor.replace('-', '.')}$", there.read_text(), re.M | re.I), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != HERE], ids=lambda page: page.parent.name)
def test_a_page_says_what_it_needs_and_what_was_measured(page: Path) -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", page.read_text(), re.M))
    assert {"teaches", "hardware"} <= rows.keys()
    assert rows.keys() & {"time", "hours", "speed"}
    if page.parent.name not in ("reverse", "gaming-pc"):
        assert (rows["hours"], rows["curve"]) == ("not measured", "not measured")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_its_commands_exist(page: Path) -> None:
    text = page.read_text()
    typed = re.findall(r"^    (volery .+)$|`(volery [^`]+)`", text, re.M)
    commands = [shlex.split(block or inline)[1:] for block, inline in typed]
    assert commands
    known = dict(single_commands())
    for words in commands:
        command = known.get((words[0],)) or known[words[0], words[1]]
        options = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= options, words
