"""Kinds of routers as values: which pairs can connect, and that nftables accepts the rules of each."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.network.requirements import obstacle
from benchmarks.network.routers import KINDS, By, Kind, can_meet, rules

kinds = st.sampled_from(list(KINDS.values()))


@given(one=kinds, other=kinds)
def test_meeting_is_mutual(one: Kind, other: Kind) -> None:
    assert can_meet(one, other) == can_meet(other, one)


@given(one=kinds, other=kinds)
def test_an_opened_port_is_never_in_the_way(one: Kind, other: Kind) -> None:
    assert can_meet(one.opened(), other) >= can_meet(one, other)


@given(kind=kinds)
def test_everybody_with_the_same_addresses_reaches_a_public_host(kind: Kind) -> None:
    assert can_meet(kind, KINDS["open"])


def test_a_symmetric_router_is_let_in_where_its_port_is_not_looked_at() -> None:
    symmetric = KINDS["symmetric"]
    met = {kind.name for kind in KINDS.values() if can_meet(symmetric, kind)}
    assert met == {"open", "cone", "address"}
    assert can_meet(symmetric, KINDS["upnp"].opened())


def test_without_a_common_family_of_addresses_nobody_meets() -> None:
    assert not can_meet(KINDS["ipv6only"], KINDS["cone"])
    assert can_meet(KINDS["ipv6only"], KINDS["ipv6"])


def test_kinds_differ_in_what_they_look_at() -> None:
    assert [KINDS[name].filtering for name in ("cone", "address", "port")] == [By.NOTHING, By.ADDRESS, By.PORT]
    assert [kind.name for kind in KINDS.values() if kind.mapping is not By.NOTHING] == ["symmetric"]


@pytest.mark.root
@pytest.mark.skipif(bool(obstacle()) or shutil.which("nft") is None, reason=obstacle() or "nft is not installed")
@pytest.mark.parametrize("name", KINDS)
def test_nftables_takes_the_rules(name: str) -> None:
    ruleset = rules(KINDS[name], "192.0.2.1")
    done = subprocess.run(["nft", "-c", "-f", "-"], input=ruleset, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
