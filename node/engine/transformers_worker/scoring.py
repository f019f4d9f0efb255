"""Score given completions with the installed weights, and check whether the seeded sampler draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from protocol.core.errors import PeerError
from protocol.core.pipe import Arrays, Header
from protocol.experts import Routing, unpack_experts
from protocol.sampling import verify_tokens

from ..common_worker.errors import Refused
from .expert_replay import NOBODY, replaying
from .policy import Policy

SCORE_LOGIT_BYTES = 256 * 1024 * 1024
"""Bytes of float32 logits that one scoring batch may hold, unless a single sequence needs more."""

VERIFY_LOGIT_BYTES = 16 * 1024 * 1024
"""Bytes of logits that are verified together, unless a single sequence has more. For small models, a call for each
sequence took six times as long as the model."""

Passage = tuple[int, torch.Tensor, torch.Tensor]
"""A sequence's index, the logits (N, V) from which its completion's tokens were drawn, and these tokens (N,)."""

TOLD = ("gaps", "logprobs", "leads", "sizes")
"""The values that are returned for each token."""


class Scorer:
    """Scores completions in one causal pass over prompt and completion. `poll` is called before every pass."""

    def __init__(self, policy: Policy, poll: Callable[[], None]) -> None:
        self._policy = policy
        self._poll = poll

    @torch.inference_mode()
    def run(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        """Answer a request of `tokens` int32 flat, `prompt_lengths`, `completion_lengths`, `temperatures` with
        `logprobs` float32 flat: log_softmax(logits / T) of every completion token."""
        parts = [np.zeros(0, np.float32)] * len(arrays["prompt_lengths"])
        for i, logits, tokens in self._passes(arrays):
            scores = logits.float() / float(arrays["temperatures"][i])
            parts[i] = (scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1)).cpu().numpy()
        return {}, {"logprobs": _joined(parts)}

    @torch.inference_mode()
    def verify(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        """Answer a request as in `run`, with each completion's `seeds` u64 and `starts`, the position of its first
        token. The reply has for each completion token `gaps` float32, its distance to what the seeded sampler draws
        (`sampling.verify_tokens`), `logprobs`, `leads` and `sizes`.

        For a mixture of experts the request may have `experts`, the bytes of all completions, and `expert_bytes`, the
        number of each one's bytes, 0 for none (`expert_replay`)."""
        seeds = arrays["seeds"].view(np.int64).tolist()
        temperatures, starts = arrays["temperatures"].tolist(), arrays["starts"].tolist()
        told = {name: [np.zeros(0, np.float32)] * len(seeds) for name in TOLD}
        for some in _together(self._passes(arrays)):
            counts = [len(tokens) for _, _, tokens in some]
            logits = torch.cat([rows for _, rows, _ in some]) if len(some) > 1 else some[0][1]  # may be large
            device = "cpu" if logits.device.type == "mps" else logits.device  # Apple's GPUs have no float64
            of_each = torch.tensor(counts, device=device)
            keys = torch.tensor([seeds[i] for i, _, _ in some], dtype=torch.int64, device=device)
            heat = torch.tensor([temperatures[i] for i, _, _ in some], dtype=torch.float32, device=device)
            found = verify_tokens(
                torch,
                logits.to(device),
                keys.repeat_interleave(of_each),
                torch.cat(
                    [
                        torch.arange(starts[i], starts[i] + count, device=device)
                        for (i, _, _), count in zip(some, counts, strict=True)
                    ]
                ),
                torch.cat([tokens for _, _, tokens in some]).to(device),
                heat.repeat_interleave(of_each)[:, None],
            )
            cuts = np.cumsum(counts)[:-1]
            for name, values in zip(TOLD, (found.worst, found.logprobs, found.lead, found.size), strict=True):
                parts = np.split(values.float().cpu().numpy(), cuts)
                for (i, _, _), part in zip(some, parts, strict=True):
                    told[name][i] = part
        return {}, {name: _joined(parts) for name, parts in told.items()}

    def _passes(self, arrays: Arrays) -> Iterator[Passage]:
        """Yield every sequence, in any order, computed with the experts that the request names."""
        if "experts" not in arrays:
            yield from self._passes_of(arrays, None)
            return
        with replaying(self._policy.model) as replay:
            experts = _experts(arrays, replay.routing)

            def follow(batch: Sequence[int], columns: int) -> None:
                forced = np.full((len(batch), columns, *experts[0].shape[1:]), NOBODY, np.int64)
                for row, i in zip(forced, batch, strict=True):
                    predictor = int(arrays["prompt_lengths"][i]) - 1
                    row[predictor : predictor + len(experts[i])] = experts[i]
                replay.force(torch.from_numpy(forced).flatten(0, 1).to(self._policy.device))

            yield from self._passes_of(arrays, follow)

    def _passes_of(self, arrays: Arrays, follow: Callable[[Sequence[int], int], None] | None) -> Iterator[Passage]:
        """Yield every sequence, in any order. Before each pass, `follow` gets the sequences in it and its columns."""
        prompts, completions = arrays["prompt_lengths"].tolist(), arrays["completion_lengths"].tolist()
        if not prompts:
            return
        ends = np.cumsum(arrays["prompt_lengths"] + arrays["completion_lengths"])
        sequences = np.split(arrays["tokens"].astype(np.int64), ends[:-1])
        if min(prompts) < 1:
            raise Refused("bad_request", "the prompt is empty: the first token would have no distribution")
        if len(arrays["tokens"]):
            self._policy.require_known(int(arrays["tokens"].min()), int(arrays["tokens"].max()))
        longest = max(map(len, sequences))
        self._policy.require_length(longest, f"{longest} tokens")
        for batch in self._batches([len(sequence) for sequence in sequences]):
            self._poll()
            kept = max(len(sequences[i]) - prompts[i] for i in batch) + 1
            kept = max(kept, max(len(sequences[i]) for i in batch) - min(prompts[i] for i in batch) + 1)
            if follow is not None:
                follow(batch, max(len(sequences[i]) for i in batch))
            logits = self._logits([sequences[i] for i in batch], kept)  # (N, kept, V), of the last columns
            first = max(len(sequences[i]) for i in batch) - logits.shape[1]
            for i, row in zip(batch, logits, strict=True):
                start = prompts[i] - 1 - first
                tokens = torch.as_tensor(sequences[i][prompts[i] :], device=row.device)
                yield i, row[start : start + completions[i]], tokens

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """Yield batches of indices with similar lengths, so that a batch's logits stay within SCORE_LOGIT_BYTES."""
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
        told: dict[str, Any] = {}
        if first := self._policy.habits.first_position:
            told["position_ids"] = (torch.arange(ids.shape[1]) + first).expand(ids.shape).to(self._policy.device)
        return self._policy.model(  # type: ignore[no-any-return]
            input_ids=torch.from_numpy(ids).to(self._policy.device),
            use_cache=False,
            logits_to_keep=min(kept, ids.shape[1]),
            **told,
        ).logits


def _experts(arrays: Arrays, routing: Routing) -> list[np.ndarray[Any, Any]]:
    """Return the experts (T, layers, top_k) of each completion's tokens; T = 0 if the request names none."""
    lengths, sizes = arrays["completion_lengths"].tolist(), arrays["expert_bytes"].tolist()
    raws = np.split(arrays["experts"], np.cumsum(sizes)[:-1])
    try:
        return [
            unpack_experts(raw.tobytes(), length if len(raw) else 0, routing)
            for raw, length in zip(raws, lengths, strict=True)
        ]
    except PeerError as error:
        raise Refused("bad_request", f"these experts do not fit the model: {error.detail}") from None


def _joined(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _together(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Yield lists of passages, each with as many as VERIFY_LOGIT_BYTES have room for."""
    some: list[Passage] = []
    taken = 0
    for passage in passages:
        size = passage[1].nelement() * passage[1].element_size()
        if some and taken + size > VERIFY_LOGIT_BYTES:
            yield some
            some, taken = [], 0
        some.append(passage)
        taken += size
    if some:
        yield some
