"""Choose the network interface of a machine; the loopback interface exists on every one."""

from __future__ import annotations

import os

import psutil
import pytest

from learner.training.distributed.machines.interfaces import (
    GLOO,
    LOOPBACK,
    NCCL,
    name_of,
    plain,
    speak_over,
    stay_here,
)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (GLOO, NCCL):
        monkeypatch.setenv(name, "x")  # so that what a test sets is gone afterwards
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8::1", "2001:db8::1"),
    ],
)
def test_an_address_is_as_interfaces_have_it(address: str, found: str) -> None:
    assert plain(address) == found


def test_the_interface_of_an_address_is_the_one_that_has_it() -> None:
    loopback = name_of(LOOPBACK)
    assert any(one.address == LOOPBACK for one in psutil.net_if_addrs()[loopback])
    assert name_of("203.0.113.7") == ""


def test_gloo_and_nccl_are_told_exactly_that_one() -> None:
    loopback = name_of(LOOPBACK)
    assert speak_over(["203.0.113.7", LOOPBACK, ""]) == (loopback,)
    assert (os.environ[GLOO], os.environ[NCCL]) == (loopback, f"={loopback}")


def test_what_the_operator_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLOO, "ib0")
    speak_over([LOOPBACK])
    stay_here()
    assert (os.environ[GLOO], os.environ[NCCL]) == ("ib0", f"={name_of(LOOPBACK)}")


def test_where_no_interface_is_known_nothing_is_set() -> None:
    assert speak_over(["203.0.113.7"]) == ()
    assert GLOO not in os.environ


def test_ranks_of_one_machine_do_not_ask_for_its_name() -> None:
    stay_here()
    assert os.environ[GLOO] == name_of(LOOPBACK)
    assert NCCL not in os.environ
