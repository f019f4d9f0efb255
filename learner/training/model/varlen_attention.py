"""Compute attention over sequences that lie end to end in one row, without padding and without a mask.

On a GPU it is one kernel, in bfloat16, that knows where sequences begin (FlashAttention, arXiv 2307.08691;
torch.nn.attention.varlen). Elsewhere it is one call for all sequences of a length. transformers calls it by name (its
attention interface), and makes no mask for a name that it has no masks for.

Invariants:

- A token sees only its own sequence, only earlier tokens and itself, and in layers with a window only that window.
- Nothing of the size of all positions squared is ever made.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "end_to_end"

SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether the kernel takes fewer heads of keys and values than of queries, as it does since torch 2.12."""


def end_to_end_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return attention (1, N, H, D), called by transformers.

    `query` is (1, H, N, D); `key` and `value` are (1, K, N, D), with fewer heads. `cu_seq_lens_q` int32 [S + 1] says
    where the S sequences begin and the last one ends; the longest has `max_length_q` positions.
    """
    assert cu_seq_lens_q is not None, "every microbatch says where its sequences begin"
    assert max_length_q is not None
    if query.device.type == "cuda":
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        q, k, v = (states.squeeze(0).transpose(0, 1).contiguous() for states in (query, key, value))
        ends, longest = cu_seq_lens_q, max_length_q
        grouped: dict[str, Any] = {}
        if q.shape[1] > k.shape[1]:
            if SHARES_HEADS:
                grouped = {"enable_gqa": True}
            else:
                k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
        out = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=window, **grouped)
        assert isinstance(out, Tensor), "only the output was asked for"
        return out.unsqueeze(0), None
    return _by_length(query, key, value, cu_seq_lens_q, scaling, sliding_window).transpose(1, 2), None


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Return attention (1, H, N, D), computing sequences of equal length together."""
    lengths = ends.diff().tolist()
    places: dict[int, list[int]] = defaultdict(list)
    for place, length in enumerate(lengths):
        places[length].append(place)
    pieces = [torch.split(states, lengths, dim=2) for states in (query, key, value)]
    found: dict[int, Tensor] = {}
    for length, together in places.items():
        q, k, v = (torch.cat([some[place] for place in together]) for some in pieces)
        mask = None if window is None or length <= window else _band(length, window, q.device)
        causal = mask is None
        out = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scaling, enable_gqa=True)
        found |= dict(zip(together, torch.split(out, 1), strict=True))
    return torch.cat([found[place] for place in range(len(lengths))], dim=2)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (back >= 0) & (back < window)


AttentionInterface.register(NAME, end_to_end_attention)
