"""Describe the same task in another process, with another hash seed.

A task whose problems depend on `hash`, on the order of a set or on a clock has other problems there. It would also have
other problems in a verifier's process and after a restart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from node.tasks.api.interface import TaskError
from node.tasks.checks.description_program import MARK, Answered

if TYPE_CHECKING:
    from node.tasks.checks.trial import Source

START_S = 120.0
"""Seconds that the other process may take. Importing a task's libraries takes seconds; a longer one hangs."""


def ask_elsewhere(source: Source, count: int) -> Answered:
    """Return another process's description of the task. Raises TaskError if that process fails."""
    request = {
        "spec": source.spec,
        "directory": str(source.arguments.directory.resolve()),
        "seed": source.arguments.seed,
        "services": source.arguments.services,
        "count": count,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "node.tasks.checks.description_program"],
            input=json.dumps(request),
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
    except subprocess.TimeoutExpired:
        raise TaskError(f"another process did not open the task within {START_S:.0f} s.") from None
    line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), "")
    if done.returncode or not line:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise TaskError(f"another process cannot open the task: {said[-1]}")
    told: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return Answered(fingerprint=told["fingerprint"], problems=told["problems"])


def _environment() -> dict[str, str]:
    """Return our environment with another hash seed, and with all places where modules are found here."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    return {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
