"""Measure how far the policy in training is from the behaviour policies, by lag.

With r = pi / mu over tokens drawn from mu, the mean of r - 1 - log r estimates KL(mu || pi) without bias, and every
term is at least 0 (Schulman's k3).

Invariants:

- Sums are kept, one row for each lag and one for logs, so microbatches and ranks add up.
- Each token is counted under the weights that its own update began with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.training.distributed.ranks import Ranks
from learner.training.objective.loss import reference_kl
from learner.training.objective.objective_inputs import (
    LOG_RATIO_LIMIT,
    Corrected,
    Terms,
    k3,
    mean_by_sequence,
    ratio_of,
)

SUMS = (
    *("tokens", "clipped", "ratio", "ratio_squared", "weight", "weight_squared"),
    *("kl", "entropy", "reference_kl", "teacher_kl"),
)
MAXIMA = ("ratio", "log_ratio")


class Statistics:
    """Statistics of the tokens of one batch, or a part of it, whose lags are at most `max_lag`.

    `sums` (max_lag + 2, len(SUMS)) float64, the last row for tokens from logs. `sequences` (2,) float64: the number of
    sequences, and of those in which a bound left no token any weight. `maxima` (len(MAXIMA),) float64; its largest
    |log r| is not limited. With S = 0 it is only the noise of the arithmetic and of rounding the weights.
    """

    def __init__(self, max_lag: int) -> None:
        self.sums = torch.zeros(max_lag + 2, len(SUMS), dtype=torch.float64)
        self.sequences = torch.zeros(2, dtype=torch.float64)
        self.maxima = torch.zeros(len(MAXIMA), dtype=torch.float64)

    @torch.no_grad()
    def add(self, terms: Terms, corrected: Corrected, entropy: Tensor) -> None:
        """Count one microbatch. `entropy` [N] is the policy's, in nats."""
        # In float64: k3 of a ratio near 1 is the square of what float32 rounds away, and could come out negative.
        now, then = terms.logprobs.double(), terms.behaviour.double()
        log_ratio, ratio = now - then, ratio_of(now, then)
        apart = torch.zeros_like(ratio) if terms.reference is None else reference_kl(terms)
        ahead = (
            torch.zeros_like(ratio)
            if terms.teacher is None
            else (now - terms.teacher).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        )
        weights = corrected.weights.double()
        told = (torch.ones_like(ratio), corrected.clipped, ratio, ratio**2, weights, weights**2)
        columns = (*told, k3(log_ratio), entropy, apart, ahead)
        rows = torch.where(terms.offline, len(self.sums) - 1, terms.lags)
        self.sums.index_add_(0, rows.cpu(), torch.stack([column.double() for column in columns], dim=1).cpu())
        muted = mean_by_sequence((corrected.clipped & (weights == 0)).double(), terms) == 1
        self.sequences += torch.stack([torch.ones_like(muted).sum(), muted.sum()]).double().cpu()
        largest = torch.stack([ratio.max(), log_ratio.abs().max()]).cpu()
        self.maxima = torch.maximum(self.maxima, largest)

    def merge(self, other: Statistics) -> None:
        """Add the counts of `other`, which has the same lags."""
        self.sums += other.sums
        self.sequences += other.sequences
        self.maxima = torch.maximum(self.maxima, other.maxima)

    def combine(self, ranks: Ranks) -> None:
        """Add the counts of the other ranks, which have the same lags."""
        self.sums = torch.tensor(ranks.total(self.sums.flatten().tolist()), dtype=torch.float64).reshape(
            self.sums.shape
        )
        self.sequences = torch.tensor(ranks.total(self.sequences.tolist()), dtype=torch.float64)
        self.maxima = torch.tensor(ranks.largest(self.maxima.tolist()), dtype=torch.float64)

    @property
    def tokens(self) -> int:
        """Number of tokens counted."""
        return int(self.sums[:, 0].sum())

    def metrics(self) -> dict[str, float]:
        """Return the statistics over all tokens counted; all are zero when there are none.

        `ess` is the effective sample size of the ratios as weights, (sum r)^2 / (n sum r^2), a fraction of 1.
        `weight_ess` is the same for the weights after the bounds. `masked_share` is the fraction of the sequences in
        which the bounds left no token any weight. `teacher_kl` is the mean of log pi - log pi_T: an estimate of the
        reverse KL to the teacher if the tokens are the policy's own.
        """
        whole = self.sums.sum(dim=0)
        means, teacher_kl = _means(whole), float(whole[SUMS.index("teacher_kl")])
        ratio_max, log_ratio_max = self.maxima.tolist()
        sequences, muted = self.sequences.tolist()
        return {
            "clip_share": means["clip_share"],
            "mean_ratio": means["ratio"],
            "max_ratio": ratio_max,
            "max_log_ratio": log_ratio_max,
            "mismatch_kl": means["kl"],
            "entropy": means["entropy"],
            "reference_kl": means["reference_kl"],
            "teacher_kl": teacher_kl / max(self.tokens, 1),
            "ess": means["ess"],
            "weight_ess": means["weight_ess"],
            "masked_share": muted / max(sequences, 1.0),
        }

    def by_lag(self) -> dict[str, dict[str, float]]:
        """Return statistics for each lag that occurs, by its digits, and for logs as "offline", with their `tokens`."""
        names = [*map(str, range(len(self.sums) - 1)), "offline"]
        return {
            name: {"tokens": float(row[0]), **_means(row)}
            for name, row in zip(names, self.sums, strict=True)
            if row[0] > 0
        }


def _means(row: Tensor) -> dict[str, float]:
    """Return the means of one row of sums, [len(SUMS)]."""
    sums = dict(zip(SUMS, row.tolist(), strict=True))
    count = max(sums["tokens"], 1.0)
    return {
        "ratio": sums["ratio"] / count,
        "kl": sums["kl"] / count,
        "clip_share": sums["clipped"] / count,
        "entropy": sums["entropy"] / count,
        "reference_kl": sums["reference_kl"] / count,
        "ess": _effective(sums["ratio"], sums["ratio_squared"], count),
        "weight_ess": _effective(sums["weight"], sums["weight_squared"], count),
    }


def _effective(total: float, squares: float, count: float) -> float:
    """Return the effective sample size of `count` weights as a fraction, given their sum and the sum of squares."""
    return total**2 / (count * squares) if squares else 0.0
