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

from dataclasses import dataclass, replace

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
    Scratch,
    SegmentEncoding,
    elements,
)
from protocol.patches.subset import Integers, Subset, differences

BITMAP_FROM = 0.25
"""Share of elements that moved from which a bit for each costs less than gaps: 0.27 was measured on bf16."""

ALL_FROM = 0.875
"""Share from which positions are not told: for elements of one byte, a bitmap and the rest would be longer than all."""

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


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The elements of a segment that a difference tells of: those of `subset`, None: all."""

    form: Form
    old: Integers
    """Of the whole segment, and so are these."""
    new: Integers
    magnitudes: Integers | None = None
    """None: nobody has needed them."""
    subset: Subset | None = None

    @property
    def length(self) -> int:
        return len(self.old) if self.subset is None else self.subset.count

    def numbers(self, places: Integers) -> Integers:
        """Which ones of the run the elements at `places` are."""
        return places if self.subset is None else self.subset.numbers(places)

    def all_steps(self) -> Integers:
        """How far each element of the run moved, if at all."""
        where = slice(None) if self.subset is None else self.subset.all_places()
        return self.form.steps(self.old[where], self.new[where])

    def sample(self, magnitudes: Integers) -> Integers:
        """The magnitudes of one in so many that there are about SPLIT_SAMPLE."""
        stride = max(1, self.length // SPLIT_SAMPLE)
        if self.subset is None:
            return magnitudes[::stride]
        return magnitudes[self.subset.places(np.arange(0, self.length, stride))]


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
        moved = differences(old, new, self._apart)
        steps = form.steps(old[moved], new[moved])
        told = self._difference(_Run(form=form, old=old, new=new), moved, steps, MAX_SPLITS)
        octets = np.frombuffer(target, np.uint8)
        if len(told) > TRIAL_FROM * min(self._guess(octets), len(octets)):
            told = min(told, bytes([SegmentEncoding.BYTES]) + self._packer.pack_plain(octets), key=len)
        return told

    def _difference(self, run: _Run, moved: Integers, steps: Integers, splits: int) -> bytes:
        """Tell those elements of `run` that moved, by their places in the segment, and how far, splitting at most
        `splits` times.
        """
        form, count = run.form, len(moved)
        if not count:
            return bytes([SegmentEncoding.SAME])
        if count > ALL_FROM * run.length:
            return b"".join([bytes([SegmentEncoding.ALL]), *self._planes(form, run.all_steps())])
        if splits and form.is_float and count >= SPLIT_FROM:
            magnitudes = self._scratch.magnitudes(form, run.old) if run.magnitudes is None else run.magnitudes
            threshold = _threshold(run.sample(magnitudes))
            subset = self._scratch.below(magnitudes, threshold)  # of `run`: its sample knows of no others
            is_small = subset.holds(moved)
            if np.count_nonzero(is_small) * run.length > SPLIT_GAIN * count * subset.count:
                small = replace(run, subset=subset, magnitudes=magnitudes)
                outer, inner = (
                    self._difference(of, moved.take(some), steps.take(some), splits_left)
                    for of, some, splits_left in (
                        (run, np.flatnonzero(~is_small), 0),
                        (small, np.flatnonzero(is_small), splits - 1),
                    )
                )
                return b"".join([bytes([SegmentEncoding.SPLIT]), threshold.to_bytes(form.size, "big"), outer, inner])
        numbers = run.numbers(moved)
        nibbles = self._steps(form, steps)
        if count > BITMAP_FROM * run.length:
            bits = np.zeros(run.length, np.bool_)
            bits[numbers] = True
            bitmap = self._packer.pack(np.packbits(bits, bitorder="little"))
            return b"".join([bytes([SegmentEncoding.BITMAP]), number(count), bitmap, *nibbles])
        gaps = _gaps(numbers)
        return b"".join(
            [bytes([SegmentEncoding.GAPS]), number(count), number(len(gaps)), self._packer.pack(gaps), *nibbles]
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


def _threshold(magnitudes: Integers) -> int:
    """The magnitude below which SPLIT_BELOW of the elements lie, by a sample."""
    place = int(SPLIT_BELOW * len(magnitudes))
    return int(np.partition(magnitudes, place)[place])


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
