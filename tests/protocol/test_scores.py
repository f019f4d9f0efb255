"""Score leases and records: they are read as written, with checks of signers and of scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.claims import CostClaim
from protocol.core.codec import pack_tokens
from protocol.core.envelope import sign
from protocol.core.errors import Fault, PeerError
from protocol.core.identity import Keypair
from protocol.core.ids import SwarmId
from protocol.core.limits import MAX_WORK_BYTES
from protocol.scores import (
    MAX_SCORE_LEASE_BYTES,
    MIN_SCORE,
    ScoreGrant,
    ScoreLease,
    ScoreRecord,
    open_score_lease,
    pack_scores,
    read_score_record,
    unpack_scores,
)

SWARM = SwarmId(b"\x05" * 32)
LEARNER, TEACHER = Keypair(b"\x01" * 32), Keypair(b"\x02" * 32)


def lease(**changes: Any) -> ScoreLease:
    said: dict[str, Any] = {
        "id": bytes(16),
        "peer": TEACHER.peer_id,
        "teacher": bytes(32),
        "prompt": pack_tokens((1, 2)),
        "completions": [pack_tokens((3,)), pack_tokens((4, 5))],
        "temperature": 1.0,
        "issued_ms": 1,
        "deadline_ms": 2,
    }
    return ScoreLease(**{**said, **changes})


def record(*scores: bytes) -> ScoreRecord:
    return ScoreRecord(lease=bytes(16), scores=list(scores), cost=CostClaim(engine_s=0.5))


@given(st.lists(st.floats(MIN_SCORE, 0.0, width=32), min_size=1))
def test_scores_are_read_as_they_were_written(scores: list[float]) -> None:
    assert unpack_scores(pack_scores(scores)) == tuple(scores)


def test_what_is_all_but_impossible_is_told_as_the_least_there_is() -> None:
    assert unpack_scores(pack_scores([-math.inf, -1e30, -1.0])) == (MIN_SCORE, MIN_SCORE, -1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5, -1e30], ids=str)
def test_what_is_no_log_probability_is_malformed(value: float) -> None:
    with pytest.raises(PeerError) as caught:
        unpack_scores(np.array([value], "<f4").tobytes())
    assert caught.value.fault is Fault.MALFORMED


def test_bytes_that_are_no_floats_are_malformed() -> None:
    raw = sign(TEACHER, SWARM, record(b"\0" * 5))
    with pytest.raises(PeerError, match="not a multiple of 4"):
        read_score_record(raw, SWARM)


def test_a_lease_counts_only_if_the_learner_signed_it() -> None:
    assert open_score_lease(sign(LEARNER, SWARM, lease()), SWARM, learner=LEARNER.peer_id) == lease()
    with pytest.raises(PeerError) as caught:
        open_score_lease(sign(TEACHER, SWARM, lease()), SWARM, learner=LEARNER.peer_id)
    assert caught.value.fault is Fault.UNAUTHORISED


def test_a_record_says_who_signed_it_and_what_it_says() -> None:
    signed = read_score_record(sign(TEACHER, SWARM, record(pack_scores([-1.0]), pack_scores([-2.0, 0.0]))), SWARM)
    assert signed.author == TEACHER.peer_id
    assert signed.scores == ((-1.0,), (-2.0, 0.0))
    signed.envelope.verify_signature()


def test_a_record_is_of_one_swarm() -> None:
    with pytest.raises(PeerError):
        read_score_record(sign(TEACHER, SWARM, record(pack_scores([-1.0]))), SwarmId(bytes(32)))


def test_the_largest_lease_fits_a_frame() -> None:
    assert MAX_SCORE_LEASE_BYTES + 64 * 1024 <= MAX_WORK_BYTES
    assert ScoreGrant(leases=[bytes(8)], now_ms=0).leases == [bytes(8)]
