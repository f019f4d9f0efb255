"""Choose the cheapest route to a version: full, one patch, a chain, or a question that may find a better one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from protocol.versions.manifest import ChunkRef, Manifest, PatchEntry, SignedManifest
from swarm.versions.patch_routes import MAX_STEPS, FetchRoute, cheapest

FULL = 1000


def name_of(version: int) -> ManifestHash:
    return ManifestHash(version.to_bytes(32, "big"))


def signed(version: int, patches: Mapping[int, int]) -> SignedManifest:
    """A manifest that offers a patch of so many bytes from each of these versions, a chunk each."""
    chunks = [ChunkRef(cid=bytes([version, index]) * 18, size=size) for index, size in enumerate(patches.values())]
    entries = [
        PatchEntry(base=name_of(base), size=size, chunks=[index]) for index, (base, size) in enumerate(patches.items())
    ]
    manifest = Manifest(
        version=PolicyVersion(1, version),
        created_ms=0,
        certificate=b"",
        files=[],
        chunks=chunks,
        tensors=[],
        patches=entries,
    )
    return SignedManifest(raw=b"", hash=name_of(version), signer=PeerId("learner"), manifest=manifest)


def route(
    offers: Mapping[int, Mapping[int, int]],
    *,
    target: int,
    complete: Sequence[int],
    full: int = FULL,
    here: Sequence[tuple[int, int]] = (),
) -> FetchRoute:
    """The route to `target` when `offers` has the manifests known; `here` are (version, chunk) fetched already."""
    known = {name_of(version): signed(version, patches) for version, patches in offers.items()}

    def lacking(manifest: Manifest, chunks: Sequence[int]) -> int:
        version = manifest.version.version
        return sum(manifest.chunks[index].size for index in chunks if (version, index) not in here)

    return cheapest(
        known[name_of(target)],
        full_bytes=full,
        complete={name_of(version) for version in complete},
        known=known.get,
        lacking=lacking,
    )


def steps(taken: FetchRoute) -> list[tuple[int, int]]:
    """(base, target) of each step."""
    return [(int.from_bytes(step.patch.base, "big"), step.target.version.version) for step in taken.steps]


def test_without_patches_the_road_is_the_full_one() -> None:
    assert route({5: {}}, target=5, complete=[4]) == FetchRoute(steps=(), fetch_bytes=FULL, unknown=[])


def test_a_patch_from_what_is_held() -> None:
    taken = route({5: {4: 10}}, target=5, complete=[4])
    assert (steps(taken), taken.fetch_bytes, taken.unknown) == ([(4, 5)], 10, [])


def test_a_patch_as_large_as_the_version_is_not_worth_it() -> None:
    assert steps(route({5: {4: FULL}}, target=5, complete=[4])) == []


def test_what_is_missing_of_the_full_road_may_be_less_than_a_patch() -> None:
    assert steps(route({5: {4: 10}}, target=5, complete=[4], full=9)) == []


def test_a_chain_of_patches_and_the_anchor_beside_it() -> None:
    offers = {5: {4: 10, 0: 50}, 4: {3: 10}, 3: {2: 10}}
    assert steps(route(offers, target=5, complete=[2])) == [(2, 3), (3, 4), (4, 5)]
    assert steps(route(offers, target=5, complete=[0])) == [(0, 5)]
    offers[2] = {0: 25}
    assert steps(route(offers, target=5, complete=[0])) == [(0, 5)]
    offers[2] = {0: 15}
    assert steps(route(offers, target=5, complete=[0])) == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_among_equal_prices_the_shorter_road() -> None:
    assert steps(route({5: {4: 10, 3: 20}, 4: {3: 10}}, target=5, complete=[3])) == [(3, 5)]


def test_chunks_that_are_here_are_free() -> None:
    offers = {5: {4: 10, 3: 15}, 4: {3: 10}}
    assert steps(route(offers, target=5, complete=[3])) == [(3, 5)]
    assert steps(route(offers, target=5, complete=[3], here=[(4, 0)])) == [(3, 4), (4, 5)]


def test_a_manifest_worth_asking_for_is_named_and_one_that_is_not_is_not() -> None:
    taken = route({5: {4: 10, 3: 900}}, target=5, complete=[1])
    assert (steps(taken), taken.unknown) == ([], [name_of(4), name_of(3)])
    taken = route({5: {4: 10, 3: 5}}, target=5, complete=[3])
    assert (steps(taken), taken.unknown) == ([(3, 5)], [])
    taken = route({5: {4: 10, 3: 15}}, target=5, complete=[3])
    assert (steps(taken), taken.unknown) == ([(3, 5)], [name_of(4)])


def test_a_road_has_at_most_so_many_steps() -> None:
    offers = {version: {version - 1: 1} for version in range(1, MAX_STEPS + 2)}
    assert len(route(offers, target=MAX_STEPS, complete=[0]).steps) == MAX_STEPS
    assert route(offers, target=MAX_STEPS + 1, complete=[0]).steps == ()


OFFERS = st.dictionaries(
    st.integers(1, 6), st.dictionaries(st.integers(0, 6), st.integers(1, 40), max_size=4), max_size=6
)


@given(offers=OFFERS, complete=st.sets(st.integers(0, 5)), full=st.integers(0, 80))
def test_no_road_is_cheaper(offers: dict[int, dict[int, int]], complete: set[int], full: int) -> None:
    target = 6
    offers = {version: {b: size for b, size in bases.items() if b != version} for version, bases in offers.items()}
    offers.setdefault(target, {})
    taken = route(offers, target=target, complete=sorted(complete), full=full)

    def best(version: int, seen: frozenset[int]) -> float:
        """By trying all of them."""
        if version in complete:
            return 0
        bases = offers.get(version, {})
        return min((size + best(b, seen | {b}) for b, size in bases.items() if b not in seen), default=float("inf"))

    assert taken.fetch_bytes == min(full, best(target, frozenset({target})))
    assert taken.fetch_bytes == (sum(step.fetch_bytes for step in taken.steps) if taken.steps else full)
    reached = steps(taken)
    assert all(first[1] == second[0] for first, second in pairwise(reached))
    assert not reached or (reached[0][0] in complete and reached[-1][1] == target)
