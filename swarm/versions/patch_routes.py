"""Which road to a version costs least: its own chunks, a patch from a version held here, or a chain of patches.

A pure rule. What always holds: a road leads from versions that are held, complete, to the target, one patch after the
other; its price is the bytes still to be fetched, so chunks that are here already are free; among equal prices the
shorter road wins, and without patches the road is the full one. A manifest that is not known here cannot be built on:
what is worth asking for is said, so that the caller can learn it and choose again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from protocol.core.ids import ManifestHash
from protocol.versions.manifest import Manifest, PatchEntry, SignedManifest

MAX_STEPS = 8
"""Patches in one road: the learner offers one from an anchor at least as often, and each step writes a whole model."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One patch: makes `target` of the version that its `patch.base` names, for `fetch_bytes` not yet here."""

    target: SignedManifest
    patch: PatchEntry
    fetch_bytes: int


@dataclass(frozen=True, kw_only=True)
class FetchRoute:
    """`steps` in order, none for the full road; `fetch_bytes` in all.

    `unknown` are manifests that a cheaper road may lead through, the most promising first.
    """

    steps: Sequence[Step]
    fetch_bytes: int
    unknown: Sequence[ManifestHash] = ()


def cheapest(
    target: SignedManifest,
    *,
    full_bytes: int,
    complete: Collection[ManifestHash],
    known: Callable[[ManifestHash], SignedManifest | None],
    lacking: Callable[[Manifest, Sequence[int]], int],
) -> FetchRoute:
    """Return the cheapest road to `target`.

    Args:
        full_bytes: what is missing of the target's own chunks.
        complete: versions that are held whole.
        known: the manifest of that hash, None when it is not known here.
        lacking: how many bytes of these chunks of a manifest are not here yet.
    """
    order = count()  # breaks ties, so that what cannot be compared is never asked to
    open_roads: list[tuple[int, int, int, ManifestHash, tuple[Step, ...]]] = [(0, 0, next(order), target.hash, ())]
    settled: set[ManifestHash] = set()
    unknown: dict[ManifestHash, int] = {}
    best = FetchRoute(steps=(), fetch_bytes=full_bytes)
    while open_roads:  # Dijkstra's algorithm, from the target backwards
        price, num_steps, _, reached, steps = heapq.heappop(open_roads)
        if reached in complete and steps:
            best = FetchRoute(steps=steps, fetch_bytes=price)
            break
        if reached in settled or num_steps == MAX_STEPS:
            continue
        settled.add(reached)
        signed = target if reached == target.hash else known(reached)
        if signed is None:
            unknown.setdefault(reached, price)
            continue
        for patch in signed.manifest.patches:
            fetch_bytes = lacking(signed.manifest, patch.chunks)
            if price + fetch_bytes < full_bytes:
                step = Step(target=signed, patch=patch, fetch_bytes=fetch_bytes)
                road = (price + fetch_bytes, num_steps + 1, next(order), patch.base_hash, (step, *steps))
                heapq.heappush(open_roads, road)
    promising = [name for name, price in unknown.items() if price < best.fetch_bytes]
    return replace(best, unknown=promising)
