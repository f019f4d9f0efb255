"""Write a service as a launch agent of macOS (launchd.plist(5)).

launchd sends SIGTERM to the program alone and waits `ExitTimeOut` seconds, as the drain at a stop needs. It knows one
pause between starts, no exit code that prevents the next one, and no limit of memory: `[limits] ram_gb` in `node.toml`
limits the engine.
"""

from __future__ import annotations

import plistlib
from pathlib import Path

from node.commands.service.service_spec import CONSTANT_PAUSE_S, ServiceSpec

HEAD_LINES = 2
"""Lines before the plist's first element: the XML declaration and the document type."""


def plist_text(spec: ServiceSpec, *, log: Path) -> str:
    """Return the agent of a service. `log`: the file that gets the program's lines."""
    agent = {
        "Label": spec.name,
        "ProgramArguments": list(spec.command),
        "EnvironmentVariables": dict(spec.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": CONSTANT_PAUSE_S,
        "ExitTimeOut": spec.stop_s,
        "Nice": spec.nice,
        "Umask": 0o077,
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    lines = plistlib.dumps(agent, sort_keys=False).decode().splitlines()
    comment = f"<!-- Written by `volery service install`. {spec.mark} -->"
    return "\n".join([*lines[:HEAD_LINES], comment, *lines[HEAD_LINES:], ""])
