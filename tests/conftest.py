"""What holds for every test: how long one takes is no matter, how many examples are drawn, and who shares a worker.

Property tests have no deadline and no complaint of slow data: a machine that does something else beside them would make
them fail. What must be quick is bounded by counting, not by a clock.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import BY_DEFAULT, DRAWS_ALL, examples

settings.register_profile(
    "volery",
    deadline=None,
    max_examples=examples(BY_DEFAULT),
    derandomize=not DRAWS_ALL,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("volery")

if "PYTEST_XDIST_WORKER" in os.environ:  # threads of several workers would spin for the same cores: 15 times as slow
    os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rest",
        action="store_true",
        help="only what `make test` leaves out, but the slow tests: those marked `rest`, and property tests",
    )


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] == "e2e":  # real programs, which would starve others
            item.add_marker(pytest.mark.xdist_group("e2e"))
    if not config.getoption("--rest"):
        return
    left_out = [item for item in items if not (item.get_closest_marker("rest") or _draws(item))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _draws(item: pytest.Item) -> bool:
    """Whether it is a property test, which draws examples."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
