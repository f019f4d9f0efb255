"""Compute the scores of a version on held-out problems: mean rewards, and pass@k.

Pure.

Invariants:

- pass@k is estimated without bias from n >= k samples a problem (Chen et al., arXiv 2107.03374, equation 1), and lies
  between 0 and 1.
- A completion passes when its reward is 1 (all right) or more.
- With several tasks, each has its own scores. The scores of all together are means over all problems.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean

RIGHT = 1.0
"""Lowest reward of a completion that is all right, see `node.tasks.api.interface.Task.reward`."""

GREEDY_OF, SAMPLED_OF = "greedy of ", "sampled of "
"""Prefixes of the name of a reward, among the metrics of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Mean rewards over the held-out problems, of the greedy completion and of `samples` sampled ones of each, and
    pass@k by k.

    `tasks` has the same by task, and is empty if there is only one. `named` has the means of the greedy and of the
    sampled completions for each reward that has a name; NaN if no reward is known.
    """

    greedy: float
    sampled: float
    samples: int = 1
    pass_at: Mapping[int, float] = field(default_factory=dict)
    tasks: Mapping[str, Scores] = field(default_factory=dict)
    named: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def rows(self) -> dict[tuple[str, str], float]:
        """Return all scores but `greedy` and `sampled` of the whole, by (task, metric). The task "" is all of them."""
        found = {("", f"pass@{k}"): value for k, value in self.pass_at.items()} | {("", "samples"): self.samples}
        for name, figures in self.named.items():
            told = zip((GREEDY_OF, SAMPLED_OF), figures, strict=True)
            found |= {("", f"{kind}{name}"): value for kind, value in told if not math.isnan(value)}
        for task, one in self.tasks.items():
            of_task = {(task, "greedy"): one.greedy, (task, "sampled"): one.sampled}
            found |= {key: value for key, value in of_task.items() if not math.isnan(value)}
            found |= {(task, f"pass@{k}"): value for k, value in one.pass_at.items()}
        return found


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return 1 - C(n - c, k) / C(n, k), for n `samples`, c of them `right`: the chance that at least one of k samples
    chosen from them is right.

    It is computed as the product in the paper's appendix, which neither overflows nor cancels. Raises ValueError unless
    0 <= right <= samples and 1 <= k <= samples.
    """
    if not (0 <= right <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {right} right among {samples} samples is not defined")
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1 - k / i for i in range(samples - right + 1, samples + 1))


def score(
    greedy: Sequence[float],
    sampled: Sequence[Sequence[float]],
    tasks: Sequence[str],
    ks: Sequence[int],
    decided: Sequence[Sequence[float]] | None = None,
) -> Scores:
    """Return scores from the rewards of N problems, at least one.

    NaN means that a reward is not known. It is left out of means, and its sample is left out of pass@k. If nothing is
    left, a mean is NaN, and a k is missing.

    Args:
        greedy: rewards of the greedy completions, [N].
        sampled: rewards of the sampled completions, [N][n].
        tasks: the task of each problem, [N].
        ks: the values of k.
        decided: rewards that decide whether a sample passes, [N][n], if these are not `sampled`.
    """
    decided = sampled if decided is None else decided
    whole = _score(greedy, sampled, ks, decided)
    names = list(dict.fromkeys(tasks))
    if len(names) == 1:
        return whole
    by_task = {}
    for name in names:
        theirs = [task == name for task in tasks]
        figures = (list(compress(greedy, theirs)), list(compress(sampled, theirs)), ks, list(compress(decided, theirs)))
        by_task[name] = _score(*figures)
    return Scores(
        greedy=whole.greedy, sampled=whole.sampled, samples=whole.samples, pass_at=whole.pass_at, tasks=by_task
    )


def _score(
    greedy: Sequence[float],
    sampled: Sequence[Sequence[float]],
    ks: Sequence[int],
    decided: Sequence[Sequence[float]],
) -> Scores:
    samples = len(sampled[0])
    drawn = [[reward for reward in rewards if not math.isnan(reward)] for rewards in decided]
    right = [(len(rewards), sum(reward >= RIGHT for reward in rewards)) for rewards in drawn]
    passes = {k: [pass_at_k(known, count, k) for known, count in right if known >= k] for k in ks}
    return Scores(
        greedy=_mean(greedy),
        sampled=_mean(reward for rewards in sampled for reward in rewards),
        samples=samples,
        pass_at={k: fmean(values) for k, values in passes.items() if values},
    )


def _mean(rewards: Iterable[float]) -> float:
    """Return the mean of the rewards that are known."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return fmean(known) if known else math.nan
