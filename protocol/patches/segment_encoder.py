"""Tell the difference between a segment of a version and the same segment of the version before.

Training moves few of the bf16 values of a model from one version to the next, and most of those to a neighbouring
value. So the bits of a float are read as an integer in the order of the floats, and what travels is which elements
moved and by how many steps. A step of a small value is shorter than that of a large one, so small values move more
often, and both ends know from the base which they are: telling them apart saves a fifth. The bytes are specified in
docs/protocol.md, "Patches". That RL moves about one bf16 value in a hundred was first published by PULSE (arXiv
2602.03839), which sends the new values raw.

Invariants:
- Equal input gives equal bytes under one release of libzstd, on however many threads.
- A difference is at most 2 bytes longer than the target, and at most 6 longer than the target under zstd, as far as a
  sample can tell.
"""

from __future__ import annotations

import numpy as np

from protocol.core.limits import KIB, PATCH_SEGMENT_BYTES
from protocol.patches.byte_streams import Octets, Packer, number
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
)

BITMAP_FROM = 0.25
"""Share of elements that moved from which a bit for each costs less than gaps: 0.27 was measured on bf16."""

ALL_FROM = 0.875
"""Share from which positions are not told: for elements of one byte, a bitmap and the rest would be longer than all."""

SAMPLE_BYTES = 4 * KIB
SAMPLE_PIECES = 4
"""What is compressed to guess how the whole would: it costs 20 us, a hundredth of what encoding a segment does."""

TRIAL_FROM = 0.8
"""A difference this long, measured by the guess, is compared with the real thing: guesses are that far off."""

SPARSE_BELOW = 1 / 10
"""Share of marked elements below which they are looked for in eights: from there on, numpy is as fast alone."""

SPLIT_BELOW = 1 / 8
"""Share of the elements that a split tells apart, the smallest. On normally distributed weights a tenth is best by 1 %;
but where more than a tenth are marked, numpy finds them three times as fast."""

SPLIT_GAIN = 2
"""How many times as often as all of them these must have moved, for their own code tables to pay."""

SPLIT_FROM = 512
"""Elements moved from which a split is looked for: each costs 100 to 200 bytes of code tables."""

SPLIT_SAMPLE = 2048
"""Elements whose magnitudes are looked at to find the eighth: it may be a ninth."""


class SegmentEncoder:
    """Tells segments. Not to be used by two threads at once."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._scratch = Scratch()
        self._apart = np.empty(PATCH_SEGMENT_BYTES, np.bool_)

    def encode(self, dtype: str, base: Buffer | None, target: Buffer) -> bytes:
        """Return what makes `target` of `base`, which is as long, or of zeros.

        Both hold elements of `dtype`: one at least, and no more than PATCH_SEGMENT_BYTES.
        """
        form = FORMS[dtype]
        new = elements(form, target)
        old = np.zeros_like(new) if base is None else elements(form, base)
        apart = np.not_equal(old, new, out=self._apart[: len(new)])
        told = self._difference(form, old, new, None, apart, MAX_SPLITS)
        octets = np.frombuffer(target, np.uint8)
        if len(told) > TRIAL_FROM * min(self._guess(octets), len(octets)):
            told = min(told, bytes([SegmentEncoding.BYTES]) + self._packer.pack_plain(octets), key=len)
        return told

    def _difference(
        self, form: Form, old: Integers, new: Integers, within: Integers | None, apart: Marks, splits: int
    ) -> bytes:
        """Tell those elements of `old` that `apart` marks, splitting at most `splits` times; `apart` is used up.

        `within` are the places of the elements of `old` in `new`; None: they are all of it.
        """
        count = int(np.count_nonzero(apart))
        if not count:
            return bytes([SegmentEncoding.SAME])
        if count > ALL_FROM * len(old):
            moved_by = form.steps(old, new if within is None else new[within])
            return b"".join([bytes([SegmentEncoding.ALL]), *self._planes(form, moved_by)])
        if splits and form.is_float and count >= SPLIT_FROM:
            threshold = _threshold(form, old)
            marks = self._scratch.below(form, old, threshold)
            small = np.flatnonzero(marks)
            moved = apart[small]
            if np.count_nonzero(moved) * len(old) > SPLIT_GAIN * count * len(small):
                np.greater(apart, marks, out=apart)
                outer = self._difference(form, old, new, within, apart, 0)
                places = small if within is None else within[small]
                inner = self._difference(form, old.take(small), new, places, moved, splits - 1)  # changes `marks`
                return b"".join([bytes([SegmentEncoding.SPLIT]), threshold.to_bytes(form.size, "big"), outer, inner])
        places = _places(apart, count)
        steps = self._steps(form, form.steps(old[places], new[places if within is None else within[places]]))
        if count > BITMAP_FROM * len(old):
            bitmap = self._packer.pack(np.packbits(apart, bitorder="little"))
            return b"".join([bytes([SegmentEncoding.BITMAP]), number(count), bitmap, *steps])
        gaps = _gaps(places)
        return b"".join(
            [bytes([SegmentEncoding.GAPS]), number(count), number(len(gaps)), self._packer.pack(gaps), *steps]
        )

    def _steps(self, form: Form, steps: Integers) -> list[bytes]:
        """Nibbles, then the planes of the steps that do not fit into one; 0 cannot occur, so 1 is written as 0."""
        nibbles = np.zeros(len(steps) + len(steps) % 2, np.uint8)
        np.minimum(steps - 1, ESCAPE, out=nibbles[: len(steps)], casting="unsafe")
        pairs = nibbles.view("<u2")  # the first in the low byte
        packed = self._packer.pack((pairs | pairs >> 4).astype(np.uint8))
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


def _threshold(form: Form, bits: Integers) -> int:
    """The magnitude below which SPLIT_BELOW of the elements lie, by a sample."""
    sample = bits[:: max(1, len(bits) // SPLIT_SAMPLE)] & form.largest
    place = int(SPLIT_BELOW * len(sample))
    return int(np.partition(sample, place)[place])


def _places(apart: Marks, count: int) -> Integers:
    """The places of the `count` elements that `apart` marks.

    Where few are marked, the eights that hold any are found first: this takes half the time of looking at each.
    """
    if count > SPARSE_BELOW * len(apart) or len(apart) % 8:
        return np.flatnonzero(apart)
    eights = apart.view(np.uint64)
    some = np.flatnonzero(eights != 0)
    within = np.flatnonzero(eights[some].view(np.bool_))
    places: Integers = (some[within >> 3] << 3) + (within & 7)
    return places


def _gaps(places: Integers) -> Octets:
    """How many elements stay before each that moved, 255 at a time; `places` are ascending and not empty."""
    skipped = np.empty(len(places), np.intp)
    skipped[0] = places[0]
    np.subtract(places[1:], places[:-1], out=skipped[1:])
    skipped[1:] -= 1
    ends = np.arange(len(places))
    long = np.flatnonzero(skipped >= GAP_GOES_ON)
    if len(long):
        whole = np.zeros(len(places), np.intp)
        whole[long] = skipped[long] // GAP_GOES_ON
        ends += np.cumsum(whole)
        skipped -= whole * GAP_GOES_ON
    gaps = np.full(ends[-1] + 1, GAP_GOES_ON, np.uint8)
    gaps[ends] = skipped
    return gaps
