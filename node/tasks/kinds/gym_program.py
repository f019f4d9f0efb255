"""Score answers by reasoning-gym: the program that `node.tasks.kinds.reasoning_gym` has run behind walls.

A topic is {"dataset": name, "config", "seed", "size", "entry": a literal of Python's}; the judgement is the score of a
text as the answer to that entry.

It stands alone: nothing of this package is visible where it runs.
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
"""Data sets that are kept open: one for each task of a mixture."""


class _Unseen(ModuleType):
    """A module of which nothing is ever used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unseen(name)

    def __call__(self, *args: object, **options: object) -> Any:
        return self


UNSEEN = ("matplotlib", "mpl_toolkits")
"""What cellpylib imports to draw with. It would look for fonts, and for a place to write; nothing is drawn here."""


class _NoPlots:
    """Finds those."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, _NoPlots()) if name.partition(".")[0] in UNSEEN else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = _Unseen(spec.name)
        module.__path__ = []  # of a package, so that parts of it are found here, too
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def load() -> None:
    """Import the library."""
    sys.meta_path.insert(0, _NoPlots)
    import reasoning_gym  # noqa: F401


def prepare(topic: Any) -> Callable[[str], float]:
    """What says the score of a text."""
    dataset = _opened(topic["dataset"], json.dumps(topic["config"]), topic["seed"], topic["size"])
    entry = ast.literal_eval(topic["entry"])
    return lambda said: float(dataset.score_answer(said, entry))


@lru_cache(maxsize=MAX_SETS)
def _opened(name: str, config: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(name, **json.loads(config), seed=seed, size=size)
