"""Where a page listens: what `[web] listen` may be, which port it gets, and the address that people are told."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime.errors import UsageError
from node.web import address as module
from node.web.address import Listen, PortTaken, open_listener, read_listen, url_of


@pytest.mark.parametrize(
    ("text", "host", "port", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", None, True),
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("localhost", "127.0.0.1", None, True),
        ("localhost:7463", "127.0.0.1", 7463, True),
        ("0.0.0.0:65535", "0.0.0.0", 65535, False),
        ("192.0.2.7", "192.0.2.7", None, False),
        ("::1", "::1", None, True),
        ("::", "::", None, False),
        ("[::1]:7463", "::1", 7463, True),
        ("[2001:db8::7]", "2001:db8::7", None, False),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7", None, False),
    ],
)
def test_addresses_of_both_families_with_and_without_a_port(
    text: str, host: str, port: int | None, is_local: bool
) -> None:
    listen = read_listen(text)
    assert listen == Listen(host=host, port=port)
    assert listen.is_local is is_local


def test_no_address_is_no_page() -> None:
    assert read_listen("") is None


@pytest.mark.parametrize(
    "text",
    ["7463", ":7463", "example.org", "example.org:80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:123456",
     "256.0.0.1", "127.0.0.1 ", "[127.0.0.1", "[::1]7463", "http://127.0.0.1", "127.0.0.1:\u0661", "*", "1.2.3.4:5:6"],
)  # fmt: skip
def test_what_is_no_address_is_told_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        read_listen(text)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:65536", "localhost:99999"])
def test_what_is_no_port_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="a port is a number from 1 to 65535"):
        read_listen(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        listen = read_listen(text)
    except UsageError:
        return
    assert listen is None or isinstance(listen.is_local, bool)


def test_a_page_keeps_its_port() -> None:
    with open_listener(Listen(host="127.0.0.1")) as listener:
        port = listener.getsockname()[1]
    assert port in module.USUAL_PORTS
    with open_listener(Listen(host="127.0.0.1"), 7491) as listener:
        assert listener.getsockname()[1] == 7491


def test_a_port_in_use_is_passed_over_unless_it_was_asked_for() -> None:
    with open_listener(Listen(host="127.0.0.1")) as first:
        port = first.getsockname()[1]
        with open_listener(Listen(host="127.0.0.1"), port) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(PortTaken, match=f"127.0.0.1: port {port} is in use by another program"):
            open_listener(Listen(host="127.0.0.1", port=port))


def test_a_port_that_is_given_back_meanwhile_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_listener(Listen(host="127.0.0.1"))
    port = first.getsockname()[1]
    monkeypatch.setattr("node.web.address.time.sleep", lambda _: first.close())
    with open_listener(Listen(host="127.0.0.1"), port, patience_s=60.0) as second:
        assert second.getsockname()[1] == port


def test_an_address_that_is_not_this_machines_is_told() -> None:
    with pytest.raises(PortTaken, match=r"192\.0\.2\.7: .*or this machine has no such address"):
        open_listener(Listen(host="192.0.2.7"))


def test_all_ports_in_use_still_leave_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_listener(Listen(host="127.0.0.1")) as first:
        monkeypatch.setattr(module, "USUAL_PORTS", range(first.getsockname()[1], first.getsockname()[1] + 1))
        with open_listener(Listen(host="127.0.0.1")) as second:
            assert second.getsockname()[1] not in module.USUAL_PORTS


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")]
)
def test_people_are_told_an_address_that_a_browser_here_understands(host: str, shown: str) -> None:
    with open_listener(Listen(host=host)) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://{shown}:{port}/"
        assert url_of(listener, "abc") == f"http://{shown}:{port}/#token=abc"
        with socket.create_connection((shown.strip("[]"), port)):
            pass
