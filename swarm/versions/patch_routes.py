"""Find the cheapest route to a version: its own chunks, a patch from a held version, or a chain of patches.

A route needs the manifests of the versions on it. The result names unknown manifests that may allow a cheaper route, so
that the caller can ask for them and choose again.

Invariants:

- A route leads from a held, complete version to the target, one patch after the other.
- Its cost is the number of bytes still to fetch; chunks that are here already cost nothing.
- The shorter of two routes with equal cost wins. Without usable patches, the full route is the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from protocol.core.ids import ManifestHash
from protocol.versions.manifest import Manifest, PatchEntry, SignedManifest

MAX_STEPS = 8
"""Largest number of patches in one route. The learner sets an anchor, from which patches lead to all later versions, at
least that often; and each step writes a whole model."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One patch: it makes `target` from the version `patch.base`, and needs `fetch_bytes` that are not here yet."""

    target: SignedManifest
    patch: PatchEntry
    fetch_bytes: int


@dataclass(frozen=True, kw_only=True)
class FetchRoute:
    """A route: `steps` in order, none for the full route, and its total `fetch_bytes`.

    `unknown` are manifests that may allow a cheaper route, the most promising first.
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
    """Return the cheapest route to `target`.

    Args:
        full_bytes: bytes of the target's own chunks that are missing.
        complete: complete versions in the store.
        known: function that returns a manifest by its hash, or None.
        lacking: function that returns the missing bytes of some chunks of a manifest.
    """
    order = count()  # breaks ties, so that steps, which have no order, are never compared
    open_routes: list[tuple[int, int, int, ManifestHash, tuple[Step, ...]]] = [(0, 0, next(order), target.hash, ())]
    settled: set[ManifestHash] = set()
    unknown: dict[ManifestHash, int] = {}
    best = FetchRoute(steps=(), fetch_bytes=full_bytes)
    while open_routes:  # Dijkstra's algorithm, from the target backwards
        price, num_steps, _, reached, steps = heapq.heappop(open_routes)
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
                route = (price + fetch_bytes, num_steps + 1, next(order), patch.base_hash, (step, *steps))
                heapq.heappush(open_routes, route)
    promising = [name for name, price in unknown.items() if price < best.fetch_bytes]
    return replace(best, unknown=promising)
