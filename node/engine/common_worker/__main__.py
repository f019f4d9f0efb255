"""Starts an engine worker: all that it loads of ours found by paths, its standard output kept for frames.

What always holds: processes that the worker's libraries spawn find the same modules under the same names, so a library
may be given one by name (multiprocessing runs this file again in each, with the same arguments), and end with the
process that spawned them.
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
"""What the folder of the workers is called in their processes, where `node` may be missing, or another version's."""
SHARED = ("protocol", "protocol.core", "learner", "learner.artifacts", "learner.trainer_api")
"""Packages of which a worker loads single files, which stand alone: their `__init__` is not run."""

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""

_kept: list[BinaryIO] = []
"""Open until the process has ended. If the pipe closed while `sys.exit` is under way, the node would close its own, and
the thread that reads that would end the process first, with another exit code."""


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
    """Have the kernel end this process when the thread that spawned it ends; elsewhere than on Linux, nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: Sequence[str]) -> None:
    output = take_stdout()
    worker, ours, settings_json = argv
    name_packages(Path(ours))
    importlib.import_module("learner.trainer_api.last_resort_exit").tell_deaths()  # also in what is imported later
    importlib.import_module(f"{ROOT}.{worker}.server").run(json.loads(settings_json), output)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # multiprocessing's name for it in what was spawned
    end_with_parent()
    name_packages(Path(sys.argv[2]))
