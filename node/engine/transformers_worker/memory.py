"""Measure and bound a device's memory, and recognise that it is exhausted."""

from __future__ import annotations

import torch

GIB = 1024 * 1024 * 1024


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out. CUDA has an error class for this; a CPU and MPS only have messages."""
    words = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error).lower() for word in words)


def release_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def bound_memory(device: torch.device, share: float | None) -> None:
    """Let this process use at most `share` of the GPU's memory; a larger allocation fails as if the memory were full.
    None: no bound. CUDA's own context, some hundred MB, is not counted."""
    if share is None:
        return
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
    elif device.type == "mps":
        torch.mps.set_per_process_memory_fraction(share)


def default_kv_cache_bytes(device: torch.device, ram_bytes: int | None, vram_share: float | None) -> int:
    """Return how many bytes of KV cache one batch may fill: half of the GPU memory that is free for us, or without CUDA
    a GiB, which every volunteer's machine can spare, but at most a quarter of what we may use."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        ours = whole if vram_share is None else int(vram_share * whole)
        return max(0, min(free, ours - torch.cuda.memory_allocated(device))) // 2
    return GIB if ram_bytes is None else min(GIB, ram_bytes // 4)
