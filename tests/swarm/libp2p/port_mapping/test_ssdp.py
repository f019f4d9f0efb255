"""Decide which answers to a search for UPnP are accepted."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.port_mapping.outcomes import BadDatagram
from swarm.libp2p.port_mapping.ssdp import MAX_ANSWER_BYTES, MAX_URL_CHARS, decode_location, encode_search, why_not_at

GATEWAY = ipaddress.IPv4Address("192.168.77.1")


def answer(location: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    lines = [status, "CACHE-CONTROL: max-age=120", "ST: upnp:rootdevice", f"Location: {location}", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def test_a_search_is_written_as_the_architecture_has_it() -> None:
    assert encode_search("upnp:rootdevice") == (
        b"M-SEARCH * HTTP/1.1\r\n"
        b"HOST: 239.255.255.250:1900\r\n"
        b'MAN: "ssdp:discover"\r\n'
        b"MX: 1\r\n"
        b"ST: upnp:rootdevice\r\n"
        b"\r\n"
    )


def test_the_gateways_answer_is_believed() -> None:
    url = "http://192.168.77.1:5000/rootDesc.xml"
    assert decode_location(answer(url), "192.168.77.1", GATEWAY) == url


def test_an_answer_from_elsewhere_is_ignored() -> None:
    with pytest.raises(BadDatagram, match=r"192\.168\.77\.9 is not the gateway"):
        decode_location(answer("http://192.168.77.1/root.xml"), "192.168.77.9", GATEWAY)


@pytest.mark.parametrize(
    "location",
    [
        "http://192.168.77.9:5000/root.xml",
        "http://192.168.77.1@192.168.77.9/root.xml",
        "http://127.0.0.1/root.xml",
        "http://router.example/root.xml",
        "https://192.168.77.1/root.xml",
        "file:///etc/passwd",
        "http://192.168.77.1:0/root.xml",
        "http://192.168.77.1:99999/root.xml",
        "http://[::1/root.xml",
        "http://192.168.77.1/" + "x" * MAX_URL_CHARS,
        "http://192.168.77.1/a b",
        "http://192.168.77.1/\u00e9",
        "",
    ],
)
def test_a_location_elsewhere_is_not_fetched(location: str) -> None:
    with pytest.raises(BadDatagram):
        decode_location(answer(location), "192.168.77.1", GATEWAY)


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"NOTIFY * HTTP/1.1\r\nLocation: http://192.168.77.1/\r\n\r\n",
        answer("http://192.168.77.1/") + b"x" * MAX_ANSWER_BYTES,
    ],
)
def test_what_is_no_answer_is_ignored(datagram: bytes) -> None:
    with pytest.raises(BadDatagram):
        decode_location(datagram, "192.168.77.1", GATEWAY)


@given(st.binary(max_size=4096) | st.text().map(lambda text: answer("http://192.168.77.1/")[:60] + text.encode()))
def test_whatever_is_believed_is_at_the_gateway(datagram: bytes) -> None:
    try:
        location = decode_location(datagram, "192.168.77.1", GATEWAY)
    except BadDatagram:
        return
    assert why_not_at(location, GATEWAY) == ""
