"""Decide which claims of joules are accepted, and read a source that was added later."""

from __future__ import annotations

import msgspec
import pytest

from protocol.accounting.claims import LEAST_S, MAX_ENERGY_SOURCES, MAX_WATTS, Energy, EnergySource, is_believed
from protocol.core.codec import decode, encode
from protocol.core.errors import PeerError
from protocol.work import Heartbeat


@pytest.mark.parametrize(
    ("joules", "seconds", "believed"),
    [
        (0.0, 0.0, True), (MAX_WATTS * LEAST_S, 0.0, True), (MAX_WATTS * LEAST_S + 1, 0.0, False),
        (3.6e7, 3600.0, True), (3.7e7, 3600.0, False), (1e15, 1e6, False), (1.0, -5.0, True),
    ],
)  # fmt: skip
def test_no_machine_draws_more_than_so_much(joules: float, seconds: float, believed: bool) -> None:
    assert is_believed(joules, seconds) is believed


def test_a_source_younger_than_this_program_is_another() -> None:
    raw = msgspec.msgpack.encode({"type": "heartbeat", "energy": [["sun", 2.0], ["nvml", 3.0]]})
    found = decode(Heartbeat, raw, 1000)
    assert found.energy == [Energy(EnergySource.OTHER, 2.0), Energy(EnergySource.NVML, 3.0)]


@pytest.mark.parametrize(
    "energy", [[["nvml", float("nan")]], [["nvml", float("inf")]], [["nvml", -1.0]], [["nvml"]], [["x", 1.0]] * 5]
)
def test_joules_that_are_no_number_or_too_many_are_malformed(energy: object) -> None:
    with pytest.raises(PeerError):
        decode(Heartbeat, msgspec.msgpack.encode({"type": "heartbeat", "energy": energy}), 1000)


def test_a_heartbeat_without_joules_is_as_before() -> None:
    assert b"energy" not in encode(Heartbeat())
    assert len(EnergySource) - 1 <= MAX_ENERGY_SOURCES
