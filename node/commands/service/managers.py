"""Choose this machine's service manager, and find the services that it has.

Invariants:

- A file that `volery service install` did not write is no service of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from node.commands.service.launchd_manager import Launchd
from node.commands.service.manager import ServiceManager
from node.commands.service.service_spec import PREFIX, InstalledService, read_mark
from node.commands.service.systemd_manager import Systemd
from node.commands.service.windows_manager import WindowsTasks
from node.state.rollout_state import data_directory

MAX_FILE_BYTES = 1 << 16
"""Most characters read of a file that may be a service's. Ours have some thousand."""

KERNEL = Path("/proc/sys/kernel/osrelease")
"""The kernel's release, which names Microsoft in WSL2."""


def installed_services(manager: ServiceManager) -> list[InstalledService]:
    """Return the services of this user, sorted by name."""
    pattern = manager.file_of(f"{PREFIX}*")
    found = map(service_at, pattern.parent.glob(pattern.name))
    return sorted((service for service in found if service is not None), key=lambda service: service.name)


def service_at(file: Path) -> InstalledService | None:
    """Return the service that `file` describes; None if it is not one of ours. Raises OSError if it cannot be read."""
    with file.open(encoding="utf-8", errors="replace") as opened:
        return read_mark(opened.read(MAX_FILE_BYTES), file)


def manager_here(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform, kernel: Path = KERNEL
) -> ServiceManager:
    """Return the manager of this machine."""
    home = Path(environment.get("HOME") or Path.home())
    if platform == "darwin":
        return Launchd(home=home)
    with suppress(OSError):
        if "microsoft" in kernel.read_text(encoding="utf-8").lower():
            return WindowsTasks(folder=data_directory() / "services", distribution=environment.get("WSL_DISTRO_NAME"))
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return Systemd(units=config / "systemd" / "user")
