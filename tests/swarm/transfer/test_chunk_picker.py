"""The fetch plan: events and effects, and its invariants against peers of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.transfer import chunk_picker as scheduler
from swarm.transfer.chunk_picker import (
    ENDGAME_GAIN_S,
    ENDGAME_S,
    FAILURE_PAUSE_S,
    FIRST_LATENCY_S,
    HORIZON_S,
    MAX_FAILURES,
    MAX_SECOND_ASKS,
    MAX_WINDOW,
    MIN_WINDOW,
    OVERDUE_S,
    TIMEOUT_S,
    WINDOW,
    Arrived,
    Ask,
    Broke,
    Cancel,
    ChunkPicker,
    Complete,
    Corrupt,
    Effect,
    Event,
    GiveUp,
    Heard,
    Ignore,
    Missing,
    PeerGained,
    PeerGone,
    PeerHas,
    Recall,
    Refused,
    Returned,
    Tick,
)
from tests.support.examples import examples

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def plan_of(chunks: int, *, window: int = WINDOW) -> ChunkPicker:
    return ChunkPicker(range(chunks), random.Random(0), window, max(window, MIN_WINDOW))


def has(peer: PeerId, *chunks: int) -> PeerHas:
    return PeerHas(peer=peer, chunks=frozenset(chunks))


def asked(effects: list[Effect]) -> set[tuple[PeerId, int]]:
    return {(effect.peer, effect.chunk) for effect in effects if isinstance(effect, Ask)}


def test_a_peer_is_asked_for_what_it_holds_up_to_the_window() -> None:
    plan = plan_of(10)
    first = asked(plan.handle(has(A, *range(10)), 0.0))
    assert len(first) == WINDOW
    _, chunk = min(first)
    assert len(asked(plan.handle(Arrived(peer=A, chunk=chunk), 1.0))) == 1


def test_nothing_missing_is_complete_at_once_and_only_once() -> None:
    plan = plan_of(0)
    assert plan.handle(Tick(), 0.0) == [Complete()]
    assert plan.handle(Tick(), 0.0) == []


def test_the_last_chunk_completes() -> None:
    plan = plan_of(1)
    assert asked(plan.handle(has(A, 0), 0.0)) == {(A, 0)}
    assert plan.handle(Arrived(peer=A, chunk=0), 0.0) == [Complete()]


@pytest.mark.parametrize("seed", range(8))
def test_the_rarest_chunk_comes_first(seed: int) -> None:
    plan = ChunkPicker(range(3), random.Random(seed), window=1)
    plan.handle(has(A, 0), 0.0)
    plan.handle(Refused(peer=A, chunk=0, retry_at=9.0), 0.0)
    assert asked(plan.handle(has(B, 0, 1), 0.0)) == {(B, 1)}


def test_of_two_who_are_free_the_one_who_holds_less_is_asked() -> None:
    plan = plan_of(2, window=1)
    plan.handle(has(A, 0, 1), 0.0)
    plan.handle(Arrived(peer=B, chunk=1), 0.0)
    for peer in (A, B):
        plan.handle(has(peer, 0, 1) if peer == A else has(peer, 0), 0.0)
        plan.handle(Refused(peer=peer, chunk=0, retry_at=9.0), 0.0)
        plan.handle(Refused(peer=peer, chunk=1, retry_at=9.0), 0.0)
    assert asked(plan.handle(Tick(), 9.0)) == {(B, 0)}


def test_what_a_peer_gains_is_asked_for_and_gaining_before_having_says_nothing() -> None:
    plan = plan_of(2)
    assert plan.handle(PeerGained(peer=A, chunks=(0,)), 0.0) == []
    assert plan.handle(has(A), 0.0) == []
    assert asked(plan.handle(PeerGained(peer=A, chunks=(1,)), 0.0)) == {(A, 1)}


def test_a_refused_chunk_is_asked_elsewhere_or_again_when_the_peer_said() -> None:
    plan = plan_of(1)
    plan.handle(has(A, 0), 0.0)
    assert plan.handle(Refused(peer=A, chunk=0, retry_at=5.0), 1.0) == []
    assert plan.handle(Tick(), 4.9) == []
    assert asked(plan.handle(Tick(), 5.0)) == {(A, 0)}
    plan.handle(Refused(peer=A, chunk=0, retry_at=60.0), 5.0)
    assert asked(plan.handle(has(B, 0), 6.0)) == {(B, 0)}


def test_what_was_asked_of_a_peer_that_broke_is_asked_elsewhere_at_once_and_of_it_after_a_pause() -> None:
    plan = plan_of(2)
    plan.handle(has(A, 0, 1), 0.0)
    assert plan.handle(Broke(peer=A), 0.0) == []
    assert not plan.starved
    assert len(asked(plan.handle(Tick(), FAILURE_PAUSE_S))) == 1, "once more, carefully"
    plan.handle(Broke(peer=A), 3.0)
    assert {chunk for _, chunk in asked(plan.handle(has(B, 0, 1), 3.0))} == {0, 1}


def test_a_chunk_that_a_peer_misses_after_all_is_not_asked_of_it_again() -> None:
    plan = plan_of(2)
    plan.handle(has(A, 0), 0.0)
    assert plan.handle(Missing(peer=A, chunk=0), 0.0) == []
    assert plan.starved
    assert asked(plan.handle(PeerGained(peer=A, chunks=(0,)), 9.0)) == {(A, 0)}


@pytest.mark.parametrize("kind", ["broke", "missing"])
def test_who_breaks_its_word_too_often_is_ignored_even_if_it_comes_back(kind: str) -> None:
    plan, now = plan_of(20, window=1), 0.0
    for failure in range(MAX_FAILURES):
        now += 10
        ((_, chunk),) = asked(plan.handle(has(A, *range(20)), now))
        effects = plan.handle(Broke(peer=A) if kind == "broke" else Missing(peer=A, chunk=chunk), now)
        assert (Ignore(peer=A, corrupt=False) in effects) == (failure == MAX_FAILURES - 1)
        plan.handle(PeerGone(peer=A), now)
    assert plan.handle(has(A, *range(20)), now + 100) == []
    assert plan.starved


def test_wrong_bytes_are_enough_to_be_ignored_and_free_what_else_was_asked() -> None:
    plan = plan_of(2)
    plan.handle(has(A, 0, 1), 0.0)
    assert plan.handle(Corrupt(peer=A, chunk=0), 0.0) == [Ignore(peer=A, corrupt=True)]
    assert plan.handle(PeerGained(peer=A, chunks=(0,)), 1.0) == []
    assert asked(plan.handle(has(B, 0, 1), 1.0)) == {(B, 0), (B, 1)}


def test_when_a_peer_goes_its_chunks_are_free() -> None:
    plan = plan_of(1)
    plan.handle(has(A, 0), 0.0)
    assert plan.handle(has(B, 0), 0.0) == []
    assert asked(plan.handle(PeerGone(peer=A), 0.0)) == {(B, 0)}


def test_answers_to_what_was_never_asked_blame_nobody() -> None:
    plan = plan_of(2)
    plan.handle(has(A), 0.0)
    for _ in range(2 * MAX_FAILURES):
        for event in (Broke(peer=A), Missing(peer=A, chunk=0), Corrupt(peer=B, chunk=0)):
            assert plan.handle(event, 0.0) == []
    assert len(asked(plan.handle(has(A, 0, 1), 0.0))) == 2


def test_starved_is_when_nobody_here_holds_what_is_missing() -> None:
    plan = plan_of(2)
    assert plan.starved
    plan.handle(has(A, 0), 0.0)
    assert not plan.starved
    plan.handle(Arrived(peer=A, chunk=0), 0.0)
    assert plan.starved
    plan.handle(PeerGained(peer=A, chunks=(1,)), 0.0)
    assert plan.handle(Arrived(peer=A, chunk=1), 0.0) == [Complete()]
    assert not plan.starved


def test_peers_that_start_together_ask_the_source_for_different_chunks() -> None:
    first = [
        frozenset(
            chunk for _, chunk in asked(ChunkPicker(range(100), random.Random(seed)).handle(has(A, *range(100)), 0))
        )
        for seed in range(8)
    ]
    assert len(frozenset.union(*first)) > 8 * WINDOW * 2 // 3


def test_a_chunk_that_arrives_makes_up_for_a_broken_promise() -> None:
    plan, now = plan_of(40, window=1), 0.0
    effects = plan.handle(has(A, *range(40)), now)
    for _ in range(4 * MAX_FAILURES):
        assert plan.handle(Broke(peer=A), now) == []
        now += FAILURE_PAUSE_S
        ((_, chunk),) = asked(plan.handle(Tick(), now))
        effects = plan.handle(Arrived(peer=A, chunk=chunk), now)
    assert asked(effects)


def test_who_is_silent_is_given_up_and_one_who_sends_part_of_a_chunk_is_not() -> None:
    plan = plan_of(4, window=2)
    plan.handle(has(A, 0, 1), 0.0)
    plan.handle(has(B, 2, 3), 0.0)
    for second in range(1, 6):
        plan.handle(Heard(peer=B), float(second))
        assert GiveUp(peer=A) not in plan.handle(Tick(), TIMEOUT_S * second / 6)
    effects = plan.handle(Tick(), TIMEOUT_S + 1)
    assert GiveUp(peer=A) in effects
    assert GiveUp(peer=B) not in effects
    assert asked(plan.handle(PeerGained(peer=B, chunks=(0, 1)), TIMEOUT_S + 1)) == set(), "its window is full"
    assert asked(plan.handle(Arrived(peer=B, chunk=2), TIMEOUT_S + 1)) & {(B, 0), (B, 1)}


# Overdue chunks.


def with_an_overdue_chunk() -> tuple[ChunkPicker, int, float]:
    """A plan in which A was asked for a chunk too long ago, which B holds as well; and nobody holds the last chunk."""
    plan = ChunkPicker(range(3), random.Random(0), 1, MIN_WINDOW)
    ((_, slow),) = asked(plan.handle(has(A, 0), 0.0))
    plan.handle(has(B, 0, 1), 0.0)
    plan.handle(Arrived(peer=B, chunk=1), 0.1)
    assert plan.handle(Tick(), OVERDUE_S + FIRST_LATENCY_S) == []
    return plan, slow, OVERDUE_S + FIRST_LATENCY_S + 0.1


def test_what_is_overdue_is_recalled_once_and_then_asked_elsewhere() -> None:
    plan, slow, now = with_an_overdue_chunk()
    assert plan.handle(Tick(), now) == [Recall(peer=A, chunk=slow)]
    assert plan.handle(Tick(), now + 0.1) == []
    assert asked(plan.handle(Returned(peer=A, chunk=slow), now + 0.2)) == {(B, slow)}
    assert plan._failures[A] == 0


def test_what_is_recalled_may_come_all_the_same() -> None:
    plan, slow, now = with_an_overdue_chunk()
    plan.handle(Tick(), now)
    plan.handle(Arrived(peer=A, chunk=slow), now + 0.1)
    assert plan.missing == {2}
    assert plan.handle(Tick(), now + 9) == []


def test_what_is_neither_sent_nor_given_back_is_asked_of_a_second_and_the_slower_is_told() -> None:
    plan, slow, now = with_an_overdue_chunk()
    plan.handle(Tick(), now)
    plan.handle(Heard(peer=A), now + 1.0)
    now += OVERDUE_S + FIRST_LATENCY_S + 0.1
    assert plan.handle(Tick(), now) == [Ask(peer=B, chunk=slow)]
    assert plan.handle(Tick(), now + 1) == [], "two are enough"
    assert Cancel(peer=A, chunk=slow) in plan.handle(Arrived(peer=B, chunk=slow), now + 1.1)
    assert plan.handle(Arrived(peer=A, chunk=slow), now + 1.2) == [], "it came all the same"


def test_the_second_is_one_of_whom_something_was_heard_of_late_though_the_silent_owe_nothing() -> None:
    plan = ChunkPicker(range(3), random.Random(0), MIN_WINDOW, MIN_WINDOW)
    for peer in (A, B, C):
        plan.handle(has(peer, 0), 0.0)
    now = TIMEOUT_S + 1.0
    plan.handle(Heard(peer=A), now)
    assert plan.handle(Tick(), now) == [Recall(peer=A, chunk=0)]
    assert asked(plan.handle(PeerGained(peer=C, chunks=(1,)), now)) == {(C, 1)}
    plan.handle(Heard(peer=A), now + 1.0)
    assert plan.handle(Tick(), now + OVERDUE_S + FIRST_LATENCY_S + 0.1) == [Ask(peer=C, chunk=0)]


def test_what_only_one_holds_is_not_recalled_and_nor_is_what_nobody_else_has_room_for() -> None:
    plan, _, now = with_an_overdue_chunk()
    plan.handle(PeerGained(peer=B, chunks=(2,)), now)
    assert not [effect for effect in plan.handle(Tick(), now) if isinstance(effect, Recall)], "B's window is full"
    plan.handle(PeerGone(peer=B), now)
    assert plan.handle(Tick(), now + 1) == []


def in_the_end(num_chunks: int, quick_s: float) -> list[Effect]:
    """A takes 5 s a chunk and owes one; B, which holds that too, takes `quick_s` and has just delivered its last."""
    plan = ChunkPicker(range(num_chunks), random.Random(0), 1, MIN_WINDOW)
    plan.handle(has(A, 0, 1), 0.0)
    first = next(iter(plan._neighbours[A].asked))
    plan.handle(Arrived(peer=A, chunk=first), 5.0)
    plan.handle(has(B, 0, 1, 2), 5.0)
    return plan.handle(Arrived(peer=B, chunk=2), 5.0 + quick_s)


def test_in_the_endgame_what_would_come_much_sooner_from_elsewhere_is_recalled() -> None:
    (recall,) = in_the_end(3, 0.2)
    assert isinstance(recall, Recall)
    assert recall.peer == A
    assert in_the_end(4, 0.2) == [], "this is no endgame: a chunk is missing that nobody holds"
    assert in_the_end(3, 5.0 - ENDGAME_GAIN_S / 2) == [], "this is not much sooner"


def test_in_the_endgame_what_was_recalled_is_waited_for_less() -> None:
    plan = ChunkPicker(range(2), random.Random(0), 1, MIN_WINDOW)
    ((_, slow),) = asked(plan.handle(has(A, 0), 0.0))
    plan.handle(has(B, 0, 1), 0.0)
    plan.handle(Arrived(peer=B, chunk=1), 0.1)
    recalled_at = OVERDUE_S + FIRST_LATENCY_S + 0.1
    assert plan.endgame
    assert Recall(peer=A, chunk=slow) in plan.handle(Tick(), recalled_at) or slow in plan._neighbours[A].recalled
    recalled_at = plan._neighbours[A].recalled[slow]
    assert plan.handle(Tick(), recalled_at + 0.9 * ENDGAME_S) == []
    assert plan.handle(Tick(), recalled_at + 1.1 * ENDGAME_S) == [Ask(peer=B, chunk=slow)]


def test_what_is_news_to_a_peer_is_what_it_is_not_known_to_hold() -> None:
    plan = plan_of(4)
    plan.handle(has(A, 1, 3), 0.0)
    assert plan.news(A, [0, 1, 2, 3, 9]) == (0, 2, 9)
    assert plan.news(B, [0, 1]) == (0, 1)
    assert (plan.num_held(A), plan.num_held(B)) == (2, 0)


def test_of_those_asked_twice_there_are_few() -> None:
    plan = ChunkPicker(range(40), random.Random(0), 20, 20)
    plan.handle(has(A, *range(20)), 0.0)
    plan.handle(has(B, *range(20)), 0.0)
    now = 0.0
    for _ in range(20):
        now += 1.0
        for peer in (A, B):
            plan.handle(Heard(peer=peer), now)
        plan.handle(Tick(), now)
    assert sum(len(askers) > 1 for askers in plan._asked.values()) == MAX_SECOND_ASKS


# Windows.


@pytest.mark.parametrize(("chunk_s", "trip_s"), [(0.04, 0.001), (0.04, 0.2), (0.2, 0.1), (0.6, 0.3), (2.0, 0.1)])
def test_the_window_is_what_a_peer_sends_within_the_horizon(chunk_s: float, trip_s: float) -> None:
    """One server, whose uplink takes `chunk_s` a chunk, behind a round trip: it never waits for a request."""
    plan = ChunkPicker(range(400), random.Random(0))
    now, free_at, due = 0.0, 0.0, []
    effects = plan.handle(has(A, *range(400)), now)
    for _ in range(200):
        for effect in effects:
            if isinstance(effect, Ask):
                free_at = max(free_at, now + trip_s / 2) + chunk_s
                due.append((free_at + trip_s / 2, effect.chunk))
        now, chunk = due.pop(0)
        effects = plan.handle(Arrived(peer=A, chunk=chunk), now)
    window = plan._neighbours[A].window
    assert window == min(max(MIN_WINDOW, 1 + ceil(HORIZON_S / chunk_s - 1e-6)), MAX_WINDOW)
    assert window >= min(1 + trip_s / chunk_s, MAX_WINDOW), "enough to cover the round trip"


def test_the_window_of_a_peer_that_is_busy_narrows_to_what_it_took() -> None:
    plan = plan_of(20, window=5)
    chunks = [chunk for _, chunk in sorted(asked(plan.handle(has(A, *range(20)), 0.0)))]
    assert len(chunks) == 5
    for chunk in chunks[2:]:
        plan.handle(Refused(peer=A, chunk=chunk, retry_at=1.0), 0.1)
    assert plan._neighbours[A].window == 2
    assert asked(plan.handle(Tick(), 2.0)) == set()
    assert len(asked(plan.handle(Arrived(peer=A, chunk=chunks[0]), 2.1))) == 1


# The plan against peers of every kind.


@dataclass
class Books:
    """Keeps its own account of a plan and holds it to its promises."""

    plan: ChunkPicker
    window: int
    now: float = 0.0
    said: dict[PeerId, set[int]] = field(default_factory=dict)
    outstanding: set[tuple[PeerId, int]] = field(default_factory=set)
    asked_at: dict[tuple[PeerId, int], float] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    ignored: set[PeerId] = field(default_factory=set)
    busy_until: dict[PeerId, float] = field(default_factory=dict)
    complete: bool = False

    def feed(self, event: Event) -> list[Ask]:
        """Feed an event; return what is asked now."""
        match event:
            case PeerHas(peer=peer, chunks=chunks):
                self.said[peer] = set(chunks)
            case PeerGone(peer=peer):
                self.said.pop(peer, None)
                self.busy_until.pop(peer, None)
                self._free(peer)
            case Missing(peer=peer, chunk=chunk):
                self.said[peer].discard(chunk)
                self.outstanding.discard((peer, chunk))
            case Refused(peer=peer, chunk=chunk, retry_at=retry_at):
                self.busy_until[peer] = max(retry_at, self.busy_until.get(peer, 0.0))
                self.outstanding.discard((peer, chunk))
            case Arrived(peer=peer, chunk=chunk):
                self.arrived.add(chunk)
                self.outstanding.discard((peer, chunk))
            case Corrupt(peer=peer, chunk=chunk):
                self.outstanding.discard((peer, chunk))
            case Broke(peer=peer):
                self._free(peer)
        asks = []
        for effect in self.plan.handle(event, self.now):
            match effect:
                case Ask():
                    self._check(effect)
                    asks.append(effect)
                case Cancel(peer=peer, chunk=chunk):
                    assert chunk in self.arrived
                    self.outstanding.remove((peer, chunk))
                case Recall(peer=peer, chunk=chunk):
                    assert (peer, chunk) in self.outstanding
                case GiveUp(peer=peer):
                    self._free(peer)
                case Ignore(peer=peer):
                    assert peer not in self.ignored, "ignored once"
                    self.ignored.add(peer)
                    self._free(peer)
                case Complete():
                    assert not self.complete, "complete once"
                    self.complete = True
        return asks

    def _free(self, peer: PeerId) -> None:
        self.outstanding = {(p, c) for p, c in self.outstanding if p != peer}

    def _check(self, ask: Ask) -> None:
        assert not self.complete
        assert ask.peer not in self.ignored, "never asked again"
        assert ask.chunk in self.said[ask.peer], "only chunks that the peer holds may be asked of it"
        assert ask.chunk not in self.arrived, "only missing chunks may be asked for"
        others = [peer for peer, chunk in self.outstanding if chunk == ask.chunk]
        assert ask.peer not in others, "a chunk may be asked once of one peer"
        assert len(others) <= 1, "a chunk may be asked of two peers at most"
        asked_at = [self.asked_at[peer, ask.chunk] for peer in others]
        assert all(self.now - at > ENDGAME_S for at in asked_at), "a second peer may be asked only after ENDGAME_S"
        assert self.busy_until.get(ask.peer, 0.0) <= self.now, "not while it is busy"
        self.outstanding.add((ask.peer, ask.chunk))
        self.asked_at[ask.peer, ask.chunk] = self.now
        assert sum(peer == ask.peer for peer, _ in self.outstanding) <= self.window, "within its window"


Answer = Callable[[random.Random, Ask, float], Event]


def honest(rng: random.Random, ask: Ask, now: float) -> Event:
    return Arrived(peer=ask.peer, chunk=ask.chunk)


def overloaded(rng: random.Random, ask: Ask, now: float) -> Event:
    if rng.random() < 0.6:
        return Refused(peer=ask.peer, chunk=ask.chunk, retry_at=now + rng.random())
    return Arrived(peer=ask.peer, chunk=ask.chunk)


def silent(rng: random.Random, ask: Ask, now: float) -> Event:
    return Tick()


def flaky(rng: random.Random, ask: Ask, now: float) -> Event:
    return rng.choice([Broke(peer=ask.peer), *(kind(peer=ask.peer, chunk=ask.chunk) for kind in (Missing, Arrived))])


def liar(rng: random.Random, ask: Ask, now: float) -> Event:
    return rng.choice([Broke(peer=ask.peer), *(kind(peer=ask.peer, chunk=ask.chunk) for kind in (Missing, Corrupt))])


@settings(max_examples=examples(150))
@given(
    chunks=st.integers(0, 40),
    window=st.integers(MIN_WINDOW, 4),
    kinds=st.lists(st.sampled_from([honest, overloaded, flaky, liar, silent]), max_size=6),
    leaving=st.floats(0, 0.2),
    seed=st.integers(0, 2**32),
)
def test_it_completes_if_one_peer_holds_all_and_answers_in_the_end(
    chunks: int, window: int, kinds: list[Answer], leaving: float, seed: int
) -> None:
    rng = random.Random(seed)
    books = Books(ChunkPicker(range(chunks), rng, window, window), window)
    answers: dict[PeerId, Answer] = {PeerId("source"): overloaded}
    answers |= {PeerId(f"{kind.__name__}{i}"): kind for i, kind in enumerate(kinds)}
    asks: list[Ask] = []
    for peer, kind in answers.items():
        held = range(chunks) if kind is overloaded else rng.sample(range(chunks), rng.randint(0, chunks))
        asks += books.feed(PeerHas(peer=peer, chunks=frozenset(held)))
    for _ in range(400 + 40 * chunks):
        books.now += 0.1
        asks = [ask for ask in asks if (ask.peer, ask.chunk) in books.outstanding]
        if asks:
            ask = asks.pop(rng.randrange(len(asks)))
            event = answers[ask.peer](rng, ask, books.now)
            asks += books.feed(event)
            if isinstance(event, Tick):
                asks.append(ask)
        asks += books.feed(Tick())
        if rng.random() < leaving:
            peer = rng.choice(list(answers))
            asks += books.feed(PeerGone(peer=peer))
            asks += books.feed(PeerHas(peer=peer, chunks=frozenset(range(chunks))))
    assert books.complete
    assert books.arrived == set(range(chunks))
    assert PeerId("source") not in books.ignored


EVENTS = st.one_of(
    st.builds(PeerHas, peer=st.sampled_from([A, B, C]), chunks=st.frozensets(st.integers(0, 9))),
    st.builds(PeerGained, peer=st.sampled_from([A, B, C]), chunks=st.tuples(st.integers(0, 9))),
    st.builds(PeerGone, peer=st.sampled_from([A, B, C])),
    st.builds(Arrived, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 9)),
    st.builds(Refused, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 9), retry_at=st.floats(0, 9)),
    st.builds(Returned, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 9)),
    st.builds(Broke, peer=st.sampled_from([A, B, C])),
    st.builds(Heard, peer=st.sampled_from([A, B, C])),
    st.builds(Missing, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 9)),
    st.builds(Corrupt, peer=st.sampled_from([A, B, C]), chunk=st.integers(0, 9)),
    st.just(Tick()),
)


@settings(max_examples=examples(200))
@given(st.lists(EVENTS, max_size=60))
def test_no_order_of_events_upsets_its_counts(events: list[Event]) -> None:
    plan = ChunkPicker(range(8), random.Random(0), 2)
    for now, event in enumerate(events):
        plan.handle(event, float(now))
        neighbours = plan._neighbours
        assert {chunk: sorted(askers) for chunk, askers in plan._asked.items()} == {
            chunk: sorted(peer for peer, n in neighbours.items() if chunk in n.asked)
            for chunk in {chunk for n in neighbours.values() for chunk in n.asked}
        }
        assert plan._asked.keys() <= plan.missing
        assert all(n.recalled.keys() <= n.asked.keys() for n in neighbours.values())
        held = {peer: {chunk for chunk, flag in enumerate(n.holds) if flag} for peer, n in neighbours.items()}
        assert plan._holders == [sum(chunk in chunks for chunks in held.values()) for chunk in range(8)]
        assert plan._num_known == sum(plan._holders[chunk] > 0 for chunk in plan.missing)
        assert all(n.num_held == len(held[peer]) for peer, n in neighbours.items())
        queued = {peer: {plan._by_rank[key % scheduler._RANKS] for key in n.queue} for peer, n in neighbours.items()}
        for peer in neighbours:
            assert (held[peer] & plan.missing) - plan._asked.keys() <= queued[peer], (
                "a free chunk is missing in the queue"
            )
        assert not plan._ignored & neighbours.keys()
