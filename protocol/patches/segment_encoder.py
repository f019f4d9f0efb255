"""Encode the difference between a segment of a version and the same segment of an earlier version.

Training moves few of the bf16 values of a model from one version to the next, and most of those to a neighbouring
value. So the bits of a float are read as an integer in the order of the floats, and the patch says which elements moved
and by how many steps. A step of a small value is shorter than that of a large one, so small values move more often.
Both ends know from the base which values are small; encoding them separately saves a fifth. docs/reference/protocol.md,
"Patches", specifies the bytes. PULSE (arXiv 2602.03839) first published that RL moves about one bf16 value in a
hundred; it sends the new values raw.

Invariants:

- Equal input gives equal bytes with one release of libzstd, on any number of threads.
- A difference is at most 2 bytes longer than the target, and at most 6 longer than the target compressed with zstd, as
  far as a sample can show.
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
"""Fraction of moved elements from which one bit per element costs less than gaps. On bf16 it was measured as 0.27."""

ALL_FROM = 0.875
"""Fraction of moved elements from which positions are not encoded. For elements of one byte, a bitmap and the steps of
moved elements would be longer than the steps of all."""

SAMPLE_BYTES = 4 * KIB
SAMPLE_PIECES = 4
"""The sample that is compressed to estimate the compressed size of a segment. It costs 20 us, a hundredth of encoding a
segment."""

TRIAL_FROM = 0.8
"""If a difference has at least this fraction of the estimated size, the segment is really compressed and the shorter
one is used. Estimates have errors of that size."""

SPLIT_BELOW = 1 / 8
"""Fraction of the elements, the smallest, that a split encodes separately. On normally distributed weights a tenth is
better by 1 %; but if more than a tenth are marked, numpy finds them three times as fast."""

SPLIT_GAIN = 2
"""A split pays for its own code tables if the small elements moved more than this many times as often as all."""

SPLIT_FROM = 512
"""Number of moved elements from which a split is tried. Each split costs 100 to 200 bytes of code tables."""

SPLIT_SAMPLE = 2048
"""Number of elements whose magnitudes are sampled to find the smallest eighth. The result may be a ninth."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The elements of a segment that a difference describes: those of `subset`; None: all."""

    form: Form
    old: Integers
    """The base's bits of the whole segment. `new` and `magnitudes` are also of the whole segment."""
    new: Integers
    magnitudes: Integers | None = None
    """None: not needed so far."""
    subset: Subset | None = None

    @property
    def length(self) -> int:
        return len(self.old) if self.subset is None else self.subset.count

    def numbers(self, places: Integers) -> Integers:
        """Return the numbers within the run of the elements at `places`."""
        return places if self.subset is None else self.subset.numbers(places)

    def all_steps(self) -> Integers:
        """Return the steps of each element of the run, 0 for those that did not move."""
        where = slice(None) if self.subset is None else self.subset.all_places()
        return self.form.steps(self.old[where], self.new[where])

    def sample(self, magnitudes: Integers) -> Integers:
        """Return a regular sample of about SPLIT_SAMPLE magnitudes of the run."""
        stride = max(1, self.length // SPLIT_SAMPLE)
        if self.subset is None:
            return magnitudes[::stride]
        return magnitudes[self.subset.places(np.arange(0, self.length, stride))]


class SegmentEncoder:
    """Encodes segments. Two threads must not use one at the same time."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._scratch = Scratch()
        self._apart = np.empty(PATCH_SEGMENT_BYTES, np.bool_)

    def encode(self, dtype: str, base: Buffer | None, target: Buffer) -> bytes:
        """Return the difference that turns `base`, which is as long, into `target`. None as `base` stands for zeros.

        Both hold elements of `dtype`: at least one element, and at most PATCH_SEGMENT_BYTES.
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
        """Encode the elements of `run` that moved, at places `moved` of the segment, and their `steps`.

        Splits at most `splits` times.
        """
        form, count = run.form, len(moved)
        if not count:
            return bytes([SegmentEncoding.SAME])
        if count > ALL_FROM * run.length:
            return b"".join([bytes([SegmentEncoding.ALL]), *self._planes(form, run.all_steps())])
        if splits and form.is_float and count >= SPLIT_FROM:
            magnitudes = self._scratch.magnitudes(form, run.old) if run.magnitudes is None else run.magnitudes
            threshold = _threshold(run.sample(magnitudes))
            subset = self._scratch.below(magnitudes, threshold)  # part of `run`, because the sample is from `run`
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
        """Return the nibbles, then the planes of the steps that do not fit into one.

        Step 0 cannot occur, so step 1 is written as 0.
        """
        nibbles = np.zeros(len(steps) + len(steps) % 2, np.uint8)
        np.minimum(steps - 1, ESCAPE, out=nibbles[: len(steps)], casting="unsafe")
        pairs = nibbles.view("<u2")  # the first in the low byte
        packed = self._packer.pack((pairs | pairs >> 4).astype(np.uint8))
        long = steps[steps > ESCAPE]
        return [packed, *self._planes(form, long)] if len(long) else [packed]

    def _planes(self, form: Form, steps: Integers) -> list[bytes]:
        """Return the lowest bytes of all steps, then the next ones. Most bytes above the lowest are zeros."""
        return [self._packer.pack((steps >> 8 * plane).astype(np.uint8)) for plane in range(form.size)]

    def _guess(self, octets: Octets) -> float:
        """Return the estimated size of `octets` compressed with zstd."""
        sample = octets
        if len(octets) > SAMPLE_BYTES:
            piece, stride = SAMPLE_BYTES // SAMPLE_PIECES, len(octets) // SAMPLE_PIECES
            sample = np.concatenate([octets[at : at + piece] for at in range(0, SAMPLE_PIECES * stride, stride)])
        return len(self._packer.squeeze(sample)) * len(octets) / len(sample)


def _threshold(magnitudes: Integers) -> int:
    """Return the magnitude below which a fraction SPLIT_BELOW of the sampled `magnitudes` lies."""
    place = int(SPLIT_BELOW * len(magnitudes))
    return int(np.partition(magnitudes, place)[place])


def _gaps(places: Integers) -> Octets:
    """Return how many elements stay before each that moved, in bytes of at most 255.

    `places` are ascending and not empty.
    """
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
