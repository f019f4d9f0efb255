"""Decide which addresses named by a stranger may be dialled."""

from __future__ import annotations

import ipaddress

import pytest

from swarm.libp2p.reachability.dial_policy import is_private, is_public, may_dial
from swarm.libp2p.sockets.addresses import Address

HOME = [ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd00:1::/64")]


def at(host: str, port: int = 4001) -> Address:
    return Address(kind="ip6" if ":" in host else "ip4", host=host, port=port)


@pytest.mark.parametrize("host", ["8.8.8.8", "45.1.2.3", "2a00:1450::1"])
def test_public_addresses_may_be_dialled(host: str) -> None:
    assert is_public(at(host))
    assert may_dial(at(host), [])


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0", "127.0.0.1", "169.254.1.1", "192.0.2.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "10.0.0.1", "172.16.0.1", "192.168.2.1", "100.64.0.1", "198.18.0.1",
        "::", "::1", "fe80::1", "2001:db8::1", "ff02::1", "fd00:2::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1",
    ],
)  # fmt: skip
def test_what_is_nobodys_or_inside_is_never_dialled_for_a_stranger(host: str) -> None:
    assert not is_public(at(host))
    assert not may_dial(at(host), HOME)


@pytest.mark.parametrize("host", ["192.168.1.7", "fd00:1::7"])
def test_a_neighbour_on_our_own_network_may_be_dialled(host: str) -> None:
    assert is_private(at(host))
    assert may_dial(at(host), HOME)
    assert not may_dial(at(host), [])


def test_port_0_is_nowhere() -> None:
    assert not may_dial(at("8.8.8.8", 0), HOME)


def test_this_machine_is_not_our_network() -> None:
    """A stranger's word must not make us knock at our own services."""
    assert not may_dial(at("127.0.0.1", 631), [ipaddress.ip_network("127.0.0.0/8")])
    assert not may_dial(at("169.254.169.254", 80), [ipaddress.ip_network("169.254.0.0/16")])
