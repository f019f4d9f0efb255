"""The difference between two equally long runs of elements (segments) of a version and the one before.

Training moves few of the bf16 values of a model from one version to the next, and most of those to a neighbouring
value. So the bits of a float are read as an integer in the order of the floats, and what travels is which elements
moved and by how many steps. A step of a small value is shorter than that of a large one, so small values move more
often, and both ends know from the base which they are: telling them apart saves a fifth. What always holds: decoding
gives the target's bits exactly, NaNs and negative zeros included; equal input gives equal bytes under one release of
libzstd; nothing is allocated before its size was bounded by that of the segment; a difference is at most 2 bytes longer
than the target, and at most 6 longer than the target under zstd, as far as a sample can tell. The bytes are specified
in docs/protocol.md, "Patches". That RL moves about one bf16 value in a hundred was first published by PULSE (arXiv
2602.03839), which sends the new values raw.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.core.errors import Fault, PeerError
from protocol.core.limits import KIB, PATCH_SEGMENT_BYTES
from protocol.patches.byte_streams import Octets, Packer, Take, Unpacker, number, take_number
from protocol.versions.manifest import DTYPE_BYTES

Buffer = bytes | memoryview
Marks = NDArray[np.bool_]
Integers = NDArray[Any]
"""Bits of elements, or differences between them."""

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Sign and magnitude: among negative ones, the greater value has the smaller bits."""

BITMAP_FROM = 0.25
"""Share of elements that moved from which a bit for each costs less than gaps: 0.27 was measured on bf16."""

ALL_FROM = 0.875
"""Share from which positions are not told: for elements of one byte, a bitmap and the rest would be longer than all."""

GAP_GOES_ON = 255
"""A gap byte that says: this many elements stay, and the gap is not over."""

ESCAPE = 15
"""A nibble that says: the difference stands among the planes."""

SAMPLE_BYTES = 4 * KIB
SAMPLE_PIECES = 4
"""What is compressed to guess how the whole would: it costs 20 us, a hundredth of what encoding a segment does."""

TRIAL_FROM = 0.8
"""A difference this long, measured by the guess, is compared with the real thing: guesses are that far off."""

SPLIT_BELOW = 1 / 8
"""Share of the elements that a split tells apart, the smallest. On normally distributed weights a tenth is best by 1 %;
but where more than a tenth are marked, numpy finds them three times as fast."""

SPLIT_GAIN = 2
"""How many times as often as all of them these must have moved, for their own code tables to pay."""

SPLIT_FROM = 512
"""Elements moved from which a split is looked for: each costs 100 to 200 bytes of code tables."""

SPLIT_SAMPLE = 2048
"""Elements whose magnitudes are looked at to find the eighth: it may be a ninth."""

MAX_SPLITS = 3
"""How deep splits go, so that a reader's depth is bounded: a fourth found nothing left to tell apart."""


