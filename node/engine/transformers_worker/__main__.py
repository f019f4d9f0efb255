"""Starts the engine worker: its package and the sampler loaded by their paths, its standard output kept for frames."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

PACKAGE = "volery_worker"
"""What it is called in its own process, where ours may be missing, or another version's."""


def load(name: str, path: Path) -> ModuleType:
    """Load a file by its path, without the package around it; an `__init__.py` is a package of its own."""
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def take_stdout() -> BinaryIO:
    """Return the pipe to the node, and point fd 1 at stderr, so that a library's print cannot land between two
    frames."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def main(argv: Sequence[str]) -> None:
    output = take_stdout()
    sampling_path, settings_json = argv
    sampling = load("volery_sampling", Path(sampling_path))
    load(PACKAGE, Path(__file__).with_name("__init__.py"))
    importlib.import_module(f"{PACKAGE}.server").work(json.loads(settings_json), sampling, output)


if __name__ == "__main__":
    main(sys.argv[1:])
