"""Collect the addresses at which others see us, and decide which of them count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.reachability.observed_addresses import AGREEING, MAX_OBSERVERS, ObservedAddresses
from swarm.libp2p.sockets.addresses import Address


def at(port: int, host: str = "192.0.2.1") -> Address:
    return Address(kind="ip4", host=host, port=port)


def test_one_observer_is_not_believed_and_two_are() -> None:
    observed = ObservedAddresses()
    observed.note(1, "somewhere", at(4001))
    assert (observed.believed(), observed.candidates()) == ([], [at(4001)])
    observed.note(2, "elsewhere", at(4001))
    assert observed.believed() == [at(4001)]


def test_many_observers_at_one_place_are_one() -> None:
    observed = ObservedAddresses()
    for connection in range(10):
        observed.note(connection, "one place", at(4001))
    assert observed.believed() == []


def test_what_was_seen_is_forgotten_with_the_connection() -> None:
    observed = ObservedAddresses()
    observed.note(1, "somewhere", at(4001))
    observed.note(2, "elsewhere", at(4001))
    observed.forget(1)
    assert observed.believed() == []
    assert observed.candidates() == [at(4001)]


def test_one_liar_names_nobody_at_whom_others_knock() -> None:
    observed = ObservedAddresses()
    observed.note(1, "learner", at(4001))
    observed.note(2, "liar", at(80, "198.51.100.9"))
    observed.note(3, "liar at home", Address(kind="ip6", host="2001:db8::9", port=80))
    assert len(observed.candidates()) == 3, "it is one's word against another's"
    observed.note(4, "a third", at(4001))
    assert observed.candidates() == [at(4001), Address(kind="ip6", host="2001:db8::9", port=80)]


def test_a_router_that_maps_each_connection_anew_is_recognised() -> None:
    observed = ObservedAddresses()
    observed.note(1, "somewhere", at(50001))
    assert not observed.is_mapped_anew()
    observed.note(2, "elsewhere", at(50002))
    assert observed.is_mapped_anew()
    observed.note(3, "a third place", at(50002))
    assert not observed.is_mapped_anew()


SIGHTS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abcdef"), st.integers(1, 5)), max_size=300)


@given(SIGHTS)
def test_nobody_is_believed_whom_too_few_support(sights: list[tuple[int, str, int]]) -> None:
    observed = ObservedAddresses()
    for connection, origin, port in sights:
        observed.note(connection, origin, at(port))
    said = {address: {o for _, o, port in sights if at(port) == address} for address in observed.believed()}
    assert all(len(origins) >= AGREEING for origins in said.values())
    assert set(observed.believed()) <= set(observed.candidates())
    assert len(observed._sights) <= MAX_OBSERVERS
