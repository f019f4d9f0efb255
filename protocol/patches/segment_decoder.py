"""Read a segment of a patch, and make the target's bytes from it and the base's.

Reading and making are separate, so that several threads can make segments. The end of a segment in a patch is known
only after its short streams were decompressed; one thread does this for all segments. Any free thread then reads,
searches and changes the base. Reading is a sixth of the work.

Invariants:

- Decoding gives the target's bits exactly, NaNs and negative zeros included.
- Nothing is allocated before its size was bounded by that of the segment.
- Every defect of a segment raises PeerError, in `read` or in `make`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

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
from protocol.patches.subset import Integers, Subset
from protocol.patches.worker_pool import Shelf

_SHORT = np.array([(step >> 1) ^ -(step & 1) for step in range(1, ESCAPE + 2)], np.int8)
"""The distance that an element moved, by its nibble."""

_PAIRS = np.stack([np.tile(_SHORT, len(_SHORT)), np.repeat(_SHORT, len(_SHORT))], axis=-1).view(np.int16).ravel()
"""The distances that two elements moved, by the octet of both nibbles, the first in its low half."""

Move = tuple[Integers | None, Integers]
"""Places of elements in a segment, and the distances that they moved. None means the whole segment; such a move is the
only one."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The elements of a segment that a record describes: those of `subset`; None: all."""

    form: Form
    bits: Integers
    """The bits of the whole segment, as in the base."""
    scratch: Scratch
    known: Mapping[int, Subset]
    """By threshold, the elements smaller than it, if the reader had to count them."""
    subset: Subset | None = None
    magnitudes: Integers | None = None
    """None: not needed so far."""
    below: int | None = None
    """The magnitudes of `subset` are smaller than this."""

    @property
    def length(self) -> int:
        return len(self.bits) if self.subset is None else self.subset.count

    def places(self, numbers: Integers) -> Integers:
        """Return the places of these elements in the segment; `numbers` are ascending and not empty.

        Raises PeerError.
        """
        if numbers[-1] >= self.length:  # the reader may have known a larger bound only
            raise malformed(f"element {numbers[-1]} of {self.length}")
        return numbers if self.subset is None else self.subset.places(numbers)

    def all_places(self) -> Integers | None:
        """Return the places of all of these elements; None: they are the whole segment."""
        return None if self.subset is None else self.subset.all_places()

    def split(self, threshold: int) -> _Run:
        """Return the run of those elements that are smaller than `threshold`. Raise PeerError if there are none."""
        below = threshold if self.below is None else min(threshold, self.below)
        magnitudes, subset = self.magnitudes, self.known.get(below)
        if subset is None:
            if magnitudes is None:
                magnitudes = self.scratch.magnitudes(self.form, self.bits)
            subset = self.scratch.below(magnitudes, below)
        if not subset.count:
            raise malformed(f"no element is below the split at {threshold}")
        return replace(self, subset=subset, magnitudes=magnitudes, below=below)


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The distances that `count` elements moved: two nibbles per byte, and the steps that do not fit into a nibble."""

    count: int
    packed: Octets
    long: Integers

    def distances(self, form: Form) -> Integers:
        short = _PAIRS[self.packed].view(np.int8)[: self.count]
        distances = short.astype(form.signed)
        if len(self.long):
            distances[short == _SHORT[ESCAPE]] = form.distances(self.long)
        return distances


@dataclass(frozen=True, kw_only=True)
class _Gaps:
    """Elements that moved, encoded as the gaps between them, and their distances."""

    gaps: Octets
    steps: _Steps

    def moves(self, run: _Run) -> Iterator[Move]:
        numbers: Integers = np.cumsum(self.gaps, dtype=np.int64)
        if len(numbers) > self.steps.count:
            numbers = numbers.take(np.flatnonzero(self.gaps != GAP_GOES_ON))
        numbers += np.arange(self.steps.count)
        yield run.places(numbers), self.steps.distances(run.form)


@dataclass(frozen=True, kw_only=True)
class _Bitmap:
    """Elements that moved, encoded as one bit for each element, and their distances."""

    bitmap: Octets
    steps: _Steps

    def moves(self, run: _Run) -> Iterator[Move]:
        numbers = np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little").view(np.bool_))
        if len(numbers) != self.steps.count:
            raise malformed(f"the bitmap has {len(numbers)} elements, not {self.steps.count}")
        yield run.places(numbers), self.steps.distances(run.form)


@dataclass(frozen=True, kw_only=True)
class _All:
    """The distance of every element, 0 for those that did not move."""

    steps: Integers

    def moves(self, run: _Run) -> Iterator[Move]:
        yield run.all_places(), run.form.distances(self.steps)


@dataclass(frozen=True, kw_only=True)
class _Split:
    """Small elements, encoded separately from the others; None: none of them moved."""

    threshold: int
    outer: _Record | None
    inner: _Record | None

    def moves(self, run: _Run) -> Iterator[Move]:
        small = run.split(self.threshold)
        assert small.subset is not None
        for places, distances in self.outer.moves(run) if self.outer is not None else ():
            # The outer record's distances of small elements are ignored.
            all_or_some = np.arange(len(run.bits)) if places is None else places
            others = np.flatnonzero(~small.subset.holds(all_or_some))  # indexing by numbers is faster than by marks
            yield all_or_some.take(others), distances.take(others)
        if self.inner is not None:
            yield from self.inner.moves(small)


_Record = _Gaps | _Bitmap | _All | _Split
"""The encoded moves of a run of elements."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment as read from a patch: its streams were taken, and not yet compared with the base."""

    form: Form
    whole: Octets | None = None
    """The target's bytes, if the patch contains them; then `record` has no meaning."""
    record: _Record | None = None
    """None: the segment is the same as the base's."""
    known: Mapping[int, Subset] = field(default_factory=dict)
    """By threshold, the base's elements smaller than it, if the reader had to count them."""

    def make(self, data: memoryview, scratch: Scratch) -> None:
        """Turn the base's bytes in `data` into the target's, in place. Raises PeerError; then `data` is invalid."""
        if self.whole is not None:
            np.copyto(np.frombuffer(data, np.uint8), self.whole)
        elif self.record is not None:
            bits = elements(self.form, data)
            moves = list(self.record.moves(_Run(form=self.form, bits=bits, scratch=scratch, known=self.known)))
            for places, distances in _together(moves):
                where = slice(None) if places is None else places
                bits[where] = self.form.move(bits[where], distances)


