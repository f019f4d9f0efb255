"""Check what a newcomer sees first: versions, help, completion, and the list of tasks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from node.cli.help.catalogue import COMMANDS as CATALOGUE
from node.cli.help.catalogue import EXITS, PANELS
from tests.e2e.programs import Machine
from tests.support.command_line import single_commands

COMMANDS = [command.name for command in CATALOGUE if not command.is_group]
GROUPS = [command.name for command in CATALOGUE if command.is_group]
SCRIPT = Path(sys.executable).with_name("volery")


def test_help_leads_to_every_command(machine: Machine) -> None:
    outcome = machine.call("--help")
    assert outcome.code == 0
    assert {"init", "learn", "join", "status", "report", "export", "identity", "demo"} <= set(COMMANDS)
    assert {"tasks", "new", "receipts", "reputation", "service"} == set(GROUPS)
    for word in (*COMMANDS, *GROUPS, *PANELS, "-V, --version", "--install-completion"):
        assert word in outcome.out
    for words in ((), ("-h",)):  # no arguments print the help too
        assert machine.call(*words).out == outcome.out


def test_a_command_that_is_nearly_one_is_suggested(machine: Machine) -> None:
    assert "Did you mean 'learn'?" in machine.call("lern").err


@pytest.mark.parametrize("command", [" ".join(words) for words, _ in single_commands()])
def test_help_of_a_command(machine: Machine, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    outcome = machine.call(*command.split(), "--help")
    assert outcome.code == 0
    assert f"Usage: volery {command}" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert machine.call(*command.split(), "-h").out == outcome.out
    for code in EXITS:
        assert re.search(rf"^  {code} +[A-Z]", outcome.out, re.MULTILINE), "an exit code has no meaning in the help"
    options = outcome.out.partition("\nOptions\n")[2].partition("\nExit codes\n")[0]
    assert not re.search(r"<\w+>|\bbool\b|\bfloat\b|<=|\[x", options), (
        "the help shows a programmer's types or intervals"
    )
    assert re.findall(r"^  -\S.*\n(?=  -|$)", options, re.MULTILINE) == re.findall(
        r"^  -\S.*  [A-Z].*\n(?=  -|$)", options, re.MULTILINE
    ), "an option has no sentence"


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
    # the swarm is not founded yet, and the message says how to found it
    assert "volery learn" in machine.call("invite", "my swarm/swarm.toml").err
