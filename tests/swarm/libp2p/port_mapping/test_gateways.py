"""Read routing tables as systems print them, and malformed ones."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.port_mapping.gateways import Gateway, parse_ipv6_route, parse_netstat, parse_route

ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t014DA8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t004DA8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0
eth1\t00000000\t0102A8C0\t0002\t0\t0\t10\t00000000\t0\t0\t0
"""
"""Two gateways, a network, a tunnel that leads out without one, and a gateway whose link is down."""

IPV6_ROUTE = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "fe800000000000000000000000000001 00000400 00000000 00000000 00000003 eth0\n"
    "2a000077000100000000000000000000 40 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 00000100 00000000 00000000 00000001 eth0\n"
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    "00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n"
)

NETSTAT = """\
Routing tables

Internet:
Destination        Gateway            Flags               Netif Expire
default            192.168.77.1       UGScg                 en0
default            link#14            UCSIg             bridge0      !
127                127.0.0.1          UCS                   lo0
192.168.77         link#11            UCS                   en0      !

Internet6:
Destination                             Gateway                                 Flags               Netif Expire
default                                 fe80::1%en0                             UGcg                  en0
default                                 fe80::%utun0                            UGcIg               utun0
"""


def gateway(host: str, interface: str) -> Gateway:
    return Gateway(host=ipaddress.ip_address(host), interface=interface)


def test_linux_tells_gateways_by_metric() -> None:
    assert parse_route(ROUTE) == [gateway("192.168.77.1", "eth0"), gateway("192.168.1.1", "wlan0")]


def test_linux_tells_ipv6_gateways() -> None:
    assert parse_ipv6_route(IPV6_ROUTE) == [gateway("fe80::1", "eth0")]
    assert str(gateway("fe80::1", "eth0")) == "fe80::1%eth0"


def test_bsd_tells_gateways() -> None:
    found = parse_netstat(NETSTAT)
    assert found[:2] == [gateway("192.168.77.1", "en0"), gateway("fe80::1", "en0")]


@given(st.text() | st.text(alphabet="0123456789abcdef \n\tUGdefault"))
def test_no_table_breaks_a_parser(table: str) -> None:
    for parse in (parse_route, parse_ipv6_route, parse_netstat):
        parse(table)
