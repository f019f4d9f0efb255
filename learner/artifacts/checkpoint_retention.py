"""Choose the checkpoints that stay: the newest, which a restart goes on from, and milestones, which a person may go
back to.

Pure. A milestone is the first checkpoint of every N steps, or one of the best by evaluation: a run that falls does so
over tens of steps, and the newest few checkpoints have all fallen by the time that somebody looks. What is chosen is a
function of the steps that have a checkpoint now, so a restart chooses as if it had never been away.

Invariants:
- the newest `newest` checkpoints stay, whatever else does;
- beyond them and those whose version is just being evaluated, at most `most` stay;
- leaving out a checkpoint that was not chosen never makes another one that was not chosen stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise


@dataclass(frozen=True, kw_only=True)
class Keep:
    """What stays: the `newest` checkpoints (1 or more); the first of `every` so many training steps (0: none); the
    `best` so many by evaluation; `most` milestones in all, the best before others, of those the newest."""

    newest: int
    every: int = 0
    best: int = 0
    most: int = 0


class Stays(Enum):
    """Why a checkpoint stays."""

    NEWEST = "newest"
    EVALUATED = "being evaluated"
    BEST = "best"
    EVERY = "every"


def chosen(
    steps: Iterable[int], keep: Keep, scores: Mapping[int, float], evaluating: Collection[int] = ()
) -> dict[int, Stays]:
    """Return which of the checkpoints of these training steps stay, the most wanted first.

    `scores` are those of evaluated versions by their training step, higher is better; `evaluating` the steps of the
    versions whose evaluation is under way, of which nothing is known yet.
    """
    ordered = sorted(set(steps))
    found = dict.fromkeys(reversed(ordered[-keep.newest :]), Stays.NEWEST)
    if not keep.most:
        return found
    near = checkpoints_of(ordered, chain(scores, evaluating))
    if keep.best:
        found |= {near[step]: Stays.EVALUATED for step in evaluating if step in near and near[step] not in found}
    best = [near[step] for step in sorted(scores, key=lambda step: (-scores[step], step)) if step in near]
    places = keep.most
    for step, why in chain(
        ((step, Stays.BEST) for step in best[: keep.best]),
        ((step, Stays.EVERY) for step in reversed([*_firsts(ordered, keep.every)])),
    ):
        if step not in found and places > 0:
            found[step] = why
            places -= 1
    return found


def checkpoints_of(ordered: Sequence[int], evaluated: Iterable[int]) -> dict[int, int]:
    """By the step of an evaluated version the checkpoint that comes nearest to it: the first at or after it, and before
    the next that was evaluated. None is taken on the very step while the one before is still being written.

    `ordered` are the steps of the checkpoints, from the lowest.
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
    """The first checkpoint at or after each multiple of `every` but 0."""
    begun = 0
    for step in ordered if every else ():
        if step // every > begun:
            begun = step // every
            yield step
