"""How much there is of a device's memory, and how its end is told."""

from __future__ import annotations

import torch


def is_out_of_memory(error: Exception) -> bool:
    """CUDA has a class for it; a CPU and MPS say so in words."""
    words = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error).lower() for word in words)


def release_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def default_kv_cache_bytes(device: torch.device) -> int:
    """Return how much KV cache one batch may fill: half of what a GPU has free, or a GiB, which no volunteer's machine
    will miss."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return 1024 * 1024 * 1024
