"""What writers and readers of segments share: roads, and how the elements of a dtype are looked at.

The bits of a float are read as an integer in the order of the floats, so a move to a neighbouring value is a step of
one. The bytes are specified in docs/protocol.md, "Patches".
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
"""Sign and magnitude: among negative ones, the greater value has the smaller bits."""

GAP_GOES_ON = 255
"""A gap byte that says: this many elements stay, and the gap is not over."""

ESCAPE = 15
"""A nibble that says: the difference stands among the planes."""

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

    def distances(self, steps: Integers) -> Integers:
        """The signed distances that `steps` stand for."""
        distances: Integers = ((steps >> 1) ^ (~(steps & 1) + self.unsigned.type(1))).view(self.signed)
        return distances

    def move(self, old: Integers, distances: Integers) -> Integers:
        """Inverse of `steps`: the bits of the elements that are so far from those of `old`."""
        return self._in_order(self._in_order(old) + distances)

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


LARGEST_TEMPORARY_BYTES = 8 * PATCH_SEGMENT_BYTES // 2
"""An index of eight bytes for each element of a segment of bf16."""


class Scratch:
    """Memory that each segment uses anew: allocated each time, it cost a third of encoding in page faults.

    Not to be used by two threads at once.
    """

    def __init__(self) -> None:
        # glibc's malloc takes memory from the kernel for every array above 128 KiB, and gives it back, until it has
        # seen a larger one freed. Without this line, which touches nothing, a segment cost 1200 page faults, and twice
        # the time.
        np.empty(LARGEST_TEMPORARY_BYTES, np.uint8)
        self._magnitudes = np.empty(PATCH_SEGMENT_BYTES, np.uint8)
        self._marks = np.empty(PATCH_SEGMENT_BYTES, np.bool_)

    def magnitudes(self, form: Form, bits: Integers) -> Integers:
        """The magnitudes of floats, as bits. Valid until the next call."""
        magnitudes: Integers = np.bitwise_and(bits, form.largest, out=self._magnitudes.view(form.signed)[: len(bits)])
        return magnitudes

    def below(self, magnitudes: Integers, threshold: int) -> Subset:
        """The elements whose magnitude is less than `threshold`."""
        return Subset(np.less(magnitudes, threshold, out=self._marks[: len(magnitudes)]))


def elements(form: Form, data: Buffer) -> Integers:
    """The elements as signed integers, in the memory of `data`."""
    return np.frombuffer(data, form.signed)


def malformed(detail: str) -> PeerError:
    """The blame of who signed a patch that breaks the format."""
    return PeerError(Fault.MALFORMED, f"patch: {detail}")
