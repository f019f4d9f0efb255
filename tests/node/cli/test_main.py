"""The commands by their names: a renamed command still works, and two names call the same command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.cli.application import app
from node.cli.main import _fail
from node.runtime.errors import NodeError, NotAllowed, RunError, UsageError


def test_the_old_name_of_samples_does_the_same_and_says_the_new_one(tmp_path: Path) -> None:
    old, new = (CliRunner().invoke(app, [name, str(tmp_path), "--best", "1"]) for name in ("show", "samples"))
    assert repr(old.exception) == repr(new.exception) != "None", "a directory without a run"
    assert old.stdout == new.stdout
    assert "`volery show` is called `volery samples` now" in old.stderr
    assert new.stderr == ""


def test_the_help_lists_the_new_name_alone() -> None:
    lines = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    listed = [line.split()[0] for line in lines if line[:2] == "  "]
    assert {"samples", "why", "explain"} <= set(listed)
    assert "show" not in listed


def test_explain_is_why(tmp_path: Path) -> None:
    asked = [CliRunner().invoke(app, [name, "atlas", str(tmp_path)]) for name in ("why", "explain")]
    assert len({repr(one.exception) for one in asked}) == 1
    old, new = (CliRunner().invoke(app, [name, "--help"]).stdout.split("Arguments")[1] for name in ("why", "explain"))
    assert old == new


def test_a_directory_stands_for_the_swarm_toml_in_it(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").write_text("what = 1\n")
    for words in (["learn"], ["invite"], ["status"], ["drill"]):
        asked = [
            repr(CliRunner().invoke(app, [*words, str(path)]).exception) for path in (tmp_path, tmp_path / "swarm.toml")
        ]
        assert asked[0] == asked[1], words
        assert "swarm.toml" in asked[0], words


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (["identity"], list),
        (["engines"], dict),
        (["tasks"], dict),
        (["init", "DIRECTORY"], dict),
        (["new", "task", "my-task", "--at", "DIRECTORY", "--no-model"], dict),
    ],
)
def test_json_is_one_value_and_nothing_else(tmp_path: Path, words: list[str], has: type) -> None:
    typed = [str(tmp_path / "new") if word == "DIRECTORY" else word for word in words]
    told = CliRunner().invoke(app, [*typed, "--json"], env={"VOLERY_HOME": str(tmp_path)})
    assert told.exit_code == 0
    assert isinstance(json.loads(told.stdout), has)


def test_the_form_of_a_dry_run_needs_one() -> None:
    for command in (["learn", "swarm.toml"], ["join", "volery1"], ["serve"]):
        refused = CliRunner().invoke(app, [*command, "--json"]).exception
        assert "--json is the form of --dry-run" in str(refused)


def test_help_comes_before_the_libraries_that_commands_need() -> None:
    program = (
        "import sys; sys.argv[1:] = ['-h']\nfrom node.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: volery" in done.stdout
    assert not {"typer", "rich", "numpy", "msgspec", "trio"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("error", "label", "code"),
    [(UsageError("x"), "usage", 2), (RunError("x"), "error", 1), (NotAllowed("x"), "refused", 2)],
)
def test_an_error_says_whose_turn_it_is(
    capsys: pytest.CaptureFixture[str], error: NodeError, label: str, code: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        _fail(error)
    assert (ended.value.code, capsys.readouterr().err) == (code, f"volery: {label}: x\n")
