"""Refuse wrong addresses of a configuration with their key, before any peer is sent them."""

from __future__ import annotations

import pytest

from node.config.preflight import YOUNGEST_MS, require_addresses, require_clock
from node.runtime.errors import UsageError


@pytest.mark.parametrize(
    ("listen", "announce", "begins"),
    [
        (["localhost:80"], [], "[network] listen: 'localhost:80' is not"),
        (["/ip4/224.0.0.1/tcp/1"], [], "[network] listen: '/ip4/224.0.0.1/tcp/1': 224.0.0.1 is a multicast address"),
        ([], ["/ip4/0.0.0.0/tcp/4001"], "[network] announce: '/ip4/0.0.0.0/tcp/4001': 0.0.0.0 stands for every"),
        ([], ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/0"], "[network] announce: '/ip4/192.0.2.1/tcp/0': port 0"),
    ],
)
def test_what_nobody_can_dial_is_refused(listen: list[str], announce: list[str], begins: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_addresses(listen, announce)
    assert str(caught.value).startswith(begins)


def test_what_may_be_listened_on_need_not_be_dialled() -> None:
    require_addresses(["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4001"], ["/dns/learner.example/tcp/4001"])


def test_a_clock_that_has_lost_its_time_is_refused() -> None:
    with pytest.raises(UsageError, match=r"This machine's clock shows 1970-01-01 00:02:03 UTC, which is before"):
        require_clock(123_000)
    require_clock(YOUNGEST_MS)
