"""Logprobs of given completions under the installed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..common_worker.frames import Arrays, Header
from ..common_worker.refusal import Refused
from .policy import Policy

SCORE_LOGIT_BYTES = 256 * 1024 * 1024
"""Float32 logits that one scoring batch may hold, unless a single sequence needs more."""


class Scorer:
    """Logprobs of given completions under the installed weights: one causal pass over prompt and completion. `poll` is
    called before every pass."""

    def __init__(self, policy: Policy, poll: Callable[[], None]) -> None:
        self._policy = policy
        self._poll = poll

    @torch.inference_mode()
    def run(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        """Request: `tokens` int32 flat, `prompt_lengths`, `completion_lengths`, `temperatures`. Reply: `logprobs`
        float32 flat, log_softmax(logits / T) of every completion token."""
        prompts, completions = arrays["prompt_lengths"].tolist(), arrays["completion_lengths"].tolist()
        ends = np.cumsum(arrays["prompt_lengths"] + arrays["completion_lengths"])
        sequences = np.split(arrays["tokens"].astype(np.int64), ends[:-1])
        if min(prompts, default=1) < 1:
            raise Refused("bad_request", "an empty prompt: the first completion token would have no distribution")
        if (
            len(arrays["tokens"])
            and not 0 <= arrays["tokens"].min() <= arrays["tokens"].max() < self._policy.vocab_size
        ):
            raise Refused("bad_request", f"a token id is outside the vocabulary of {self._policy.vocab_size}")
        results: list[Any] = [None] * len(sequences)
        for batch in self._batches([len(sequence) for sequence in sequences]):
            self._poll()
            kept = max(len(sequences[i]) - prompts[i] for i in batch) + 1
            kept = max(kept, max(len(sequences[i]) for i in batch) - min(prompts[i] for i in batch) + 1)
            logits = self._logits([sequences[i] for i in batch], kept)  # (N, kept, V), of the last columns
            first = max(len(sequences[i]) for i in batch) - logits.shape[1]
            for i, row in zip(batch, logits, strict=True):
                start = prompts[i] - 1 - first
                scores = row[start : start + completions[i]].float() / float(arrays["temperatures"][i])
                picked = torch.as_tensor(sequences[i][prompts[i] :], device=scores.device)[:, None]
                results[i] = (scores.gather(1, picked)[:, 0] - scores.logsumexp(-1)).cpu().numpy()
        return {}, {"logprobs": np.concatenate([np.zeros(0, np.float32), *results])}

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """Yield indices, like lengths together, so that a batch's logits stay within SCORE_LOGIT_BYTES."""
        room = SCORE_LOGIT_BYTES // (4 * self._policy.vocab_size)
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > room:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _logits(self, sequences: Sequence[np.ndarray[Any, Any]], kept: int) -> torch.Tensor:
        # Padded on the right and unmasked: a causal model never looks there.
        ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        model = self._policy.model
        return model(  # type: ignore[no-any-return]
            input_ids=torch.from_numpy(ids).to(self._policy.device),
            use_cache=False,
            logits_to_keep=min(kept, ids.shape[1]),
        ).logits