def _together(moves: list[Move]) -> list[Move]:
    """Return several moves as one, since each takes about twenty calls. No two are of the same element."""
    if len(moves) < 2:
        return moves
    return [(np.concatenate([places for places, _ in moves]), np.concatenate([far for _, far in moves]))]


@dataclass(frozen=True, kw_only=True)
class _Scope:
    """The elements that a record describes: at most `at_most`, those of the base that are smaller than `below`."""

    form: Form
    at_most: int
    base: Callable[[], Buffer | None]
    scratches: Shelf[Scratch]
    known: dict[int, Subset]
    """The subsets that were computed, by threshold."""
    below: int | None = None

    def num_elements(self) -> int:
        """Return their number. Reads the base if it must count them."""
        if self.below is None:
            return self.at_most
        data = self.base()
        if data is None:
            return self.at_most if self.below else 0
        if self.below not in self.known:
            with self.scratches.borrowed() as scratch:
                magnitudes = scratch.magnitudes(self.form, elements(self.form, data))
                self.known[self.below] = scratch.below(magnitudes, self.below)
        return self.known[self.below].count

    def within(self, threshold: int) -> _Scope:
        """Return the scope of those that are also smaller than `threshold`."""
        return replace(self, below=threshold if self.below is None else min(self.below, threshold))


class SegmentReader:
    """Takes segments from a patch, one after another. Two threads must not use one at the same time."""

    def __init__(self, scratches: Shelf[Scratch]) -> None:
        self._unpacker = Unpacker()
        self._scratches = scratches

    def read(self, dtype: str, size: int, take: Take, base: Callable[[], Buffer | None]) -> Segment:
        """Take one segment of `size` bytes. Raises PeerError, and any error of `base`.

        `base` returns the bytes of the base, None for zeros. It is called only if the number of small elements
        determines the length of a stream: Volery's writer does this if more than a quarter of them moved.
        """
        form = FORMS[dtype]
        encoding = take(1)[0]
        if encoding == SegmentEncoding.BYTES:
            return Segment(form=form, whole=self._unpacker.unpack(take, size))
        scope = _Scope(form=form, at_most=size // form.size, base=base, scratches=self._scratches, known={})
        return Segment(form=form, record=self._record(encoding, scope, take, MAX_SPLITS), known=scope.known)

    def _record(self, encoding: int, scope: _Scope, take: Take, splits: int) -> _Record | None:
        match encoding:
            case SegmentEncoding.SAME:
                return None
            case SegmentEncoding.GAPS:
                count, length = _count(scope.at_most, take), take_number(take)
                _require_length(length, count, scope.at_most)
                gaps = self._unpacker.unpack(take, length)
                if gaps[-1] == GAP_GOES_ON or np.count_nonzero(gaps != GAP_GOES_ON) != count:
                    raise malformed(f"the gaps are not those of {count} elements")
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
        raise malformed(f"encoding {encoding} is unknown, or not allowed here")

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
            raise malformed("the unused nibble at the end is not 0")
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
    """Decodes what `SegmentEncoder` encoded, in one thread. Two threads must not use one at the same time."""

    def __init__(self) -> None:
        self._scratches = Shelf(Scratch)
        self._reader = SegmentReader(self._scratches)

    def decode(self, dtype: str, base: Buffer | None, size: int, take: Take) -> Buffer:
        """Take one segment of `size` bytes from a patch, and return the target's bytes.

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
