"""A training batch cut for several optimizer updates, between groups and never inside one.

What always holds: the parts, laid end to end, are the batch; each has one whole group at least; and each cut lies at
the border between groups that is nearest to where equal numbers of sequences would have it. A group stays whole because
its advantages are differences from its own mean: half of one would push in one direction. The order is the batch's, so
the oldest rollouts come first, and are not made one update older still.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from learner.training.batches.sequences import Prepared, Ragged


def mini_batches(batch: Prepared, wanted: int) -> list[Prepared]:
    """Cut `batch` into `wanted` parts; into as many as it has groups, where those are fewer."""
    ends = np.cumsum(batch.groups)
    count = min(wanted, len(ends))
    borders = [0]
    for done in range(1, count):
        # Groups that may be the part's last: each of the parts to come needs one.
        free = np.arange(borders[-1], len(ends) - (count - done))
        nearest = np.argmin(np.abs(ends[free] - len(batch.sequences) * done / count))
        borders.append(int(free[nearest]) + 1)
    return [_part(batch, first, last) for first, last in pairwise([*borders, len(ends)])]


def _part(batch: Prepared, first: int, last: int) -> Prepared:
    """The groups from `first` up to `last`, which is not in it."""
    begin, end = (int(batch.groups[:number].sum()) for number in (first, last))
    sequences = batch.sequences
    tokens = slice(*(int(sequences.lengths[:number].sum()) for number in (begin, end)))
    targets = slice(*(int(sequences.target_counts[:number].sum()) for number in (begin, end)))
    return Prepared(
        sequences=Ragged(
            tokens=sequences.tokens[tokens], lengths=sequences.lengths[begin:end], targets=sequences.targets[tokens]
        ),
        groups=batch.groups[first:last],
        columns={name: column[targets] for name, column in batch.columns.items()},
    )
