"""What a newcomer sees first: versions, help, completion, and the list of tasks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from node.cli.main import app
from tests.e2e.programs import Machine

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]
GROUPS = [str(group.typer_instance.info.name) for group in app.registered_groups if group.typer_instance]
SCRIPT = Path(sys.executable).with_name("volery")


def test_help_leads_to_every_command(machine: Machine) -> None:
    outcome = machine.call("--help")
    assert outcome.code == 0
    assert {"init", "learn", "join", "status", "report", "export", "identity", "demo"} <= set(COMMANDS)
    assert {"tasks", "new", "receipts", "reputation"} == set(GROUPS)
    for word in (*COMMANDS, *GROUPS, "--version", "--install-completion"):
        assert word in outcome.out
    bare = machine.call()  # no arguments, no riddle
    assert bare.out.strip() == outcome.out.strip()


@pytest.mark.parametrize("command", [*COMMANDS, "tasks show", "tasks check", "new task", "new environment"])
def test_help_of_a_command(machine: Machine, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    outcome = machine.call(*command.split(), "--help")
    assert outcome.code == 0
    assert f"Usage: volery {command}" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    for option in re.findall(r"^│ +(--[a-z-]+) .*", outcome.out, re.MULTILINE):
        row = next(line for line in outcome.out.splitlines() if re.match(rf"│ +{option} ", line))
        assert len(row.partition(option)[2].split()) > 3, row  # there is a sentence, not a type alone


@pytest.mark.parametrize("command", [[SCRIPT], [sys.executable, "-m", "node"]], ids=["volery", "python -m node"])
def test_version(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"volery {version('volery')}\n"
    assert done.stderr == ""


def test_tasks_are_listed(machine: Machine) -> None:
    outcome = machine.call("tasks")
    assert outcome.code == 0
    for name in ("reverse", "sort", "arithmetic", "jsonl:PATH"):
        assert name in outcome.out


def test_a_new_machine_has_nothing_to_show(machine: Machine) -> None:
    assert "no key on this machine" in machine.call("identity").out
    done = machine.call("init", "my swarm", "--name", "ours")
    assert done.code == 0
    assert "volery learn 'my swarm/swarm.toml'" in done.out
    assert "volery learn" in machine.call("invite", "my swarm/swarm.toml").err  # not founded yet: says how
