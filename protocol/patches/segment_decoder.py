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
    Scratch,
    SegmentEncoding,
    elements,
    malformed,
)
from protocol.patches.subset import Integers, Marks, Subset
from protocol.patches.worker_pool import Shelf


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The elements of a segment that a record tells of: those of `subset`, None: all."""

    form: Form
    bits: Integers
    """Of the whole segment. Records change them, each those of other elements."""
    scratch: Scratch
    subset: Subset | None = None
    magnitudes: Integers | None = None
    """Those of the base, whatever has moved since. None: nothing has."""
    below: int | None = None
    """The magnitudes of `subset` are less than this."""

    @property
    def length(self) -> int:
        return len(self.bits) if self.subset is None else self.subset.count

    def places(self, numbers: Integers) -> Integers:
        """Where these elements are in the segment; `numbers` are ascending and not empty. Raises PeerError."""
        if numbers[-1] >= self.length:
            raise malformed(f"element {numbers[-1]} of {self.length}")
        return numbers if self.subset is None else self.subset.places(numbers)

    def all_places(self) -> Integers | None:
        """Where all of these elements are; None: they are the whole segment."""
        return None if self.subset is None else self.subset.all_places()

    def split(self, threshold: int) -> tuple[Marks, _Run]:
        """Mark those that are smaller, in memory of `scratch`, and return them as a run too. Raises PeerError."""
        below = threshold if self.below is None else min(threshold, self.below)
        magnitudes = self.magnitudes
        if magnitudes is None:
            magnitudes = self.scratch.magnitudes(self.form, self.bits)
        marks = self.scratch.below(magnitudes, below)
        subset = Subset(marks)
        if not subset.count:
            raise malformed(f"a split below which nothing lies, {threshold}")
        return marks, replace(self, subset=subset, magnitudes=magnitudes, below=below)

    def move(self, places: Integers | None, steps: Integers, but: Marks | None) -> None:
        """Move the elements at `places` by so many steps, except those that `but` marks; None: all, and none."""
        if but is not None:
            stay = but if places is None else but[places]
            if stay.any():
                others = ~stay
                places = np.flatnonzero(others) if places is None else places[others]
                steps = steps[others]
        if places is None:
            self.bits[:] = self.form.apply_steps(self.bits, steps)
        else:
            self.bits[places] = self.form.apply_steps(self.bits[places], steps)


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

    def move(self, run: _Run, but: Marks | None) -> None:
        ends = self.gaps != GAP_GOES_ON
        numbers: Integers = np.cumsum(self.gaps + ends.astype(np.int64))[ends] - 1
        run.move(run.places(numbers), self.steps.of(run.form), but)


@dataclass(frozen=True, kw_only=True)
class _Bitmap:
    """Elements that moved, told by a bit for each, and how far they did."""

    bitmap: Octets
    steps: _Steps

    def move(self, run: _Run, but: Marks | None) -> None:
        numbers = np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little").view(np.bool_))
        if len(numbers) != self.steps.count:
            raise malformed(f"a bitmap of {len(numbers)} elements, not {self.steps.count}")
        run.move(run.places(numbers), self.steps.of(run.form), but)


@dataclass(frozen=True, kw_only=True)
class _All:
    """How far every element moved, if at all."""

    steps: Integers

    def move(self, run: _Run, but: Marks | None) -> None:
        run.move(run.all_places(), self.steps, but)


@dataclass(frozen=True, kw_only=True)
class _Split:
    """Small elements apart from the others; None: none of them moved."""

    threshold: int
    outer: _Record | None
    inner: _Record | None

    def move(self, run: _Run, but: Marks | None) -> None:
        marks, small = run.split(self.threshold)
        if self.outer is not None:  # what it says of small ones does not matter
            self.outer.move(run, marks)
        if self.inner is not None:
            self.inner.move(small, None)  # changes `marks`


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
            self.record.move(_Run(form=self.form, bits=elements(self.form, data), scratch=scratch), None)


@dataclass(frozen=True, kw_only=True)
class _Scope:
    """The elements that a record tells of: `at_most` so many, those of the base that are smaller than `below`."""

    form: Form
    at_most: int
    base: Callable[[], Buffer | None]
    scratches: Shelf[Scratch]
    below: int | None = None

    def num_elements(self) -> int:
        """Their number. Reads the base where it must count."""
        if self.below is None:
            return self.at_most
        data = self.base()
        if data is None:
            return self.at_most if self.below else 0
        with self.scratches.borrowed() as scratch:
            magnitudes = scratch.magnitudes(self.form, elements(self.form, data))
            return int(np.count_nonzero(scratch.below(magnitudes, self.below)))

    def within(self, threshold: int) -> _Scope:
        """Those that are smaller than `threshold` as well."""
        return replace(self, below=threshold if self.below is None else min(self.below, threshold))


class SegmentReader:
    """Takes segments from a patch, one after another. Not to be used by two threads at once."""

    def __init__(self, scratches: Shelf[Scratch]) -> None:
        self._unpacker = Unpacker()
        self._scratches = scratches

    def read(self, dtype: str, size: int, take: Take, base: Callable[[], Buffer | None]) -> Segment:
        """Take one segment of `size` bytes. Raises PeerError, and what `base` raises.

        `base` returns the bytes of the base, None for zeros. It is called only where the number of small elements
        decides how long a stream is: where more than a quarter of them moved.
        """
        form = FORMS[dtype]
        road = take(1)[0]
        if road == SegmentEncoding.BYTES:
            return Segment(form=form, whole=self._unpacker.unpack(take, size))
        scope = _Scope(form=form, at_most=size // form.size, base=base, scratches=self._scratches)
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
        self._scratches = Shelf(Scratch)
        self._reader = SegmentReader(self._scratches)

    def decode(self, dtype: str, base: Buffer | None, size: int, take: Take) -> Buffer:
        """Inverse of `encode`: take one segment of `size` bytes from a patch, and return the target's bytes.

        Raises PeerError.
        """
        segment = self._reader.read(dtype, size, take, lambda: base)
        data = bytearray(size) if base is None else bytearray(base)
        with self._scratches.borrowed() as scratch:
            segment.make(memoryview(data), scratch)
        return memoryview(data)


def _require_length(length: int, count: int, num_elements: int) -> None:
    if not count <= length <= count + num_elements // GAP_GOES_ON:
        raise PeerError(Fault.OVERSIZED, f"patch: {length} bytes of gaps for {count} of {num_elements} elements")


def _count(num_elements: int, take: Take) -> int:
    count = take_number(take)
    if not 0 < count <= num_elements:
        raise malformed(f"{count} of {num_elements} elements")
    return count
