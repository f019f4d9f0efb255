"""Run the seeded sampler inside vLLM, as a batch-level logits processor that leaves vLLM no choice.

In each of our rows it replaces the chosen token's logit by its behaviour logprob, and every other logit by -inf. vLLM
runs greedy, so it takes that token. It is set to report processed logits, so it reports the logprob of
`protocol.sampling`: log_softmax(logits / T), or at T = 1 when greedy.

The position of a token is the number of tokens that its completion has, taken from the list that vLLM appends to, plus
those at the end of the prompt if the completion was resumed. So it is right also after a completion was preempted and
recomputed.

Invariants:

- vLLM takes the token that the sampler chose, and reports its behaviour logprob.
- A row without a distribution reports NOT_FINITE, which is not a logprob.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from protocol.sampling import greedy, sample

from .expert_recording import RECORDER

ARGUMENT = "volery"
"""Key of a request's extra arguments: {"seed", "temperature", "greedy", "forced", "start", "experts"}; see `Asked`."""

NOT_FINITE = 1e30


@dataclass(eq=False, kw_only=True)
class Asked:
    """How one completion is drawn. `seed`: int64 with the bits of the u64. `forced`: tokens to take instead of drawing,
    and to score at `temperature`. `tokens`: vLLM's own list of the tokens so far. `start`: the position of the first of
    them. `experts`: the name under which the experts of its tokens are kept; "" if they were not requested."""

    seed: int
    temperature: float
    greedy: bool
    forced: list[int]
    tokens: list[int]
    start: int = 0
    experts: str = ""


class SeededSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that checks types
    """The logits processor that vLLM loads; it chooses every token of our rows."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, Asked] = {}
        self._columns: _Columns | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow vLLM's batch: rows removed, added (perhaps in place of others), then moved."""
        if batch_update is None:
            return
        self._columns = None
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, tokens in batch_update.added:
            self._rows.pop(index, None)
            if asked := (params.extra_args or {}).get(ARGUMENT):
                self._rows[index] = Asked(tokens=tokens, **asked)
        for source, target, how in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if other is not None and how is MoveDirectionality.SWAP:
                self._rows[source] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose a token for each of our rows; `logits` (B, V) float32 are changed in place."""
        if not self._rows:  # as in vLLM's own trial runs
            return logits
        if self._columns is None:
            self._columns = _Columns.of(self._rows, self._device)
        columns = self._columns
        if columns.recorded:
            RECORDER.note([(row, asked.experts, len(asked.tokens)) for row, asked in columns.recorded])
        whole = len(columns.asked) == len(logits) and columns.in_order
        mine = logits if whole else logits[columns.index]
        tokens, logprobs = self._choose(mine, columns)
        found = tokens >= 0
        mine.fill_(-math.inf)
        reported = torch.where(found, logprobs, NOT_FINITE).to(mine.dtype)
        mine.scatter_(1, tokens.clamp(min=0)[:, None], reported[:, None])
        if not whole:
            logits[columns.index] = mine
        return logits

    def _choose(self, logits: torch.Tensor, columns: _Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next token (B,) of every row, negative where there is no distribution, and its logprob (B,)."""
        chosen: tuple[torch.Tensor, torch.Tensor]
        if columns.all_greedy:
            chosen = greedy(torch, logits)
        else:
            at = [asked.start + len(asked.tokens) for asked in columns.asked]
            positions = torch.tensor(at, device=self._device)
            chosen = sample(torch, logits, columns.seeds, positions, columns.temperatures)
            if columns.any_greedy:
                likely = greedy(torch, logits)
                chosen = (
                    torch.where(columns.greedy, likely[0], chosen[0]),
                    torch.where(columns.greedy, likely[1], chosen[1]),
                )
        for row in columns.forced:
            self._force(logits[row], columns.asked[row], row, chosen)
        return chosen

    def _force(self, logits: torch.Tensor, asked: Asked, row: int, chosen: tuple[torch.Tensor, torch.Tensor]) -> None:
        # A prompt that is computed in parts is sampled after each of them, and the result is discarded.
        token = asked.forced[min(len(asked.tokens), len(asked.forced) - 1)]
        score = torch.log_softmax(logits.float() / asked.temperature, -1)[token]
        chosen[0][row] = token if bool(torch.isfinite(score)) else -1
        chosen[1][row] = score


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The rows as tensors on the logits' device; they change only when the batch does."""

    asked: list[Asked]
    index: torch.Tensor  # (B,) of the row in vLLM's batch
    in_order: bool  # index is 0, 1, 2, ...
    seeds: torch.Tensor  # (B,)
    temperatures: torch.Tensor  # (B, 1)
    greedy: torch.Tensor  # (B,) bool
    any_greedy: bool
    all_greedy: bool
    forced: list[int]
    recorded: list[tuple[int, Asked]]  # rows whose experts are requested, with their place in vLLM's batch

    @classmethod
    def of(cls, rows: dict[int, Asked], device: torch.device) -> _Columns:
        order = sorted(rows)
        asked = [rows[index] for index in order]
        greedy = [one.greedy for one in asked]
        return cls(
            asked=asked,
            index=torch.tensor(order, device=device),
            in_order=order == list(range(len(order))),
            seeds=torch.tensor([one.seed for one in asked], device=device),
            temperatures=torch.tensor(
                [[1.0 if one.greedy else one.temperature] for one in asked], dtype=torch.float32, device=device
            ),
            greedy=torch.tensor(greedy, device=device),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            forced=[row for row, one in enumerate(asked) if one.forced],
            recorded=[(index, one) for index, one in zip(order, asked, strict=True) if one.experts],
        )
