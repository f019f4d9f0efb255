"""Pages of tests have ports that no other test is given, since some are closed and opened again."""

from __future__ import annotations

import pytest

from node.web import address
from tests.support.workers import worker_number

FIRST_PORT, PORTS, WORKERS = 31_000, 32, 50
"""Each of so many workers has so many ports, between those of `tests.e2e.programs` and the system's own."""


@pytest.fixture(autouse=True)
def _ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FIRST_PORT + PORTS * (worker_number() % WORKERS)
    monkeypatch.setattr(address, "USUAL_PORTS", range(first, first + PORTS))
