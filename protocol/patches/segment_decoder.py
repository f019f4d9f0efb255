"""Read a segment of a patch, and make the target's bytes of it and the base's.

Reading and making are apart, so that several threads can make segments: where a segment ends in a patch is known only
after its short streams were decompressed, which one thread does for all; the base is read, searched and changed by
whichever thread is free. A sixth of decoding is reading.

Invariants:
- Decoding gives the target's bits exactly, NaNs and negative zeros included.
- Nothing is allocated before its size was bounded by that of the segment.
- All that is wrong with a segment is a PeerError, of `read` or of `make`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from protocol.core.errors import Fault, PeerError
from protocol.patches.byte_streams import Octets, Take, Unpacker, take_number
from protocol.patches.segment_format import (
    ESCAPE,
    FORMS,
    GAP_GOES_ON,
    MAX_SPLITS,
    Buffer,
    Form,
    Integers,
    Marks,
    Scratch,
    SegmentEncoding,
    elements,
    malformed,
)

Moves = tuple[Integers | None, Integers]
"""Places of a run of elements, None for all of them, and the new bits of those."""


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """How far `count` elements moved: two nibbles a byte, and the steps that do not fit into one."""

    count: int
    packed: Octets
    long: Integers

    def of(self, form: Form) -> Integers:
        nibbles = np.empty(2 * len(self.packed), np.uint8)
        nibbles[0::2], nibbles[1::2] = self.packed & ESCAPE, self.packed >> 4
        steps = nibbles[: self.count].astype(form.unsigned) + 1
        if len(self.long):
            steps[steps > ESCAPE] = self.long
        return steps


@dataclass(frozen=True, kw_only=True)
class _Gaps:
    """Elements that moved, told by the gaps between them, and how far they did."""

    gaps: Octets
    steps: _Steps

    def moves(self, form: Form, old: Integers, scratch: Scratch) -> Moves:
        ends = self.gaps != GAP_GOES_ON
        places: Integers = np.cumsum(self.gaps + ends.astype(np.int64))[ends] - 1
        if places[-1] >= len(old):  # which may be fewer than the reader knew of
            raise malformed(f"element {places[-1]} of {len(old)}")
        return places, form.apply_steps(old[places], self.steps.of(form))


@dataclass(frozen=True, kw_only=True)
class _Bitmap:
    """Elements that moved, told by a bit for each, and how far they did."""

    bitmap: Octets
    steps: _Steps

    def moves(self, form: Form, old: Integers, scratch: Scratch) -> Moves:
        count = self.steps.count
        places = np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little").view(np.bool_))
        if len(places) != count or places[-1] >= len(old):
            raise malformed(f"a bitmap that is not that of {count} of {len(old)} elements")
        return places, form.apply_steps(old[places], self.steps.of(form))


@dataclass(frozen=True, kw_only=True)
class _All:
    """How far every element moved, if at all."""

    steps: Integers

    def moves(self, form: Form, old: Integers, scratch: Scratch) -> Moves:
        return None, form.apply_steps(old, self.steps)


@dataclass(frozen=True, kw_only=True)
class _Split:
    """Small elements apart from the others; None: none of them moved."""

    threshold: int
    outer: _Record | None
    inner: _Record | None

    def moves(self, form: Form, old: Integers, scratch: Scratch) -> Moves:
        marks = scratch.below(form, old, self.threshold)
        small = np.flatnonzero(marks)
        if not len(small):
            raise malformed(f"a split below which nothing lies, {self.threshold}")
        places, values = self._outer(form, old, marks, scratch)
        if self.inner is None:
            return places, values
        inner, told = self.inner.moves(form, old.take(small), scratch)  # changes `marks`
        within = small if inner is None else small[inner]
        return np.concatenate([places, within]), np.concatenate([values, told])

    def _outer(self, form: Form, old: Integers, marks: Marks, scratch: Scratch) -> tuple[Integers, Integers]:
        """What moves among the others. What the record says of small ones does not matter."""
        if self.outer is None:
            return np.empty(0, np.intp), np.empty(0, form.signed)
        places, values = self.outer.moves(form, old, scratch)
        if places is None:
            others = np.flatnonzero(~marks)
            return others, values[others]
        if (small := marks[places]).any():
            return places[~small], values[~small]
        return places, values


_Record = _Gaps | _Bitmap | _All | _Split
"""What a patch says of a run of elements some of which move."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment as a patch tells it, its streams taken and not yet compared with the base."""

    form: Form
    whole: Octets | None = None
    """The target's bytes, where they stand in the patch; `record` is of no meaning then."""
    record: _Record | None = None
    """None: the segment is the base's."""

    def make(self, data: memoryview, scratch: Scratch) -> None:
        """Turn the base's bytes in `data` into the target's, in place. Raises PeerError; `data` is of no use then."""
        if self.whole is not None:
            np.copyto(np.frombuffer(data, np.uint8), self.whole)
        elif self.record is not None:
            bits = elements(self.form, data)
            places, values = self.record.moves(self.form, bits, scratch)
            bits[slice(None) if places is None else places] = values


