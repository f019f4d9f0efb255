"""The probe classifies every kind of router correctly, and raises where one is not what it is called."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from benchmarks.network.home import Home
from benchmarks.network.homes import Laboratory, open_homes
from benchmarks.network.meeting_probe import meet
from benchmarks.network.ports import ProbeFailed
from benchmarks.network.requirements import LINKS, ROUTERS, missing_tools, obstacle
from benchmarks.network.router_probe import check, observe
from benchmarks.network.routers import KINDS, By

MISSING = missing_tools([*LINKS, *ROUTERS])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", [0.0, 10.0])
def test_every_kind_behaves_as_it_is_called_and_meets_whom_it_can(delay_ms: float) -> None:
    homes = [Home(name=name, kind=kind, delay_ms=delay_ms) for name, kind in KINDS.items()]
    homes += [Home(name=f"{name}two", kind=KINDS[name], num_nodes=2, delay_ms=delay_ms) for name in ("port", "hairpin")]
    with open_homes(homes) as lab:
        seen = check(lab)
    assert {node for node, _ in seen.behaviours} == {home.nodes[0] for home in homes}
    assert seen.behaviours["porttwo1", socket.AF_INET].hairpins is False
    assert seen.behaviours["hairpintwo1", socket.AF_INET].hairpins is True
    assert seen.meetings["port", "porttwo"]
    assert not seen.meetings["port", "symmetric"]


@pytest.mark.parametrize(
    ("built", "called", "complaint"),
    [
        ("port", "cone", "filtering: NOTHING, and was seen to have filtering: PORT"),
        ("address", "port", "filtering: PORT, and was seen to have filtering: ADDRESS"),
        ("symmetric", "port", "mapping: NOTHING, and was seen to have mapping: PORT"),
        ("reject", "port", "rejects: False, and was seen to have rejects: True"),
        ("port", "hairpin", "hairpins: True, and was seen to have hairpins: False"),
        pytest.param("port", "upnp", "no UPnP daemon answers", marks=pytest.mark.slow),
        pytest.param("port", "pcp", "no PCP daemon answers", marks=pytest.mark.slow),
    ],
)
def test_a_router_that_is_not_what_it_is_called_is_named(built: str, called: str, complaint: str) -> None:
    home = Home(name="a", kind=KINDS[built], num_nodes=2)
    with open_homes([home]) as lab, pytest.raises(ProbeFailed, match=r"\ba1\b") as failed:
        check(Laboratory(lab.network, [replace(home, kind=KINDS[called])], lab._namespaces))
    assert complaint in str(failed.value)


def test_what_is_seen_is_told() -> None:
    with open_homes([Home(name="a", kind=KINDS["address"])]) as lab:
        seen = observe(lab, "a", socket.AF_INET)
    assert (seen.mapping, seen.filtering, seen.rejects, seen.hairpins) == (By.NOTHING, By.ADDRESS, False, None)


def test_two_whose_ports_are_open_to_whom_they_knock_at_meet() -> None:
    homes = [Home(name="a", kind=KINDS["port"], delay_ms=5), Home(name="b", kind=KINDS["double"])]
    with open_homes(homes) as lab:
        assert meet(lab, "a", "b")
