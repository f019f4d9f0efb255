"""What a version is worth on held-out prompts: mean rewards, and pass@k.

Pure. What always holds: pass@k is estimated without bias from n >= k samples a prompt (Chen et al., arXiv 2107.03374,
equation 1), with every figure between 0 and 1; a completion passes when its reward is 1, all right, or more. Of several
tasks each has scores of its own, and those of all together are means over all prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean

RIGHT = 1.0
"""A reward from which on a completion is all right, see `node.tasks.api.interface.Task.reward`."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Mean rewards over the held-out prompts, of the greedy completion and of `samples` sampled ones of each, and
    pass@k by k. `tasks`: the same by task, empty where there is one."""

    greedy: float
    sampled: float
    samples: int = 1
    pass_at: Mapping[int, float] = field(default_factory=dict)
    tasks: Mapping[str, Scores] = field(default_factory=dict)

    def rows(self) -> dict[tuple[str, str], float]:
        """All but `greedy` and `sampled` of the whole, by (task, metric); the task "" is all of them."""
        found = {("", f"pass@{k}"): value for k, value in self.pass_at.items()} | {("", "samples"): self.samples}
        for task, one in self.tasks.items():
            found |= {(task, "greedy"): one.greedy, (task, "sampled"): one.sampled}
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
    greedy: Sequence[float], sampled: Sequence[Sequence[float]], tasks: Sequence[str], ks: Sequence[int]
) -> Scores:
    """Scores from the rewards of N prompts, at least one: `greedy` [N], `sampled` [N][n], and their `tasks` [N]."""
    whole = _score(greedy, sampled, ks)
    names = list(dict.fromkeys(tasks))
    if len(names) == 1:
        return whole
    by_task = {}
    for name in names:
        theirs = [task == name for task in tasks]
        by_task[name] = _score(list(compress(greedy, theirs)), list(compress(sampled, theirs)), ks)
    return Scores(
        greedy=whole.greedy, sampled=whole.sampled, samples=whole.samples, pass_at=whole.pass_at, tasks=by_task
    )


def _score(greedy: Sequence[float], sampled: Sequence[Sequence[float]], ks: Sequence[int]) -> Scores:
    samples = len(sampled[0])
    right = [sum(reward >= RIGHT for reward in rewards) for rewards in sampled]
    return Scores(
        greedy=fmean(greedy),
        sampled=fmean(reward for rewards in sampled for reward in rewards),
        samples=samples,
        pass_at={k: fmean(pass_at_k(samples, count, k) for count in right) for k in ks},
    )
