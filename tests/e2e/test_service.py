"""A node as a service of systemd: installed by the command, stopped without loss, restarted after a crash, removed.

systemd's manager for users runs in a mount namespace of its own, so the machine's own systemd, if any, is left alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from node.commands.service.service_spec import ServiceSpec
from node.commands.service.systemd_manager import Systemd
from node.commands.service.systemd_unit import unit_text
from node.runtime.shutdown import STOP_ON_EOF
from tests.e2e.programs import Swarm, free_port, wait_event, wait_for
from tests.e2e.test_stopping import LEFT
from tests.support.paths import ROOT

MANAGER = Path("/lib/systemd/systemd")
UNIT = "volery-node-swarm.service"

START = """\
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/user/0 && chmod 700 /run/user/0 || exit 1
exec "$0" --user
"""


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode
    )


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not MANAGER.exists(), reason="needs root and systemd"),
]


class Manager:
    """systemd's manager for one user, with directories of its own."""

    def __init__(self, home: Path) -> None:
        kept = {key: value for key, value in os.environ.items() if key != STOP_ON_EOF and not key.startswith("XDG_")}
        self.environment = {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": "/run/user/0", "PYTHONPATH": str(ROOT)}
        self.log = home / "systemd.log"
        with self.log.open("wb") as log:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", START, str(MANAGER)]
            self.process = subprocess.Popen(command, env=self.environment, cwd=home, stdout=log, stderr=log)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the manager is."""
        inside = ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", "--", *command]
        return subprocess.run(inside, env=self.environment, capture_output=True, text=True, check=False, timeout=120)

    def volery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.call(sys.executable, "-m", "node", *arguments)

    def show(self, name: str) -> str:
        """Return a property of the unit."""
        return self.call("systemctl", "--user", "show", "--value", f"--property={name}", UNIT).stdout.strip()

    def close(self) -> None:
        """End the manager, which first ends its services."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        self.process.wait(60)
        for left in psutil.wait_procs(family, timeout=10)[1]:
            left.kill()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    if not can_unshare():
        pytest.skip("this system allows no mount namespaces")
    home = tmp_path / "user"
    home.mkdir()
    manager = Manager(home)
    try:
        wait_for(
            "systemd's answer",
            lambda: (
                manager.process.poll() is not None
                or not manager.call("systemctl", "--user", "show-environment").returncode
            ),
        )
        if manager.process.poll() is not None:
            pytest.skip(f"systemd does not start here: {manager.log.read_text()[-500:]}")
        yield manager
    finally:
        if manager.process.poll() is None:
            manager.close()


def test_words_and_variables_reach_the_program_as_they_were(tmp_path: Path, manager: Manager) -> None:
    strange = '50 % of "$HOME" \\ it\'s ${USER} %h; #'
    program, told = tmp_path / f"{strange[:4]} program", tmp_path / "told"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" "$STRANGE" > {told}.draft\nmv {told}.draft {told}\n')
    program.chmod(0o755)
    service = ServiceSpec(
        role="node", title=strange, called=strange, state=tmp_path, command=(str(program), strange, "", "$"),
        environment={"STRANGE": strange}, memory_gb=None, nice=5,
    )  # fmt: skip
    systemd = Systemd(units=tmp_path / "user" / ".config" / "systemd" / "user")
    file = systemd.file_of(service.name)
    file.parent.mkdir(parents=True)
    file.write_text(unit_text(service, systemd=0))
    started = manager.call("systemctl", "--user", "start", file.name)
    assert started.returncode == 0, started.stderr
    wait_for("its words", told.exists)
    assert told.read_text().split("\n") == [strange, "", "$", strange, ""]


def test_a_service_hands_over_its_work_when_it_is_stopped(swarm: Swarm, manager: Manager) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    state, config = swarm.directory / "served", swarm.directory / "node.toml"
    config.write_text('[network]\nlisten = []\n[engine]\nkind = "fake"\n[testing]\nfake_token_s = 0.05\n')
    options = ("--node", str(swarm.state / "invite"), "--state", str(state), "--config", str(config))
    done = manager.volery("service", "install", *options, "--memory-gb", "4")
    assert done.returncode == 0, done.stderr
    assert "systemd runs volery-node-swarm now." in done.stdout
    events = state / "events.jsonl"
    wait_for(
        "a receipt", lambda: events.exists() and '"event":"receipt"' in events.read_text().replace(" ", ""), learner
    )
    told = manager.volery("service", "status")
    assert (told.returncode, told.stdout.splitlines()[0]) == (0, "volery-node-swarm: active, at work")
    assert manager.show("MemoryMax") == "4000000000"
    main = psutil.Process(int(manager.show("MainPID")))
    assert main.nice() == 5

    assert manager.call("systemctl", "--user", "stop", UNIT).returncode == 0
    left = wait_event(learner, "peer_left", learner)
    assert left["reason"] == LEFT
    assert (manager.show("ActiveState"), manager.show("Result")) == ("inactive", "success")
    assert not main.is_running()

    again = manager.volery("service", "install", *options, "--memory-gb", "4")
    assert again.returncode == 0, again.stderr
    main = psutil.Process(int(manager.show("MainPID")))
    main.kill()
    wait_for("a restart to come", lambda: manager.show("SubState") == "auto-restart", learner)
    told = manager.volery("service", "status", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)[0]["manager_says"] == "failed, and will be started again"

    gone = manager.volery("service", "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert manager.show("LoadState") == "not-found"
    assert (state / "node.key").exists()
