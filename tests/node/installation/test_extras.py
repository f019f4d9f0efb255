"""Commands that need a missing library end with a sentence and a line, and our own defects stay tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli.application import OF_THE_LEARNER
from node.installation import extras
from node.installation.extras import EXTRA_OF, line_of_extra, of_missing_library, require_extra

WITHOUT = """\
import sys
from importlib.machinery import PathFinder

class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""
"""A sitecustomize.py: an environment in which these libraries are not installed."""

OUTSIDE = sorted(EXTRA_OF.keys() - {"h11", "prometheus_client"})
"""Libraries that a base installation lacks. The others come with libp2p."""

BASE_COMMANDS = [
    ["--version"], ["--help"], ["doctor", "--json"], ["engines"], ["identity"], ["status"], ["report"], ["pause"],
    ["resume"], ["drain"], ["join", "volery1broken"], ["receipts", "--help"], ["init", "made"],
]  # fmt: skip


def volery(arguments: list[str], home: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    (home / "sitecustomize.py").write_text(WITHOUT.format(names=set(names)))
    environment = {**os.environ, "PYTHONPATH": str(home), "VOLERY_HOME": str(home / "home"), "COLUMNS": "500"}
    command = [sys.executable, "-m", "node", *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", BASE_COMMANDS, ids=" ".join)
def test_a_volunteers_commands_need_no_extra(arguments: list[str], tmp_path: Path) -> None:
    done = volery(arguments, tmp_path, OUTSIDE)
    assert "Traceback" not in done.stderr
    assert "needs the extra" not in done.stderr
    assert done.returncode in (0, 1, 2)


@pytest.mark.parametrize(
    "arguments",
    [[name] for name in sorted(OF_THE_LEARNER)],
    ids=" ".join,
)
def test_a_command_that_needs_an_extra_says_which_line_to_type(arguments: list[str], tmp_path: Path) -> None:
    done = volery(arguments, tmp_path, OUTSIDE)
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    needs = f"volery: usage: `volery {arguments[0]}` needs the extra 'learner', which is not installed"
    assert told.startswith(needs)
    assert told.endswith(f"Type: {line_of_extra('learner')}")


def test_a_node_without_an_engine_says_which_line_to_type(tmp_path: Path) -> None:
    done = volery(["doctor"], tmp_path, ["torch", "transformers"])
    assert done.returncode == 1
    assert "The engine on transformers is not installed" in done.stdout
    assert f"Type: {line_of_extra('transformers')}" in done.stdout


def test_a_library_of_the_base_that_is_missing_is_told_as_such() -> None:
    told = str(of_missing_library(ModuleNotFoundError("x", name="trio.lowlevel"), "`volery join`"))
    assert told.startswith("`volery join` needs the Python package trio, which is missing: this installation is not")
    assert told.endswith(line_of_extra("transformers"))


@pytest.mark.parametrize(
    "error", [ImportError("cannot import name"), ModuleNotFoundError("x", name="node.absent"), ImportError(name="trio")]
)
def test_a_defect_of_ours_stays_a_traceback(error: ImportError) -> None:
    assert of_missing_library(error, "`volery join`") is None


def test_what_is_not_needed_is_not_asked_for() -> None:
    for extra in set(EXTRA_OF.values()) - {"vllm"}:  # vLLM lives in an environment of its own
        require_extra(extra, "`volery join`")


def test_a_learner_is_told_at_its_start_of_what_it_would_miss_later(tmp_path: Path) -> None:
    done = volery(["learn", "swarm.toml"], tmp_path, ["scipy"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "`volery learn` needs the extra 'learner', which is not installed (scipy is missing)" in done.stderr


@pytest.mark.parametrize("arguments", [["join", "volery1broken"], ["learn", "absent.toml"]], ids=" ".join)
def test_a_start_warns_of_another_owner_of_our_names(arguments: list[str], tmp_path: Path) -> None:
    info = tmp_path / "other_swarm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-swarm\nVersion: 1.0\n")
    (info / "RECORD").write_text("swarm/__init__.py,,\n")
    told = volery(arguments, tmp_path, []).stderr.splitlines()
    assert told[0].startswith("volery: warning: another distribution in this environment has a package")
    assert "swarm (of other-swarm)" in told[0]
    assert told[1].startswith("volery: usage:")


def test_a_commands_help_needs_no_extra(tmp_path: Path) -> None:
    done = volery(["demo", "--help"], tmp_path, ["scipy"])
    assert (done.returncode, done.stderr) == (0, "")


def test_uvx_keeps_the_extras_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "archive-v0" / "x7"
    prefix.mkdir(parents=True)
    (metadata := tmp_path / "volery-1.dist-info").mkdir()
    (metadata / "METADATA").write_text("Name: volery\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "argv", ["volery", "status"])
    here = {"peft", "wandb", "pyarrow"}
    monkeypatch.setattr(extras, "find_spec", lambda name: name if name in here else None)
    assert line_of_extra("gguf") == "uvx --from 'volery[gguf,lora,wandb]' volery status"
