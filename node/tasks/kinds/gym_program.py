"""Score answers by reasoning-gym: the program that `node.tasks.kinds.reasoning_gym` runs in a sandbox.

A topic is {"dataset": name, "config", "seed", "size", "entry": a Python literal}. The judgement is the score of a text
as the answer to that entry.

The program stands alone, because nothing of this package is visible where it runs.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MAX_SETS = 64
"""Data sets to keep open: one for each task of a mixture."""


class _Unseen(ModuleType):
    """A module whose content is never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unseen(name)

    def __call__(self, *args: object, **options: object) -> Any:
        return self


UNSEEN = ("matplotlib", "mpl_toolkits")
"""Packages that cellpylib imports for drawing. They would look for fonts and for a writable place; nothing is drawn."""


class _NoPlots:
    """Replaces the imports of UNSEEN."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, _NoPlots()) if name.partition(".")[0] in UNSEEN else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = _Unseen(spec.name)
        module.__path__ = []  # marks a package, so that its parts are found here too
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def load() -> None:
    """Import the library."""
    sys.meta_path.insert(0, _NoPlots)
    import reasoning_gym  # noqa: F401


def prepare(topic: Any) -> Callable[[str], float]:
    """Return a function that returns the score of a text."""
    dataset = _opened(topic["dataset"], json.dumps(topic["config"]), topic["seed"], topic["size"])
    entry = ast.literal_eval(topic["entry"])
    return lambda said: float(dataset.score_answer(said, entry))


@lru_cache(maxsize=MAX_SETS)
def _opened(name: str, config: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(name, **json.loads(config), seed=seed, size=size)
