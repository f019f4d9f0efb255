"""Starts an engine worker: its package and the sampler loaded by their paths, its standard output kept for frames.

What always holds: processes that the worker's libraries spawn find the same modules under the same names, so a library
may be given one by name (multiprocessing runs this file again in each, with the same arguments), and end with the
process that spawned them.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
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
SAMPLING = "volery_sampling"

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""

_kept: list[BinaryIO] = []
"""Open until the process has ended. If the pipe closed while `sys.exit` is under way, the node would close its own, and
the thread that reads that would end the process first, with another exit code."""


def load(name: str, path: Path) -> ModuleType:
    """Load a file by its path, without the package around it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def name_packages() -> None:
    """Make the workers' packages importable below ROOT."""
    root = ModuleType(ROOT)
    root.__path__ = [str(Path(__file__).parent.parent)]
    sys.modules[ROOT] = root


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
    worker, sampling_path, settings_json = argv
    name_packages()
    importlib.import_module(f"{ROOT}.common_worker.dying").tell_deaths()  # also of what is imported from now on
    sampling = load(SAMPLING, Path(sampling_path))
    importlib.import_module(f"{ROOT}.{worker}.server").work(json.loads(settings_json), sampling, output)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # multiprocessing's name for it in what was spawned
    end_with_parent()
    name_packages()
    load(SAMPLING, Path(sys.argv[2]))
