"""By which roads versions came to the nodes, read from what they logged.

What always holds: every version that a node fetched counts once, and every byte that it fetched counts for one road.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

ROADS = ("full", "patch")
"""In chunks of its own; made by patches from what was held, with what those did not make in chunks of its own."""


def roads_taken(logs: Iterable[Path]) -> dict[str, dict[str, int]]:
    """Return versions and bytes by road, over the event logs of several nodes; a log that is not there counts nothing.

    `full` bytes include what a road by patches fetched beside them.
    """
    taken = {road: {"versions": 0, "bytes": 0} for road in ROADS}
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            if '"version_fetched"' in line:
                event = json.loads(line)
                taken["patch" if event["patches"] else "full"]["versions"] += 1
                taken["patch"]["bytes"] += event["patch_bytes"]
                taken["full"]["bytes"] += event["fetched_bytes"] - event["patch_bytes"]
    return taken
