"""The seeded sampler inside vLLM: a batch-level logits processor that leaves vLLM nothing to choose.

What always holds: of a row of ours every logit becomes -inf but the chosen token's, which becomes its behaviour
logprob. So vLLM, told to be greedy, takes that token; and told to report processed logits, it reports the logprob that
`protocol.sampling` says: log_softmax(logits / T), or at T = 1 when greedy. A row without a distribution reports
NOT_FINITE, which no logprob is.

The position of a token is the number of tokens that its completion has, taken from the list that vLLM appends to, and
of those that the prompt ends with where others began it: it is right also after a completion was preempted and computed
anew.
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
    """How one completion is drawn. `seed` int64 with the bits of the u64; `forced` tokens are taken instead of drawn,
    and only scored, at `temperature`. `tokens` is vLLM's own list of what was generated so far; `start` the position of
    the first of them. `experts`: the name under which the experts that made its tokens are kept, "" where nobody asked
    for them."""

    seed: int
    temperature: float
    greedy: bool
    forced: list[int]
    tokens: list[int]
    start: int = 0
    experts: str = ""


class SeededSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that checks types
    """See the module's paragraph."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, Asked] = {}
        self._columns: _Columns | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow vLLM's batch: rows removed, added (over others, perhaps), then moved."""
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
        """Choose for every row of ours; `logits` (B, V) float32 are changed in place."""
        if not self._rows:  # vLLM's own trial runs
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
        # A prompt computed in parts is sampled from after each of them, and the result thrown away.
        token = asked.forced[min(len(asked.tokens), len(asked.forced) - 1)]
        score = torch.log_softmax(logits.float() / asked.temperature, -1)[token]
        chosen[0][row] = token if bool(torch.isfinite(score)) else -1
        chosen[1][row] = score


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The rows as tensors on the logits' device, which change only when the batch does."""

    asked: list[Asked]
    index: torch.Tensor  # (B,) of the row in vLLM's batch
    in_order: bool  # index is 0, 1, 2, ...
    seeds: torch.Tensor  # (B,)
    temperatures: torch.Tensor  # (B, 1)
    greedy: torch.Tensor  # (B,) bool
    any_greedy: bool
    all_greedy: bool
    forced: list[int]
    recorded: list[tuple[int, Asked]]  # with their place in vLLM's batch, those whose experts are wanted

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
