"""Choose the checkpoints to keep: the newest, from which a restart resumes, and milestones, for a person to return to.

Pure. A milestone is the first checkpoint of every N steps, or one of the best by evaluation. A run collapses over tens
of steps, so the newest few checkpoints are all bad by the time that somebody looks. The choice is a function of the
steps that have a checkpoint now, so a restart chooses the same.

Invariants:

- The newest `newest` checkpoints are always kept.
- Beyond them and those whose version is being evaluated, at most `most` are kept.
- Removing a checkpoint that was not chosen never makes another one chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How many checkpoints to keep: the `newest` (1 or more); the first of each `every` training steps (0: none); the
    `best` by evaluation. At most `most` milestones in all: the best come first, then the newest of `every`."""

    newest: int
    every: int = 0
    best: int = 0
    most: int = 0


class KeptFor(Enum):
    """Why a checkpoint is kept."""

    NEWEST = "newest"
    EVALUATED = "being evaluated"
    BEST = "best"
    EVERY = "every"


def chosen(
    steps: Iterable[int], keep: Keep, scores: Mapping[int, float], evaluating: Collection[int] = ()
) -> dict[int, KeptFor]:
    """Return which checkpoints to keep, as training steps with the reason, the most wanted first.

    Args:
        steps: training steps that have a checkpoint.
        keep: how many to keep.
        scores: scores of evaluated versions by training step (higher is better).
        evaluating: training steps of versions whose evaluation is still running, so that no score is known.
    """
    ordered = sorted(set(steps))
    found = dict.fromkeys(reversed(ordered[-keep.newest :]), KeptFor.NEWEST)
    if not keep.most:
        return found
    near = checkpoints_of(ordered, chain(scores, evaluating))
    if keep.best:
        found |= {near[step]: KeptFor.EVALUATED for step in evaluating if step in near and near[step] not in found}
    best = [near[step] for step in sorted(scores, key=lambda step: (-scores[step], step)) if step in near]
    places = keep.most
    for step, why in chain(
        ((step, KeptFor.BEST) for step in best[: keep.best]),
        ((step, KeptFor.EVERY) for step in reversed([*_firsts(ordered, keep.every)])),
    ):
        if step not in found and places > 0:
            found[step] = why
            places -= 1
    return found


def checkpoints_of(ordered: Sequence[int], evaluated: Iterable[int]) -> dict[int, int]:
    """Return for each evaluated step the nearest checkpoint: the first at or after it, and before the next evaluated
    step. No checkpoint is written at the evaluated step itself while the previous one is still being written.

    Args:
        ordered: training steps of the checkpoints, ascending.
        evaluated: training steps of evaluated versions.
    """
    marks = sorted(set(evaluated))
    found = {}
    for mark, following in pairwise((*marks, None)):
        assert mark is not None
        step = next((step for step in ordered if step >= mark), None)
        if step is not None and (following is None or step < following):
            found[mark] = step
    return found


def _firsts(ordered: Sequence[int], every: int) -> Iterator[int]:
    """Yield the first checkpoint at or after each multiple of `every`, except 0."""
    begun = 0
    for step in ordered if every else ():
        if step // every > begun:
            begun = step // every
            yield step