class SegmentEncoding(IntEnum):
    """How a segment is told; its first byte."""

    SAME = 0
    GAPS = 1
    BITMAP = 2
    ALL = 3
    SPLIT = 4
    BYTES = 5


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the elements of one dtype are looked at: as integers of `size` bytes, with an order for floats."""

    size: int
    signed: np.dtype[Any]
    unsigned: np.dtype[Any]
    is_float: bool

    def steps(self, old: Integers, new: Integers) -> Integers:
        """How far each element moved, as an unsigned zigzag: 0 for not at all, 1 for -1, 2 for +1, 3 for -2."""
        moved = self._in_order(new) - self._in_order(old)  # wraps around, and so does the way back
        return ((moved << 1) ^ (moved >> (8 * self.size - 1))).view(self.unsigned)

    def apply_steps(self, old: Integers, steps: Integers) -> Integers:
        """Inverse of `steps`: the new bits."""
        back = (steps >> 1) ^ (~(steps & 1) + self.unsigned.type(1))
        return self._in_order(self._in_order(old) + back.view(self.signed))

    @property
    def largest(self) -> int:
        """The greatest magnitude: all bits but the sign."""
        return int((1 << (8 * self.size - 1)) - 1)

    def _in_order(self, bits: Integers) -> Integers:
        """Bits to integers in the order of the values; its own inverse."""
        if not self.is_float:
            return bits
        in_order: Integers = bits ^ ((bits >> (8 * self.size - 1)) & self.largest)
        return in_order


FORMS = {
    dtype: Form(size=size, signed=np.dtype(f"<i{size}"), unsigned=np.dtype(f"<u{size}"), is_float=dtype in FLOATS)
    for dtype, size in DTYPE_BYTES.items()
}


class _Scratch:
    """Memory that each segment uses anew: allocated each time, it cost a third of encoding in page faults."""

    def __init__(self) -> None:
        self._bits = np.empty(PATCH_SEGMENT_BYTES, np.uint8)
        self._marks = np.empty(PATCH_SEGMENT_BYTES, np.bool_)

    def smaller(self, form: Form, bits: Integers, than: int) -> Integers:
        """Return the places of the floats whose magnitude, as bits, is less than `than`."""
        magnitudes = np.bitwise_and(bits, form.largest, out=self._bits.view(form.signed)[: len(bits)])
        return np.flatnonzero(np.less(magnitudes, than, out=self._marks[: len(bits)]))


class SegmentEncoder:
    """Tells segments. Not to be used by two threads at once."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._scratch = _Scratch()

    def encode(self, dtype: str, base: Buffer | None, target: Buffer) -> bytes:
        """Return what makes `target` of `base`, which is as long, or of zeros.

        Both hold elements of `dtype`: one at least, and no more than PATCH_SEGMENT_BYTES.
        """
        form = FORMS[dtype]
        new = _elements(form, target)
        old = np.zeros_like(new) if base is None else _elements(form, base)
        told = self._difference(form, old, new, old != new, MAX_SPLITS)
        octets = np.frombuffer(target, np.uint8)
        if len(told) > TRIAL_FROM * min(self._guess(octets), len(octets)):
            told = min(told, bytes([SegmentEncoding.BYTES]) + self._packer.pack_plain(octets), key=len)
        return told

    def _difference(self, form: Form, old: Integers, new: Integers, apart: Marks, splits: int) -> bytes:
        """Tell the elements that `apart` marks, splitting at most `splits` times; `apart` is used up."""
        count = int(np.count_nonzero(apart))
        if not count:
            return bytes([SegmentEncoding.SAME])
        if count > ALL_FROM * len(new):
            return b"".join([bytes([SegmentEncoding.ALL]), *self._planes(form, form.steps(old, new))])
        if splits and form.is_float and count >= SPLIT_FROM:
            threshold = _threshold(form, old)
            small = self._scratch.smaller(form, old, threshold)
            moved = apart[small]
            if np.count_nonzero(moved) * len(old) > SPLIT_GAIN * count * len(small):
                inner = self._difference(form, old[small], new[small], moved, splits - 1)
                apart[small] = False
                outer = self._difference(form, old, new, apart, 0)
                return b"".join([bytes([SegmentEncoding.SPLIT]), threshold.to_bytes(form.size, "big"), outer, inner])
        places = np.flatnonzero(apart)
        steps = self._steps(form, form.steps(old[places], new[places]))
        if count > BITMAP_FROM * len(new):
            bitmap = self._packer.pack(np.packbits(apart, bitorder="little"))
            return b"".join([bytes([SegmentEncoding.BITMAP]), number(count), bitmap, *steps])
        gaps = _gaps(places)
        return b"".join(
            [bytes([SegmentEncoding.GAPS]), number(count), number(len(gaps)), self._packer.pack(gaps), *steps]
        )

    def _steps(self, form: Form, steps: Integers) -> list[bytes]:
        """Nibbles, then the planes of the steps that do not fit into one; 0 cannot occur, so 1 is written as 0."""
        nibbles = np.minimum(steps - 1, ESCAPE).astype(np.uint8)
        if len(nibbles) % 2:
            nibbles = np.append(nibbles, np.uint8(0))
        packed = self._packer.pack(nibbles[0::2] | nibbles[1::2] << 4)
        long = steps[steps > ESCAPE]
        return [packed, *self._planes(form, long)] if len(long) else [packed]

    def _planes(self, form: Form, steps: Integers) -> list[bytes]:
        """The lowest bytes of all, then the next: most are zeros above the lowest."""
        return [self._packer.pack((steps >> 8 * plane).astype(np.uint8)) for plane in range(form.size)]

    def _guess(self, octets: Octets) -> float:
        """How long `octets` would be under zstd."""
        sample = octets
        if len(octets) > SAMPLE_BYTES:
            piece, stride = SAMPLE_BYTES // SAMPLE_PIECES, len(octets) // SAMPLE_PIECES
            sample = np.concatenate([octets[at : at + piece] for at in range(0, SAMPLE_PIECES * stride, stride)])
        return len(self._packer.squeeze(sample)) * len(octets) / len(sample)


