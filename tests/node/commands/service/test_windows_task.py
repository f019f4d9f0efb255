"""The scheduled task and its script: the task is well-formed, and the script runs here as in WSL2."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import pytest

from node.commands.service.service_spec import ServiceSpec, read_mark
from node.commands.service.windows_task import script_text, task_name, task_text
from tests.node.commands.service.test_service_spec import spec

SPACE = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}


def test_the_task_starts_the_script_at_logon() -> None:
    text = task_text(
        spec(title="a & b"), script=PurePosixPath("/home/ada/s.sh"), distribution="Ubuntu 24", owner="PC\\ada"
    )
    task = ElementTree.fromstring(text.encode("utf-16"))
    assert task.findtext("t:Actions/t:Exec/t:Command", namespaces=SPACE) == "wsl.exe"
    arguments = task.findtext("t:Actions/t:Exec/t:Arguments", namespaces=SPACE)
    assert arguments == '-d "Ubuntu 24" --exec /bin/sh "/home/ada/s.sh"'
    assert task.findtext("t:Triggers/t:LogonTrigger/t:UserId", namespaces=SPACE) == "PC\\ada"
    assert task.findtext("t:RegistrationInfo/t:Description", namespaces=SPACE) == "Volery node of the swarm a & b"
    assert task.findtext("t:Settings/t:ExecutionTimeLimit", namespaces=SPACE) == "PT0S"
    assert task_name("volery-node-kites") == "Volery\\volery-node-kites"


def with_programs(directory: Path, *codes: int) -> tuple[ServiceSpec, dict[str, str]]:
    """A service whose program ends with these codes in turn, and an environment in which `sleep` only takes notes."""
    program, sleep = directory / "my program", directory / "sleep"
    cases = " ".join(f"{number}) exit {code};;" for number, code in enumerate(codes, 1))
    program.write_text(
        f'#!/bin/sh\necho "$MARK $@" >> "{directory}/runs"\ncase $(wc -l < "{directory}/runs") in {cases} esac\n'
    )
    sleep.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/pauses"\n')
    for one in (program, sleep):
        one.chmod(0o755)
    service = spec(command=(str(program), "join", "two words"), environment={"MARK": "it's $set"})
    return service, {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}


@pytest.mark.parametrize("last", [0, 2, 130])
def test_the_script_starts_again_after_failures_only(last: int, tmp_path: Path) -> None:
    service, environment = with_programs(tmp_path, *[1] * 8, last)
    script = tmp_path / "script.sh"
    script.write_text(script_text(service))
    done = subprocess.run(["/bin/sh", str(script)], env=environment, check=False)
    assert done.returncode == last
    assert (tmp_path / "runs").read_text().splitlines() == ["it's $set join two words"] * 9
    assert [int(line) for line in (tmp_path / "pauses").read_text().split()] == [10, 20, 40, 80, 160, 320, 600, 600]


def test_the_script_says_what_it_is() -> None:
    found = read_mark(script_text(spec()), Path("script"))
    assert found is not None
    assert found.name == "volery-node-kites"
