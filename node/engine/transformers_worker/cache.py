"""A KV cache that a step appends to, instead of copying all that came before."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

MIN_CAPACITY = 64
"""First size of a KV buffer beyond the prompt, in tokens; it grows by half, so that a long budget that is rarely used
costs little."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers leaves it untyped
    """A KV layer in a buffer with room to grow, so that a step appends one token instead of copying all those before
    it.

    `keys` and `values` stay views (B, heads, length, head dim) of what is filled, which is all that the library looks
    at.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room  # tokens that may still come after the prompt
        self._buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            self._grow(key_states, value_states, start, end)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._view(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep rows `beam_idx` (B',), in that order; a row may be named any number of times."""
        length = self.get_seq_length()
        if length:
            self._buffers = [_select_rows(buffer, beam_idx, length) for buffer in self._buffers]
            self._view(length)

    def _grow(self, key_states: torch.Tensor, value_states: torch.Tensor, start: int, end: int) -> None:
        capacity = end + min(self._room, max(MIN_CAPACITY, end // 2))
        old = self._buffers
        self._buffers = [s.new_empty(*s.shape[:-2], capacity, s.shape[-1]) for s in (key_states, value_states)]
        for buffer, filled in zip(self._buffers, old, strict=False):
            buffer[:, :, :start] = filled[:, :, :start]

    def _view(self, end: int) -> None:
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)


def _select_rows(buffer: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    chosen = buffer.new_empty(len(rows), *buffer.shape[1:])
    chosen[:, :, :length] = buffer[:, :, :length].index_select(0, rows)
    return chosen


def new_cache(config: Any, room: int) -> DynamicCache:
    """Return an empty cache with the layers the architecture asks for, plain attention layers replaced by growing
    ones."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
