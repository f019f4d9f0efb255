"""Pack sequences of different lengths into rectangular token batches under a memory budget.

Neighbours with the same prompt share one row and one copy of that prompt while the row is short, since a group's prompt
is most of its positions when completions are short (the idea of "shared prefix" training; cf. Hydragen, arXiv
2402.05099). Rows of about equal width share a microbatch, with padding on the right.

    one sequence in a row    p p p a a a . .    plain causal attention, no mask: no real token sees what is to its right
    a group in one row       p p p a a a b b    a mask hides the a's from the b's; positions start again after the p's

If the attention backend knows where sequences begin (`learner.training.model.varlen_attention`), they lie end to end in
one row instead, without padding and without a mask.

    end to end               p p p a a a q q b b b b

Invariants:

- Every target token of every kept sequence is in exactly one microbatch, exactly once, with the position that predicts
  it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learner.training.batches.sequences import Flags, Ints, Prepared, Ragged, starts_of

PAD = 0
"""Any valid token id: padding is to the right of everything that is read."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """S sequences in R rows, ready for a forward pass.

    `inputs` (R, L) int64 are right-padded, without each sequence's last token, which predicts nothing. Its N targets:

    - `predictors` [N] index the flattened (R * L) positions that predict them.
    - `tokens` [N] are the targets themselves.
    - `segments` [N] are their sequences in [0, S).
    - `numbers` [N] are their places among the batch's targets.

    If siblings share a row, `positions` (R, L) count from the beginning of each sequence, and `visible` (R, 1, L, L)
    bool says which position sees which. Both are None where plain causal attention is enough. If sequences lie end to
    end, R = 1 and `positions` start again with each sequence. Then `ends` [S + 1] int32 say where they begin and where
    the last one ends; the longest has `longest` positions. `routes` (R * L, layers, top_k) are the experts to replay at
    each position, if any (`learner.training.batches.routes`).
    """

    inputs: Tensor
    predictors: Tensor
    tokens: Tensor
    segments: Tensor
    numbers: Ints
    num_sequences: int
    positions: Tensor | None = None
    visible: Tensor | None = None
    ends: Tensor | None = None
    longest: int = 0
    routes: Tensor | None = None

    def to(self, device: torch.device) -> Microbatch:
        """Return the same microbatch on `device`; `numbers` stay on the host."""
        if device == self.inputs.device:
            return self
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Sequences that share one row: their numbers in the batch, the length of their common prompt, the row's width."""

    sequences: tuple[int, ...]
    prompt: int
    width: int


def rows_of(batch: Ragged, keep: Flags, *, share_prompts: bool) -> list[Row]:
    """Cut the kept sequences, in order, into rows. With `share_prompts`, neighbours with equal prompts share a row up
    to `MAX_SHARED_WIDTH`.

    A prompt is everything before the first target. A sequence without targets gets no row.
    """
    rows: list[Row] = []
    previous = b""
    ends = np.cumsum(batch.lengths)
    for number in np.flatnonzero(keep & (batch.target_counts > 0)).tolist():
        end = int(ends[number])
        start = end - int(batch.lengths[number])
        prompt_length = int(batch.targets[start:end].argmax())
        prompt = batch.tokens[start : start + prompt_length].tobytes()
        tail = end - start - prompt_length - 1
        if share_prompts and rows and prompt == previous and rows[-1].width + tail <= MAX_SHARED_WIDTH:
            last = rows[-1]
            rows[-1] = Row(sequences=(*last.sequences, number), prompt=prompt_length, width=last.width + tail)
        else:
            rows.append(Row(sequences=(number,), prompt=prompt_length, width=prompt_length + tail))
        previous = prompt
    return rows


