"""Keep chunks in memory for a while: the newest are there, and never more than the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.digest import cid_of
from swarm.transfer.chunk_cache import RECENT_BYTES, RecentChunks

SIZES = [1, 1000, RECENT_BYTES // 3, RECENT_BYTES // 2, RECENT_BYTES, RECENT_BYTES + 1]
BLOBS = {size: bytes(size) for size in SIZES}


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(SIZES)), max_size=20))
def test_the_newest_are_here_and_never_too_much(added: list[tuple[int, int]]) -> None:
    recent, order = RecentChunks(), dict[bytes, int]()
    for name, size in added:
        cid = cid_of(f"{name} {size}".encode())
        recent.add(cid, BLOBS[size])
        if size <= RECENT_BYTES:
            order.setdefault(cid, size)
        while sum(order.values()) > RECENT_BYTES:
            del order[next(iter(order))]
        assert {cid: len(recent.get(cid) or b"") for cid in order} == order
        assert recent.get(cid_of(b"never added")) is None
    kept = [size for name in range(10) for size in SIZES if recent.get(cid_of(f"{name} {size}".encode())) is not None]
    assert sum(kept) == sum(order.values()) <= RECENT_BYTES
