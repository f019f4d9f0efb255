"""Build Merkle trees: one hash for a list, and short proofs of its entries.

The trees are those of RFC 9162 (Certificate Transparency, section 2.1), which are the same as those of RFC 6962.

    leaf = sha2-256(0x00 | entry)        node = sha2-256(0x01 | left | right)        no entries = sha2-256("")

Invariants:

- A root and the number of entries identify one list in one order, because leaves and nodes are hashed differently and
  the shape depends on the number alone.
- A proof has one form: no hash can be left out or added.
- A bad proof yields False, never an exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from protocol.core.ids import Digest

LEAF, NODE = b"\x00", b"\x01"
HASH_BYTES = 32
MAX_PATH = 53
"""Largest number of hashes in a proof: one for each halving of 2**53 entries, the bound of every count."""


class MerkleTree:
    """The Merkle tree of `entries`, in order. It keeps two hashes for each entry."""

    def __init__(self, entries: Iterable[bytes]) -> None:
        level = [_leaf(entry) for entry in entries]
        self.size = len(level)
        self._levels = [level]
        while len(level) > 1:
            # An odd node at the end of a level moves up unchanged. This equals the RFC's cut at the largest power of 2.
            above = [_node(level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)]
            level = [*above, level[-1]] if len(level) % 2 else above
            self._levels.append(level)

    @property
    def root(self) -> Digest:
        """The hash that identifies the list."""
        return Digest(self._levels[-1][0] if self.size else hashlib.sha256().digest())

    def path(self, place: int) -> list[bytes]:
        """Return the proof that entry `place` is there: the sibling hashes on the way to the root.

        Raises IndexError if there is no such entry.
        """
        if not 0 <= place < self.size:
            raise IndexError(f"entry {place} of {self.size}")
        beside = []
        for level in self._levels[:-1]:
            if place ^ 1 < len(level):
                beside.append(level[place ^ 1])
            place //= 2
        return beside


def is_in_tree(entry: bytes, place: int, path: Sequence[bytes], *, size: int, root: bytes) -> bool:
    """Return whether `path` proves that `entry` is number `place` of the `size` entries that `root` identifies.

    Returns False for anything that is no proof (RFC 9162, section 2.1.3.2).
    """
    if not 0 <= place < size or len(path) > MAX_PATH or any(len(one) != HASH_BYTES for one in path):
        return False
    found, last = _leaf(entry), size - 1
    for beside in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = _node(beside, found)
            while not place & 1:  # skip levels on which this node was odd and had no sibling
                place, last = place >> 1, last >> 1
        else:
            found = _node(found, beside)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def _leaf(entry: bytes) -> bytes:
    return hashlib.sha256(LEAF + entry).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(NODE + left + right).digest()
