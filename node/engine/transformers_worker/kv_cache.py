"""Keep a batch's memory from one step to the next: a KV cache that a step appends to, or other states.

Appending avoids copying all earlier tokens at every step. Recurrent layers have states instead of a KV cache.

Invariants:

- A model receives its memory under the name that its forward pass uses. transformers' models silently accept any other
  name, and would start from nothing at every step.
- Rows are dropped and doubled in everything that is kept, or the memory says that it cannot do so.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

MIN_CAPACITY = 64
"""First size of a KV buffer beyond the prompt, in tokens. It grows by half, so that a long budget that is rarely used
costs little."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers leaves it untyped
    """A KV layer in a buffer with room to grow, so that a step appends one token instead of copying all earlier ones.

    `keys` and `values` stay views (B, heads, length, head dim) of the filled part, and the library looks only at these.
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
        """Keep rows `beam_idx` (B',), in that order; a row may occur any number of times."""
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
    """Return an empty cache with the layers of the architecture, in which growing layers replace plain attention
    layers."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


KEPT_AS = ("past_key_values", "cache_params", "state")
"""Names that forward passes use for it, as transformers' generation knows them (`ALL_CACHE_NAMES`): attention, Mamba,
RWKV. XLNet and Reformer keep something that does not agree between two passes."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How an architecture keeps what it has read: the argument's `name`, and whether the model `makes_own`."""

    name: str
    makes_own: bool

    def new(self, config: Any, room: int) -> Memory:
        """Return an empty memory for rows that may grow by `room` tokens after the prompt."""
        return Memory(self.name, None if self.makes_own else new_cache(config, room))


def ways_of_keeping(model: Any) -> list[Keeping]:
    """Return how `model` may be given a memory. Our cache comes first: appending to it copies nothing."""
    taken = inspect.signature(model.forward).parameters
    name = next((name for name in KEPT_AS if name in taken), None)
    if name is None:
        return []
    own = Keeping(name=name, makes_own=True)
    return [Keeping(name=name, makes_own=False), own] if name == KEPT_AS[0] else [own]


class Memory:
    """The memory of a batch. It is empty before the first pass, unless it is a cache of ours."""

    def __init__(self, name: str, kept: Any) -> None:
        self._name = name
        self._kept = kept

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a forward pass."""
        return {"use_cache": True} if self._kept is None else {"use_cache": True, self._name: self._kept}

    def take(self, output: Any) -> None:
        """Keep the memory that a forward pass returned, or else the old one. Raises TypeError if there is none."""
        kept = getattr(output, self._name, None)
        self._kept = self._kept if kept is None else kept
        if self._kept is None:
            raise TypeError(f"{type(output).__name__} has no {self._name} to continue with")

    def select(self, rows: torch.Tensor) -> None:
        """Keep `rows` (B',), in that order; a row may occur any number of times. Raises TypeError if the memory has no
        separate rows."""
        match self._kept:
            case list():
                self._kept = [state.index_select(0, rows) for state in self._kept]
            case Cache() if "batch_select_indices" in vars(type(self._kept)):
                self._kept.batch_select_indices(rows)  # it has more than layers, and only this method shows it
            case Cache():
                self._kept.reorder_cache(rows)
            case kept:
                raise TypeError(f"rows cannot be dropped from a {type(kept).__name__}")
