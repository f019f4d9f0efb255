"""Record boundaries: a reader never asks for more than must come."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.tls.records import HEADER_BYTES, OVERHEAD_BYTES, RecordTracker


def record(plaintext: int) -> bytes:
    """A record that carries so many bytes."""
    return b"\x17\x03\x03" + (plaintext + OVERHEAD_BYTES).to_bytes(2, "big") + bytes(plaintext + OVERHEAD_BYTES)


def needed(sizes: list[int], arrived: int, plaintext: int) -> int:
    """How many bytes must come after `arrived` ones until `plaintext` more than those complete by then can be read."""
    read, end = 0, 0
    for size in sizes:
        end += len(record(size))
        if end > arrived:
            read += size
            if read >= plaintext:
                return end - arrived
    raise AssertionError("not enough was sent")


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.lists(st.integers(1, 90), max_size=20),
    st.integers(1, 150),
)
def test_never_more_than_must_come(sizes: list[int], cuts: list[int], plaintext: int) -> None:
    wire = b"".join(map(record, sizes))
    tracker = RecordTracker()
    arrived = 0
    for size in cuts:
        tracker.feed(wire[arrived : arrived + size])
        arrived = min(arrived + size, len(wire))
        assert tracker.num_complete == sum(end <= arrived for end in accumulate(len(record(size)) for size in sizes))
        assert 1 <= tracker.before(plaintext) <= needed([*sizes, plaintext], arrived, plaintext)


def test_asks_for_the_rest_of_a_record_and_what_follows() -> None:
    tracker = RecordTracker()
    tracker.feed(record(1000)[:-300])
    assert tracker.before(1) == tracker.before(1000) == 300
    assert tracker.before(1500) == 300 + 500
    tracker.feed(bytes(300))
    assert tracker.before(1500) == HEADER_BYTES + OVERHEAD_BYTES + 1500
