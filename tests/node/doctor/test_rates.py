"""Measure how fast bytes travel: the requests to a learner, and the rates from its answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.doctor.findings import NotKnown, Rate
from node.doctor.rates import (
    COARSE_BYTES,
    DOWN_BYTES,
    PADDED_BYTES,
    UP_QUESTIONS,
    measure_download,
    measure_upload,
    padded_question,
    some_chunks,
    steady_rate,
)
from protocol.core.codec import encode
from protocol.core.limits import MAX_CHUNK_BYTES, MAX_REQUEST_BYTES
from protocol.versions.manifest import ChunkRef
from swarm.libp2p import open_libp2p
from swarm.transfer.serving import STRANGER_QUESTIONS
from tests.support.doctor_swarm import open_learner, version

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


def test_a_long_question_is_as_long_as_one_may_be() -> None:
    assert PADDED_BYTES < len(encode(padded_question())) <= MAX_REQUEST_BYTES


def test_there_are_fewer_of_them_than_a_stranger_may_ask_at_once() -> None:
    assert STRANGER_QUESTIONS.burst - 10 >= UP_QUESTIONS, "ten are left for all else"


@given(st.lists(st.integers(1, MAX_CHUNK_BYTES), max_size=40))
def test_no_more_is_asked_for_than_the_bound_and_one_chunk(sizes: list[int]) -> None:
    chunks = [ChunkRef(cid=number.to_bytes(36, "big"), size=size) for number, size in enumerate(sizes)]
    chosen = some_chunks(chunks)
    assert len(set(chosen)) == len(chosen)
    assert sum(one.size for one in chosen) < DOWN_BYTES + MAX_CHUNK_BYTES
    assert sum(one.size for one in chosen) >= min(DOWN_BYTES, sum(sizes))


def test_what_came_while_the_line_got_up_to_its_speed_is_left_out() -> None:
    mib = 1 << 20
    slow, fast = [(0.1 * number, 1000 * number) for number in range(1, 4)], [(1.0, 3000), (2.0, mib), (3.0, 2 * mib)]
    assert steady_rate(0.0, slow + fast) == Rate(size_bytes=2 * mib - 3000, seconds=2.0, is_coarse=False)


def test_of_little_all_counts() -> None:
    assert steady_rate(0.0, [(0.5, 100), (1.0, 200)]) == Rate(size_bytes=200, seconds=1.0, is_coarse=True)
    assert steady_rate(5.0, [(5.0, 200)]).bytes_per_s > 0


@given(st.lists(st.tuples(st.floats(0.001, 1), st.integers(1, 1 << 22)), min_size=1, max_size=20), st.floats(0, 100))
def test_a_rate_is_that_of_some_of_what_came(steps: list[tuple[float, int]], began_s: float) -> None:
    came, at_s, total = [], began_s, 0
    for seconds, size in steps:
        at_s, total = at_s + seconds, total + size
        came.append((at_s, total))
    found = steady_rate(began_s, came)
    assert 0 < found.size_bytes <= total
    assert found.seconds > 0
    assert found.is_coarse == (found.size_bytes < COARSE_BYTES)


async def test_both_ways_to_a_learner_that_takes_nobody_for_a_member(tmp_path: Path) -> None:
    signed, _ = version()
    async with open_learner(tmp_path, LOOPBACK) as learner, open_libp2p(bytes([7]) * 32, []) as node:
        peer = await node.dial(learner.transport.addresses())
        down = await measure_download(node, peer, signed)
        up = await measure_upload(node, peer, 0.0)
        assert isinstance(down, Rate)
        assert isinstance(up, Rate)
        assert up.size_bytes == UP_QUESTIONS * PADDED_BYTES
        served = learner.serving.served[node.peer_id].size_bytes
        assert served == signed.manifest.total_bytes
        assert down.size_bytes <= served + (64 << 10)
        assert learner.transport.refusals() == [], "no budget of the learner's was touched"
        assert learner.joined == []


async def test_nothing_comes_of_a_learner_without_a_version_or_that_has_gone(tmp_path: Path) -> None:
    async with open_learner(tmp_path, LOOPBACK, size_bytes=10) as learner, open_libp2p(bytes([7]) * 32, []) as node:
        peer = await node.dial(learner.transport.addresses())
        assert await measure_download(node, peer, None) == NotKnown(
            why="the learner has not published a version yet, so there is nothing to fetch"
        )
        small = await measure_download(node, peer, version(10)[0])
        assert isinstance(small, Rate)
        assert small.is_coarse
        await node.disconnect(peer)
        for found in (await measure_download(node, peer, version(10)[0]), await measure_upload(node, peer, 0.0)):
            assert isinstance(found, NotKnown)
            assert "is not connected" in found.why


@pytest.mark.parametrize("size_bytes", [0, 1, COARSE_BYTES])
def test_a_transfer_that_takes_no_time_has_a_rate(size_bytes: int) -> None:
    assert steady_rate(1.0, [(1.0, size_bytes)]).bytes_per_s == 1000 * size_bytes