class SegmentDecoder:
    """Inverse of `SegmentEncoder`. Not to be used by two threads at once."""

    def __init__(self) -> None:
        self._unpacker = Unpacker()
        self._scratch = _Scratch()

    def decode(self, dtype: str, base: Buffer | None, size: int, take: Take) -> Buffer:
        """Inverse of `encode`: take one segment of `size` bytes from a patch, and return the target's bytes.

        Raises PeerError. May return `base` itself.
        """
        form = FORMS[dtype]
        road = take(1)[0]
        if road == SegmentEncoding.SAME:
            return bytes(size) if base is None else base
        if road == SegmentEncoding.BYTES:
            return self._unpacker.unpack(take, size).data
        old = np.zeros(size // form.size, form.signed) if base is None else _elements(form, base)
        return self._new(form, road, old, take, MAX_SPLITS).view(np.uint8).data

    def _new(self, form: Form, road: int, old: Integers, take: Take, splits: int) -> Integers:
        match road:
            case SegmentEncoding.SAME:
                return old
            case SegmentEncoding.GAPS:
                return self._moved(form, old, self._gaps(len(old), take), take)
            case SegmentEncoding.BITMAP:
                return self._moved(form, old, self._bitmap(len(old), take), take)
            case SegmentEncoding.ALL:
                return form.apply_steps(old, self._planes(form, len(old), take))
            case SegmentEncoding.SPLIT if splits and form.is_float:
                return self._split(form, old, take, splits - 1)
        raise _malformed(f"road {road} is unknown, or leads nowhere from here")

    def _moved(self, form: Form, old: Integers, places: Integers, take: Take) -> Integers:
        new = old.copy()
        new[places] = form.apply_steps(old[places], self._steps(form, len(places), take))
        return new

    def _split(self, form: Form, old: Integers, take: Take, splits: int) -> Integers:
        threshold = int.from_bytes(take(form.size), "big")
        if threshold > form.largest:
            raise _malformed(f"{threshold} is no magnitude of {form.size} bytes")
        small = self._scratch.smaller(form, old, threshold)
        if not len(small):
            raise _malformed(f"a split below which nothing lies, {threshold}")
        outer = self._new(form, take(1)[0], old, take, 0)
        new = outer.copy() if outer is old else outer
        new[small] = self._new(form, take(1)[0], old[small], take, splits)
        return new

    def _gaps(self, num_elements: int, take: Take) -> Integers:
        count, length = _count(num_elements, take), take_number(take)
        if not count <= length <= count + num_elements // GAP_GOES_ON:
            raise PeerError(Fault.OVERSIZED, f"patch: {length} bytes of gaps for {count} of {num_elements} elements")
        gaps = self._unpacker.unpack(take, length)
        ends = gaps != GAP_GOES_ON
        if not ends[-1] or np.count_nonzero(ends) != count:
            raise _malformed(f"gaps that are not those of {count} elements")
        places: Integers = np.cumsum(gaps + ends.astype(np.int64))[ends] - 1
        if places[-1] >= num_elements:
            raise _malformed(f"element {places[-1]} of {num_elements}")
        return places

    def _bitmap(self, num_elements: int, take: Take) -> Integers:
        count = _count(num_elements, take)
        octets = self._unpacker.unpack(take, -(-num_elements // 8))
        bits = np.unpackbits(octets, bitorder="little")
        places = np.flatnonzero(bits.view(np.bool_))
        if len(places) != count or places[-1] >= num_elements:
            raise _malformed(f"a bitmap that is not that of {count} of {num_elements} elements")
        return places

    def _steps(self, form: Form, count: int, take: Take) -> Integers:
        packed = self._unpacker.unpack(take, -(-count // 2))
        nibbles = np.empty(2 * len(packed), np.uint8)
        nibbles[0::2], nibbles[1::2] = packed & ESCAPE, packed >> 4
        if count % 2 and nibbles[-1]:
            raise _malformed("an odd nibble that is not 0")
        steps = nibbles[:count].astype(form.unsigned) + 1
        long = np.flatnonzero(steps > ESCAPE)
        if len(long):
            steps[long] = self._planes(form, len(long), take)
        return steps

    def _planes(self, form: Form, count: int, take: Take) -> Integers:
        steps = np.empty(count, form.unsigned)
        octets = steps.view(np.uint8).reshape(count, form.size)
        for plane in range(form.size):
            octets[:, plane] = self._unpacker.unpack(take, count)
        return steps


def _elements(form: Form, data: Buffer) -> Integers:
    """The elements as signed integers, in the memory of `data`."""
    return np.frombuffer(data, form.signed)


def _threshold(form: Form, bits: Integers) -> int:
    """The magnitude below which SPLIT_BELOW of the elements lie, by a sample."""
    sample = bits[:: max(1, len(bits) // SPLIT_SAMPLE)] & form.largest
    place = int(SPLIT_BELOW * len(sample))
    return int(np.partition(sample, place)[place])


def _gaps(places: Integers) -> Octets:
    """How many elements stay before each that moved, 255 at a time; `places` are ascending and not empty."""
    skipped = np.diff(places, prepend=-1) - 1
    whole = skipped // GAP_GOES_ON
    ends = np.cumsum(whole + 1) - 1
    gaps = np.full(ends[-1] + 1, GAP_GOES_ON, np.uint8)
    gaps[ends] = skipped - whole * GAP_GOES_ON
    return gaps


def _count(num_elements: int, take: Take) -> int:
    count = take_number(take)
    if not 0 < count <= num_elements:
        raise _malformed(f"{count} of {num_elements} elements")
    return count


def _malformed(detail: str) -> PeerError:
    return PeerError(Fault.MALFORMED, f"patch: {detail}")
