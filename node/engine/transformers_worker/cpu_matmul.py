"""Compute a model's matrix products on a CPU with oneDNN where torch's own choice is slow.

torch gives float32 products to MKL, which uses only AVX2 on processors that are not Intel's: 107 GFLOP/s for 64 rows on
one core of an AMD EPYC. oneDNN's AVX-512 reaches 190 to 220 with the same weights, unpacked.

Invariants:

- The choice depends on machine and shapes alone, so a restarted worker computes the same bits.
- Weights stay where they are, so they can be swapped in place.
"""

from __future__ import annotations

import platform
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

ROWS_FROM = 16
"""With fewer rows than this oneDNN is no faster, and with one it has half the speed."""

WEIGHTS_FROM = 1 << 18
"""Layers with fewer weights keep torch's own way: a call of oneDNN costs 12 us more, which a small product never
recovers; from 512 x 512 on it does."""


def quicken(model: nn.Module) -> None:
    """Make every linear layer of `model` use the faster way from now on, if there is one here for it."""
    if not has_faster_products():
        return
    for module in model.modules():
        # A subclass may do something else: quantised layers, adapters.
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter and _pays_off(module.weight):
            module.forward = partial(_linear, module)  # type: ignore[method-assign]


def has_faster_products() -> bool:
    """Return whether oneDNN is available and faster than MKL on this processor."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() == "AuthenticAMD"
    )


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T (B, N) for x (B, K) and a W (N, K) that belongs to no layer, by the faster way."""
    if len(rows) < ROWS_FROM or not _pays_off(weight) or torch.is_grad_enabled() or not _has_faster_products():
        return nn.functional.linear(rows, weight)
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return made


_has_faster_products = cache(has_faster_products)


def _pays_off(weight: Tensor) -> bool:
    is_ours = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_ours and weight.numel() >= WEIGHTS_FROM


def _linear(module: nn.Linear, rows: Tensor) -> Tensor:
    """Return x W^T + b (..., out) for x (..., in)."""
    if rows.numel() < ROWS_FROM * module.in_features or torch.is_grad_enabled():
        return nn.functional.linear(rows, module.weight, module.bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, module.weight, module.bias, "none", [], "")
    return product


def _vendor() -> str:
    """Return the name by which the processor's vendor identifies it; "" if it cannot be read."""
    if platform.system() != "Linux":
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
