"""The old name of what authors of tasks import: it works with a warning for one release. Import from `volery`."""

from __future__ import annotations

import warnings
from typing import Any

from node.tasks.api import interface

warnings.warn(
    "node.tasks.port is called volery now, and goes with the next release. Write: from volery import Task, Problem",
    FutureWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    return getattr(interface, name)
