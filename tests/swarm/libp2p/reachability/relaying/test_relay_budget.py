"""Which reservations and circuits a relay grants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.core.ids import PeerId
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget, RelayLimits, Status

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
LIMITS = RelayLimits(reservations=4, reservations_of_origin=2, circuits=3, circuits_of_peer=2)


def test_a_peer_is_reached_as_long_as_its_reservation_lasts() -> None:
    budget = RelayBudget()
    assert budget.open_circuit(A, B, 0.0) is Status.NO_RESERVATION
    assert budget.reserve(B, "home", 0.0) is Status.OK
    assert budget.open_circuit(A, B, budget.limits.reservation_s - 1) is Status.OK
    assert budget.open_circuit(A, B, budget.limits.reservation_s) is Status.NO_RESERVATION


def test_who_is_gone_has_no_reservation() -> None:
    budget = RelayBudget()
    budget.reserve(B, "home", 0.0)
    budget.forget(B)
    assert budget.open_circuit(A, B, 1.0) is Status.NO_RESERVATION


def test_reserving_anew_takes_no_further_place() -> None:
    budget = RelayBudget(limits=LIMITS)
    for _ in range(10):
        assert budget.reserve(A, "home", 0.0) is Status.OK
    assert budget.reserve(B, "home", 0.0) is Status.OK
    assert budget.reserve(C, "home", 0.0) is Status.RESERVATION_REFUSED
    assert budget.reserve(C, "elsewhere", 0.0) is Status.OK


def test_expired_reservations_make_room() -> None:
    budget = RelayBudget(limits=LIMITS)
    budget.reserve(A, "home", 0.0)
    budget.reserve(B, "home", 0.0)
    assert budget.reserve(C, "home", LIMITS.reservation_s) is Status.OK


@pytest.mark.parametrize("others", [[(A, B), (A, C)], [(B, A), (C, A)], [(B, A), (A, C)]])
def test_a_peer_has_so_many_circuits_at_either_end(others: list[tuple[PeerId, PeerId]]) -> None:
    budget = RelayBudget(limits=LIMITS)
    for peer in (A, B, C):
        budget.reserve(peer, str(peer), 0.0)
    assert [budget.open_circuit(source, target, 0.0) for source, target in others] == [Status.OK, Status.OK]
    assert budget.open_circuit(A, B, 0.0) is Status.RESOURCE_LIMIT_EXCEEDED
    budget.close_circuit(*others[0])
    assert budget.open_circuit(A, B, 0.0) is Status.OK


class Relaying(RuleBasedStateMachine):
    """Members reserve, leave and open circuits as they like."""

    peers = st.sampled_from([PeerId(f"peer {number}") for number in range(6)])

    def __init__(self) -> None:
        super().__init__()
        self.budget = RelayBudget(limits=LIMITS)
        self.now = 0.0
        self.open: list[tuple[PeerId, PeerId]] = []

    @rule(peer=peers, origin=st.sampled_from(["x", "y", "z"]))
    def reserve(self, peer: PeerId, origin: str) -> None:
        self.budget.reserve(peer, origin, self.now)

    @rule(peer=peers)
    def leave(self, peer: PeerId) -> None:
        self.budget.forget(peer)

    @rule(source=peers, wanted=peers)
    def connect(self, source: PeerId, wanted: PeerId) -> None:
        reserved = self.budget.is_reserved(wanted, self.now)
        if self.budget.open_circuit(source, wanted, self.now) is Status.OK:
            assert reserved
            self.open.append((source, wanted))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.open:
            one = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            self.budget.close_circuit(*one)

    @rule(passed=st.floats(0, LIMITS.reservation_s))
    def wait(self, passed: float) -> None:
        self.now += passed

    @invariant()
    def nobody_has_more_than_allowed(self) -> None:
        reserved = [one for one in self.budget._reservations.values() if one.expires_s > self.now]
        assert len(reserved) <= LIMITS.reservations
        assert max(Counter(one.origin for one in reserved).values(), default=0) <= LIMITS.reservations_of_origin
        assert self.budget.num_circuits == len(self.open) <= LIMITS.circuits
        ends = Counter(peer for pair in self.open for peer in set(pair))
        assert max(ends.values(), default=0) <= LIMITS.circuits_of_peer


TestRelaying = Relaying.TestCase
TestRelaying.settings = settings(max_examples=50, stateful_step_count=40)
