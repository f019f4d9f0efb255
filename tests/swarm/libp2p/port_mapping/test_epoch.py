"""Detect from a gateway's clock that it has forgotten its mappings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.port_mapping.epoch import EpochWatch
from swarm.libp2p.port_mapping.outcomes import MappedBy

DATAGRAMS = st.sampled_from([MappedBy.PCP, MappedBy.NAT_PMP])


@given(DATAGRAMS, st.integers(0, 1 << 31), st.lists(st.floats(0.0, 100_000.0), max_size=10), st.floats(-1e6, 1e6))
def test_a_clock_that_moves_with_ours_is_believed(
    protocol: MappedBy, begin: int, pauses: list[float], now: float
) -> None:
    watch = EpochWatch(protocol=protocol)
    began = now
    assert not watch.has_forgotten(begin, now)
    for pause in pauses:
        now += pause
        assert not watch.has_forgotten(begin + int(now - began), now)


@given(DATAGRAMS, st.integers(60, 1 << 31), st.integers(0, 50), st.floats(0.0, 1000.0))
def test_a_router_that_started_anew_has_forgotten(protocol: MappedBy, before: int, since: int, elapsed: float) -> None:
    watch = EpochWatch(protocol=protocol)
    watch.has_forgotten(before, 0.0)
    assert watch.has_forgotten(since, elapsed)


def test_a_slow_clock_is_told_by_pcp_alone() -> None:
    """RFC 6887 bounds the drift by a sixteenth, RFC 6886 by an eighth."""
    for protocol, forgot in ((MappedBy.PCP, True), (MappedBy.NAT_PMP, False)):
        watch = EpochWatch(protocol=protocol)
        watch.has_forgotten(0, 0.0)
        assert watch.has_forgotten(900, 1000.0) is forgot


def test_a_jump_ahead_is_another_clock() -> None:
    watch = EpochWatch(protocol=MappedBy.PCP)
    watch.has_forgotten(0, 0.0)
    assert watch.has_forgotten(500, 10.0)


@given(DATAGRAMS, st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.floats(-1e9, 1e9))))
def test_no_clock_breaks_it(protocol: MappedBy, heard: list[tuple[int, float]]) -> None:
    watch = EpochWatch(protocol=protocol)
    for epoch, now in heard:
        watch.has_forgotten(epoch, now)
