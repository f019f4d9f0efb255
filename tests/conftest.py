"""Settings of all tests: how many examples property tests draw, which tests run, and which of them share a worker.

Property tests have no deadline and no complaint of slow data: a machine that does something else beside them would make
them fail. Speed is tested by counting operations, not by a clock.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
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
DURATIONS = TESTS / "durations.tsv"
"""Measured seconds of the tests that take one and more, so that workers begin with the longest files."""

INTEGRATION_FILES = frozenset((TESTS / "not_unit.txt").read_text(encoding="ascii").splitlines())
INTEGRATION_FOLDERS = (("architectures",), ("benchmarks",), ("e2e",), ("faults",), ("vllm",))
OUTSIDE = ("subprocess.Popen", "socket.bind", "socket.connect", "os.fork", "os.posix_spawn")
"""Audit events of what no unit test does: start a process, or open a socket."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="only tests that start no process and open no socket")
    parser.addoption(
        "--rest",
        action="store_true",
        help="only what `make test` leaves out, but the slow tests: those marked `rest`, and property tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    for ignored in (signal.SIGINT, signal.SIGQUIT):  # as in whatever a script starts with `&`; our programs inherit it
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)
    if config.getoption("--unit"):
        sys.addaudithook(_stay_inside)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--unit") or not collection_path.is_relative_to(TESTS):
        return None
    is_integration = (
        _name_of(collection_path) in INTEGRATION_FILES
        or collection_path.relative_to(TESTS).parts[:1] in INTEGRATION_FOLDERS
    )
    return is_integration or None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--rest"):
        kept = [item for item in items if item.get_closest_marker("rest") or _draws(item)]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds = _seconds_by_file()
        items.sort(key=lambda item: -seconds[_name_of(item.path)])
        for item in items:  # a file's tests share a worker, and with it what the file sets up once
            item.add_marker(pytest.mark.xdist_group(_name_of(item.path)))


def _name_of(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


def _draws(item: pytest.Item) -> bool:
    """Whether it is a property test, which draws examples."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def _seconds_by_file() -> Counter[str]:
    found: Counter[str] = Counter()
    for line in DURATIONS.read_text(encoding="utf-8").splitlines()[1:]:
        _, wall, test = line.split("\t")
        found[test.split("::")[0]] += round(float(wall))
    return found


def _stay_inside(event: str, arguments: tuple[object, ...]) -> None:
    """Fail what goes outside while a unit test runs."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if event in OUTSIDE and test:
        pytest.fail(f"{test}: {event} in a unit test. List its file in tests/not_unit.txt.")