def plan(widths: Ints, max_tokens: int) -> list[Ints]:
    """Return row numbers for each microbatch: rows x widest <= `max_tokens`, widest first. A wider row goes alone."""
    order = np.argsort(-widths, kind="stable")
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        count = max(1, max_tokens // int(widths[order[start]]))
        batches.append(order[start : start + count])
        start += count
    return batches


def deal(widths: Ints, ranks: int) -> list[Ints]:
    """Deal rows to ranks, the widest first, each to the rank with the least. So no rank gets more than another by more
    than one row. Returns the rows of each rank, in order.
    """
    if ranks == 1:
        return [np.arange(len(widths))]
    totals, dealt = np.zeros(ranks, np.int64), np.zeros(len(widths), np.int64)
    for row in np.argsort(-widths, kind="stable"):
        rank = int(totals.argmin())
        dealt[row] = rank
        totals[rank] += widths[row]
    return [np.flatnonzero(dealt == rank) for rank in range(ranks)]


def plan_end_to_end(widths: Ints, max_tokens: int) -> list[Ints]:
    """Return row numbers for each microbatch: their widths sum to at most `max_tokens`, widest first, each row where it
    first fits. A wider row goes alone.
    """
    batches: list[list[int]] = []
    room: list[int] = []
    for row in np.argsort(-widths, kind="stable").tolist():
        width = int(widths[row])
        place = next((place for place, left in enumerate(room) if width <= left), len(room))
        if place == len(room):
            batches.append([])
            room.append(max_tokens)
        batches[place].append(row)
        room[place] -= width
    return [np.array(chosen, np.int64) for chosen in batches]


def microbatches(batch: Ragged, keep: Flags, max_tokens: int, *, share_prompts: bool) -> Iterator[Microbatch]:
    """Yield the sequences where `keep` [B] is set, at most `max_tokens` positions (padding included) at a time.

    Use `share_prompts` only if the model honours masks and positions (`Policy.layout`).
    """
    layout = Layout.GROUPS if share_prompts else Layout.ROWS
    for part in dealt_microbatches(batch, keep, max_tokens, layout=layout, rank=0, ranks=1):
        assert part is not None, "a single rank is never idle"
        yield part


class Layout(Enum):
    """How sequences lie in a microbatch. Use GROUPS only if the model honours masks and positions, and END_TO_END
    only if its attention knows where sequences begin (`Policy.layout`).
    """

    ROWS = "one sequence in a row"
    GROUPS = "groups in a row"
    END_TO_END = "all in one row"


def dealt_microbatches(
    batch: Ragged, keep: Flags, max_tokens: int, *, layout: Layout, rank: int, ranks: int
) -> Iterator[Microbatch | None]:
    """Yield the microbatches of `rank`, one of `ranks`, from the sequences where `keep` [B] is set, each of at most
    `max_tokens` positions. Then yield None until it has as many as any other rank: passes in which it must take part.
    """
    rows = rows_of(batch, keep, share_prompts=layout is Layout.GROUPS)
    offsets = _Offsets(starts=starts_of(batch.lengths), first_targets=starts_of(batch.target_counts))
    widths = np.array([row.width for row in rows], np.int64)
    cut, lay = (plan_end_to_end, _end_to_end) if layout is Layout.END_TO_END else (plan, _microbatch)
    plans = [[mine[chosen] for chosen in cut(widths[mine], max_tokens)] for mine in deal(widths, ranks)]
    for chosen in plans[rank]:
        part = lay(batch, [rows[index] for index in chosen], offsets)
        if batch.routes is not None:
            part = replace(part, routes=batch.routes.at(part.numbers, part.predictors, part.inputs.numel()))
        yield part
    yield from (None for _ in range(max(map(len, plans)) - len(plans[rank])))


@dataclass(frozen=True, kw_only=True)
class _Offsets:
    """The first token and the first target of each sequence in the batch, [B] each."""

    starts: Ints
    first_targets: Ints


def _microbatch(batch: Ragged, rows: Sequence[Row], offsets: _Offsets) -> Microbatch:
    shape = (len(rows), max(row.width for row in rows))
    inputs = np.full(shape, PAD, np.int64)
    positions = np.zeros(shape, np.int64)
    owners = np.full(shape, _PADDING, np.int64)
    predictors: list[Ints] = []
    tokens: list[Ints] = []
    numbers: list[Ints] = []
    for index, row in enumerate(rows):
        prompt = row.prompt
        start = int(offsets.starts[row.sequences[0]])
        inputs[index, :prompt] = batch.tokens[start : start + prompt]
        positions[index, :prompt] = np.arange(prompt)
        owners[index, :prompt] = _PROMPT
        column = prompt
        for owner, number in enumerate(row.sequences):
            start = int(offsets.starts[number])
            end = start + int(batch.lengths[number])
            tail = end - start - prompt - 1
            place = slice(column, column + tail)
            inputs[index, place] = batch.tokens[start + prompt : end - 1]
            positions[index, place] = np.arange(prompt, prompt + tail)
            owners[index, place] = owner
            targets = np.flatnonzero(batch.targets[start:end])
            # The token before the first target is the prompt's last, wherever the sequence's own tokens are.
            before = np.where(targets == prompt, prompt - 1, column + targets - 1 - prompt)
            predictors.append(index * shape[1] + before)
            tokens.append(batch.tokens[start + targets])
            numbers.append(offsets.first_targets[number] + np.arange(len(targets)))
            column += tail
    shared = any(len(row.sequences) > 1 for row in rows)
    return Microbatch(
        inputs=torch.from_numpy(inputs),
        predictors=torch.from_numpy(np.concatenate(predictors)),
        tokens=torch.from_numpy(np.concatenate(tokens)),
        segments=torch.from_numpy(np.repeat(np.arange(len(tokens)), [len(part) for part in tokens])),
        numbers=np.concatenate(numbers),
        num_sequences=len(tokens),
        positions=torch.from_numpy(positions) if shared else None,
        visible=torch.from_numpy(_visible(owners)) if shared else None,
    )


def _end_to_end(batch: Ragged, rows: Sequence[Row], offsets: _Offsets) -> Microbatch:
    numbers = [row.sequences[0] for row in rows]
    widths = np.array([row.width for row in rows], np.int64)
    starts = starts_of(widths)
    spans = [slice(int(offsets.starts[one]), int(offsets.starts[one] + batch.lengths[one])) for one in numbers]
    targets = [np.flatnonzero(batch.targets[span]) for span in spans]
    return Microbatch(
        inputs=torch.from_numpy(np.concatenate([batch.tokens[span][:-1] for span in spans])[None]),
        predictors=torch.from_numpy(
            np.concatenate([start + found - 1 for start, found in zip(starts, targets, strict=True)])
        ),
        tokens=torch.from_numpy(
            np.concatenate([batch.tokens[span][found] for span, found in zip(spans, targets, strict=True)])
        ),
        segments=torch.from_numpy(np.repeat(np.arange(len(rows)), [len(found) for found in targets])),
        numbers=np.concatenate(
            [offsets.first_targets[one] + np.arange(len(found)) for one, found in zip(numbers, targets, strict=True)]
        ),
        num_sequences=len(rows),
        positions=torch.from_numpy(np.concatenate([np.arange(width) for width in widths])[None]),
        ends=torch.from_numpy(np.append(starts, widths.sum()).astype(np.int32)),
        longest=int(widths.max()),
    )


def _visible(owners: Ints) -> Flags:
    """Return which position sees which, (R, 1, L, L): earlier ones of the prompt and of its own sequence. Every
    position sees itself, padding too: a softmax over nothing would be NaN, and spoil the gradients of its whole row.
    """
    mine, theirs = owners[:, :, None], owners[:, None, :]
    earlier = np.tri(owners.shape[1], dtype=np.bool_)
    visible: Flags = ((theirs == _PROMPT) | (theirs == mine)) & earlier
    return visible[:, None]


_PROMPT, _PADDING = -1, -2
"""Owners of positions that belong to no single sequence."""

MAX_SHARED_WIDTH = 256
"""Masked attention costs the square of a row's width, where plain attention skips half and never stores it. At 256
positions it is still far below the cost of the layers around it, and saves a dozen copies of a prompt."""


def mini_batches(batch: Prepared, wanted: int) -> list[Prepared]:
    """Cut a training batch for several optimizer updates, between groups and never inside one.

    The parts, laid end to end, are the batch. There are `wanted` parts, or one for each group if there are fewer
    groups. Each has at least one whole group, and each cut lies at the border between groups that is nearest to equal
    numbers of sequences. A group stays whole because its advantages are differences from its own mean: half of one
    would push in one direction. The order is the batch's, so the oldest rollouts come first, and do not become one
    update older still.
    """
    ends = np.cumsum(batch.groups)
    count = min(wanted, len(ends))
    borders = [0]
    for done in range(1, count):
        # Groups that may be the part's last: each later part needs one.
        free = np.arange(borders[-1], len(ends) - (count - done))
        nearest = np.argmin(np.abs(ends[free] - len(batch.sequences) * done / count))
        borders.append(int(free[nearest]) + 1)
    return [_part(batch, first, last) for first, last in pairwise([*borders, len(ends)])]


def _part(batch: Prepared, first: int, last: int) -> Prepared:
    """Return the groups from `first` up to `last`, exclusive."""
    begin, end = (int(batch.groups[:number].sum()) for number in (first, last))
    sequences = batch.sequences
    tokens = slice(*(int(sequences.lengths[:number].sum()) for number in (begin, end)))
    targets = slice(*(int(sequences.target_counts[:number].sum()) for number in (begin, end)))
    return Prepared(
        sequences=Ragged(
            tokens=sequences.tokens[tokens],
            lengths=sequences.lengths[begin:end],
            targets=sequences.targets[tokens],
            routes=None if sequences.routes is None else sequences.routes.of(targets),
        ),
        trained=batch.trained[begin:end],
        groups=batch.groups[first:last],
        columns={name: column[targets] for name, column in batch.columns.items()},
    )
