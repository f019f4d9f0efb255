"""Keep the old import path of the task API working, with a warning, for one release. Import from `volery` instead."""

from __future__ import annotations

import warnings
from typing import Any

from node.tasks.api import interface

warnings.warn(
    "node.tasks.port is called volery now, and is removed in the next release. Write: from volery import Task, Problem",
    FutureWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(interface, name)
