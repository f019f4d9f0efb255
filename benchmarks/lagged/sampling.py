"""Draw completions from a model in this process, many at a time, with their log probabilities.

Invariants:

- A completion ends with a stop id or after the budget.
- Its log probabilities are log_softmax(logits) under the weights that drew it, as an engine reports them.
- The same generator gives the same completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

BLOCK = 512
"""Prompts evaluated together: some tens of MiB of logits and cache for the models of the study."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One completion: token ids, and the log probability of each, float32 [len(tokens)]."""

    tokens: tuple[int, ...]
    logprobs: NDArray[np.float32]


@torch.no_grad()
def draw(
    model: Any,
    prompts: Sequence[tuple[int, ...]],
    group: int,
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    generator: torch.Generator | None,
) -> list[Drawn]:
    """Return `group` completions of each prompt, siblings next to each other; greedy ones without a generator."""
    drawn: dict[int, list[Drawn]] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        chosen = [number for number, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[number] for number in chosen])
        found = _draw_equal(model, ids, group, max_new_tokens, torch.tensor(list(stop_ids)), generator)
        drawn |= {number: found[at * group : (at + 1) * group] for at, number in enumerate(chosen)}
    return [one for number in range(len(prompts)) for one in drawn[number]]


def _draw_equal(
    model: Any,
    prompts: torch.Tensor,
    group: int,
    max_new_tokens: int,
    stop_ids: torch.Tensor,
    generator: torch.Generator | None,
) -> list[Drawn]:
    """Return P * group completions for prompts (P, L) of one length."""
    cache = DynamicCache()
    logits = model(input_ids=prompts, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    cache.batch_repeat_interleave(group)
    logits = logits.repeat_interleave(group, dim=0)
    rows = len(logits)
    tokens = torch.zeros(rows, max_new_tokens, dtype=torch.long)
    logprobs = torch.zeros(rows, max_new_tokens)
    lengths, going = torch.zeros(rows, dtype=torch.long), torch.ones(rows, dtype=torch.bool)
    for position in range(max_new_tokens):
        log_p = torch.log_softmax(logits.float(), dim=-1)
        if generator is None:
            chosen = log_p.argmax(dim=-1)
        else:
            chosen = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(1)
        tokens[:, position] = chosen
        logprobs[:, position] = log_p.gather(1, chosen[:, None]).squeeze(1)
        lengths += going
        going &= ~torch.isin(chosen, stop_ids)
        if not going.any() or position == max_new_tokens - 1:
            break
        logits = model(input_ids=chosen[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
    return [
        Drawn(tokens=tuple(row[:length]), logprobs=logprob[:length])
        for row, logprob, length in zip(tokens.tolist(), logprobs.numpy(), lengths.tolist(), strict=True)
    ]


def accuracy(
    model: Any,
    prompts: Sequence[tuple[int, ...]],
    reward: Callable[[int, tuple[int, ...]], float],
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    generator: torch.Generator | None,
) -> float:
    """Return the mean reward of one completion of each prompt; `reward` takes a prompt's number and the tokens."""
    total = 0.0
    for first in range(0, len(prompts), BLOCK):
        some = draw(
            model,
            prompts[first : first + BLOCK],
            1,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            generator=generator,
        )
        total += sum(reward(first + number, one.tokens) for number, one in enumerate(some))
    return total / len(prompts)