@dataclass(frozen=True, kw_only=True)
class _Scope:
    """The elements that a record tells of: `at_most` so many, those of the base that are smaller than `below`."""

    form: Form
    at_most: int
    base: Callable[[], Buffer | None]
    below: int | None = None

    def num_elements(self) -> int:
        """Their number. Reads the base where it must count."""
        if self.below is None:
            return self.at_most
        data = self.base()
        if data is None:
            return self.at_most if self.below else 0
        return int(np.count_nonzero((elements(self.form, data) & self.form.largest) < self.below))

    def within(self, threshold: int) -> _Scope:
        """Those that are smaller than `threshold` as well."""
        return replace(self, below=threshold if self.below is None else min(self.below, threshold))


class SegmentReader:
    """Takes segments from a patch, one after another. Not to be used by two threads at once."""

    def __init__(self) -> None:
        self._unpacker = Unpacker()

    def read(self, dtype: str, size: int, take: Take, base: Callable[[], Buffer | None]) -> Segment:
        """Take one segment of `size` bytes. Raises PeerError, and what `base` raises.

        `base` returns the bytes of the base, None for zeros. It is called only where the number of small elements
        decides how long a stream is: where more than a quarter of them moved.
        """
        form = FORMS[dtype]
        road = take(1)[0]
        if road == SegmentEncoding.BYTES:
            return Segment(form=form, whole=self._unpacker.unpack(take, size))
        scope = _Scope(form=form, at_most=size // form.size, base=base)
        return Segment(form=form, record=self._record(road, scope, take, MAX_SPLITS))

    def _record(self, road: int, scope: _Scope, take: Take, splits: int) -> _Record | None:
        match road:
            case SegmentEncoding.SAME:
                return None
            case SegmentEncoding.GAPS:
                count, length = _count(scope.at_most, take), take_number(take)
                _require_length(length, count, scope.at_most)
                gaps = self._unpacker.unpack(take, length)
                if gaps[-1] == GAP_GOES_ON or np.count_nonzero(gaps != GAP_GOES_ON) != count:
                    raise malformed(f"gaps that are not those of {count} elements")
                if (last := int(gaps.sum(dtype=np.int64)) + count - 1) >= scope.at_most:
                    raise malformed(f"element {last} of {scope.at_most}")
                return _Gaps(gaps=gaps, steps=self._steps(scope.form, count, take))
            case SegmentEncoding.BITMAP:
                num_elements = scope.num_elements()
                count = _count(num_elements, take)
                bitmap = self._unpacker.unpack(take, -(-num_elements // 8))
                return _Bitmap(bitmap=bitmap, steps=self._steps(scope.form, count, take))
            case SegmentEncoding.ALL:
                return _All(steps=self._planes(scope.form, scope.num_elements(), take))
            case SegmentEncoding.SPLIT if splits and scope.form.is_float:
                return self._split(scope, take, splits - 1)
        raise malformed(f"road {road} is unknown, or leads nowhere from here")

    def _split(self, scope: _Scope, take: Take, splits: int) -> _Split:
        threshold = int.from_bytes(take(scope.form.size), "big")
        if threshold > scope.form.largest:
            raise malformed(f"{threshold} is no magnitude of {scope.form.size} bytes")
        outer = self._record(take(1)[0], scope, take, 0)
        inner = self._record(take(1)[0], scope.within(threshold), take, splits)
        return _Split(threshold=threshold, outer=outer, inner=inner)

    def _steps(self, form: Form, count: int, take: Take) -> _Steps:
        packed = self._unpacker.unpack(take, -(-count // 2))
        if count % 2 and packed[-1] >> 4:
            raise malformed("an odd nibble that is not 0")
        num_long = int(np.count_nonzero(packed & ESCAPE == ESCAPE) + np.count_nonzero(packed >= ESCAPE << 4))
        long = self._planes(form, num_long, take) if num_long else np.empty(0, form.unsigned)
        return _Steps(count=count, packed=packed, long=long)

    def _planes(self, form: Form, count: int, take: Take) -> Integers:
        steps = np.empty(count, form.unsigned)
        octets = steps.view(np.uint8).reshape(count, form.size)
        for plane in range(form.size):
            octets[:, plane] = self._unpacker.unpack(take, count)
        return steps


class SegmentDecoder:
    """Inverse of `SegmentEncoder`, in one thread. Not to be used by two threads at once."""

    def __init__(self) -> None:
        self._reader = SegmentReader()
        self._scratch = Scratch()

    def decode(self, dtype: str, base: Buffer | None, size: int, take: Take) -> Buffer:
        """Inverse of `encode`: take one segment of `size` bytes from a patch, and return the target's bytes.

        Raises PeerError.
        """
        segment = self._reader.read(dtype, size, take, lambda: base)
        data = bytearray(size) if base is None else bytearray(base)
        segment.make(memoryview(data), self._scratch)
        return memoryview(data)


def _require_length(length: int, count: int, num_elements: int) -> None:
    if not count <= length <= count + num_elements // GAP_GOES_ON:
        raise PeerError(Fault.OVERSIZED, f"patch: {length} bytes of gaps for {count} of {num_elements} elements")


def _count(num_elements: int, take: Take) -> int:
    count = take_number(take)
    if not 0 < count <= num_elements:
        raise malformed(f"{count} of {num_elements} elements")
    return count
