"""Measure how much evidence convicts: tests over sets of recorded groups, drawn repeatedly.

Pure.

Invariants:

- A set is made of whole groups, drawn with replacement from the recorded ones. So tokens of one completion stay
  together, and a set may be longer than the recording.
- A test's result for a set of n tokens depends only on its first n tokens.
- The evidence is that of `learner.trust`, up to rounding, for many sets at a time (`tests/benchmarks/test_audit.py`
  compares the two).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from learner.trust.ban_evidence import (
    LEAST_OF_A_MEAN,
    MOST_APART,
    Audited,
    Counted,
    Found,
    History,
    Margin,
    Measure,
    bands_of,
    with_audit,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST = 1_000_000
"""Tokens of the longest sets."""

BLOCK = 256
"""Groups of all sets that are drawn at a time: a few MB, for sets of any length."""

HIGHEST_WEALTH = 1e100
"""More than any level that is asked for: a bet's wealth is capped here, since it could overflow."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A verifier's findings for recorded groups.

    Each token has its gap, the distance `apart` of the claimed log probability, and the lead of the verifier's own draw
    (all [tokens], nats). It also has the number of its context, equal for equal contexts ([tokens]). Group g has tokens
    starts[g] to starts[g + 1] ([groups + 1]).
    """

    gaps: Floats
    apart: Floats
    leads: Floats
    contexts: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> Ints:
        """Tokens of each group."""
        return np.diff(self.starts)

    @property
    def tokens(self) -> int:
        return int(self.starts[-1])

    def relabelled(self) -> Pool:
        """Return the same tokens, claimed with exactly the log probabilities that the verifier finds."""
        return replace(self, apart=np.zeros_like(self.apart))

    def sums(self, values: Floats) -> Floats:
        """Return the sum of a token figure over each group, [groups]."""
        return np.add.reduceat(values, self.starts[:-1])

    def counted(self, margins: Sequence[Margin]) -> list[tuple[Floats, Floats]]:
        """Return by margin how many tokens exceed it, and of how many, both [groups]; counted as in `count_above`."""
        counts = dict[Margin, tuple[Floats, Floats]]()
        off = np.zeros(self.tokens, bool)
        before = np.zeros(len(self))
        for margin in bands_of(margins):
            here = (self.leads > margin.over) & (self.leads <= margin.upto)
            off |= here & (self.gaps > margin.above)
            together = self.distinct(off)  # this and clearer bands, each context once
            counts[margin] = together - before, self.sums(1.0 * here)
            before = together
        everything = np.ones(self.tokens, bool)
        for margin in margins:
            match margin.measure:
                case Measure.GAP if not margin.is_band:
                    counts[margin] = self.distinct(self.gaps > margin.above), self.sums(1.0 * everything)
                case Measure.LOGPROB:
                    counts[margin] = self.distinct(self.apart > margin.above), self.distinct(everything)
                case Measure.MEAN:
                    means = self.sums(np.minimum(self.apart, MOST_APART)) / self.sizes
                    is_judged = self.sizes >= LEAST_OF_A_MEAN
                    counts[margin] = 1.0 * (is_judged & (means > margin.above)), 1.0 * is_judged
        return [counts[margin] for margin in margins]

    def distinct(self, chosen: NDArray[np.bool_]) -> Floats:
        """Return for each group the number of contexts that contain the chosen tokens, [groups]."""
        groups = np.repeat(np.arange(len(self)), self.sizes)[chosen]
        pairs = np.unique(np.stack([groups, self.contexts[chosen]]), axis=1)
        return np.bincount(pairs[0], minlength=len(self)).astype(np.float64)

    def half(self, which: int) -> Pool:
        """Return every other group, from the first (0) or the second (1)."""
        index = self.tokens_of_half(which)
        starts = np.concatenate([[0], np.cumsum(self.sizes[which::2])])
        return Pool(
            gaps=self.gaps[index],
            apart=self.apart[index],
            leads=self.leads[index],
            contexts=self.contexts[index],
            starts=starts,
        )

    def tokens_of_half(self, which: int) -> Ints:
        """Return the numbers of the half's tokens."""
        return np.flatnonzero(np.repeat(np.arange(len(self)) % 2 == which, self.sizes))


def pool_of(completions: Sequence[Sequence[Found]], group: int) -> Pool:
    """Return the pool of completions, where every `group` in a row form one group."""
    ends = np.cumsum([len(one) for one in completions])
    starts = np.concatenate([[0], ends[group - 1 :: group]])
    if len(completions) % group or not len(completions):
        raise ValueError(f"{len(completions)} completions do not make groups of {group}")
    tokens = [token for one in completions for token in one]
    return Pool(
        gaps=np.array([token.gap for token in tokens]),
        apart=np.array([token.apart for token in tokens]),
        leads=np.array([token.lead for token in tokens]),
        contexts=np.array([-1 - place if one.context is None else one.context for place, one in enumerate(tokens)]),
        starts=starts.astype(np.int64),
    )


# The shipped test.


