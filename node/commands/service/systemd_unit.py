"""Write a service as a systemd user unit (systemd.service(5), systemd.exec(5), systemd.resource-control(5)).

Form and order follow syncthing's `etc/linux-systemd/user`. Three settings differ from what most units have:

- `KillMode=mixed`: a stop reaches the program alone. It hands over what its engine has generated, or writes a
  checkpoint, and ends its children itself. With systemd's default the engine would be killed first, and its unfinished
  work lost.
- `OOMPolicy=continue`: an engine that runs out of memory is restarted by its node, which keeps its place in the swarm.
- `StartLimitIntervalSec=0`: the pauses between starts grow, and no number of failures ends the service. A learner may
  be away for a day.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from node.commands.service.service_spec import (
    CONSTANT_PAUSE_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MEMORY_SHARE,
    STOPPED,
    USAGE,
    ServiceSpec,
)

GROWING_PAUSES = 254
"""The first release of systemd that lets pauses between starts grow (RestartSteps)."""

STEPS = 8
"""Restarts until the longest pause is reached."""

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def unit_text(spec: ServiceSpec, *, systemd: int) -> str:
    """Return the unit of a service, for this release of systemd."""
    return "\n".join([*_unit(spec), "", *_service(spec, systemd), "", "[Install]", "WantedBy=default.target", ""])


def _unit(spec: ServiceSpec) -> Iterator[str]:
    yield "# Written by `volery service install`. To change it: volery service uninstall, then install again."
    yield f"# {spec.mark}"
    yield "[Unit]"
    yield f"Description={spec.description.replace('%', '%%')}"
    yield "StartLimitIntervalSec=0"


def _service(spec: ServiceSpec, systemd: int) -> Iterator[str]:
    yield "[Service]"
    yield "Type=exec"
    yield f"ExecStart={' '.join(quoted(word).replace('$', '$$') for word in spec.command)}"
    for name, value in sorted(spec.environment.items()):
        yield f"Environment={quoted(f'{name}={value}')}"
    yield "KillMode=mixed"
    yield "KillSignal=SIGTERM"
    yield f"TimeoutStopSec={spec.stop_s}"
    yield f"SuccessExitStatus={STOPPED}"
    yield "Restart=on-failure"
    yield f"RestartPreventExitStatus={USAGE}"
    if systemd >= GROWING_PAUSES:
        yield f"RestartSec={FIRST_PAUSE_S}"
        yield f"RestartSteps={STEPS}"
        yield f"RestartMaxDelaySec={LONGEST_PAUSE_S}"
    else:
        yield f"RestartSec={CONSTANT_PAUSE_S}"
    yield f"Nice={spec.nice}"
    yield f"MemoryMax={_memory(spec.memory_gb)}"
    yield "OOMPolicy=continue"
    if spec.role == "node":  # a learner's sandbox may need bubblewrap with the rights of its owner
        yield "NoNewPrivileges=true"
    yield "UMask=0077"


def _memory(gigabytes: float | None) -> str:
    return f"{round(100 * MEMORY_SHARE)}%" if gigabytes is None else str(round(gigabytes * 1e9))


def quoted(word: str) -> str:
    """Return a word as systemd reads it back: quotes around it where needed, and `%` twice."""
    if _PLAIN.fullmatch(word):
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{inner}"'
