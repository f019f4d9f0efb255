"""Judge the recorded evidence: shares detected by tokens, tokens until a ban, margins held, and the bars.

Pure.

Invariants:

- The shipped test has no threshold that is set here. It is judged at the level at which a peer becomes a suspect, which
  an honest one ever reaches with a probability of 1 %, and at the level of a ban.
- The tests it is compared with get a threshold for each size of sets, at 1 % of honest sets, from one half of the
  recording of every honest pair. They are judged on the other half.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.audits.evidence import (
    LONGEST,
    Floats,
    Pool,
    detected,
    exceeding,
    lower_bound,
    means,
    thresholds,
    tokens_needed,
    tokens_until,
    upper_bound,
)
from benchmarks.audits.recording import HONEST, OWN, RELABELLED, Peer, Recorded
from benchmarks.audits.toploc_proofs import VERIFIER, Toploc
from learner.trust.audit_history import SUSPECT_EVIDENCE
from learner.trust.ban_evidence import TEST_ERROR, Margin, Measure

FALSE_POSITIVES = 0.01
SIZES = (*(1 << power for power in range(6, 20)), LONGEST)
JUDGED = 8192
SETS = 400

SUSPECT, BAN = math.exp(SUSPECT_EVIDENCE), 1 / TEST_ERROR

EVIDENCE, STRICT, GAPS, LOGPROBS, TOPLOC = "evidence", "evidence, float32", "mean gap", "log probabilities", "TOPLOC"
"""STRICT is the shipped test of a swarm where all compute in float32, for peers that claim it."""

LARGEST_GAP, LARGEST_APART = 1.0, 20.0
"""Most nats that one token may add to a mean, since an infinite gap would hide all others. Token-DiFR clips as well."""


@dataclass(frozen=True, kw_only=True, order=True)
class Row:
    """A deed of a peer, the dtype of its audit, and whose log probabilities it claims."""

    deed: str
    claims: str
    peer: Peer
    dtype: str

    def __str__(self) -> str:
        return f"{self.deed}, {self.claims}" if self.claims == RELABELLED else self.deed


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The share of sets that a test detects, by SIZES."""

    shares: tuple[float, ...]

    def at(self, size: int) -> float:
        return self.shares[SIZES.index(size)]

    @property
    def needed(self) -> float | None:
        """Tokens that detect nine sets in ten."""
        return tokens_needed(SIZES, self.shares)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on one model.

    `curves` by test. `banned`: tokens until the ban of the shipped test, a median, inf for never. `rates`: for each
    honest pair and margin of log probabilities, the observed rate's upper bound over the margin's. `margins`, and
    `strict`, those of STRICT.
    """

    pools: Mapping[Row, Pool]
    curves: Mapping[str, Mapping[Row, Curve]]
    banned: Mapping[Row, float]
    bans: Mapping[Row, float]
    """The share of honest sets that are ever banned."""
    rates: Mapping[tuple[Row, Margin], float]
    margins: tuple[Margin, ...]
    strict: tuple[Margin, ...]

    def worst(self, test: str, deeds: Sequence[str], claims: str, size: int = JUDGED) -> float | None:
        """Return the least share detected over peers and verifiers; None if a deed was not tried."""
        found = [
            curve.at(size)
            for row, curve in self.curves[test].items()
            if row.deed in deeds and row.claims == claims and row.deed != HONEST
        ]
        tried = {row.deed for row in self.curves[test] if row.claims == claims}
        return min(found) if found and set(deeds) <= tried else None

    def honest(self, test: str) -> list[Curve]:
        return [curve for row, curve in self.curves[test].items() if row.deed == HONEST]


def judge(
    recorded: Recorded,
    toploc: Toploc | None,
    margins: Sequence[Margin],
    strict: Sequence[Margin],
    seed: int,
    *,
    sets: int = SETS,
    longest: int = LONGEST,
) -> Judged:
    """Return all figures of one model, from this many sets of each size; the shipped test's within `longest` tokens."""
    pools = dict(_rows(recorded))
    curves: dict[str, dict[Row, Curve]] = {EVIDENCE: {}, STRICT: {}}
    banned, bans = {}, {}
    for number, (row, pool) in enumerate(sorted(pools.items())):
        at_suspect, at_ban = tokens_until(pool, margins, (SUSPECT, BAN), sets=sets, longest=longest, seed=seed + number)
        curves[EVIDENCE][row] = Curve(shares=tuple(detected(at_suspect, SIZES)))
        banned[row] = float(np.median(at_ban))
        if is_strict(row):
            (reached,) = tokens_until(pool, strict, (SUSPECT,), sets=sets, longest=longest, seed=seed + number)
            curves[STRICT][row] = Curve(shares=tuple(detected(reached, SIZES)))
        if row.deed == HONEST:
            bans[row] = float(np.isfinite(at_ban).mean())
    curves[GAPS] = _by_mean(pools, _gaps, sets, seed)
    curves[LOGPROBS] = _by_mean(pools, _apart, sets, seed)
    if toploc is not None:
        curves[TOPLOC] = _by_proofs(toploc, sets, seed)
    rates = {
        (row, margin): upper_bound(int(above.sum()), int(trials.sum())) / margin.rate
        for row, pool in pools.items()
        if row.deed == HONEST
        for margin, (above, trials) in zip(margins, pool.counted(margins), strict=True)
        if margin.measure is not Measure.GAP
    }
    return Judged(
        pools=pools, curves=curves, banned=banned, bans=bans, rates=rates, margins=tuple(margins), strict=tuple(strict)
    )


