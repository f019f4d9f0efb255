"""Super-seeding: each chunk goes to the peer that relays it soonest, and to another one if that fails."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import ItemsView

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.transfer.audience import Asked, Begun, Followed, Idle, Sent, Unfollowed
from swarm.transfer.chunk_picker import PeerGained, PeerGone, PeerHas, Tick
from swarm.transfer.super_seeding import (
    AHEAD,
    CREDIT,
    MAX_AHEAD,
    MAX_CREDIT,
    MAX_TARGETS,
    OFFER_TIMEOUT_S,
    SHOWN_AFTER_LAGS,
    SHOWN_AFTER_S,
    SHOWN_PER_S,
    UNASKED,
    Effect,
    Event,
    Listen,
    Offer,
    Show,
    SuperSeeder,
)
from tests.support.examples import examples

A, B, C = (PeerId(name) for name in "abc")


def scatter_of(chunks: int) -> SuperSeeder:
    return SuperSeeder(range(chunks), random.Random(0))


def offers(effects: list[Effect]) -> list[tuple[PeerId, int]]:
    return [(effect.peer, effect.chunk) for effect in effects if isinstance(effect, Offer)]


def following(scatter: SuperSeeder, *peers: PeerId) -> list[tuple[PeerId, int]]:
    """`peers` follow from the start; return what they are offered."""
    return [offer for peer in peers for offer in offers(scatter.handle(Followed(peer=peer), 0.0))]


def give(scatter: SuperSeeder, offer: tuple[PeerId, int], now: float) -> list[tuple[PeerId, int]]:
    """The peer asks for what it was offered, and gets it; return what is offered then."""
    peer, chunk = offer
    asked = offers(scatter.handle(Asked(peer=peer, chunk=chunk), now))
    return asked + offers(scatter.handle(Sent(peer=peer, chunk=chunk), now))


def test_a_chunk_is_offered_to_one_peer_and_ahead_of_the_uplink() -> None:
    scatter = scatter_of(100)
    made = following(scatter, A, B, C)
    assert len(made) == AHEAD
    assert len({chunk for _, chunk in made}) == AHEAD
    assert len(give(scatter, made[0], 0.1)) == 1


def test_a_follower_is_a_target_that_is_listened_to_up_to_a_number() -> None:
    scatter = scatter_of(5)
    heard = [scatter.handle(Followed(peer=PeerId(f"p{i}")), 0.0) for i in range(MAX_TARGETS + 5)]
    targets = {effect.peer for effects in heard for effect in effects if isinstance(effect, Listen)}
    assert len(targets) == MAX_TARGETS
    assert set(scatter.targets) == targets
    leaver = min(targets)
    (successor,) = [e.peer for e in scatter.handle(Unfollowed(peer=leaver), 1.0) if isinstance(e, Listen)]
    assert successor not in targets
    assert set(scatter.targets) == targets - {leaver} | {successor}


def test_whoever_passes_more_on_is_given_more() -> None:
    """Relays that pass on 20, 5 and 1 chunks a second, to somebody else who says so, and a source that gives 24."""
    scatter, now = scatter_of(600), 0.0
    pass_s = {A: 0.05, B: 0.2, C: 1.0}
    free_at = dict.fromkeys(pass_s, 0.0)
    in_hand = [*following(scatter, PeerId("d")), *following(scatter, A, B, C)]
    passed_on: list[tuple[float, int]] = []
    given: Counter[PeerId] = Counter()
    while in_hand and not scatter.opened:
        now += 1 / 24
        peer, chunk = in_hand.pop(0)
        given[peer] += 1
        in_hand += give(scatter, (peer, chunk), now)
        if peer in free_at:
            free_at[peer] = max(free_at[peer], now) + pass_s[peer]
            passed_on.append((free_at[peer], chunk))
        for due, done in [one for one in passed_on if one[0] <= now]:
            passed_on.remove((due, done))
            in_hand += offers(scatter.handle(PeerGained(peer=PeerId("d"), chunks=(done,)), now))
    assert given[A] > 2 * given[B] > 2 * given[C] > 0
    assert given[PeerId("d")] <= CREDIT + AHEAD, "it passes nothing on"


def test_while_the_uplink_is_busy_nobody_is_given_more_than_its_credit() -> None:
    scatter = scatter_of(40)
    in_hand = following(scatter, A, B)
    for _ in range(100):
        if in_hand:
            in_hand += give(scatter, in_hand.pop(0), 0.1)
    assert all(len(relay.kept) <= CREDIT + AHEAD for relay in scatter._relays.values())
    assert len(offers(scatter.handle(Idle(), 0.2))) == 1


def test_when_nobody_has_credit_the_uplink_gives_second_copies_and_then_goes_on() -> None:
    scatter, now = scatter_of(40), 0.0
    in_hand = following(scatter, A, B)
    given: dict[int, list[PeerId]] = {}
    while not scatter.opened:  # each gets only what we give: the two may not be able to reach each other
        now += 0.1
        if not in_hand:
            in_hand += offers(scatter.handle(Idle(), now))
            continue
        peer, chunk = in_hand.pop(0)
        given.setdefault(chunk, []).append(peer)
        in_hand += give(scatter, (peer, chunk), now)
        in_hand += offers(scatter.handle(PeerGained(peer=peer, chunks=(chunk,)), now))
    assert all(len(set(peers)) == len(peers) for peers in given.values()), "not twice to the same"
    assert sum(len(peers) == 2 for peers in given.values()) > 20


def test_a_single_follower_is_given_everything() -> None:
    scatter, now = scatter_of(40), 0.0
    in_hand = following(scatter, A)
    num_given = 0
    while not scatter.opened:
        now += 0.1
        if not in_hand:
            in_hand += offers(scatter.handle(Idle(), now))
            assert in_hand, "an idle uplink is given something at once"
        num_given += 1
        in_hand += give(scatter, in_hand.pop(0), now)
    assert num_given == 40


def test_a_single_follower_costs_no_more_for_each_chunk_however_many_it_keeps() -> None:
    scatter, now, looked_at = scatter_of(500), 0.0, 0

    class Counted(dict[int, float]):
        def items(self) -> ItemsView[int, float]:
            nonlocal looked_at
            looked_at += len(self)
            return super().items()

    in_hand = following(scatter, A)
    scatter._relays[A].kept = Counted()
    while not scatter.opened:
        now += 0.1
        in_hand += offers(scatter.handle(Idle(), now))
        in_hand += give(scatter, in_hand.pop(0), now)
    assert len(scatter._relays[A].kept) > 400, "nobody else announces anything"
    assert looked_at == 0, "a peer that alone is ready needs no second copies"


@pytest.mark.parametrize("leaving", [Unfollowed, PeerGone])
def test_what_only_a_peer_held_that_leaves_is_given_again_first(leaving: type[Unfollowed] | type[PeerGone]) -> None:
    scatter = scatter_of(40)
    in_hand = following(scatter, A)
    for _ in range(2):
        in_hand += give(scatter, in_hand.pop(0), 0.1)
    scatter.handle(PeerGained(peer=A, chunks=(0, 1)), 0.2)
    scatter.handle(leaving(peer=A), 1.0)
    again = following(scatter, B)
    if leaving is PeerGone:  # it follows still, and begins anew
        again += offers(scatter.handle(Unfollowed(peer=A), 1.0))
    while len(again) < UNASKED + 3:
        again += give(scatter, again[len(again) - 1], 1.1)
    assert {0, 1} < {chunk for peer, chunk in again if peer == B} <= set(range(2 * UNASKED))


def test_what_others_hold_of_a_peer_that_leaves_is_not_given_again() -> None:
    scatter = scatter_of(AHEAD + 1)
    made = following(scatter, A)
    following(scatter, B)
    for offer in made:
        give(scatter, offer, 0.1)
        scatter.handle(PeerGained(peer=B, chunks=(offer[1],)), 0.2)
    again = offers(scatter.handle(Unfollowed(peer=A), 1.0))
    assert {chunk for _, chunk in again} <= {AHEAD}


def test_an_offer_that_is_not_asked_for_is_withdrawn_and_made_to_another() -> None:
    scatter = scatter_of(40)
    made = following(scatter, A)
    for _, chunk in following(scatter, B):
        scatter.handle(Asked(peer=B, chunk=chunk), 1.0)
    effects = scatter.handle(Tick(), OFFER_TIMEOUT_S + 0.1)
    assert {chunk for peer, chunk in offers(effects) if peer == B} & {chunk for _, chunk in made}
    assert not any(scatter.is_promised(A, chunk) for _, chunk in made)


def test_while_a_peer_still_works_through_what_it_was_offered_nothing_is_withdrawn() -> None:
    scatter = scatter_of(40)
    made = following(scatter, A)
    scatter.handle(Asked(peer=A, chunk=made[0][1]), 0.1)
    scatter.handle(Tick(), OFFER_TIMEOUT_S + 0.1)
    assert all(scatter.is_promised(A, chunk) for _, chunk in made)


def test_what_followers_hold_already_is_not_given() -> None:
    scatter = scatter_of(6)
    scatter.handle(Followed(peer=A), 0.0)
    effects = scatter.handle(PeerHas(peer=A, chunks=frozenset(range(6))), 0.1)
    assert scatter.opened
    assert effects == [Show(chunks=tuple(range(6)))]


def test_when_everything_was_given_everything_is_shown() -> None:
    scatter = scatter_of(3)
    made = following(scatter, A, B)
    assert [scatter.shows(chunk) for chunk in range(4)] == [False, False, False, True], (
        "only chunk 3 was not given away"
    )
    shown = []
    for offer in made:
        scatter.handle(Asked(peer=offer[0], chunk=offer[1]), 0.1)
        shown += [e for e in scatter.handle(Sent(peer=offer[0], chunk=offer[1]), 0.1) if isinstance(e, Show)]
    assert shown == [Show(chunks=(0, 1, 2))]
    assert scatter.opened
    assert all(scatter.shows(chunk) for chunk in range(4))


def test_of_followers_that_are_all_heard_it_is_known_who_holds_how_much() -> None:
    scatter = scatter_of(10)
    following(scatter, A, B)
    scatter.handle(PeerHas(peer=A, chunks=frozenset({1, 2})), 0.0)
    scatter.handle(PeerGained(peer=A, chunks=(2, 3)), 0.0)
    assert [scatter.num_held(peer) for peer in (A, B, C)] == [3, 0, 0]


def test_where_some_followers_are_not_heard_all_are_equal() -> None:
    scatter = scatter_of(10)
    peers = [PeerId(f"p{number}") for number in range(MAX_TARGETS + 1)]
    following(scatter, *peers)
    for peer in peers:
        scatter.handle(PeerHas(peer=peer, chunks=frozenset({1})), 0.0)
    assert {scatter.num_held(peer) for peer in peers} == {0}
    scatter.handle(Unfollowed(peer=peers[0]), 0.0)
    for peer in peers[1:]:
        scatter.handle(PeerHas(peer=peer, chunks=frozenset({1})), 0.0)
    assert {scatter.num_held(peer) for peer in peers[1:]} == {1}


def test_an_uplink_that_waits_when_everything_was_offered_is_open_to_everybody() -> None:
    scatter = scatter_of(3)
    made = following(scatter, A, B)
    for peer, chunk in made:
        scatter.handle(Asked(peer=peer, chunk=chunk), 0.1)
    assert not scatter.opened, "they are on their way, to peers that may be slow to take them"
    assert scatter.handle(Idle(), 0.2) == [Show(chunks=(0, 1, 2))]
    assert scatter.opened


def test_an_uplink_that_waits_with_something_left_to_offer_stays_closed() -> None:
    scatter = scatter_of(MAX_AHEAD + 20)
    following(scatter, A, B)
    scatter.handle(Idle(), 0.2)
    assert not scatter.opened


def test_what_was_given_long_ago_is_shown_to_everybody() -> None:
    scatter = scatter_of(40)
    made = following(scatter, A)
    give(scatter, made[0], 1.0)
    assert not [e for e in scatter.handle(Tick(), SHOWN_AFTER_S) if isinstance(e, Show)]
    (shown,) = [e for e in scatter.handle(Tick(), SHOWN_AFTER_S + 1.1) if isinstance(e, Show)]
    assert shown == Show(chunks=(made[0][1],))
    assert scatter.shows(made[0][1])


def test_what_its_only_holder_lost_is_given_again_once_it_is_old() -> None:
    scatter = scatter_of(10)
    made = following(scatter, A)
    give(scatter, made[0], 1.0)
    scatter.handle(PeerHas(peer=A, chunks=frozenset()), 2.0)  # it started again, with an empty store
    given_again = offers(scatter.handle(Tick(), SHOWN_AFTER_S + 1.1))
    assert made[0] in given_again or made[0][1] in scatter._fresh


def shown(effects: list[Effect]) -> list[int]:
    return [chunk for effect in effects if isinstance(effect, Show) for chunk in effect.chunks]


def test_where_chunks_take_long_to_spread_they_are_shown_later() -> None:
    scatter = scatter_of(400)
    made = following(scatter, A, B, C)
    lag, first = SHOWN_AFTER_S, made[0]
    give(scatter, first, 1.0)
    other = next(peer for peer in (A, B, C) if peer != first[0])
    scatter.handle(PeerGained(peer=other, chunks=(first[1],)), 1.0 + lag)
    assert not shown(scatter.handle(Tick(), 1.0 + 0.9 * SHOWN_AFTER_LAGS * lag))
    assert shown(scatter.handle(Tick(), 1.0 + 1.1 * SHOWN_AFTER_LAGS * lag)) == [first[1]]


def test_many_followers_are_shown_things_less_often() -> None:
    scatter = scatter_of(400)
    made = following(scatter, *(PeerId(f"p{i}") for i in range(5 * SHOWN_PER_S)))
    give(scatter, made[0], 1.0)
    give(scatter, made[1], 2.0)
    assert shown(scatter.handle(Tick(), SHOWN_AFTER_S + 1.5)) == [made[0][1]]
    scatter._relays[made[0][0]].lag = 0.1  # what had to be shown says nothing here of how long others take
    assert not shown(scatter.handle(Tick(), SHOWN_AFTER_S + 1.5 + 4.9))
    assert shown(scatter.handle(Tick(), SHOWN_AFTER_S + 1.5 + 5.1)) == [made[1][1]]


def test_nothing_to_give_is_open_at_once() -> None:
    assert scatter_of(0).opened


def test_an_uplink_that_waits_for_requests_is_offered_further_ahead() -> None:
    scatter = scatter_of(400)
    in_hand = following(scatter, *(PeerId(f"p{i}") for i in range(12)))
    for _ in range(2 * MAX_AHEAD):
        in_hand += offers(scatter.handle(Idle(), 0.0))
    assert AHEAD < len(in_hand) <= MAX_AHEAD


EVENTS = st.one_of(
    st.builds(Followed, peer=st.sampled_from([A, B, C])),
    st.builds(Unfollowed, peer=st.sampled_from([A, B, C])),
    st.builds(PeerGone, peer=st.sampled_from([A, B, C])),
    st.builds(PeerHas, peer=st.sampled_from([A, B, C]), chunks=st.frozensets(st.integers(0, 11))),
    st.builds(PeerGained, peer=st.sampled_from([A, B, C]), chunks=st.tuples(st.integers(0, 11))),
    st.builds(Asked, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 11)),
    st.builds(Begun, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 11)),
    st.builds(Sent, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 11)),
    st.just(Idle()),
    st.just(Tick()),
)


@settings(max_examples=examples(300))
@given(events=st.lists(EVENTS, max_size=80), pause=st.floats(0, 4))
def test_in_every_order_of_events_no_chunk_is_lost_and_no_peer_overloaded(events: list[Event], pause: float) -> None:
    scatter, now = scatter_of(10), 0.0
    for event in events:
        now += pause
        scatter.handle(event, now)
        relays = scatter._relays
        held = {chunk: sum(chunk in relay.holds for relay in relays.values()) for chunk in range(10)}
        assert {chunk: scatter.num_holders(chunk) for chunk in range(10)} == held
        for relay in relays.values():
            assert relay.asked <= relay.offered.keys()
            assert not relay.offered.keys() & relay.kept.keys()
            assert all(scatter._giver.get(chunk) == relay.peer for chunk in relay.kept)
            assert len(relay.kept) <= MAX_CREDIT + MAX_AHEAD
        for chunk, giver in scatter._giver.items():
            assert chunk in relays[giver].offered or chunk in relays[giver].kept
        if not scatter.opened:
            for chunk in range(10):
                somewhere = held[chunk] or chunk in scatter._giver or chunk in scatter._fresh
                assert somewhere, f"chunk {chunk} is nowhere, and nobody is being given it"
