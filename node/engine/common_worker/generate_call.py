"""Turn a `generate` request into rows, one for each completion, and the finished rows into the reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protocol.core.pipe import Arrays, Header

from .errors import Refused


@dataclass(eq=False, kw_only=True)
class Row:
    """One completion: the request, and when it is done, the result."""

    call: Call
    prompt: tuple[int, ...]
    seed: int  # int64 with the bits of the u64
    temperature: float
    greedy: bool
    budget: int
    stop_ids: tuple[int, ...]
    number: int = 0  # within its call
    start: int = 0  # position of the first token: the prompt ends with this many tokens of the same completion
    with_experts: bool = False
    length: int = 0
    seconds: float = 0.0
    tokens: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.float32))
    experts: np.ndarray[Any, Any] | None = None  # (length, layers, top_k) unsigned, if they were requested
    spans: list[tuple[int, Header]] = field(default_factory=list)  # (end, version), in order; the last end is `length`

    def take(self, tokens: Sequence[int], logprobs: Sequence[float], spans: Sequence[tuple[int, Header]]) -> None:
        """Fill in the result: each token's logprob, and up to which token each version produced them."""
        self.tokens, self.logprobs = np.array(tokens, np.int32), np.array(logprobs, np.float32)
        self.length, self.spans = len(tokens), list(spans)

    @property
    def stopped(self) -> bool:
        return self.length > 0 and int(self.tokens[-1]) in self.stop_ids


@dataclass(eq=False)
class Call:
    """One `generate` request; answered when its last row is done, or refused as a whole.

    `stream`: the name of the events that carry its tokens as they are drawn (`token_events`); None for no events.
    """

    id: int
    rows: list[Row] = field(default_factory=list)
    num_left: int = 0
    answered: bool = False
    stream: int | None = None
    interrupted: bool = False  # its rows end with the tokens that they have

    @classmethod
    def parse(cls, header: Header, arrays: Arrays) -> Call:
        """Read a request: `prompts` int32 flat, `prompt_lengths`; by row `prompt`, `seeds` u64, `temperatures`,
        `greedy`, `budgets`, `stop_set`, `starts`, and `with_experts` or not; header `stop_sets`, perhaps `stream`.
        Raises Refused("bad_request") if no model could generate it."""
        call = cls(header["id"], stream=header.get("stream"))
        ends = np.cumsum(arrays["prompt_lengths"]).tolist()
        flat = arrays["prompts"].tolist()
        prompts = [tuple(flat[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        by_row = ("prompt", "temperatures", "greedy", "budgets", "stop_set", "starts")
        columns = [arrays[name].tolist() for name in by_row]
        seeds = arrays["seeds"].view(np.int64).tolist()
        columns.append(arrays.get("with_experts", np.zeros(len(seeds), np.uint8)).tolist())
        for seed, prompt, temperature, greedy, budget, stop_set, start, experts in zip(seeds, *columns, strict=True):
            if not prompts[prompt]:
                raise Refused("bad_request", "the prompt is empty: a model needs at least one token to continue")
            if budget < 1 or not (greedy or (temperature > 0 and math.isfinite(temperature))):
                raise Refused("bad_request", f"max_new_tokens {budget} and temperature {temperature} must be positive")
            call.rows.append(
                Row(
                    call=call,
                    prompt=prompts[prompt],
                    seed=seed,
                    temperature=temperature,
                    greedy=bool(greedy),
                    budget=budget,
                    stop_ids=tuple(header["stop_sets"][stop_set]),
                    number=len(call.rows),
                    start=start,
                    with_experts=bool(experts),
                )
            )
        call.num_left = len(call.rows)
        return call

    def reply(self) -> tuple[Header, Arrays]:
        """Return the reply: `lengths`, `stopped`, `seconds` by row; `tokens`, `logprobs` flat; `spans` (N, 3): row,
        end, and index into the header's `versions`. If some rows have experts, `routed` says which, and `experts` holds
        them, flat."""
        versions: list[Header] = []
        for _, version in (span for row in self.rows for span in row.spans):
            if version not in versions:
                versions.append(version)
        spans = [(i, end, versions.index(version)) for i, row in enumerate(self.rows) for end, version in row.spans]
        experts = [row.experts for row in self.rows if row.experts is not None]
        routed = np.array([row.experts is not None for row in self.rows], np.uint8)
        told = {"experts": np.concatenate(experts), "routed": routed} if experts else {}
        return {"versions": versions}, {
            **told,
            "lengths": np.array([row.length for row in self.rows], np.int32),
            "tokens": np.concatenate([np.zeros(0, np.int32), *(row.tokens for row in self.rows)]),
            "logprobs": np.concatenate([np.zeros(0, np.float32), *(row.logprobs for row in self.rows)]),
            "stopped": np.array([row.stopped for row in self.rows], np.uint8),
            "seconds": np.array([row.seconds for row in self.rows], np.float64),
            "spans": np.array(spans, np.int32).reshape(-1, 3),
        }
