"""Count by which way versions came to the nodes, from the nodes' event logs.

Invariants:

- Every version that a node fetched counts once.
- Every fetched byte counts for one way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

ROUTES = ("full", "patch")
"""In chunks of its own; or by patches from a held version, with the rest in chunks of its own."""


def routes_taken(logs: Iterable[Path]) -> dict[str, dict[str, int]]:
    """Return versions and bytes by way of fetching, over the event logs of several nodes. A missing log counts nothing.

    `full` bytes include what was fetched beside patches.
    """
    taken = {route: {"versions": 0, "bytes": 0} for route in ROUTES}
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            if '"version_fetched"' in line:
                event = json.loads(line)
                taken["patch" if event["patches"] else "full"]["versions"] += 1
                taken["patch"]["bytes"] += event["patch_bytes"]
                taken["full"]["bytes"] += event["fetched_bytes"] - event["patch_bytes"]
    return taken
