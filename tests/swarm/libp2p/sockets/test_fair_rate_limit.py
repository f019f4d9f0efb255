"""The token bucket of caps: never more than the rate and a burst, equal turns, small messages first but not alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.sockets.fair_rate_limit import (
    MAX_FLOWS,
    MIN_PIECE_BYTES,
    OVERDRAFT_S,
    PIECE_S,
    SLACK_S,
    SMALL_BYTES,
    Asked,
    Event,
    Pacing,
    Rated,
    Tick,
    Ticket,
    Unused,
    Withdrawn,
)

RATE = 1_000_000.0
"""Bytes per second: a piece is 20,000 bytes."""


def burst_bytes(core: Pacing) -> float:
    """At most granted at once."""
    return core._capacity + core._overdraft


@dataclass
class Bucket:
    """A `Pacing` and what it granted when."""

    rate: float = RATE
    now: float = 100.0
    core: Pacing = field(init=False)
    asked: dict[Ticket, Asked] = field(default_factory=dict)
    asked_at: dict[Ticket, float] = field(default_factory=dict)
    granted: list[tuple[float, Ticket]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Pacing(bytes_per_s=self.rate)

    def feed(self, event: Event) -> list[Ticket]:
        tickets = self.core.handle(event, self.now)
        self.granted += [(self.now, ticket) for ticket in tickets]
        return tickets

    def ask(self, size: int, *, flow: int = 0, small: bool = False) -> Ticket:
        ticket = len(self.asked)
        self.asked[ticket] = Asked(ticket=ticket, flow=flow, size=size, small=small)
        self.asked_at[ticket] = self.now
        self.feed(self.asked[ticket])
        return ticket

    def drain(self) -> None:
        """Go on in time until nobody waits."""
        for _ in range(10 * len(self.asked) + 10):
            if self.core.next_at == math.inf:
                return
            self.now = max(self.now, self.core.next_at)
            self.feed(Tick())
        raise AssertionError(f"{self.core} grants nothing any more")

    def empty(self) -> None:
        """Take what the bucket has saved up, leaving nothing and owing nothing."""
        level = burst_bytes(self.core) - max(2 * SMALL_BYTES, self.rate * OVERDRAFT_S)
        while level >= 1:
            size = min(int(level), self.core.piece_bytes)
            assert self.has(self.ask(size))
            level -= size

    def has(self, ticket: Ticket) -> bool:
        return any(ticket == one for _, one in self.granted)

    def order(self) -> list[Ticket]:
        return [ticket for _, ticket in self.granted]


def test_pieces_and_burst_follow_the_rate() -> None:
    fast = Pacing(bytes_per_s=50e6)
    assert fast.piece_bytes == 50e6 * PIECE_S
    assert burst_bytes(fast) == pytest.approx(50e6 * (PIECE_S + SLACK_S + OVERDRAFT_S))
    assert burst_bytes(fast) / 50e6 <= 0.05
    slow = Pacing(bytes_per_s=12_500)
    assert slow.piece_bytes == MIN_PIECE_BYTES
    assert burst_bytes(slow) == MIN_PIECE_BYTES + 2 * SMALL_BYTES + 12_500 * SLACK_S


def test_what_fits_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = Bucket()
    bucket.empty()
    began = bucket.now
    tickets = [bucket.ask(20_000) for _ in range(50)]
    assert not any(map(bucket.has, tickets))
    bucket.drain()
    assert bucket.now - began == pytest.approx(50 * 20_000 / RATE)


def test_nothing_is_saved_up_beyond_the_burst() -> None:
    bucket = Bucket()
    bucket.now += 3600
    bucket.empty()
    assert not bucket.has(bucket.ask(20_000))


def test_a_late_tick_is_made_up_for() -> None:
    bucket = Bucket()
    bucket.empty()
    began = bucket.now
    for _ in range(100):
        bucket.ask(20_000)
        bucket.now = bucket.core.next_at + SLACK_S / 2
        bucket.feed(Tick())
    assert len(bucket.granted) >= 100
    assert bucket.now - began <= 100 * 20_000 / RATE + SLACK_S


def test_connections_that_ask_again_and_again_take_equal_shares() -> None:
    bucket = Bucket()
    bucket.empty()
    sizes = {1: 20_000, 2: 20_000, 3: 3_000, 4: 700}
    for flow, size in sizes.items():
        bucket.ask(size, flow=flow)
    moved = dict.fromkeys(sizes, 0)
    for _ in range(1000):
        bucket.now = bucket.core.next_at
        for ticket in bucket.feed(Tick()):
            one = bucket.asked[ticket]
            moved[one.flow] += one.size
            bucket.ask(one.size, flow=one.flow)
        assert max(moved.values()) - min(moved.values()) <= 2 * bucket.core.piece_bytes
    assert min(moved.values()) > 10 * bucket.core.piece_bytes


def test_who_was_away_has_saved_up_no_turns() -> None:
    bucket = Bucket()
    bucket.empty()
    bucket.ask(20_000, flow=1)
    for _ in range(100):
        bucket.now = bucket.core.next_at
        bucket.feed(Tick())
        bucket.ask(20_000, flow=2)
    for _ in range(10):
        bucket.ask(20_000, flow=1)
    bucket.drain()
    last = [bucket.asked[ticket].flow for ticket in bucket.order()[-11:]]
    assert last[:3].count(2) == 1, "its turn is among the first"


def test_connections_that_come_and_go_are_not_remembered_for_ever() -> None:
    bucket = Bucket()
    for flow in range(2 * MAX_FLOWS):
        bucket.ask(100, flow=flow)
        bucket.now += 1
    assert len(bucket.core._had) <= MAX_FLOWS


def test_a_small_message_goes_before_bulk_that_waits() -> None:
    bucket = Bucket()
    bucket.empty()
    for _ in range(10):
        bucket.ask(20_000)
    assert bucket.has(bucket.ask(100, small=True))


def test_small_messages_without_end_let_bulk_pass() -> None:
    bucket = Bucket()
    bucket.empty()
    bulk = bucket.ask(20_000)
    asked_at = bucket.now
    small = {bucket.ask(SMALL_BYTES, small=True) for _ in range(100)}
    while not bucket.has(bulk):
        bucket.now = bucket.core.next_at
        bucket.feed(Tick())
    before = sum(ticket in small for ticket in bucket.order()[: bucket.order().index(bulk)])
    assert 0 < before * SMALL_BYTES <= bucket.core.piece_bytes
    assert bucket.now - asked_at <= 2 * PIECE_S
    bucket.drain()
    assert all(map(bucket.has, small))


def test_what_is_withdrawn_costs_nothing_and_holds_nobody_up() -> None:
    bucket = Bucket()
    bucket.empty()
    gone, next_one = bucket.ask(20_000), bucket.ask(10_000)
    assert bucket.feed(Withdrawn(ticket=gone)) == []
    assert bucket.core.next_at == pytest.approx(bucket.now + 10_000 / RATE)
    bucket.drain()
    assert bucket.has(next_one)
    assert not bucket.has(gone)
    assert bucket.feed(Withdrawn(ticket=next_one)) == []


def test_what_was_granted_and_not_used_goes_to_the_next() -> None:
    bucket = Bucket()
    bucket.empty()
    bucket.ask(20_000)
    bucket.drain()
    next_one = bucket.ask(20_000)
    assert not bucket.has(next_one)
    assert bucket.feed(Unused(size=20_000)) == [next_one]
    bucket.now += 3600
    bucket.feed(Unused(size=20_000))
    bucket.empty()
    assert not bucket.has(bucket.ask(20_000)), "but no more than the bucket holds"


def test_another_rate_holds_at_once_for_those_that_wait() -> None:
    bucket = Bucket()
    bucket.empty()
    tickets = [bucket.ask(20_000) for _ in range(10)]
    bucket.feed(Rated(bytes_per_s=10 * RATE))
    began = bucket.now
    bucket.drain()
    assert all(map(bucket.has, tickets))
    assert bucket.now - began == pytest.approx(200_000 / (10 * RATE))
    assert bucket.core.piece_bytes == 200_000
    assert bucket.has(bucket.ask(100_000)) is False, "the bucket is empty"


def test_after_the_rate_fell_old_pieces_go_and_their_bytes_are_paid_for() -> None:
    bucket = Bucket()
    bucket.empty()
    old = [bucket.ask(20_000) for _ in range(3)]
    slow = RATE / 100
    bucket.feed(Rated(bytes_per_s=slow))
    began = bucket.now
    assert bucket.core.piece_bytes == MIN_PIECE_BYTES
    new = bucket.ask(MIN_PIECE_BYTES)
    bucket.drain()
    assert bucket.order()[-4:] == [*old, new]
    assert bucket.now - began == pytest.approx((3 * 20_000 + MIN_PIECE_BYTES) / slow, rel=0.1)


def test_a_lower_rate_leaves_no_more_than_its_own_burst() -> None:
    bucket = Bucket()
    bucket.feed(Tick())
    bucket.feed(Rated(bytes_per_s=RATE / 100))
    burst = burst_bytes(bucket.core)
    got = 0
    while bucket.has(bucket.ask(1000)):
        got += 1000
    assert got <= burst


@given(
    rates=st.lists(st.sampled_from([10_000.0, 150_000.0, 1e6, 50e6]), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.floats(0.001, 1), st.booleans(), st.sampled_from([0.0, 0.01, 0.3])), max_size=30),
)
def test_whatever_the_rates_nobody_starves_and_a_quiet_bucket_does_not_overflow(
    rates: list[float], steps: list[tuple[float, bool, float]]
) -> None:
    bucket = Bucket(rate=rates[0])
    for place, (share, small, pause_s) in enumerate(steps):
        bucket.feed(Rated(bytes_per_s=rates[place % len(rates)]))
        bucket.now += pause_s
        most = SMALL_BYTES if small else bucket.core.piece_bytes
        bucket.ask(max(1, int(share * most)), small=small)
    bucket.drain()
    assert set(bucket.order()) == set(bucket.asked)
    assert bucket.core._level <= bucket.core._capacity


@pytest.mark.parametrize("size", [0, -1, 20_001])
def test_more_than_a_piece_is_our_mistake(size: int) -> None:
    with pytest.raises(ValueError, match="a piece has 1 to 20000"):
        Pacing(bytes_per_s=RATE).handle(Asked(ticket=1, flow=1, size=size), 0.0)


@dataclass(frozen=True)
class Step:
    """Wait `pause_s`, tick or not, then ask for a share of a piece or small message, or withdraw somebody."""

    pause_s: float
    ticks: bool
    share: float
    small: bool
    flow: int
    withdraws: int | None


STEPS = st.lists(
    st.builds(
        Step,
        pause_s=st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.02, 0.3]),
        ticks=st.booleans(),
        share=st.floats(0.001, 1),
        small=st.booleans(),
        flow=st.integers(0, 3),
        withdraws=st.none() | st.integers(0, 50),
    ),
    max_size=60,
)


@given(rate=st.sampled_from([10_000.0, 150_000.0, 625_000.0, 50e6]), steps=STEPS)
def test_over_any_window_no_more_than_the_rate_and_nobody_starves(rate: float, steps: list[Step]) -> None:
    bucket, withdrawn = Bucket(rate=rate), set[Ticket]()
    for step in steps:
        until = bucket.now + step.pause_s
        while step.ticks and bucket.core.next_at <= until:
            bucket.now = max(bucket.now, bucket.core.next_at)
            bucket.feed(Tick())
        bucket.now = until
        if step.withdraws is not None and step.withdraws in bucket.asked:
            if not bucket.has(step.withdraws):
                withdrawn.add(step.withdraws)
            bucket.feed(Withdrawn(ticket=step.withdraws))
        else:
            most = SMALL_BYTES if step.small else bucket.core.piece_bytes
            bucket.ask(max(1, int(step.share * most)), flow=step.flow, small=step.small)
    bucket.drain()
    order = bucket.order()
    assert len(set(order)) == len(order)
    assert set(order) == set(bucket.asked) - withdrawn

    bulk = [[t for t in order if bucket.asked[t].flow == flow and not bucket.asked[t].small] for flow in range(4)]
    for line in (*bulk, [ticket for ticket in order if bucket.asked[ticket].small]):
        assert line == sorted(line), "in the order of asking"

    moved = [(at, bucket.asked[ticket].size) for at, ticket in bucket.granted]
    for first in range(len(moved)):
        total = 0
        for at, size in moved[first:]:
            total += size
            assert total <= rate * (at - moved[first][0]) + burst_bytes(bucket.core) + 1

    overtaken = 0
    for at, ticket in bucket.granted:
        one = bucket.asked[ticket]
        if not one.small:
            overtaken = 0
        elif any(not other.small and other.ticket not in withdrawn for other in waiting_at(bucket, at, ticket)):
            overtaken += one.size
            assert overtaken <= bucket.core.piece_bytes
        else:
            overtaken = 0


def waiting_at(bucket: Bucket, at: float, granted: Ticket) -> list[Asked]:
    """Return those who had waited since before `at`, when `granted` was granted, and still wait afterwards."""
    later = bucket.order()[bucket.order().index(granted) :]
    return [bucket.asked[ticket] for ticket in later[1:] if bucket.asked_at[ticket] < at]
