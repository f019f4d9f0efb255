"""Install services as tasks of Windows' Task Scheduler, called from WSL2.

What a task does was checked from the side of Linux only: the script runs in the tests, the task itself needs Windows.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from node.commands.service.manager import CALL_S, Advice, Standing, call
from node.commands.service.service_spec import InstalledService, ServiceSpec
from node.commands.service.windows_task import script_text, task_name, task_text
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError
from node.state.status_file import running_pid

LOOK_S = 0.2
"""Seconds between two looks whether a program has ended."""


class NotFromInside(RunError):
    """Windows must be told from outside. The message holds the lines to type, and the files stay."""


@dataclass(frozen=True, kw_only=True)
class WindowsTasks:
    """The Task Scheduler of Windows, called from WSL2. `folder`: where scripts and tasks are kept.

    distribution: WSL's name for this system.
    """

    folder: Path
    distribution: str | None
    title: str = "the Task Scheduler of Windows"
    limits_memory: bool = False
    keeps_files: bool = True

    def file_of(self, name: str) -> Path:
        return self.folder / f"{name}.sh"

    def text(self, spec: ServiceSpec) -> str:
        return script_text(spec)

    def require(self, spec: ServiceSpec) -> None:
        if not self.distribution:
            raise RunError(
                "WSL_DISTRO_NAME is not set, so Windows could not be told which system to start. Type this in a "
                "terminal of WSL2 that Windows opened, not over ssh."
            )

    def start(self, spec: ServiceSpec) -> None:
        script, name = self.file_of(spec.name), task_name(spec.name)
        owner = call("whoami.exe").stdout.strip() or "DOMAIN\\NAME"
        text = task_text(spec, script=PurePosixPath(script), distribution=self.distribution or "", owner=owner)
        task = script.with_suffix(".xml")
        write_durably(task, text.encode("utf-16"))
        seen = call("wslpath", "-w", str(task)).stdout.strip() or str(task)
        lines = (
            ("/Create", "/F", "/TN", name, "/XML", seen),
            ("/Run", "/TN", name),
        )
        for arguments in lines:
            if call("schtasks.exe", *arguments).returncode:
                typed = "\n".join(f"  schtasks {' '.join(_in_quotes(one) for one in line)}" for line in lines)
                raise NotFromInside(
                    "Windows did not accept the task from inside WSL2. Open PowerShell as administrator in Windows, "
                    f"and type:\n{typed}"
                )

    def remove(self, service: InstalledService) -> None:
        name = task_name(service.name)
        if (pid := running_pid(service.state)) is not None:
            os.kill(pid, signal.SIGTERM)  # its script ends with it, and with that the task
            if not is_true_within(CALL_S, lambda: running_pid(service.state) is None):
                raise RunError(f"Process {pid} of {service.name} does not end. Nothing was removed; try again later.")
        deleted = call("schtasks.exe", "/Delete", "/F", "/TN", name)
        service.file.unlink(missing_ok=True)
        service.file.with_suffix(".xml").unlink(missing_ok=True)
        if deleted.returncode:
            raise NotFromInside(
                "Windows did not remove the task from inside WSL2. Open PowerShell as administrator in Windows, and "
                f'type:\n  schtasks /Delete /F /TN "{name}"'
            )

    def standing(self, service: InstalledService) -> Standing:
        runs = running_pid(service.state) is not None
        return Standing(runs=runs, words="running" if runs else "not running")

    def log_line(self, name: str, state: Path) -> str:
        return f"tail -f {shlex.quote(str(state / 'events.jsonl'))}"

    def advice(self, spec: ServiceSpec) -> Advice:
        state = shlex.quote(str(spec.state))
        return Advice(
            stop=f"volery drain --within 0 {state}" if spec.role == "node" else "volery service uninstall",
            start=f'schtasks.exe /Run /TN "{task_name(spec.name)}"',
            notes=("It starts when you log in to Windows, and rests while a laptop is on battery.",),
        )


def is_true_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether `condition` holds within so many seconds, looking every LOOK_S."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _in_quotes(word: str) -> str:
    return word if word.startswith("/") else f'"{word}"'
