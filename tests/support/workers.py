"""Say which worker of the test run this process is, so that each can have ports of its own."""

from __future__ import annotations

import os


def worker_number() -> int:
    """Return the number of this worker, from 0 on; 0 as well if one process runs all tests."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
