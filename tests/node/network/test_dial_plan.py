"""Plan when introduced peers are dialled, as events at times."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from node.network.dial_plan import LOST_S, SELDOM_S, SPREAD_S, DialPlan, Place
from protocol.core.ids import PeerId
from protocol.reach import ReachKind

A, B = PeerId("a"), PeerId("b")
DIRECT, CIRCUIT = ("/ip4/45.1.2.3/tcp/4001/p2p/b",), ("/ip4/45.1.2.3/tcp/4001/p2p/r/p2p-circuit/p2p/b",)
HOME = Place(addresses=DIRECT, kind=ReachKind.BY_PUNCHING, own=("relay",))
ELSEWHERE = Place(addresses=DIRECT, kind=ReachKind.BY_PUNCHING, own=())


def plan_of(*peers: PeerId, addresses: tuple[str, ...] = DIRECT) -> DialPlan:
    plan = DialPlan(rng=Random(1))
    plan.introduce(dict.fromkeys(peers, addresses), 0.0)
    return plan


def test_who_can_be_dialled_is_dialled_at_once_and_once() -> None:
    plan = plan_of(A)
    assert plan.is_due(A, HOME, 0.0)
    plan.note_failed(A, HOME, HOME, 1.0)
    assert not plan.is_due(A, HOME, 1e6), "the same would come of it"
    assert plan.is_due(A, ELSEWHERE, 1.0)


def test_a_second_introduction_changes_nothing_but_addresses() -> None:
    plan = plan_of(A)
    plan.note_failed(A, HOME, HOME, 1.0)
    plan.introduce({A: CIRCUIT}, 2.0)
    assert plan.addresses(A) == CIRCUIT
    assert not plan.is_due(A, HOME, 3.0)
    plan.introduce({}, 4.0)
    plan.introduce({A: DIRECT}, 5.0)
    assert plan.is_due(A, HOME, 5.0), "it was away, and begins anew"


def test_where_our_place_changed_meanwhile_it_is_tried_once_more_and_no_more() -> None:
    """The relay was gone half way: what came of it says nothing of how it is with the relay."""
    plan = plan_of(A)
    plan.note_failed(A, HOME, ELSEWHERE, 1.0)
    assert plan.is_due(A, ELSEWHERE, 1.0 + SPREAD_S)
    plan.note_failed(A, ELSEWHERE, ELSEWHERE, 3.0)
    assert not plan.is_due(A, ELSEWHERE, 1e6)
    assert plan.is_due(A, HOME, 1e6), "the relay is back"


def test_who_was_met_is_tried_ever_more_seldom_and_for_ever() -> None:
    plan = plan_of(A)
    plan.note_met(A)
    plan.note_lost(A, 0.0)
    now, pauses = 0.0, []
    for _ in range(50):
        due_s = plan.next_s(now)
        pauses.append(due_s - now)
        now = due_s
        assert plan.is_due(A, HOME, now)
        plan.note_failed(A, HOME, HOME, now)
    assert LOST_S <= pauses[0] <= 2 * LOST_S
    assert all(SELDOM_S / 2 <= pause <= SELDOM_S for pause in pauses[10:])


def test_peers_that_nobody_introduced_are_no_ones_business() -> None:
    plan = plan_of(A)
    plan.note_met(B)
    plan.note_lost(B, 0.0)
    plan.note_failed(B, HOME, HOME, 0.0)
    assert plan.peers() == [A]
    assert not plan.is_due(B, HOME, 1.0)


@given(st.integers(50, 200), st.integers(), st.booleans())
def test_what_becomes_due_together_is_spread(num_peers: int, seed: int, lost: bool) -> None:
    """After a learner's restart knocks begin within SPREAD_S; after a router's, between LOST_S and twice that."""
    peers = [PeerId(str(number)) for number in range(num_peers)]
    plan = DialPlan(rng=Random(seed))
    plan.introduce(dict.fromkeys(peers, CIRCUIT), 0.0)
    first_s, last_s = 0.0, SPREAD_S
    if lost:
        for peer in peers:
            plan.note_met(peer)
            plan.note_lost(peer, 0.0)
        first_s, last_s = LOST_S, 2 * LOST_S
    due = [plan._prospects[peer].due_s for peer in peers]
    assert all(first_s <= one <= last_s for one in due)
    tenths = Counter(int(10 * (one - first_s) / (last_s - first_s)) for one in due)
    assert max(tenths.values()) < num_peers / 2
