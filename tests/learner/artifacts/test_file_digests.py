"""Digests of blocks are those of the written bytes, in any order of writes, and find the block that changed."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.artifacts import file_digests as hashed_blocks
from learner.artifacts.file_digests import HashedWriter, damaged_block, num_blocks

BLOCK = 64


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashed_blocks, "BLOCK_BYTES", BLOCK)
        patch.setattr(hashed_blocks, "READ_BYTES", 10)
        patch.setattr(hashed_blocks, "INLINE_BYTES", 16)
        yield


@given(sizes=st.lists(st.integers(0, 3 * BLOCK), max_size=6), parts=st.integers(1, 3), data=st.data())
def test_what_was_written_is_sound_and_one_bit_less_is_found(sizes: list[int], parts: int, data: st.DataObject) -> None:
    pieces = [os.urandom(size) for size in sizes]
    whole = b"".join(pieces)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "file"
        with path.open("wb") as file, HashedWriter(file) as writer:
            for piece in pieces:
                writer.write(piece)
        assert path.read_bytes() == whole
        blocks = [whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK)]
        assert writer.digests == [sha256(block).hexdigest() for block in blocks]
        assert num_blocks(len(whole)) == len(blocks)
        assert [damaged_block(path, writer.digests, part, parts) for part in range(parts)] == [None] * parts
        if not whole:
            return
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        bad = bit // 8 // BLOCK
        found = [damaged_block(path, writer.digests, part, parts) for part in range(parts)]
        assert found == [bad if part == bad % parts else None for part in range(parts)]
