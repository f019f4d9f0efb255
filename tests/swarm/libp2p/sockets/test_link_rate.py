"""Measure a connection's rate while it is busy, and never from bytes that go into empty buffers."""

from __future__ import annotations

from math import inf

import pytest

from swarm.libp2p.sockets.link_rate import ENOUGH_BYTES, PAUSE_S, Pace

KIB = 1024


def write(pace: Pace, size: int, seconds: float, since: float) -> float:
    pace.wrote(size, since, since + seconds)
    return since + seconds


def test_a_busy_line_is_measured() -> None:
    pace, now = Pace(), 0.0
    assert pace.bytes_per_s == inf
    for _ in range(10):
        now = write(pace, 10 * KIB, 0.02, now)
    assert pace.bytes_per_s == pytest.approx(500 * KIB)
    assert pace.within(0.1, at_least=1, at_most=KIB * KIB) == 50 * KIB
    assert pace.within(0.1, at_least=60 * KIB, at_most=KIB * KIB) == 60 * KIB
    assert pace.within(0.1, at_least=1, at_most=KIB) == KIB


def test_a_quick_line_is_measured_by_bytes() -> None:
    pace, now = Pace(), 0.0
    for _ in range(ENOUGH_BYTES // (64 * KIB) + 1):
        now = write(pace, 64 * KIB, 0.0001, now)
    assert pace.bytes_per_s == pytest.approx(64 * KIB / 0.0001)


def test_what_follows_a_pause_says_nothing() -> None:
    pace, now = Pace(), 0.0
    for _ in range(10):
        now = write(pace, 10 * KIB, 0.02, now)
    measured = pace.bytes_per_s
    for _ in range(1000):
        now = write(pace, 10 * KIB, 0.0, now + 2 * PAUSE_S)
    assert pace.bytes_per_s == measured
