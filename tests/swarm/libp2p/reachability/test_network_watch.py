"""Detect that a machine slept, or moved."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.reachability.network_watch import (
    LOOK_S,
    SLEPT_S,
    Change,
    Interface,
    NetworkWatch,
    own_hosts,
    own_interfaces,
)

HOME = frozenset({ipaddress.ip_interface("192.168.1.7/24")})
CAFE = frozenset({ipaddress.ip_interface("10.1.0.7/16")})
ANOTHER_LEASE = frozenset({ipaddress.ip_interface("192.168.1.8/24")})


def watch() -> NetworkWatch:
    return NetworkWatch(interfaces=HOME, monotonic_s=100.0, wall_s=1_000_000.0)


def test_ten_minutes_of_sleep_are_noticed_once() -> None:
    seen = watch()
    assert seen.look(HOME, 101.0, 1_000_601.0) is Change.SLEPT
    assert seen.look(HOME, 105.0, 1_000_605.0) is Change.NOTHING


def test_a_process_that_was_stopped_for_ten_minutes_slept_as_well() -> None:
    """As where the clocks go on in sleep."""
    seen = watch()
    assert seen.look(HOME, 700.0, 1_000_600.0) is Change.SLEPT
    assert seen.look(HOME, 704.0, 1_000_604.0) is Change.NOTHING


ROUNDING_S = 1e-3
"""Seconds by which sums of fifty steps, many times over, may be wrong."""


@pytest.mark.parametrize("now", [CAFE, ANOTHER_LEASE, HOME | CAFE, frozenset()])
def test_another_network_or_address_is_noticed_once(now: frozenset[Interface]) -> None:
    seen = watch()
    assert seen.look(now, 104.0, 1_000_004.0) is Change.MOVED
    assert seen.look(now, 108.0, 1_000_008.0) is Change.NOTHING


@given(st.lists(st.tuples(st.floats(0, LOOK_S + SLEPT_S - ROUNDING_S), st.floats(-0.1, 0.1)), max_size=50))
def test_a_clock_that_is_slewed_is_not_sleep(steps: list[tuple[float, float]]) -> None:
    """Time servers change a clock's rate by a two thousandth at most; this is fifty times as much, and busy turns."""
    seen, monotonic, wall = watch(), 100.0, 1_000_000.0
    for passed, slew in steps:
        monotonic, wall = monotonic + passed, wall + passed * (1 + slew)
        assert seen.look(HOME, monotonic, wall) is Change.NOTHING
    assert seen.look(HOME, monotonic, wall + SLEPT_S + 1) is Change.SLEPT


def test_a_clock_that_is_set_back_is_not_sleep() -> None:
    assert watch().look(HOME, 101.0, 900_000.0) is Change.NOTHING


def test_this_machine_is_on_its_own_networks() -> None:
    networks = {one.network for one in own_interfaces()}
    hosts = [ipaddress.ip_address(host) for host in own_hosts() if host.count(".") == 3 or host == "::1"]
    assert ipaddress.ip_address("127.0.0.1") in hosts
    assert all(any(host.version == one.version and host in one for one in networks) for host in hosts)