def is_strict(row: Row) -> bool:
    """Return whether peer and verifier compute in float32."""
    return row.peer.dtype == row.dtype == "float32"


def held_together(judged: Sequence[Judged]) -> float | None:
    """Return the largest ratio of an observed rate's upper bound to what STRICT allows.

    It counts the honest tokens of float32 peers audited in float32, over all models together, since the rates are so
    low that no single pair has enough.
    """
    found = Tally()
    for one in judged:
        for row, pool in one.pools.items():
            if row.deed == HONEST and is_strict(row):
                found.add(None, one.strict, pool)
    return found.largest(upper_bound)


def held_by_pair(judged: Sequence[Judged]) -> float | None:
    """Return the largest ratio of an observed rate of gaps to its margin's.

    For all honest draws of a pair over all models together, it takes the upper bound, since a model that is certain has
    few small leads; for each model alone, the lower bound.
    """
    together, ratios = Tally(), []
    for one in judged:
        alone = Tally()
        gaps = [margin for margin in one.margins if margin.measure is Measure.GAP]
        for row, pool in one.pools.items():
            if row.deed == HONEST:
                alone.add((row.peer, row.dtype), gaps, pool)
        together.above += alone.above
        together.trials += alone.trials
        ratios.append(alone.largest(lower_bound))
    found = [ratio for ratio in (together.largest(upper_bound), *ratios) if ratio is not None]
    return max(found, default=None)


class Tally:
    """Counts of tokens beyond each margin, and of all tokens, by the key that they are counted for."""

    def __init__(self) -> None:
        self.above, self.trials = Counter[tuple[Hashable, Margin]](), Counter[tuple[Hashable, Margin]]()

    def add(self, whose: Hashable, margins: Sequence[Margin], pool: Pool) -> None:
        for margin, (above, trials) in zip(margins, pool.counted(margins), strict=True):
            self.above[whose, margin] += int(above.sum())
            self.trials[whose, margin] += int(trials.sum())

    def largest(self, bound: Callable[[int, int], float]) -> float | None:
        """Return the largest ratio of a rate's bound to what its margin allows; None if nothing was counted."""
        ratios = [bound(self.above[key], trials) / key[1].rate for key, trials in self.trials.items() if trials]
        return max(ratios, default=None)


def _rows(recorded: Recorded) -> Iterator[tuple[Row, Pool]]:
    for (peer, deed, dtype), pool in recorded.pools.items():
        yield Row(deed=deed, claims=OWN, peer=peer, dtype=dtype), pool
        if deed not in (HONEST, "greedy"):
            yield Row(deed=deed, claims=RELABELLED, peer=peer, dtype=dtype), pool.relabelled()


def _gaps(pool: Pool) -> Floats:
    return np.minimum(pool.gaps, LARGEST_GAP)


def _apart(pool: Pool) -> Floats:
    return np.minimum(pool.apart, LARGEST_APART)


def _by_mean(pools: Mapping[Row, Pool], figure: Callable[[Pool], Floats], sets: int, seed: int) -> dict[Row, Curve]:
    halves = [pool.half(0) for row, pool in pools.items() if row.deed == HONEST]
    limits = thresholds(
        [
            means(half, figure(half), SIZES, sets=sets, seed=seed + place, wide=True)
            for place, half in enumerate(halves)
        ],
        FALSE_POSITIVES,
    )
    curves = {}
    for place, (row, pool) in enumerate(sorted(pools.items())):
        asked = pool.half(1) if row.deed == HONEST else pool
        found = means(asked, figure(asked), SIZES, sets=sets, seed=seed + 1000 + place)
        curves[row] = Curve(shares=tuple(exceeding(found, limits)))
    return curves


def _by_proofs(toploc: Toploc, sets: int, seed: int) -> dict[Row, Curve]:
    """Return curves of TOPLOC. A set is detected if one of the three figures exceeds its own threshold, for a third of
    the 1 %."""
    halves = [proven.half(0) for (_, deed, _), proven in toploc.proven.items() if deed == HONEST]
    limits = [
        thresholds(
            [
                means(half.pool, half.figures[at], SIZES, sets=sets, seed=seed + place, wide=True)
                for place, half in enumerate(halves)
            ],
            FALSE_POSITIVES / 3,
        )
        for at in range(3)
    ]
    curves = {}
    for place, ((peer, deed, claims), proven) in enumerate(toploc.proven.items()):
        asked = proven.half(1) if deed == HONEST else proven
        # The same seed for the three: they are figures of the same sets.
        flagged = [
            means(asked.pool, asked.figures[at], SIZES, sets=sets, seed=seed + 1000 + place) > limits[at][:, None]
            for at in range(3)
        ]
        row = Row(deed=deed, claims=claims, peer=peer, dtype=VERIFIER)
        curves[row] = Curve(shares=tuple(np.logical_or.reduce(flagged).mean(axis=1).tolist()))
    return curves
