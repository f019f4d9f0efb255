"""Merkle trees prove every entry and nothing else; an invalid proof raises an error."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.merkle import MAX_PATH, MerkleTree, is_in_tree

HASHES = st.binary(min_size=32, max_size=32)
LISTS = st.lists(st.binary(max_size=80), min_size=1, max_size=40)

# The test vectors of Certificate Transparency (RFC 6962's reference implementation, `merkle_tree_test.cc`).
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def proves(tree: MerkleTree, entry: bytes, place: int, path: Sequence[bytes]) -> bool:
    return is_in_tree(entry, place, path, size=tree.size, root=tree.root)


def literally(entries: Sequence[bytes]) -> bytes:
    """MTH as the RFC writes it."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    half = 1 << (len(entries) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + literally(entries[:half]) + literally(entries[half:])).digest()


@pytest.mark.parametrize("size", range(1, 9))
def test_the_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert MerkleTree(ENTRIES[:size]).root.hex() == ROOTS[size - 1]


def test_the_empty_list_has_a_root_and_no_proofs() -> None:
    empty = MerkleTree([])
    assert empty.root == hashlib.sha256(b"").digest()
    assert not proves(empty, b"", 0, [])
    with pytest.raises(IndexError):
        empty.path(0)


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 1000])
def test_every_entry_of_every_size_proves(size: int) -> None:
    entries = [number.to_bytes(2, "big") for number in range(size)]
    tree = MerkleTree(entries)
    assert tree.root == literally(entries)
    for place, entry in enumerate(entries):
        path = tree.path(place)
        assert len(path) <= (size - 1).bit_length()
        assert proves(tree, entry, place, path)
        assert not proves(tree, entry + b"\x00", place, path)
        assert not any(proves(tree, entry, other, path) for other in {place ^ 1, place + 1, size - 1 - place} - {place})


@given(LISTS, st.data())
def test_nothing_else_proves(entries: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(entries)
    place = data.draw(st.integers(0, tree.size - 1))
    path = tree.path(place)
    other = data.draw(st.binary(max_size=80))
    assert proves(tree, other, place, path) == (other == entries[place])
    if path:
        at = data.draw(st.integers(0, len(path) - 1))
        beside = data.draw(HASHES)
        assert proves(tree, entries[place], place, [*path[:at], beside, *path[at + 1 :]]) == (beside == path[at])
        assert not proves(tree, entries[place], place, path[:at] + path[at + 1 :])
    assert not proves(tree, entries[place], place, [*path, data.draw(HASHES)])


@given(LISTS, st.integers(-3, 1 << 60), st.integers(-3, 1 << 60), st.lists(st.binary(max_size=40), max_size=60))
def test_whatever_is_no_proof_is_a_value(entries: list[bytes], place: int, size: int, path: list[bytes]) -> None:
    root = MerkleTree(entries).root
    found = is_in_tree(
        b"no entry of anybody's, which is longer than any that is drawn" * 2, place, path, size=size, root=root
    )
    assert found is False


@given(LISTS)
def test_an_inner_node_is_no_entry(entries: list[bytes]) -> None:
    """The second preimage: a node's two halves as an entry of a smaller tree with the same root."""
    tree = MerkleTree(entries)
    for low in range(0, tree.size - 1, 2):
        halves = b"".join(hashlib.sha256(b"\x00" + one).digest() for one in entries[low : low + 2])
        for size in range(1, tree.size + 1):
            for place in range(size):
                assert not is_in_tree(halves, place, tree.path(low)[1:], size=size, root=tree.root)
    if tree.size > 1:
        assert MerkleTree([halves]).root != MerkleTree(entries[low : low + 2]).root


@given(LISTS, LISTS)
def test_two_lists_have_two_roots(one: list[bytes], other: list[bytes]) -> None:
    assert (MerkleTree(one).root == MerkleTree(other).root) == (one == other)


@given(LISTS, st.integers(1, 200), st.data())
def test_a_path_of_another_length_than_its_place_wants_proves_nothing(
    entries: list[bytes], size: int, data: st.DataObject
) -> None:
    tree = MerkleTree(entries)
    place = data.draw(st.integers(0, tree.size - 1))
    if place < size and len(MerkleTree([b""] * size).path(place)) != len(tree.path(place)):
        assert not is_in_tree(entries[place], place, tree.path(place), size=size, root=tree.root)


def test_a_path_that_is_too_long_is_not_followed() -> None:
    assert not is_in_tree(b"", 0, [bytes(32)] * (MAX_PATH + 1), size=1 << 60, root=bytes(32))