def log_ratios(pool: Pool, margins: Sequence[Margin]) -> Floats:
    """Return the log likelihood ratios of each group, [groups, bets]: the effect of one audit on a history."""
    counts = pool.counted(margins)
    rows = []
    for place, tokens in enumerate(pool.sizes.tolist()):
        each = tuple(Counted(above=int(above[place]), trials=int(trials[place])) for above, trials in counts)
        after = with_audit(History(), Audited(tokens=tokens, counts=each), margins)
        rows.append([wealth + math.log(2) for wealth in after.log_wealth])  # the first audit's weight is a half
    return np.array(rows)


def tokens_until(
    pool: Pool, margins: Sequence[Margin], levels: Sequence[float], *, sets: int, longest: int, seed: int
) -> Floats:
    """Return after how many tokens the evidence first reaches each of `levels` (not logarithms), [levels, sets]; inf if
    it does not within `longest` tokens."""
    ratios, sizes = (
        np.exp(np.clip(log_ratios(pool, margins), -700, math.log(HIGHEST_WEALTH))),
        pool.sizes.astype(np.float64),
    )
    chance = np.random.default_rng(seed)
    wealth, heard_of, audits = np.zeros((sets, ratios.shape[1])), np.zeros(sets), 0
    reached = np.full((len(levels), sets), math.inf)
    while heard_of.min() < longest and not np.isfinite(reached).all():
        for chosen in chance.integers(len(pool), size=(BLOCK, sets)):
            audits += 1
            heard_of += sizes[chosen]
            # S_t = f_t (S_(t-1) + w_t), plus the bet on a change that is still to come.
            wealth = np.minimum(ratios[chosen] * (wealth + 1 / (audits * (audits + 1))), HIGHEST_WEALTH)
            evidence = wealth.mean(axis=1) + 1 / (audits + 1)
            for level, at in zip(levels, reached, strict=True):
                np.copyto(at, heard_of, where=(evidence >= level) & np.isinf(at) & (heard_of <= longest))
    return reached


def detected(reached: Floats, sizes: Sequence[int]) -> list[float]:
    """Return the share of sets detected within each of `sizes` tokens."""
    return [float((reached <= size).mean()) for size in sizes]


# Tests by a threshold on a mean.


def means(pool: Pool, values: Floats, sizes: Sequence[int], *, sets: int, seed: int, wide: bool = False) -> Floats:
    """Return means of a token figure over sets of at least `sizes` tokens, [sizes, sets].

    `wide`: each set is drawn from a pool that was itself resampled from the recorded one, so that the spread includes
    the uncertainty of a pool of that size. Otherwise a threshold for long sets would fit only this very pool.
    """
    chance = np.random.default_rng(seed)
    sums, tokens = pool.sums(values), pool.sizes.astype(np.float64)
    found = np.empty((len(sizes), sets))
    total, count, heard_of = np.zeros(sets), np.zeros(sets), 0
    drawn = chance.integers(len(pool), size=(sets, len(pool))) if wide else None
    for place, size in enumerate(sizes):
        more = max(0, math.ceil(size / tokens.mean()) - heard_of)
        for first in range(0, more, BLOCK):
            shape = (min(BLOCK, more - first), sets)
            chosen = chance.integers(len(pool), size=shape)
            if drawn is not None:
                chosen = drawn[np.arange(sets)[None, :], chosen]
            total += sums[chosen].sum(axis=0)
            count += tokens[chosen].sum(axis=0)
        heard_of += more
        found[place] = total / count
    return found


def thresholds(honest: Sequence[Floats], share: float) -> Floats:
    """Return the thresholds, [sizes], that at most `share` of the sets of any honest kind exceed; `honest` has means of
    sets, [sizes, sets], for each kind.

    A peer's number format is only its claim, so all are judged by the same threshold.
    """
    return np.max([np.quantile(one, 1 - share, axis=1, method="higher") for one in honest], axis=0)


def exceeding(found: Floats, limits: Floats) -> list[float]:
    """Return the share of sets above the threshold, for each size."""
    return [float(share) for share in (found > limits[:, None]).mean(axis=1)]


def tokens_needed(sizes: Sequence[int], shares: Sequence[float], target: float = 0.9) -> float | None:
    """Return the least of `sizes` from which on the share stays at `target` or above; None if it never does."""
    kept = [size for place, size in enumerate(sizes) if all(share >= target for share in shares[place:])]
    return float(kept[0]) if kept else None


# Rates.


def upper_bound(count: int, trials: int, error: float = 0.05) -> float:
    """Return the largest rate at which `count` or fewer of `trials` are not rarer than `error` (Clopper and Pearson
    1934)."""
    return 1.0 if count >= trials else float(beta.ppf(1 - error, count + 1, trials - count))


def lower_bound(count: int, trials: int, error: float = 0.05) -> float:
    """Return the smallest rate at which `count` or more of `trials` are not rarer than `error`."""
    return 0.0 if count == 0 else float(beta.ppf(error, count, trials - count + 1))
