"""Print the measurements of the tests of faults when they are over. They are recorded, and decide nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Figure = Callable[[str, float, str], None]
_figures: list[tuple[str, str, float, str]] = []


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Figure:
    """Return a function that records a measurement: its name, its value, and the value to wish for."""

    def record(what: str, value: float, wish: str = "") -> None:
        record_property(what, value)
        _figures.append((request.node.name, what, value, wish))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("faults: figures")
    for name, what, value, wish in _figures:
        terminalreporter.write_line(f"{name}: {what} {value:.2f}{f' (wished: {wish})' if wish else ''}")
