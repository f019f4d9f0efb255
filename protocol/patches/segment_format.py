"""Define what encoders and decoders of segments share: the encodings, and the elements of a dtype as integers.

The bits of a float are read as an integer in the order of the floats, so a move to a neighbouring value is a step of
one. docs/reference/protocol.md, "Patches", specifies the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from protocol.core.errors import Fault, PeerError
from protocol.core.limits import PATCH_SEGMENT_BYTES
from protocol.patches.subset import Integers, Subset
from protocol.versions.manifest import DTYPE_BYTES

Buffer = bytes | memoryview

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""The dtypes with sign and magnitude: of two negative values, the greater one has the smaller bits."""

GAP_GOES_ON = 255
"""A byte of gaps that means: this many elements stay, and the gap continues in the next byte."""

ESCAPE = 15
"""A nibble that means: the step is in the planes."""

MAX_SPLITS = 3
"""Largest depth of splits, which bounds the depth of a reader. A fourth split found nothing left to separate."""


class SegmentEncoding(IntEnum):
    """How a segment is encoded: its first byte."""

    SAME = 0
    GAPS = 1
    BITMAP = 2
    ALL = 3
    SPLIT = 4
    BYTES = 5


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the elements of one dtype are read: as integers of `size` bytes, in the order of the values."""

    size: int
    signed: np.dtype[Any]
    unsigned: np.dtype[Any]
    is_float: bool

    def steps(self, old: Integers, new: Integers) -> Integers:
        """Return the step of each element as an unsigned zigzag number: 0 for 0, 1 for -1, 2 for +1, 3 for -2."""
        moved = self._in_order(new) - self._in_order(old)  # wraps around, and so does `move`
        return ((moved << 1) ^ (moved >> (8 * self.size - 1))).view(self.unsigned)

    def distances(self, steps: Integers) -> Integers:
        """Return the signed distances that `steps` stand for."""
        distances: Integers = ((steps >> 1) ^ (~(steps & 1) + self.unsigned.type(1))).view(self.signed)
        return distances

    def move(self, old: Integers, distances: Integers) -> Integers:
        """Return the bits of the elements at `distances` from those of `old`: the inverse of `steps`."""
        return self._in_order(self._in_order(old) + distances)

    @property
    def largest(self) -> int:
        """The largest magnitude: all bits but the sign."""
        return int((1 << (8 * self.size - 1)) - 1)

    def _in_order(self, bits: Integers) -> Integers:
        """Map bits to integers in the order of the values. The function is its own inverse."""
        if not self.is_float:
            return bits
        in_order: Integers = bits ^ ((bits >> (8 * self.size - 1)) & self.largest)
        return in_order


FORMS = {
    dtype: Form(size=size, signed=np.dtype(f"<i{size}"), unsigned=np.dtype(f"<u{size}"), is_float=dtype in FLOATS)
    for dtype, size in DTYPE_BYTES.items()
}


LARGEST_TEMPORARY_BYTES = 8 * PATCH_SEGMENT_BYTES // 2
"""Size of the largest temporary array: an index of eight bytes for each element of a bf16 segment."""


class Scratch:
    """Memory that all segments reuse. When it was allocated for each, page faults took a third of encoding.

    Two threads must not use one at the same time.
    """

    def __init__(self) -> None:
        # For every array above 128 KiB, glibc's malloc takes memory from the kernel and gives it back, until a larger
        # one was freed. Without this line, which touches no memory, a segment cost 1200 page faults and twice the time.
        np.empty(LARGEST_TEMPORARY_BYTES, np.uint8)
        self._magnitudes = np.empty(PATCH_SEGMENT_BYTES, np.uint8)
        self._marks = np.empty(PATCH_SEGMENT_BYTES, np.bool_)

    def magnitudes(self, form: Form, bits: Integers) -> Integers:
        """Return the magnitudes of floats, as bits. They are valid until the next call."""
        magnitudes: Integers = np.bitwise_and(bits, form.largest, out=self._magnitudes.view(form.signed)[: len(bits)])
        return magnitudes

    def below(self, magnitudes: Integers, threshold: int) -> Subset:
        """Return the elements whose magnitude is smaller than `threshold`."""
        return Subset(np.less(magnitudes, threshold, out=self._marks[: len(magnitudes)]))


def elements(form: Form, data: Buffer) -> Integers:
    """Return the elements as signed integers, in the memory of `data`."""
    return np.frombuffer(data, form.signed)


def malformed(detail: str) -> PeerError:
    """Return the error for a patch that breaks the format, a fault of the peer that signed it."""
    return PeerError(Fault.MALFORMED, f"patch: {detail}")
