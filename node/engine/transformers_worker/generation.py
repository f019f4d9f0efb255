"""Decode batches: prefill each distinct prompt once, then draw one token at a time for all rows.

Prompts are padded on the left if the model heeds padding. Rows are dropped as they finish.

Invariant: a completion is a function of the installed weights, the prompt and the seed, up to float rounding. It does
not depend on the rest of its batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from protocol.sampling import greedy, sample

from ..common_worker.errors import Refused
from ..common_worker.generate_call import Row
from ..common_worker.token_events import Drawn, listens
from .expert_recording import Recorder, recording
from .forward import read_on
from .kv_cache import Memory
from .policy import Policy

COMPACT_BELOW = 0.75
"""Finished rows are dropped when less than this fraction of a batch is unfinished. Dropping copies the KV cache once,
which costs about one step, and then saves the dropped fraction of every later step."""
NO_STOP = -2
"""Fills the table of stop ids. The sampler's NO_TOKEN is -1, and real ids are not negative."""


@dataclass(eq=False, kw_only=True)
class Live:
    """The rows that are still decoded, B of them. They are on the sampler's device; `positions` and `mask`, which the
    model reads, are on the model's."""

    order: torch.Tensor  # (B,) index of the row in the original batch
    seeds: torch.Tensor  # (B,)
    starts: torch.Tensor  # (B,) position of the first token within its completion
    temperatures: torch.Tensor  # (B, 1)
    greedy: torch.Tensor  # (B,) bool
    budgets: torch.Tensor  # (B,)
    stops: torch.Tensor  # (B, S), filled up with NO_STOP
    done: torch.Tensor  # (B,) bool: finished, but not dropped yet
    positions: torch.Tensor  # (B, 1) position of the next token within its sequence
    mask: torch.Tensor | None  # (B, T + budget): 0 where the prompt was padded; None without padding

    def keep(self, rows: torch.Tensor) -> None:
        for name, value in vars(self).items():
            if value is not None:
                setattr(self, name, value.index_select(0, rows.to(value.device)))


