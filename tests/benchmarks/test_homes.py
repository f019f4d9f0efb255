"""An internet of homes: addresses are public, what runs in it ends with it, and the command for people works."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import INTERNET, WITNESSES, Laboratory, main, open_homes
from benchmarks.network.namespaces import ip
from benchmarks.network.ports import TIMEOUT_S, Port, answer_to, seen_by
from benchmarks.network.requirements import LINKS, ROUTERS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from tests.support.paths import ROOT

MISSING = missing_tools([*LINKS, *ROUTERS])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

needs_root = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def namespaces_of(pid: int) -> list[str]:
    return [line for line in ip("netns", "list").splitlines() if line.startswith(f"volery-{pid}-")]


@pytest.fixture
def two_homes() -> Iterator[Laboratory]:
    homes = [Home(name="a", kind=KINDS["double"], delay_ms=5), Home(name="b", kind=KINDS["ipv6"], num_nodes=2)]
    with open_homes(homes, [Node(name="learner", delay_ms=10)]) as lab:
        yield lab


def test_addresses_are_those_of_the_internet() -> None:
    for network in (INTERNET.ip4, INTERNET.ip6):
        assert network is not None
        assert ipaddress.ip_address(network[1]).is_global


@pytest.mark.parametrize("words", [[], ["castle"], ["port:0"], ["port:x"], ["port:1000"]])
def test_words_that_name_no_home_are_told_with_all_that_do(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "usage:" in said
    assert all(name in said for name in KINDS)


class TestRunning:
    pytestmark = needs_root

    def test_nodes_are_named_and_found(self, two_homes: Laboratory) -> None:
        assert [home.nodes for home in two_homes.homes] == [["a"], ["b1", "b2"]]
        assert two_homes.address("a") == "192.168.1.2"
        assert two_homes.address("b2") == "192.168.2.3"
        assert two_homes.address6("a") == ""
        assert ipaddress.ip_address(two_homes.address6("b2")).is_global
        assert two_homes.gateway("b2") == "192.168.2.1"
        assert ipaddress.ip_address(two_homes.address("learner")) in INTERNET.ip4
        assert two_homes.gate("a") == "acarrier1"
        assert two_homes.round_trip_s("a", "learner") == pytest.approx(0.03)
        assert two_homes.round_trip_s("b1", "b2") == 0

    def test_a_node_behind_two_routers_is_seen_where_the_outer_one_is(self, two_homes: Laboratory) -> None:
        with Port(two_homes, "a", socket.AF_INET) as mine, Port(two_homes, "learner", socket.AF_INET) as learner:
            assert seen_by(mine, learner)[0] == two_homes.network.address("acarrier1")

    def test_two_of_one_home_reach_each_other_whatever_their_router_lets_in(self, two_homes: Laboratory) -> None:
        with Port(two_homes, "b1", socket.AF_INET) as here, Port(two_homes, "b2", socket.AF_INET) as there:
            assert answer_to(here.connect(there.place), TIMEOUT_S) == "let in"

    def test_a_router_that_was_rebooted_knows_nobody(self) -> None:
        east, west = WITNESSES
        with (
            open_homes([home := Home(name="a", kind=KINDS["cone"])]) as lab,
            Port(lab, "a", socket.AF_INET) as mine,
            Port(lab, east, socket.AF_INET) as friend,
            Port(lab, west, socket.AF_INET) as stranger,
        ):
            seen = seen_by(mine, friend)
            assert answer_to(stranger.connect(seen), TIMEOUT_S) == "let in"
            lab.reboot(home)
            with Port(lab, west, socket.AF_INET) as another:
                assert answer_to(another.connect(seen), TIMEOUT_S) == "swallowed"

    def test_nothing_is_left(self) -> None:
        with open_homes([Home(name="a", kind=KINDS["upnp"])]) as lab:
            sleeper = subprocess.Popen(lab.inside("a", ["sleep", "1000"]))
            children = psutil.Process().children(recursive=True)
            assert "miniupnpd" in {child.name() for child in children}
        assert sleeper.wait() == -signal.SIGKILL
        assert namespaces_of(os.getpid()) == []
        psutil.wait_procs(children)

    def test_people_are_told_how_to_get_in_and_all_ends_with_ctrl_c(self) -> None:
        argv = [sys.executable, "-m", "benchmarks.network.homes", "port:2", "ipv6only"]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as command:
            assert command.stdout is not None
            said = "".join(iter(command.stdout.readline, "Ctrl-C removes all of it.\n"))
            names = [line.split()[0] for line in namespaces_of(command.pid)]
            command.send_signal(signal.SIGINT)
        assert command.returncode == 0
        for name in ("learner", "portrouter", "port1", "port2", "ipv6only", "ipv6onlyrouter"):
            (namespace,) = [one for one in names if one.endswith(f"-{name}")]
            assert f"ip netns exec {namespace} bash" in said
        assert namespaces_of(command.pid) == []
