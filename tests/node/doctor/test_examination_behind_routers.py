"""Examine machines behind the laboratory's routers: each is told what it can do with its router."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import Laboratory, open_homes
from benchmarks.network.requirements import LINKS, ROUTERS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from node.doctor.examination import WHOLE_S

MISSING = missing_tools([*LINKS, *ROUTERS])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]

HOMES = [
    Home(name=kind, kind=KINDS[kind], delay_ms=10, up=20, down=50)
    for kind in ("open", "port", "symmetric", "double", "upnp", "pcp", "ipv6")
]

ENDS_S = 60.0
"""For a program that promises half a minute, on a machine that does seven of them at once."""


def start(lab: Laboratory, stack: ExitStack, name: str, *arguments: str) -> str:
    """Start a learner or a member on a public host; return what it says of itself."""
    argv = [sys.executable, "-m", "tests.support.doctor_swarm", *arguments]
    program = subprocess.Popen(lab.inside(name, argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(program.communicate)
    stack.callback(program.kill)
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """The findings of `volery doctor --json` in each home, where the swarm has a member beside its learner, and in one
    home ("alone") where it has none.
    """
    home = tmp_path_factory.mktemp("home")
    (home / "node.toml").write_text('[engine]\nkind = "fake"\n')
    hosts = [Node(name=name, delay_ms=5) for name in ("learner", "member", "lonely")]
    with open_homes(HOMES, hosts) as lab, ExitStack() as stack:
        at = {name: f"/ip4/{lab.address(name)}/tcp/4001" for name in ("learner", "member", "lonely")}
        member = start(lab, stack, "member", "member", at["member"])
        invite = start(lab, stack, "learner", "learner", at["learner"], member)
        alone = start(lab, stack, "lonely", "learner", at["lonely"])
        asked = [*((one.name, one.name, invite) for one in HOMES), ("alone", "port", alone)]
        programs = {name: examine(lab, where, invite, home) for name, where, invite in asked}
        yield {name: json.loads(program.communicate(timeout=ENDS_S)[0]) for name, program in programs.items()}
        assert {program.returncode for program in programs.values()} == {0}


def examine(lab: Laboratory, where: str, invite: str, home: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "node", "doctor", invite, "--json", "--config", str(home / "node.toml")]
    environment = {**os.environ, "VOLERY_HOME": str(home)}
    return subprocess.Popen(lab.inside(where, argv), env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("home", "ability", "mapping", "filtering", "second"),
    [
        ("open", "serves", "none", "lets_in", "no"),
        ("port", "punchable", "same_port", "lets_nobody_in", "no"),
        ("symmetric", "rolls_out", "another_port", "lets_nobody_in", "no"),
        ("double", "punchable", "same_port", "lets_nobody_in", "yes"),
        ("upnp", "serves", "same_port", None, "no"),
        ("pcp", "serves", "same_port", None, "no"),
        ("ipv6", "punchable", "same_port", "lets_nobody_in", "no"),
        ("alone", "punchable", None, "lets_nobody_in", "no"),
    ],
)
def test_the_verdict_is_that_of_the_router(
    told: Mapping[str, Any], home: str, ability: str, mapping: str, filtering: str | None, second: str
) -> None:
    found, connection = told[home], told[home]["connection"]
    assert found["verdict"]["ability"] == ability
    assert found["verdict"]["can_take_part"] is True
    assert connection["mapping"]["value"] == mapping
    if filtering is not None:  # else a port may have been opened before anybody tried
        assert connection["filtering"]["value"] == filtering
    assert connection["second_router"]["value"] == second


@pytest.mark.parametrize(("home", "protocol"), [("upnp", "UPnP"), ("pcp", "PCP")])
def test_a_router_that_opens_ports_is_asked_for_one(told: Mapping[str, Any], home: str, protocol: str) -> None:
    connection = told[home]["connection"]
    assert connection["port_mapping"]["text"].startswith(f"{protocol} opened /ip4/30.77.0.")
    assert connection["dial_back"]["value"] == connection["port_mapping"]["value"]
    assert told[home]["at_the_router"] == []


def test_what_to_do_at_the_router(told: Mapping[str, Any]) -> None:
    assert any("forward TCP port 4001 to 192.168.2.2" in line for line in told["port"]["at_the_router"])
    assert any("announce" in line for line in told["symmetric"]["at_the_router"])
    assert not any("forward" in line for line in told["double"]["at_the_router"])
    assert any("router's firewall for IPv6" in line for line in told["ipv6"]["at_the_router"])


def test_one_observer_is_said_to_be_one(told: Mapping[str, Any]) -> None:
    alone = told["alone"]
    assert "one observer" in alone["connection"]["mapping"]["text"]
    assert alone["verdict"]["is_sure"] is False
    assert told["port"]["verdict"]["is_sure"] is True


def test_half_a_minute_is_what_its_parts_may_take() -> None:
    assert WHOLE_S + 2.0 + 4.0 <= 30.0, "a router's port and the engine's end beside them"
