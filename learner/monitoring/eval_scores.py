"""What a version is worth on held-out prompts: mean rewards, and pass@k.

Pure. What always holds: pass@k is estimated without bias from n >= k samples a prompt (Chen et al., arXiv 2107.03374,
equation 1), with every figure between 0 and 1; a completion passes when its reward is 1, all right, or more. Of several
tasks each has scores of its own, and those of all together are means over all prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean

RIGHT = 1.0
"""A reward from which on a completion is all right, see `node.tasks.api.interface.Task.reward`."""

GREEDY_OF, SAMPLED_OF = "greedy of ", "sampled of "
"""Before the name of a reward, among the metrics of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Mean rewards over the held-out prompts, of the greedy completion and of `samples` sampled ones of each, and
    pass@k by k. `tasks`: the same by task, empty where there is one. `named`: mean of the greedy and of the sampled
    ones for each reward that has a name; NaN where nobody could say any."""

    greedy: float
    sampled: float
    samples: int = 1
    pass_at: Mapping[int, float] = field(default_factory=dict)
    tasks: Mapping[str, Scores] = field(default_factory=dict)
    named: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def rows(self) -> dict[tuple[str, str], float]:
        """All but `greedy` and `sampled` of the whole, by (task, metric); the task "" is all of them."""
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
    """1 - C(n - c, k) / C(n, k), for n `samples` of which c are `right`: the chance that one of k drawn from them is.

    As the product that the paper's appendix computes, which neither overflows nor cancels. Raises ValueError unless
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
    """Scores from the rewards of N prompts, at least one: `greedy` [N], `sampled` [N][n], and their `tasks` [N].
    `decided` [N][n]: by which a sample passes, if that is another reward. NaN, of which nobody could say anything, is
    left out of means, and its sample of pass@k; a mean is NaN, and a k is missing, where nothing is left."""
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
    """Of those that are known."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return fmean(known) if known else math.nan
