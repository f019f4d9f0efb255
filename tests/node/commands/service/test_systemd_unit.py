"""The unit of a service, word for word, and as systemd itself reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from node.commands.service.systemd_unit import quoted, unit_text
from tests.node.commands.service.test_service_spec import spec

STATE = "/home/ada/.local/share/volery/8a8a8a8a8a8a8a8a/node-1"

NODE = f"""\
# Written by `volery service install`. To change it: volery service uninstall, then install again.
# volery-service: {{"name": "volery-node-kites", "role": "node", "swarm": "kites", "state": "{STATE}"}}
[Unit]
Description=Volery node of the swarm kites
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/opt/volery/bin/volery join {STATE}/invite --state {STATE} --plain
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=30
SuccessExitStatus=130
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=10
RestartSteps=8
RestartMaxDelaySec=600
Nice=5
MemoryMax=90%
OOMPolicy=continue
NoNewPrivileges=true
UMask=0077

[Install]
WantedBy=default.target
"""

STRANGE = spec(
    role="learner",
    title='100 % "ours" \\ $HOME',
    command=("/opt/my volery/bin/volery", "learn", '/home/ada/50 % "a" \\ $HOME/swarm.toml', "--plain"),
    environment={"VOLERY_HOME": "/home/ada/my 100 % $HOME"},
    memory_gb=12.5,
    nice=0,
)


def test_a_node_word_for_word() -> None:
    assert unit_text(spec(), systemd=254) == NODE


def test_an_older_systemd_gets_one_pause() -> None:
    lines = unit_text(spec(), systemd=252).splitlines()
    assert "RestartSec=60" in lines
    assert [line for line in lines if line.startswith(("RestartSteps", "RestartMaxDelaySec"))] == []


def test_a_learner_has_time_for_its_checkpoint_and_may_use_bubblewrap() -> None:
    lines = unit_text(STRANGE, systemd=254).splitlines()
    assert {"TimeoutStopSec=120", "MemoryMax=12500000000", "Nice=0"} <= set(lines)
    assert not [line for line in lines if line.startswith("NoNewPrivileges")]


@pytest.mark.parametrize(
    ("word", "written"),
    [("/plain/path-1.toml", "/plain/path-1.toml"), ("two words", '"two words"'), ('%"\\', '"%%\\"\\\\"'), ("", '""')],
)
def test_words_are_quoted(word: str, written: str) -> None:
    assert quoted(word) == written


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("named", ["plain", "strange"])
def test_systemd_accepts_the_unit(named: str, tmp_path: Path) -> None:
    program = tmp_path / "my volery" / "volery"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    service = spec() if named == "plain" else STRANGE
    service = spec(**{**vars(service), "command": (str(program), *service.command[1:])})
    # The newest keys are only known to newer releases, and a key that is not known is a warning there.
    unit = tmp_path / f"{service.name}.service"
    unit.write_text(unit_text(service, systemd=0))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
