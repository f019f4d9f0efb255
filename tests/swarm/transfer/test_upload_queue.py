"""The queue of uploads: few at a time, the rarest first, fair to peers, and no silent waiting."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.digest import cid_of
from protocol.core.ids import Cid, PeerId
from swarm.transfer.upload_queue import (
    BEHIND,
    COMMON,
    LANE_S,
    LANES,
    MAX_RETRY_S,
    MAX_UPLOADS,
    MAX_WAITING,
    MAX_WAITING_PER_PEER,
    MIN_RETRY_S,
    MIN_WAITING,
    OVERLONG_S,
    STALL_S,
    UNKNOWN_STALL_S,
    Begin,
    Drop,
    Effect,
    Event,
    Moved,
    Refuse,
    Requested,
    Sent,
    Tick,
    UploadQueue,
    Withdrawn,
)

SIZE = 256 * 1024
PEERS = [PeerId(f"p{i:02}") for i in range(20)]
CIDS = [cid_of(bytes([i])) for i in range(20)]
A, B, C, D = PEERS[:4]


def ask(uploads: UploadQueue, peer: PeerId, chunk: int, now: float = 0.0) -> list[Effect]:
    return uploads.handle(Requested(peer=peer, cid=CIDS[chunk], size=SIZE), now)


def begun(effects: list[Effect]) -> list[tuple[PeerId, Cid]]:
    return [(effect.peer, effect.cid) for effect in effects if isinstance(effect, Begin)]


def busy(uploads: UploadQueue) -> None:
    """Fill the lanes with uploads to peers that nobody else here asks for."""
    for lane in range(uploads.lanes_now):
        assert begun(ask(uploads, PEERS[-1 - lane], 0))


def measured(bytes_per_s: float) -> UploadQueue:
    """A queue that knows its uplink: it has been busy for a while."""
    uploads, now = UploadQueue(), 0.0
    for number in range(100):
        ask(uploads, A, number % 2, now)
        ask(uploads, A, (number + 1) % 2, now)
        now += SIZE / bytes_per_s
        uploads.handle(Sent(peer=A), now)
    uploads.handle(Withdrawn(peer=A, cid=uploads.waiting[0][1]) if uploads.waiting else Sent(peer=A), now)
    uploads.handle(Sent(peer=A), now)
    assert uploads._bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)
    return uploads


def test_so_many_are_sent_at_a_time_and_the_next_when_one_is_over() -> None:
    uploads = UploadQueue()
    for lane in range(LANES):
        assert begun(ask(uploads, PEERS[lane], lane)) == [(PEERS[lane], CIDS[lane])]
    assert ask(uploads, D, 3) == []
    assert not uploads.idle
    assert begun(uploads.handle(Sent(peer=A), 0.1)) == [(D, CIDS[3])]


def test_to_one_peer_goes_one_at_a_time() -> None:
    uploads = UploadQueue()
    assert begun(ask(uploads, A, 0))
    assert ask(uploads, A, 1) == []
    assert begun(ask(uploads, B, 1)) == [(B, CIDS[1])]
    assert begun(uploads.handle(Sent(peer=A), 0.1)) == [(A, CIDS[1])]


def test_the_rarest_goes_first() -> None:
    rarity = {CIDS[1]: COMMON, CIDS[2]: 0, CIDS[3]: 1}
    uploads = UploadQueue(num_holders=lambda cid: rarity.get(cid, 9))
    busy(uploads)
    for peer, chunk in ((A, 1), (B, 2), (C, 3)):
        ask(uploads, peer, chunk)
    order = []
    while uploads.waiting:
        order += begun(uploads.handle(Sent(peer=order[-1][0] if order else PEERS[-1]), 0.1))
    assert [CIDS.index(cid) for _, cid in order] == [2, 3, 1]


def test_of_what_is_common_anyway_goes_first_what_is_for_who_holds_least() -> None:
    held = {A: 7, B: 2, C: 5}
    uploads = UploadQueue(
        num_holders=lambda cid: COMMON + CIDS.index(cid), num_held=lambda peer, cid: held.get(peer, 0), lanes=LANES
    )
    busy(uploads)
    for chunk, peer in enumerate((A, B, C)):
        ask(uploads, peer, chunk)
    order = []
    while uploads.waiting:
        order += begun(uploads.handle(Sent(peer=order[-1][0] if order else PEERS[-1]), 0.1))
    assert [peer for peer, _ in order] == [B, C, A]


@pytest.mark.parametrize(("chunks_per_s", "lanes"), [(0.5, 1), (0.9 / LANE_S, 1), (1.1 / LANE_S, 2), (100.0, LANES)])
def test_a_slow_uplink_has_fewer_lanes(chunks_per_s: float, lanes: int) -> None:
    uploads = measured(SIZE * chunks_per_s)
    started = [begun(ask(uploads, peer, 0, 1000.0)) for peer in PEERS[1 : 2 + LANES]]
    assert sum(map(len, started)) == lanes


def test_what_was_promised_goes_before_all_and_is_never_refused() -> None:
    uploads = UploadQueue(is_promised=lambda peer, cid: peer == D)
    busy(uploads)
    for peer in PEERS[4:12]:
        for chunk in (1, 2):
            ask(uploads, peer, chunk)
    assert len(uploads.waiting) == MAX_WAITING
    assert isinstance(ask(uploads, A, 3)[0], Refuse)
    assert ask(uploads, D, 3) == []
    assert begun(uploads.handle(Sent(peer=PEERS[-1]), 0.1)) == [(D, CIDS[3])]


def test_who_was_served_longest_ago_goes_first_among_equals() -> None:
    uploads = UploadQueue(lanes=1)
    order = (
        begun(ask(uploads, A, 0)) + begun(ask(uploads, A, 1)) + begun(ask(uploads, A, 2)) + begun(ask(uploads, B, 3))
    )
    while uploads.waiting:
        order += begun(uploads.handle(Sent(peer=order[-1][0]), 0.1))
    assert [peer for peer, _ in order] == [A, B, A, A]


def test_who_has_waited_too_long_goes_before_the_rarer() -> None:
    uploads = UploadQueue(num_holders=lambda cid: 0 if cid == CIDS[2] else 5)
    busy(uploads)
    ask(uploads, A, 1, 0.0)
    for lane in range(LANES):
        uploads.handle(Moved(peer=PEERS[-1 - lane], size=SIZE // 2), 0.2)
    ask(uploads, B, 2, 0.2)
    for lane in range(LANES):
        uploads.handle(Moved(peer=PEERS[-1 - lane], size=1), OVERLONG_S)
    order = []
    for lane in range(LANES):
        order += begun(uploads.handle(Sent(peer=PEERS[-1 - lane]), OVERLONG_S + 0.01))
    assert order[0] == (A, CIDS[1])


def test_beyond_its_share_a_peer_is_refused_and_others_are_not() -> None:
    uploads = UploadQueue()
    busy(uploads)
    for chunk in range(MAX_WAITING_PER_PEER):
        assert ask(uploads, A, chunk) == []
    assert isinstance(ask(uploads, A, 19)[0], Refuse)
    assert ask(uploads, B, 0) == []


def test_a_repeated_request_is_refused() -> None:
    uploads = UploadQueue()
    busy(uploads)
    ask(uploads, A, 0)
    assert isinstance(ask(uploads, A, 0)[0], Refuse)
    assert len(uploads.waiting) == 1


def test_a_wait_that_would_be_too_long_is_refused_with_a_time_to_come_again() -> None:
    slow = measured(SIZE / 0.5)  # half a second a chunk, so it has one lane
    assert begun(ask(slow, PEERS[-1], 0))
    for chunk in range(MIN_WAITING):
        assert ask(slow, A, chunk) == [], "so that it is never idle"
    (refusal,) = ask(slow, B, 3)
    assert isinstance(refusal, Refuse)
    assert MIN_RETRY_S <= refusal.retry_s <= MAX_RETRY_S
    assert refusal.retry_s == pytest.approx(MIN_WAITING * 0.5 / 2)
    quick = measured(SIZE / 0.01)
    busy(quick)
    assert not any(ask(quick, PEERS[i], 0) for i in range(MAX_WAITING))


def test_without_room_who_is_far_behind_takes_the_place_of_who_would_be_served_last() -> None:
    slow = measured(SIZE / 0.5)
    held = {A: 50, B: 50 - BEHIND, C: 51 - BEHIND}
    slow.num_held = lambda peer, cid: held.get(peer, 0)
    slow.num_holders = lambda cid: COMMON
    assert begun(ask(slow, PEERS[-1], 0))
    for chunk in range(MIN_WAITING):
        ask(slow, A, chunk)
    assert [(one.peer, one.cid) for one in ask(slow, C, 3)] == [(C, CIDS[3])], "not far enough"
    (refusal,) = ask(slow, B, 3)
    assert isinstance(refusal, Refuse)
    assert (refusal.peer, refusal.cid) == (A, CIDS[MIN_WAITING - 1])
    assert slow.waiting == [*((A, CIDS[chunk]) for chunk in range(MIN_WAITING - 1)), (B, CIDS[3])]
    assert slow._waiting_bytes == SIZE * MIN_WAITING


def test_who_is_behind_does_not_take_the_place_of_what_was_promised_is_rarer_or_has_waited_too_long() -> None:
    held = {A: 99, B: 99, C: 0}
    slow = measured(SIZE / 1.5)
    slow.num_held = lambda peer, cid: held.get(peer, 0)
    slow.num_holders = lambda cid: 0 if cid == CIDS[2] else COMMON
    slow.is_promised = lambda peer, cid: peer == A
    assert begun(ask(slow, PEERS[-1], 0, 300.0))
    ask(slow, A, 1, 300.0)
    ask(slow, B, 2, 300.0)
    assert [one.peer for one in ask(slow, C, 3, 300.0)] == [C], "B's is rarer"
    slow.num_holders = lambda cid: COMMON
    slow.handle(Moved(peer=PEERS[-1], size=SIZE * 3 // 4), 299.9 + OVERLONG_S)
    assert [one.peer for one in ask(slow, C, 3, 300.0 + OVERLONG_S)] == [C], "B has waited too long"
    assert [one.peer for one in ask(slow, C, 3, 299.95 + OVERLONG_S)] == [B]


def test_what_is_withdrawn_is_not_sent_and_its_place_is_free() -> None:
    uploads = UploadQueue()
    busy(uploads)
    ask(uploads, A, 0)
    assert uploads.handle(Withdrawn(peer=A, cid=CIDS[0]), 0.1) == [Drop(peer=A, cid=CIDS[0])]
    assert uploads.handle(Withdrawn(peer=A, cid=CIDS[0]), 0.1) == [], "once"
    assert uploads.handle(Sent(peer=PEERS[-1]), 0.2) == []
    assert uploads._waiting_bytes == 0


def test_an_upload_that_its_reader_holds_up_gives_its_lane_to_another_until_it_moves() -> None:
    uploads = measured(SIZE / 0.01)
    paused, *moving = PEERS[10 : 10 + LANES]
    now = 100.0

    def move(*peers: PeerId) -> list[tuple[PeerId, Cid]]:
        return [one for peer in peers for one in begun(uploads.handle(Moved(peer=peer, size=1000), now))]

    for peer in (paused, *moving):
        ask(uploads, peer, 0, now)
    ask(uploads, A, 1, now)
    move(paused)
    now += STALL_S
    assert move(*moving) == []
    now += 0.01
    assert move(*moving) == [(A, CIDS[1])]
    ask(uploads, B, 2, now)
    assert move(paused) == [], "it goes on, and so do the others"
    assert begun(uploads.handle(Sent(peer=A), now)) == []
    assert begun(uploads.handle(Sent(peer=paused), now)) == [(B, CIDS[2])]


def test_a_reader_much_slower_than_the_uplink_keeps_no_lane() -> None:
    uploads = measured(50e6 / 8)
    now = 100.0
    slow = PEERS[10 : 10 + LANES]
    for peer in slow:
        ask(uploads, peer, 0, now)
    ask(uploads, A, 1, now)
    started: list[tuple[PeerId, Cid]] = []
    while not started:
        now += 0.05
        for peer in slow:  # all of them move, at 1 Mbit/s
            started += begun(uploads.handle(Moved(peer=peer, size=6250), now))
        assert now < 101.0
    assert started == [(A, CIDS[1])]
    assert begun(ask(uploads, B, 1, now)) == [(B, CIDS[1])], "two more lanes are free"
    assert begun(ask(uploads, C, 1, now)) == [(C, CIDS[1])]
    assert begun(ask(uploads, D, 1, now)) == []
    assert begun(uploads.handle(Sent(peer=slow[0]), now)) == [], "it held none"
    assert begun(uploads.handle(Sent(peer=A), now)) == [(D, CIDS[1])]


def test_who_is_slow_while_the_uplink_is_full_keeps_its_lane() -> None:
    """Or uploads would make each other slow, and more and more of them be begun."""
    uploads, now = measured(50e6 / 8), 100.0
    slow, *fast = PEERS[10 : 10 + LANES]
    for peer in (slow, *fast):
        ask(uploads, peer, 0, now)
    for _ in range(20):
        now += 0.05
        uploads.handle(Moved(peer=slow, size=6250), now)
        for peer in fast:
            uploads.handle(Moved(peer=peer, size=round(0.05 * 49e6 / 8 / len(fast))), now)
            uploads.handle(Sent(peer=peer), now)
            assert begun(ask(uploads, peer, 1, now)) == [(peer, CIDS[1])]
        assert begun(uploads.handle(Tick(), now)) == []
    assert begun(ask(uploads, A, 2, now)) == []


def test_a_chunk_that_vanishes_in_buffers_is_not_the_uplinks_best_rate() -> None:
    uploads, now = measured(10e6 / 8), 100.0
    usual_s = SIZE * 8 / 10e6
    for _ in range(100):
        for taken_s in (0.01, 0.25, 2 * usual_s, 2 * usual_s - 0.26):  # the first of four leaves at once
            ask(uploads, A, 0, now)
            ask(uploads, B, 0, now)
            now += taken_s
            uploads.handle(Sent(peer=A), now)
            uploads.handle(Withdrawn(peer=B, cid=CIDS[0]), now)
    assert uploads._best_of_late <= 1.1 * 10e6 / 8


def test_on_a_slow_uplink_slowness_is_no_stall() -> None:
    uploads = measured(SIZE / 2.0)
    now = 200.0
    lanes = uploads.lanes_now
    for lane in range(lanes):
        ask(uploads, PEERS[10 + lane], 0, now)
        uploads.handle(Moved(peer=PEERS[10 + lane], size=SIZE // 4), now)
    ask(uploads, A, 1, now)
    quarter_s = lanes * 2.0 / 4
    assert uploads.handle(Tick(), now + 2 * quarter_s) == []
    assert begun(uploads.handle(Tick(), now + 3.1 * quarter_s))


def test_slow_readers_do_not_take_lanes_away() -> None:
    uploads, now = measured(50e6 / 8), 60.0
    for _ in range(10):
        ask(uploads, A, 0, now)
        now += 1.0
        uploads.handle(Sent(peer=A), now)
    assert uploads.lanes_now == LANES
    for _ in range(100):
        ask(uploads, A, 0, now)
        ask(uploads, A, 1, now)
        now += 1.0
        uploads.handle(Sent(peer=A), now)
    assert uploads.lanes_now == 1, "but an uplink that became slow is seen"


def test_before_the_uplink_is_known_the_timeout_is_a_constant() -> None:
    uploads = UploadQueue()
    busy(uploads)
    ask(uploads, A, 1)
    assert uploads.handle(Tick(), UNKNOWN_STALL_S) == []
    assert begun(uploads.handle(Tick(), UNKNOWN_STALL_S + 0.1)) == [(A, CIDS[1])]


def test_slow_readers_cost_a_bounded_number_of_uploads() -> None:
    uploads, now = UploadQueue(), 0.0
    for peer in PEERS:
        ask(uploads, peer, 0, now)
        now += 1.0
        uploads.handle(Tick(), now)
    assert len(uploads._sending) == MAX_UPLOADS


def test_a_slow_reader_does_not_make_the_uplink_look_slow_for_ever() -> None:
    uploads = measured(SIZE / 0.04)
    ask(uploads, A, 0, 110.0)
    uploads.handle(Sent(peer=A), 120.0)
    assert uploads._bytes_per_s > SIZE / 0.05
    for second in range(60):
        ask(uploads, A, 0, 130.0 + second)
        uploads.handle(Sent(peer=A), 130.5 + second)
    assert uploads._bytes_per_s == pytest.approx(SIZE / 0.5, rel=0.1), "but an uplink that became slow is seen"


EVENTS = st.one_of(
    st.builds(Requested, peer=st.sampled_from(PEERS[:5]), cid=st.sampled_from(CIDS[:6]), size=st.just(SIZE)),
    st.builds(Withdrawn, peer=st.sampled_from(PEERS[:5]), cid=st.sampled_from(CIDS[:6])),
    st.builds(Moved, peer=st.sampled_from(PEERS[:5]), size=st.just(SIZE // 4)),
    st.builds(Sent, peer=st.sampled_from(PEERS[:5])),
    st.just(Tick()),
)


@given(events=st.lists(EVENTS, max_size=80), pause=st.floats(0, 0.6))
def test_every_request_has_one_answer_and_the_bounds_hold(events: list[Event], pause: float) -> None:
    held = {peer: 10 * number for number, peer in enumerate(PEERS)}
    uploads, now = UploadQueue(num_held=lambda peer, cid: held[peer]), 0.0
    owed: Counter[tuple[PeerId, Cid]] = Counter()
    sending: dict[PeerId, Cid] = {}
    for event in events:
        now += pause
        match event:
            case Requested(peer=peer, cid=cid):
                owed[peer, cid] += 1
            case Sent(peer=peer) if peer in sending:
                owed[peer, sending.pop(peer)] -= 1
        for effect in uploads.handle(event, now):
            match effect:
                case Begin(peer=peer, cid=cid):
                    assert uploads._moving() <= LANES
                    assert peer not in sending
                    sending[peer] = cid
                case Refuse(peer=peer, cid=cid) | Drop(peer=peer, cid=cid):
                    owed[peer, cid] -= 1
        waiting = Counter(uploads.waiting)
        assert owed == waiting + Counter(sending.items()), "each is waiting, or on its way"
        assert len(waiting) <= MAX_WAITING
        assert uploads._waiting_bytes == SIZE * len(waiting)
        assert len(sending) <= MAX_UPLOADS
        if uploads._moving() < uploads.lanes_now:
            assert all(peer in sending for peer, _ in waiting), "no lane is idle without a reason"