class Generator:
    """Decodes batches with one policy. `poll` is called before every step and returns whether calls have been answered
    or interrupted meanwhile. `tell` receives the tokens of rows whose callers listen."""

    def __init__(
        self, policy: Policy, poll: Callable[[], bool], tell: Callable[[Sequence[Drawn]], None] = lambda drawn: None
    ) -> None:
        self._policy = policy
        self._poll = poll
        self._tell = tell
        # The sampler needs float64, which Apple's GPUs do not have; a row of logits is small.
        self._sampler_device = torch.device("cpu") if policy.device.type == "mps" else policy.device

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> None:
        """Generate `rows` and fill in their results, except rows whose call was answered meanwhile. If the model cannot
        pad prompts, all prompts must have one length."""
        if not any(row.with_experts for row in rows):
            self._run(rows, None)
            return
        with recording(self._policy.model) as recorder:
            self._run(rows, recorder)
            recorder.fill(rows)

    def _run(self, rows: Sequence[Row], recorder: Recorder | None) -> None:
        started = time.perf_counter()
        budget = max(row.budget for row in rows)
        tokens = torch.zeros(len(rows), budget, dtype=torch.int64, device=self._sampler_device)
        logprobs = torch.zeros(len(rows), budget, dtype=torch.float32, device=self._sampler_device)
        longest = max(len(row.prompt) for row in rows)
        memory = self._policy.habits.keeping.new(self._policy.model.config, budget)
        live, logits = self._prefill(rows, longest, budget, memory, recorder)
        for step in range(budget):
            if recorder is not None:
                recorder.note(live.order)
            chosen, chosen_logprobs = self._choose(logits, live, step)
            tokens[live.order, step] = chosen
            logprobs[live.order, step] = chosen_logprobs
            if any(listens(row) for row in rows):
                self._tell(_drawn(rows, live, step, chosen, chosen_logprobs))
            ended = (chosen[:, None] == live.stops).any(1) | (chosen < 0) | (live.budgets == step + 1)
            for index in live.order[ended & ~live.done].tolist():
                rows[index].length = step + 1
            live.done |= ended
            if self._poll():
                calls = [rows[index].call for index in live.order.tolist()]
                for index in live.order[~live.done].tolist():
                    if rows[index].call.interrupted:
                        rows[index].length = step + 1
                over = [call.answered or call.interrupted for call in calls]
                live.done |= torch.tensor(over, device=self._sampler_device)
            left = (~live.done).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) <= COMPACT_BELOW * len(live.done):
                live.keep(left)
                memory.select(left.to(self._policy.device))
                chosen = chosen.index_select(0, left)
            logits = self._decode(chosen, live, longest + step + 1, memory)
        _store(rows, tokens.cpu().numpy(), logprobs.cpu().numpy())
        _share_time(rows, time.perf_counter() - started)

    def _prefill(
        self, rows: Sequence[Row], longest: int, budget: int, memory: Memory, recorder: Recorder | None
    ) -> tuple[Live, torch.Tensor]:
        """Run each distinct prompt once, into `memory`; return the state of all rows and their first logits (B, V)."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        padding = torch.tensor([[longest - len(prompt)] for prompt in prompts])  # (P, 1)
        columns = torch.arange(longest + budget)[None]
        # Without padding there is no mask, and attention takes its fast path.
        mask = (columns >= padding).long().to(self._policy.device) if padding.any() else None
        ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        positions = (columns[:, :longest] - padding).clamp(min=0)
        logits = self._step(ids, None if mask is None else mask[:, :longest], positions, memory)
        if len(prompts) < len(rows):
            index = {prompt: number for number, prompt in enumerate(prompts)}
            owner = torch.tensor([index[row.prompt] for row in rows], device=self._policy.device)
            memory.select(owner)
            if recorder is not None:
                recorder.share(owner)
            logits = logits.index_select(0, owner)
            mask = None if mask is None else mask.index_select(0, owner)
        return self._live(rows, mask), logits

    def _live(self, rows: Sequence[Row], mask: torch.Tensor | None) -> Live:
        device = self._sampler_device
        num_stops = max(1, max(len(row.stop_ids) for row in rows))
        stops = [row.stop_ids + (NO_STOP,) * (num_stops - len(row.stop_ids)) for row in rows]
        temperatures = [[1.0 if row.greedy else row.temperature] for row in rows]
        return Live(
            order=torch.arange(len(rows), device=device),
            seeds=torch.tensor([row.seed for row in rows], device=device),
            starts=torch.tensor([row.start for row in rows], device=device),
            temperatures=torch.tensor(temperatures, dtype=torch.float32, device=device),
            greedy=torch.tensor([row.greedy for row in rows], device=device),
            budgets=torch.tensor([row.budget for row in rows], device=device),
            stops=torch.tensor(stops, device=device),
            done=torch.zeros(len(rows), dtype=torch.bool, device=device),
            positions=torch.tensor([[len(row.prompt)] for row in rows], device=self._policy.device),
            mask=mask,
        )

    def _choose(self, logits: torch.Tensor, live: Live, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next token (B,) of every row, -1 where there is no distribution, and its logprob (B,)."""
        logits = logits.to(self._sampler_device, torch.float32)
        any_greedy = bool(live.greedy.any())
        if any_greedy:
            likely: tuple[torch.Tensor, torch.Tensor] = greedy(torch, logits)
            if bool(live.greedy.all()):
                return likely
        steps = live.starts + step
        drawn: tuple[torch.Tensor, torch.Tensor] = sample(torch, logits, live.seeds, steps, live.temperatures)
        if not any_greedy:
            return drawn
        return torch.where(live.greedy, likely[0], drawn[0]), torch.where(live.greedy, likely[1], drawn[1])

    def _decode(self, chosen: torch.Tensor, live: Live, length: int, memory: Memory) -> torch.Tensor:
        """Append one token to every row, which then has `length` columns; return the next logits (B, V)."""
        mask = None if live.mask is None else live.mask[:, :length]
        logits = self._step(chosen.clamp(min=0)[:, None], mask, live.positions, memory)
        live.positions += 1
        return logits

    def _step(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, memory: Memory
    ) -> torch.Tensor:
        device = self._policy.device
        first = self._policy.habits.first_position
        return read_on(self._policy.model, ids.to(device), mask, positions.to(device), memory, first)


def _drawn(rows: Sequence[Row], live: Live, step: int, chosen: torch.Tensor, logprobs: torch.Tensor) -> list[Drawn]:
    """Return the tokens of this step that belong to rows whose callers listen."""
    columns = zip(live.order.tolist(), live.done.tolist(), chosen.tolist(), logprobs.tolist(), strict=True)
    return [
        Drawn(row=rows[index], start=step, tokens=[token], logprobs=[logprob])
        for index, done, token, logprob in columns
        if not done and token >= 0 and listens(rows[index])
    ]


def _store(rows: Sequence[Row], tokens: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any]) -> None:
    """Cut the results (B, budget) to each row's length. Raises Refused("not_finite") if a row had no distribution."""
    for row, row_tokens, row_logprobs in zip(rows, tokens, logprobs, strict=True):
        row.tokens = row_tokens[: row.length].astype(np.int32)
        row.logprobs = row_logprobs[: row.length].copy()
        if (row.tokens < 0).any():
            error = "the model's logits are not finite: the installed weights are broken, install another version"
            raise Refused("not_finite", error)


def _share_time(rows: Sequence[Row], seconds: float) -> None:
    """Divide a batch's time among its rows by their tokens, so that the shares add up to the time in which the engine
    was busy."""
    num_tokens = sum(row.length for row in rows)
    for row in rows:
        row.seconds = seconds * row.length / max(1, num_tokens)
