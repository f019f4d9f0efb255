"""Index some elements of a segment: their count, the place of the n-th, and the number of the element at a place.

A difference identifies small elements of a segment by their numbers among all small ones, and names few of them. numpy
takes 0.45 ms to list the places of all of them, for an eighth of a bf16 segment; this was a third of decoding. Instead,
one bit for each element, with counts every 8 and every 64, answers only for the requested elements. This is "rank and
select" of succinct data structures (Vigna, "Broadword implementation of rank/select queries", 2008).

Invariants:

- `places` and `numbers` are inverse to each other; `holds` marks the results of `places`.
- Apart from the bits, which take an eighth of the marks, memory is in proportion to the number of requested elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Marks = NDArray[np.bool_]
Integers = NDArray[Any]

SPARSE_BELOW = 1 / 10
"""Fraction of marked elements below which they are searched eight at a time. Above it, plain numpy is as fast."""

_ONES = np.int64(0x0101010101010101)
_TOPS = np.int64(-0x7F7F7F7F7F7F7F80)
"""A one in each octet of a word, and the top bit of each."""


def _places_in_octets() -> NDArray[np.int64]:
    """Return a table of the position of the n-th set bit of each octet, at index 8 times the octet plus n."""
    table = np.zeros((256, 8), np.int64)
    for octet in range(256):
        bits = [bit for bit in range(8) if octet >> bit & 1]
        table[octet, : len(bits)] = bits
    return table.ravel()


_PLACES = _places_in_octets()


class Subset:
    """The elements that `marks` marks. The marks may be changed afterwards."""

    def __init__(self, marks: Marks) -> None:
        self._length = len(marks)
        bits = np.packbits(marks, bitorder="little")
        self._octets = np.pad(bits, (0, -len(bits) % 8)) if len(bits) % 8 else bits
        self._in_octets = np.bitwise_count(self._octets).view("<i8")
        words = self._octets.view("<u8")
        self._before = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.bitwise_count(words), out=self._before[1:])
        self.count = int(self._before[-1])

    def all_places(self) -> Integers:
        """Return the places of all elements, ascending."""
        marks = np.unpackbits(self._octets, count=self._length, bitorder="little").view(np.bool_)
        return places_of(marks, self.count)

    def places(self, numbers: Integers) -> Integers:
        """Return the places of the elements with these `numbers`, which are below `count`; 0 is the first."""
        if len(numbers) >= len(self._before):  # listing all places takes no longer then
            return self.all_places()[numbers]
        words = np.searchsorted(self._before, numbers, side="right") - 1
        rest = numbers - self._before[words]
        through = self._in_octets[words] * _ONES  # each octet: the count in it and in the octets before, at most 64
        passed = ((rest * _ONES | _TOPS) - through) & _TOPS  # a top bit for each octet that ends before the element
        octets = np.bitwise_count(passed.view(np.uint64)).astype(np.int64)
        rest -= ((through << 8) >> (octets << 3)) & 0xFF
        octets += words << 3
        places: Integers = (octets << 3) + _PLACES[(self._octets[octets].astype(np.int64) << 3) + rest]
        return places

    def holds(self, places: Integers) -> Marks:
        """Return a mark for each of `places`: whether its element is in the subset."""
        marks: Marks = (self._octets[places >> 3] >> (places & 7).astype(np.uint8) & 1).view(np.bool_)
        return marks

    def numbers(self, places: Integers) -> Integers:
        """Return the numbers of the elements at `places`, which must be in the subset."""
        words = places >> 6
        below = (np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1)
        numbers: Integers = self._before[words] + np.bitwise_count(self._octets.view("<u8")[words] & below)
        return numbers


def places_of(marks: Marks, count: int) -> Integers:
    """Return the places of the `count` marked elements, ascending.

    If few are marked, groups of eight with any mark are found first. This takes half the time of checking each element.
    """
    if count > SPARSE_BELOW * len(marks) or len(marks) % 8:
        return np.flatnonzero(marks)
    eights = marks.view(np.uint64)
    return _within(np.flatnonzero(eights != 0), lambda some: eights[some].view(np.bool_))


def differences(old: Integers, new: Integers, memory: Marks) -> Integers:
    """Return the places of the elements that differ, ascending. `memory`, at least as long as `old`, is used for marks.

    Words of eight bytes are compared first, since few differ. This moves half as much memory as comparing elements.
    """
    if not old.nbytes % 8:
        words = old.view(np.uint64), new.view(np.uint64)
        apart = np.not_equal(*words, out=memory[: len(words[0])])
        if np.count_nonzero(apart) <= SPARSE_BELOW * len(apart):
            before, after = words
            some = np.flatnonzero(apart)
            return _within(some, lambda some: before[some].view(old.dtype) != after[some].view(new.dtype))
    apart = np.not_equal(old, new, out=memory[: len(old)])
    return places_of(apart, int(np.count_nonzero(apart)))


def _within(some: Integers, marks: Callable[[Integers], Marks]) -> Integers:
    """Return the places of marked elements, all of which are in the words at `some`; `marks` marks their elements."""
    if not len(some):
        return some
    marked = marks(some)
    within = np.flatnonzero(marked)
    size = len(marked) // len(some)
    places: Integers = some[within // size] * size + within % size
    return places
