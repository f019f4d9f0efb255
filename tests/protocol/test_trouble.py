"""How troubles travel: bounded, harmless to readers that do not know them, and readable by older ones."""

from __future__ import annotations

import msgspec
import pytest

from protocol.core.codec import decode, encode
from protocol.core.errors import PeerError
from protocol.core.ids import PolicyVersion
from protocol.trouble import MAX_TROUBLE_CHARS, MAX_TROUBLES, Trouble, TroubleKind
from protocol.work import Heartbeat


def heartbeat(troubles: object) -> bytes:
    return msgspec.msgpack.encode({"type": "heartbeat", "troubles": troubles})


def test_a_heartbeat_without_troubles_is_as_before() -> None:
    assert b"troubles" not in encode(Heartbeat())
    assert decode(Heartbeat, msgspec.msgpack.encode({"type": "heartbeat"}), 100).troubles == []


def test_a_kind_younger_than_this_program_is_another() -> None:
    found = decode(Heartbeat, heartbeat([["weather", 2, "rain", None], ["install", 1, "no", [1, 0]]]), 1000)
    other, install = Trouble(TroubleKind.OTHER, 2, "rain"), Trouble(TroubleKind.INSTALL, 1, "no", PolicyVersion(1, 0))
    assert found.troubles == [other, install]


def test_a_younger_node_may_say_more_of_each() -> None:
    found = decode(Heartbeat, heartbeat([["lease", 2, "no", None, "more"]]), 1000)
    assert found.troubles == [Trouble(TroubleKind.LEASE, 2, "no")]


@pytest.mark.parametrize(
    "troubles",
    [
        [["lease", 1, "x", None]] * (MAX_TROUBLES + 1),
        [["lease", 1, "x" * (MAX_TROUBLE_CHARS + 1), None]],
        [["lease", -1, "x", None]],
        [["lease", 1 << 53, "x", None]],
        [["lease", 1]],
        [["lease", 1, "x", [1, 2, 3]]],
        [[7, 1, "x", None]],
        "lease",
    ],
    ids=["too many", "too long", "below 0", "too often", "cut short", "no version", "no kind", "no list"],
)
def test_what_is_out_of_bounds_is_malformed(troubles: object) -> None:
    with pytest.raises(PeerError):
        decode(Heartbeat, heartbeat(troubles), 10_000)


def test_the_largest_heartbeat_is_small() -> None:
    worst = Trouble(TroubleKind.INSTALL, (1 << 53) - 1, "\U0001f426" * MAX_TROUBLE_CHARS, PolicyVersion(2**40, 2**40))
    assert len(encode(Heartbeat(troubles=[worst] * MAX_TROUBLES))) < 5500


def test_there_is_room_for_every_kind() -> None:
    assert len(TroubleKind) - 1 < MAX_TROUBLES
