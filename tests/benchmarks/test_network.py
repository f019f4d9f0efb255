"""The emulated network does what it says, and leaves nothing behind. Needs root and iproute2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.network.conductor import PROGRAMS, UNPUNCHED, RunFailed, run_once
from benchmarks.network.emulation import Network, Node, open_network
from benchmarks.network.namespaces import ip, remove_stale
from benchmarks.network.probe import rate_mbit, round_trip_ms
from benchmarks.network.requirements import LINKS, ROUTERS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from benchmarks.network.scenarios import MIB, SCENARIOS, Scenario

WHY_NOT = obstacle() or (f"{', '.join(missing_tools())} not installed" if missing_tools() else "")

NO_ROUTERS = missing_tools([*LINKS, *ROUTERS])
needs_routers = pytest.mark.skipif(bool(NO_ROUTERS), reason=f"{', '.join(NO_ROUTERS)} not installed")

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def reaches(network: Network, one: str, other: str) -> bool:
    """Whether a packet from `one` comes to `other` and back, or at least to where nobody listens."""
    code = f"""
import socket
try:
    socket.create_connection(({network.address(other)!r}, 9), timeout=1)
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("silence")
"""
    done = subprocess.run(network.inside(one, [sys.executable, "-c", code]), capture_output=True, text=True, check=True)
    return done.stdout.strip() == "refused"


@pytest.mark.slow
def test_links_are_as_fast_as_asked_and_change_while_they_are_used() -> None:
    with open_network([Node(name="a", up=20), Node(name="b", down=10)]) as network:
        assert 8 < rate_mbit(network, "a", "b", span_s=1) < 10.5
        network.set_rate("b", down=0)
        assert 16 < rate_mbit(network, "a", "b", span_s=1) < 21
        network.set_rate("a", up=5)
        assert 4 < rate_mbit(network, "a", "b", span_s=1) < 5.25


def test_delays_of_both_ends_add_up_on_the_way_there_and_back() -> None:
    with open_network([Node(name="a", delay_ms=10), Node(name="b", delay_ms=5), Node(name="c")]) as network:
        assert round_trip_ms(network, "a", "b") >= 30
        near, far = (min(round_trip_ms(network, "c", other) for _ in range(3)) for other in ("b", "a"))
        assert 10 <= near < far


@pytest.mark.slow
def test_a_delay_leaves_rates_as_they_are() -> None:
    with open_network([Node(name="a", delay_ms=10, up=20), Node(name="b", delay_ms=5)]) as network:
        assert 16 < rate_mbit(network, "a", "b", span_s=1) < 21


@pytest.mark.parametrize("delay_ms", [0.0, 1.0])
def test_a_pulled_cable_is_silent_and_works_when_it_is_back(delay_ms: float) -> None:
    with open_network([Node(name="a", delay_ms=delay_ms), Node(name="b"), Node(name="c")]) as network:
        assert reaches(network, "a", "b")
        network.set_link("b", connected=False)
        assert not reaches(network, "a", "b")
        assert reaches(network, "a", "c")
        network.set_link("b", connected=True)
        assert reaches(network, "a", "b")


def namespaces_of(pid: int) -> list[str]:
    return [line for line in ip("netns", "list").splitlines() if line.startswith(f"volery-{pid}-")]


def test_what_runs_inside_ends_with_the_network() -> None:
    with open_network([Node(name="a")]) as network:
        command = network.inside("a", ["sh", "-c", "echo here; exec sleep 1000"])
        sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "here\n"
        assert len(namespaces_of(os.getpid())) == 2
    assert sleeper.wait() == -signal.SIGKILL
    assert namespaces_of(os.getpid()) == []


OWNER = """
import subprocess, sys, time
from benchmarks.network.emulation import Node, open_network

with open_network([Node(name="a", delay_ms=1)]) as network:
    subprocess.Popen(network.inside("a", ["sleep", "1000"]))
    print("open", flush=True)
    time.sleep(1000)
"""


def owner(temporary: Path) -> subprocess.Popen[str]:
    """Start a process that has a network, and whose temporary files are in `temporary`."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "open"
    assert namespaces_of(process.pid)
    return process


def test_a_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        process.kill()
        assert process.stdout is not None
        process.stdout.read()  # ends when the last that inherited it does: the sleeper, the switch and the guard
    assert namespaces_of(process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_the_next_network_removes_what_a_killed_guard_left(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        family = psutil.Process(process.pid).children(recursive=True)
        (guard,) = [child for child in family if child.name() == "sh"]
        guard.kill()
        process.kill()
        process.wait()
        remove_stale()  # unless a test beside this one has done so
    assert namespaces_of(process.pid) == []


def test_a_network_in_use_is_not_stale() -> None:
    with open_network([Node(name="a"), Node(name="b")]) as one, open_network([Node(name="a"), Node(name="b")]) as other:
        assert not [name for name in remove_stale() if f"-{os.getpid()}-" in name]
        assert reaches(one, "a", "b")
        assert reaches(other, "b", "a")


@pytest.mark.parametrize("system", list(PROGRAMS))
@pytest.mark.slow
def test_a_run_delivers_every_byte(tmp_path: Path, system: str) -> None:
    if system == "libtorrent":
        pytest.importorskip("libtorrent")
    ran = run_once(SCENARIOS["n2"].sized(MIB), system, tmp_path / "run", seed=1)
    assert len(ran.seconds) == 2
    assert all(report.cpu_s > 0 for report in ran.reports)
    assert sum(sum(report.up.values()) for report in ran.reports) >= 2 * MIB
    assert ran.duplicates_pct >= 0


def test_a_node_that_ends_early_fails_the_run_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROGRAMS, "absent", "benchmarks.network.absent")
    with pytest.raises(RunFailed, match=r"(?s)ended before it said READY.*No module named"):
        run_once(SCENARIOS["n2"].sized(MIB), "absent", tmp_path / "run", seed=1)
    assert namespaces_of(os.getpid()) == []


HOMES = Scenario(
    name="homes",
    source=Node(name="s", up=50, down=50),
    peers=(Node(name="p1", up=50, down=50), Node(name="p2", up=50, down=50)),
    size_bytes=MIB,
    kinds=(KINDS["port"], KINDS["port"]),
)


@needs_routers
@pytest.mark.slow
def test_behind_routers_peers_meet_and_spare_the_source_a_copy(tmp_path: Path) -> None:
    ran = run_once(HOMES, "volery", tmp_path / "run", seed=1)
    assert ran.met_pct == 100
    assert ran.source_copies < 1.9
    assert 0 < ran.circuits_pct < 10


@needs_routers
@pytest.mark.slow
def test_where_nobody_punches_each_fetches_from_the_source(tmp_path: Path) -> None:
    ran = run_once(HOMES, UNPUNCHED, tmp_path / "run", seed=1)
    assert ran.met_pct == ran.circuits_pct == 0
    assert ran.source_copies >= 2
