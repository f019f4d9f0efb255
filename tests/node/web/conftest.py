"""Pages of tests have ports that no other test is given, since some are closed and opened again."""

from __future__ import annotations

import os

import pytest

from node.web import address

FIRST_PORT, PORTS = 31_000, 32


@pytest.fixture(autouse=True)
def _ports(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST_PORT + PORTS * (worker % 50)
    monkeypatch.setattr(address, "USUAL_PORTS", range(first, first + PORTS))
