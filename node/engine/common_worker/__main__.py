"""Start an engine worker: load our modules by their paths, and keep its standard output for frames.

Invariants:

- Processes that the worker's libraries spawn find the same modules under the same names, so a library may be given one
  by name. (multiprocessing runs this file again in each of them, with the same arguments.)
- Spawned processes end with the process that spawned them.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

ROOT = "volery_engine"
"""Name of the workers' folder in their processes, where `node` may be missing, or another version's."""
SHARED = ("protocol", "protocol.core", "learner", "learner.artifacts", "learner.trainer_api")
"""Packages from which a worker loads single files that stand alone: their `__init__` is not run."""

PR_SET_PDEATHSIG = 1
"""The constant of Linux's prctl(2)."""

_kept: list[BinaryIO] = []
"""Pipes that stay open until the process has ended. If one closed during `sys.exit`, the node would close its own end.
The thread that reads it would then end the process first, with another exit code."""


def name_packages(ours: Path) -> None:
    """Make the workers' packages importable below ROOT, and files of SHARED, whose packages lie in `ours`."""
    paths = {ROOT: Path(__file__).parent.parent, **{name: ours.joinpath(*name.split(".")) for name in SHARED}}
    for name, path in paths.items():
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package


def take_stdout() -> BinaryIO:
    """Return the pipe to the node, and point fd 1 at stderr, so that a library's print cannot land between two
    frames."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _kept.append(output)
    return output


def end_with_parent() -> None:
    """Have the kernel end this process when the thread that spawned it ends. Only Linux can do this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: Sequence[str]) -> None:
    output = take_stdout()
    worker, ours, settings_json = argv
    name_packages(Path(ours))
    importlib.import_module("learner.trainer_api.last_resort_exit").tell_deaths()  # before the imports that can fail
    importlib.import_module(f"{ROOT}.{worker}.server").run(json.loads(settings_json), output)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # the name that multiprocessing gives it in a spawned process
    end_with_parent()
    name_packages(Path(sys.argv[2]))
