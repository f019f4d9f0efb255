"""Install services as units of systemd's manager for one user."""

from __future__ import annotations

import getpass
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from node.commands.service.manager import Advice, Standing, call, last_line
from node.commands.service.service_spec import InstalledService, ServiceSpec
from node.commands.service.systemd_unit import unit_text
from node.config.invite_text import INVITE_FILE
from node.runtime.errors import RunError

BOOTED = Path("/run/systemd/system")
"""It exists where systemd is the first process (sd_booted(3))."""


@dataclass(frozen=True, kw_only=True)
class Systemd:
    """systemd's manager for one user. `units`: the directory of the user's units."""

    units: Path
    booted: Path = BOOTED
    title: str = "systemd"
    limits_memory: bool = True
    keeps_files: bool = False

    def file_of(self, name: str) -> Path:
        return self.units / f"{name}.service"

    def text(self, spec: ServiceSpec) -> str:
        return unit_text(spec, systemd=systemd_release())

    def require(self, spec: ServiceSpec) -> None:
        if not self.booted.is_dir():
            words = _by_hand(spec)
            invite = ", with your invite in place of INVITE" if "INVITE" in words else ""
            raise RunError(
                "systemd does not run on this machine, and `volery service` knows no other service manager of Linux. "
                "Use a container (docs/operate/containers.md), or let cron start it: type `crontab -e`, and add this "
                f"line{invite}:\n  @reboot {' '.join(words)}"
            )
        done = call("systemctl", "--user", "show-environment")
        if done.returncode:
            raise RunError(
                f"systemd's manager for users does not answer ({last_line(done)}). `su` and `sudo` start none: log in "
                "as the user who is to run the service, on the machine itself or by ssh, and try again."
            )

    def start(self, spec: ServiceSpec) -> None:
        unit = self.file_of(spec.name).name
        for arguments in (("daemon-reload",), ("enable", unit), ("restart", unit)):
            done = call("systemctl", "--user", *arguments)
            if done.returncode:
                call("systemctl", "--user", "disable", "--now", unit)
                raise RunError(
                    f"systemd could not start {unit}: {last_line(done)}. Its lines: journalctl --user -u {spec.name}"
                )

    def remove(self, service: InstalledService) -> None:
        done = call("systemctl", "--user", "disable", "--now", service.file.name)
        if done.returncode:
            raise RunError(f"systemd could not stop {service.file.name}: {last_line(done)}. Nothing was removed.")
        service.file.unlink(missing_ok=True)
        call("systemctl", "--user", "daemon-reload")
        call("systemctl", "--user", "reset-failed", service.file.name)

    def standing(self, service: InstalledService) -> Standing:
        done = call("systemctl", "--user", "show", "--property=ActiveState,SubState,Result", service.file.name)
        told = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        state = told.get("ActiveState", "unknown")
        words = {
            ("activating", "auto-restart"): "failed, and will be started again",
            ("failed", "failed"): f"failed ({told.get('Result', 'unknown')})",
        }.get((state, told.get("SubState", "")), state)
        return Standing(runs=state == "active", words=words)

    def log_line(self, name: str, state: Path) -> str:
        return f"journalctl --user -u {name} -f"

    def advice(self, spec: ServiceSpec) -> Advice:
        name, user = spec.name, getpass.getuser()
        linger = call("loginctl", "show-user", user, "--property=Linger")
        notes = (
            ()
            if linger.stdout.strip() == "Linger=yes"
            else (f"It runs while you are logged in. To run it from boot on: loginctl enable-linger {user}",)
        )
        return Advice(
            stop=f"systemctl --user stop {name}",
            start=f"systemctl --user start {name}",
            notes=notes,
        )


def _by_hand(spec: ServiceSpec) -> list[str]:
    """Return the words that start the same without a service, with INVITE for an invite that was not written."""
    invite = spec.state / INVITE_FILE
    return ["INVITE" if word == str(invite) and not invite.is_file() else shlex.quote(word) for word in spec.command]


def systemd_release() -> int:
    """Return the number of systemd's release here; 0 if it is not installed."""
    found = re.match(r"systemd (\d+)", call("systemctl", "--version").stdout)
    return int(found.group(1)) if found else 0
