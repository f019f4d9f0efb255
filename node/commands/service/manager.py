"""Define what every service manager does, and call programs of the system.

Invariants:

- A program that is missing or hangs counts as one that failed.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from node.commands.service.service_spec import InstalledService, ServiceSpec

CALL_S = 150.0
"""Seconds for a program of the system. The longest waits until a learner has stopped (`STOP_S`)."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a manager says of a service. `words`: for people, such as "active"."""

    runs: bool
    words: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Lines to type, by what they do, and what else the owner should know."""

    stop: str
    start: str
    notes: tuple[str, ...] = ()


class ServiceManager(Protocol):
    """A program of the system that keeps services running."""

    @property
    def title(self) -> str:
        """Return its name, for people."""

    @property
    def limits_memory(self) -> bool:
        """Return whether it enforces a service's limit of memory."""

    @property
    def keeps_files(self) -> bool:
        """Return whether files stay after a failed start, because the owner must still use them."""

    def file_of(self, name: str) -> Path:
        """Return the file that describes the service `name`."""

    def text(self, spec: ServiceSpec) -> str:
        """Return the contents of that file."""

    def require(self, spec: ServiceSpec) -> None:
        """Raise RunError, with what to use instead, if the manager cannot be used here."""

    def start(self, spec: ServiceSpec) -> None:
        """Start the service whose file was written, now and at each login. Raises RunError."""

    def remove(self, service: InstalledService) -> None:
        """Stop a service, and forget it. Its file is still there. Raises RunError."""

    def standing(self, service: InstalledService) -> Standing:
        """Return what the manager says of a service."""

    def log_line(self, name: str, state: Path) -> str:
        """Return the line to type that shows what the service `name`, with this state directory, prints."""

    def advice(self, spec: ServiceSpec) -> Advice:
        """Return what the owner of a new service should know."""


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the system to its end, and return its exit code and output."""
    options = {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(command, check=False, timeout=CALL_S, **options)  # type: ignore[call-overload,no-any-return]
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 126, "", str(error))


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a program printed, without its full stop, for the middle of a sentence."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip().rstrip(".") if lines else f"exit code {done.returncode}"
