"""The commands by their names: one that got another still answers, and two of them are the same."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from node.cli.main import app


def test_the_old_name_of_samples_does_the_same_and_says_the_new_one(tmp_path: Path) -> None:
    old, new = (CliRunner().invoke(app, [name, str(tmp_path), "--best", "1"]) for name in ("show", "samples"))
    assert repr(old.exception) == repr(new.exception) != "None", "a directory without a run"
    assert old.stdout == new.stdout
    assert "`volery show` is called `volery samples` now" in old.stderr
    assert new.stderr == ""


def test_the_help_lists_the_new_name_alone() -> None:
    listed = [line.split()[1] for line in CliRunner().invoke(app, ["--help"]).stdout.splitlines() if line[:2] == "│ "]
    assert {"samples", "why", "explain"} <= set(listed)
    assert "show" not in listed


def test_explain_is_why(tmp_path: Path) -> None:
    asked = [CliRunner().invoke(app, [name, "atlas", str(tmp_path)]) for name in ("why", "explain")]
    assert len({repr(one.exception) for one in asked}) == 1
    old, new = (CliRunner().invoke(app, [name, "--help"]).stdout.split("Arguments")[1] for name in ("why", "explain"))
    assert old == new
