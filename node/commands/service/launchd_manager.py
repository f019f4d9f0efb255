"""Install services as launch agents of macOS, in the session of the user who is logged in."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from node.commands.service.launchd_plist import plist_text
from node.commands.service.manager import Advice, Standing, call, last_line
from node.commands.service.service_spec import InstalledService, ServiceSpec
from node.runtime.errors import RunError


@dataclass(frozen=True, kw_only=True)
class Launchd:
    """launchd. `home`: the user's home directory."""

    home: Path
    title: str = "launchd"
    limits_memory: bool = False
    keeps_files: bool = False

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def _log(self, name: str) -> Path:
        return self.home / "Library" / "Logs" / "Volery" / f"{name}.log"

    def file_of(self, name: str) -> Path:
        return self.home / "Library" / "LaunchAgents" / f"{name}.plist"

    def text(self, spec: ServiceSpec) -> str:
        return plist_text(spec, log=self._log(spec.name))

    def require(self, spec: ServiceSpec) -> None:
        done = call("launchctl", "print", self._domain)
        if done.returncode:
            raise RunError(
                f"launchd has no session for this user ({last_line(done)}). Log in on the Mac's own screen as the "
                "user who is to run the service, and try again."
            )

    def start(self, spec: ServiceSpec) -> None:
        self._log(spec.name).parent.mkdir(parents=True, exist_ok=True)
        call("launchctl", "bootout", f"{self._domain}/{spec.name}")
        done = call("launchctl", "bootstrap", self._domain, str(self.file_of(spec.name)))
        if done.returncode:
            raise RunError(f"launchd could not start {spec.name}: {last_line(done)}. Try again after the next login.")

    def remove(self, service: InstalledService) -> None:
        target = f"{self._domain}/{service.name}"
        if not call("launchctl", "print", target).returncode:
            done = call("launchctl", "bootout", target)
            if done.returncode:
                raise RunError(f"launchd could not stop {service.name}: {last_line(done)}. Nothing was removed.")
        service.file.unlink(missing_ok=True)

    def standing(self, service: InstalledService) -> Standing:
        done = call("launchctl", "print", f"{self._domain}/{service.name}")
        if done.returncode:
            return Standing(runs=False, words="not loaded")
        found = re.search(r"^\s*state = (.+)$", done.stdout, re.M)
        state = found.group(1) if found else "unknown"
        return Standing(runs=state == "running", words=state)

    def log_line(self, name: str, state: Path) -> str:
        return f"tail -f {shlex.quote(str(self._log(name)))}"

    def advice(self, spec: ServiceSpec) -> Advice:
        name = spec.name
        file = self.file_of(name)
        return Advice(
            stop=f"launchctl bootout {self._domain}/{name}",
            start=f"launchctl bootstrap {self._domain} {file}",
            notes=(
                "It runs while you are logged in. launchd limits no memory: set [limits] ram_gb in node.toml.",
                "A Mac that sleeps does no work: see `man caffeinate`.",
            ),
        )
