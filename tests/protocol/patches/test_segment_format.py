"""Segments come back bit for bit in every form and stay short; hostile ones are refused before they cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MIB
from protocol.patches.byte_streams import Codec, Take, number
from protocol.patches.segment_decoder import SegmentDecoder
from protocol.patches.segment_encoder import SAMPLE_BYTES, SegmentEncoder
from protocol.patches.segment_format import FORMS, Buffer, SegmentEncoding
from protocol.versions.manifest import DTYPE_BYTES
from tests.integration.test_golden_bytes import literal
from tests.support.examples import examples

LARGEST = 1_500
"""Elements of most examples: some streams of them are worth compressing, others are not."""


def taker(patch: bytes) -> Take:
    """Take from `patch`, as from a file that ends with it."""
    rest = memoryview(patch)

    def take(size: int) -> Buffer:
        nonlocal rest
        if size > len(rest):
            raise PeerError(Fault.MALFORMED, "ends early")
        taken, rest = rest[:size], rest[size:]
        return taken

    return take


def decoded(dtype: str, base: bytes | None, size: int, told: bytes) -> bytes:
    """Return what a reader makes of `told`, and check that nothing is left over."""
    take = taker(told)
    data = bytes(SegmentDecoder().decode(dtype, base, size, take))
    with pytest.raises(PeerError, match="ends early"):
        take(1)
    return data


def told_of(dtype: str, base: bytes | None, target: bytes) -> bytes:
    """Return the bytes of a writer, after checking that they can be read back."""
    told = SegmentEncoder().encode(dtype, base, target)
    assert decoded(dtype, base, len(target), told) == target
    return told


def bf16(values: Any) -> bytes:
    """bf16 bits of `values`, cut off."""
    return (np.asarray(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


@st.composite
def segments(draw: st.DrawFn) -> tuple[str, bytes | None, bytes]:
    """A dtype, a base and a target: any bits at all, any share of them changed, by steps or to anything."""
    dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
    size = DTYPE_BYTES[dtype]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = draw(st.integers(1, 20) | st.integers(1, LARGEST))
    alike = draw(st.sampled_from([256, 3, 1]))  # 256: noise, NaNs, infinities, negative zeros; 1: all zeros
    base = rng.integers(0, alike, length * size, np.uint8)
    moved = rng.random(length) < draw(st.sampled_from([0.0, 0.003, 0.05, 0.3, 0.6, 0.95, 1.0]))
    target = base.copy().reshape(length, size)
    if draw(st.booleans()):
        target[moved, 0] += rng.integers(0, 3, np.count_nonzero(moved), np.uint8)
    else:
        target[moved] = rng.integers(0, 256, (np.count_nonzero(moved), size), np.uint8)
    return dtype, None if draw(st.integers(0, 4)) == 0 else base.tobytes(), target.tobytes()


@settings(max_examples=examples(400), deadline=None)
@given(segments())
def test_a_segment_comes_back_bit_for_bit_and_stays_short(segment: tuple[str, bytes | None, bytes]) -> None:
    _, _, target = segment
    told = told_of(*segment)
    assert told == SegmentEncoder().encode(*segment)
    assert len(told) <= len(target) + 2
    if len(target) <= SAMPLE_BYTES:  # then the sample is all of it
        assert len(told) <= len(zstandard.ZstdCompressor(level=3).compress(target)) + 6


def test_an_encoder_remembers_nothing() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.bytes(4096) for _ in range(4)]
    used = SegmentEncoder()
    for base, target in pairwise(parts):
        used.encode("BF16", base, target)
    assert used.encode("BF16", parts[0], parts[3]) == SegmentEncoder().encode("BF16", parts[0], parts[3])


def weights(length: int = 40_000) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(0, 0.02, length).astype(np.float32)


def trained(rate: float) -> tuple[bytes, bytes]:
    """bf16 weights before and after a step that moves all of their masters by about `rate`."""
    masters = weights()
    update = np.random.default_rng(1).normal(0, rate, len(masters)).astype(np.float32)
    return bf16(masters), bf16(masters + update)


ENCODINGS: dict[SegmentEncoding, tuple[str, bytes | None, bytes]] = {
    SegmentEncoding.SAME: ("BF16", bf16(weights()), bf16(weights())),
    SegmentEncoding.GAPS: ("I16", bytes(4000), bytes(2000) + b"\1" + bytes(1999)),
    SegmentEncoding.BITMAP: ("I16", bytes(4000), np.random.default_rng(0).integers(0, 2, 2000).astype("<i2").tobytes()),
    SegmentEncoding.ALL: ("F32", weights().tobytes(), (weights() + np.float32(1e-6)).tobytes()),
    SegmentEncoding.SPLIT: ("BF16", *trained(1e-6)),
    SegmentEncoding.BYTES: ("U8", np.random.default_rng(0).bytes(4000), b"over and over " * 285 + b"0123456789"),
}


@pytest.mark.parametrize("encoding", SegmentEncoding)
def test_each_encoding_is_chosen_where_it_is_best(encoding: SegmentEncoding) -> None:
    told = told_of(*ENCODINGS[encoding])
    assert told[0] == encoding
    assert len(told) < len(ENCODINGS[encoding][2]) / 2


def test_zeros_are_a_base_too() -> None:
    assert told_of("F32", None, bytes(4000)) == bytes([SegmentEncoding.SAME])


@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4, 1e-2])
def test_training_steps_come_back_and_are_far_below_the_full_tensor(rate: float) -> None:
    base, target = trained(rate)
    told = told_of("BF16", base, target)
    assert len(told) < len(zstandard.ZstdCompressor(level=3).compress(target)) + 6


def test_unaligned_memory_is_read() -> None:
    base, target = trained(1e-6)
    shifted = memoryview(b"x" + base)[1:]
    told = SegmentEncoder().encode("BF16", shifted, memoryview(b"x" + target)[1:])
    assert told == SegmentEncoder().encode("BF16", base, target)
    assert bytes(SegmentDecoder().decode("BF16", shifted, len(target), taker(told))) == target


@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        ([0x3F80], [0x3F80], 0),  # 1 stays
        ([0x3F80], [0x3F81], 2),  # one up
        ([0x3F80], [0x3F7F], 1),  # one down
        ([0xBF80], [0xBF7F], 2),  # -1 to what is just above it
        ([0x8000], [0x0000], 2),  # -0 lies just below +0
        ([0x0000], [0x8001], 3),  # and the first negative value below that
        ([0xFF80], [0x7F80], 509),  # from one infinity to the other it is shorter to go down, around the end
    ],
)
def test_steps_count_the_values_between(old: list[int], new: list[int], step: int) -> None:
    form = FORMS["BF16"]
    before, after = (np.array(bits, "<u2").view("<i2") for bits in (old, new))
    assert form.steps(before, after).tolist() == [step]
    assert form.move(before, form.distances(form.steps(before, after))).tobytes() == after.tobytes()


# Golden bytes: a writer may choose otherwise, a reader must read these for ever. The base is 1, 2, 0.5, 0.5 in BF16.

GOLDEN: dict[str, tuple[str, bytes]] = {
    "same": (
        """
        00                              # same
        """,
        bf16([1, 2, 0.5, 0.5]),
    ),
    "gaps": (
        """
        01 00000001 00000001            # gaps: one element moves, told by one byte
          01 02                         #   raw: two stay before it
          01 00                         #   nibbles, raw: 0 (step 1, one down), none
        """,
        bf16([1, 2, 0.498046875, 0.5]),
    ),
    "bitmap": (
        """
        02 00000002                     # bitmap: two move
          01 05                         #   raw: elements 0 and 2
          01 01                         #   nibbles, raw: 1 (step 2, one up), 0 (step 1, one down)
        """,
        bf16([1.0078125, 2, 0.498046875, 0.5]),
    ),
    "an escape": (
        """
        02 00000001                     # bitmap: one moves
          01 01                         #   raw: element 0
          01 0f                         #   nibbles, raw: 15 (see planes), none
          01 00                         #   lowest bytes, raw
          01 01                         #   highest bytes, raw: step 256, 128 up
        """,
        bf16([2, 2, 0.5, 0.5]),
    ),
    "all": (
        """
        03                              # all
          01 02 00 01 00                #   lowest bytes, raw: one up, stays, one down, stays
          00                            #   highest bytes: zeros
        """,
        bf16([1.0078125, 2, 0.498046875, 0.5]),
    ),
    "split": (
        """
        04 3f80                         # split: below 1 are elements 2 and 3
          00                            #   of all: same
          02 00000001                   #   of those two: bitmap, one moves
            01 01                       #     raw: the first
            01 01                       #     nibbles, raw: 1 (step 2, one up), none
        """,
        bf16([1, 2, 0.50390625, 0.5]),
    ),
    "bytes": (
        """
        05                              # bytes
          01 803f 0040 0000 0080        #   raw: 1, 2, 0, -0
        """,
        bf16([1, 2, 0.0, -0.0]),
    ),
}


@pytest.mark.parametrize(("told", "target"), GOLDEN.values(), ids=GOLDEN.keys())
def test_golden_segments(told: str, target: bytes) -> None:
    assert decoded("BF16", bf16([1, 2, 0.5, 0.5]), 8, literal(told)) == target


def test_a_golden_stream_under_zstd() -> None:
    told = literal("""
        05                              # bytes
          02 00000011                   #   zstd: 17 bytes
            28b52ffd 20 28              #     magic, one segment, 40 bytes
            45 0000                     #     the last block, compressed, 8 bytes
              10 803f                   #       two literals
              01 00 7b1c 16             #       one sequence: they repeat
    """)
    assert decoded("BF16", bytes(40), 40, told) == bf16([1] * 20)


# Hostile segments. The base is 12 elements of BF16: 1, 0.001, 1, 0.001, ...

BASE = bf16([1, 0.001] * 6)
SMALL = (0x3F00).to_bytes(2, "big")
"""A threshold that every other element is below."""


def raw(*octets: int) -> bytes:
    return bytes([Codec.RAW, *octets])


def zstd(data: bytes, **options: Any) -> bytes:
    frame = zstandard.ZstdCompressor(level=3, **options).compress(data)
    return bytes([Codec.ZSTD]) + number(len(frame)) + frame


def gaps(count: int, *octets: int, length: int | None = None) -> bytes:
    return (
        bytes([SegmentEncoding.GAPS]) + number(count) + number(len(octets) if length is None else length) + raw(*octets)
    )


def bitmap(count: int, *octets: int) -> bytes:
    return bytes([SegmentEncoding.BITMAP]) + number(count) + raw(*octets)


GOOD: dict[str, bytes] = {
    "gaps": gaps(2, 1, 9) + raw(0x10),
    "bitmap": bitmap(2, 0x02, 0x08) + raw(0x10),
    "an escape": gaps(1, 11) + raw(0x0F) + raw(0x20) + raw(0x01),
    "all": bytes([SegmentEncoding.ALL, Codec.ZEROS, Codec.RAW, *range(12)]),
    "a split": bytes([SegmentEncoding.SPLIT]) + SMALL + bytes([SegmentEncoding.SAME]) + bitmap(1, 0x20) + raw(0x01),
    "three splits": (bytes([SegmentEncoding.SPLIT]) + SMALL + bytes([SegmentEncoding.SAME])) * 3
    + bytes([SegmentEncoding.SAME]),
    "bytes": bytes([SegmentEncoding.BYTES]) + zstd(bytes(12) * 2),
}


@pytest.mark.parametrize("told", GOOD.values(), ids=GOOD.keys())
def test_the_undamaged_segments_are_read(told: bytes) -> None:
    """Or the rest would show nothing."""
    assert len(decoded("BF16", BASE, len(BASE), told)) == len(BASE)


WRONG: dict[str, tuple[bytes, Fault]] = {
    "an unknown encoding": (bytes([6]), Fault.MALFORMED),
    "an unknown codec": (bytes([SegmentEncoding.BYTES, 3]), Fault.MALFORMED),
    "nobody moves": (gaps(0) + raw(), Fault.MALFORMED),
    "more move than there are": (gaps(13, *[0] * 13) + raw(*[0] * 7), Fault.MALFORMED),
    "four billion move": (gaps(2**32 - 1, 1, length=2**32 - 1), Fault.MALFORMED),
    "an element beyond the end": (gaps(1, 12) + raw(0), Fault.MALFORMED),
    "far beyond the end": (bytes([SegmentEncoding.GAPS]) + number(12) + number(12) + raw(*[254] * 12), Fault.MALFORMED),
    "fewer gaps than elements": (gaps(2, 1) + raw(0), Fault.OVERSIZED),
    "more gaps than can be": (gaps(1, 255, 1) + raw(0), Fault.OVERSIZED),
    "gaps without end": (gaps(1, 255) + raw(0), Fault.MALFORMED),
    "gaps for another count": (gaps(2, 255, 3) + raw(0), Fault.MALFORMED),
    "a bitmap for another count": (bitmap(2, 0x02, 0x00) + raw(0), Fault.MALFORMED),
    "an empty bitmap": (bitmap(1, 0x00, 0x00) + raw(0), Fault.MALFORMED),
    "a bit beyond the end": (bitmap(1, 0x00, 0x10) + raw(0), Fault.MALFORMED),
    "an odd nibble": (gaps(1, 3) + raw(0x11), Fault.MALFORMED),
    "a threshold with a sign": (bytes([SegmentEncoding.SPLIT, 0x80, 0, 0, 0]), Fault.MALFORMED),
    "nothing is that small": (bytes([SegmentEncoding.SPLIT, 0, 0, 0, 0]), Fault.MALFORMED),
    "a fourth split": (
        (bytes([SegmentEncoding.SPLIT]) + SMALL + bytes([SegmentEncoding.SAME])) * 4 + bytes([SegmentEncoding.SAME]),
        Fault.MALFORMED,
    ),
    "a split of the large": (
        bytes([SegmentEncoding.SPLIT]) + SMALL + bytes([SegmentEncoding.SPLIT]) + SMALL + bytes(3),
        Fault.MALFORMED,
    ),
    "bytes inside of a split": (
        bytes([SegmentEncoding.SPLIT]) + SMALL + bytes([SegmentEncoding.SAME, SegmentEncoding.BYTES, 0]),
        Fault.MALFORMED,
    ),
    "zstd of no length": (bytes([SegmentEncoding.BYTES, Codec.ZSTD, 0, 0, 0, 0]), Fault.OVERSIZED),
    "zstd that saves nothing": (bytes([SegmentEncoding.BYTES, Codec.ZSTD, 0, 0, 0, 24]) + bytes(24), Fault.OVERSIZED),
    "zstd that is none": (bytes([SegmentEncoding.BYTES, Codec.ZSTD, 0, 0, 0, 5]) + b"12345", Fault.MALFORMED),
    "zstd of fewer bytes": (bytes([SegmentEncoding.BYTES]) + zstd(bytes(23)), Fault.OVERSIZED),
    "zstd of more bytes": (bytes([SegmentEncoding.BYTES]) + zstd(bytes(25)), Fault.OVERSIZED),
    "zstd that does not say": (
        bytes([SegmentEncoding.BYTES]) + zstd(bytes(24), write_content_size=False),
        Fault.OVERSIZED,
    ),
}


@pytest.mark.parametrize(("told", "fault"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_segment_is_refused_for_what_is_wrong(told: bytes, fault: Fault) -> None:
    with pytest.raises(PeerError) as caught:
        SegmentDecoder().decode("BF16", BASE, len(BASE), taker(told))
    assert caught.value.fault is fault
    assert "ends early" not in caught.value.detail


def test_a_second_frame_is_refused() -> None:
    frames = zstandard.ZstdCompressor().compress(bytes(2000)) * 2
    told = bytes([SegmentEncoding.BYTES, Codec.ZSTD]) + number(len(frames)) + frames
    with pytest.raises(PeerError, match="malformed"):
        SegmentDecoder().decode("U8", bytes(2000), 2000, taker(told))


def test_a_gap_that_goes_on_behind_the_last_element_is_refused() -> None:
    assert len(decoded("I8", bytes(600), 600, gaps(1, 255, 3) + raw(0))) == 600
    with pytest.raises(PeerError, match="the gaps are not"):
        SegmentDecoder().decode("I8", bytes(600), 600, taker(gaps(1, 3, 255) + raw(0)))


def test_integers_are_not_split() -> None:
    told = bytes([SegmentEncoding.SPLIT]) + SMALL + bytes(2)
    with pytest.raises(PeerError, match="encoding 4"):
        SegmentDecoder().decode("I16", bytes(24), 24, taker(told))


every = pytest.mark.parametrize("told", GOOD.values(), ids=GOOD.keys())


@every
def test_a_segment_that_is_cut_anywhere_is_refused(told: bytes) -> None:
    for length in range(len(told)):
        with pytest.raises(PeerError):
            SegmentDecoder().decode("BF16", BASE, len(BASE), taker(told[:length]))


def survives(read: Callable[[], Buffer], size: int) -> None:
    """A reader of anything returns as many bytes as the segment has, or blames the writer."""
    with suppress(PeerError):
        assert len(read()) == size


@every
def test_any_byte_may_be_any_other(told: bytes) -> None:
    for place in range(len(told)):
        for value in range(256):
            damaged = told[:place] + bytes([value]) + told[place + 1 :]
            survives(lambda damaged=damaged: SegmentDecoder().decode("BF16", BASE, 24, taker(damaged)), 24)


@settings(max_examples=examples(300), deadline=None)
@given(segments(), st.binary(max_size=60), st.integers(0, 5))
def test_noise_is_survived(segment: tuple[str, bytes | None, bytes], noise: bytes, encoding: int) -> None:
    dtype, base, target = segment
    survives(lambda: SegmentDecoder().decode(dtype, base, len(target), taker(bytes([encoding]) + noise)), len(target))


def test_a_lie_about_lengths_allocates_nothing() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    base, size, decoder = bytes(MIB), MIB, SegmentDecoder()
    lies = [
        bytes([SegmentEncoding.BYTES, Codec.ZSTD]) + number(len(bomb)) + bomb,
        bytes([SegmentEncoding.BYTES, Codec.ZSTD]) + number(2**32 - 1),
        bytes([SegmentEncoding.GAPS]) + number(2**32 - 1) + number(2**32 - 1),
        bytes([SegmentEncoding.GAPS]) + number(1) + number(2**32 - 1),
        bytes([SegmentEncoding.BITMAP]) + number(2**32 - 1),
    ]
    tracemalloc.start()
    try:
        for lie in lies:
            with pytest.raises(PeerError):
                decoder.decode("BF16", base, size, taker(lie))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * 1024
