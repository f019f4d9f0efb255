"""Matrix products of a model on a CPU: by oneDNN where torch's own choice is slow.

torch gives float32 products to MKL, which keeps to AVX2 on processors that are not Intel's: 107 GFLOP/s for 64 rows on
one core of an AMD EPYC, where oneDNN's AVX-512 comes to 190 to 220 with the very same weights, unpacked. What always
holds: which of the two is taken depends on machine and shapes alone, so a restarted worker computes the same bits;
weights stay where they are, so they can be swapped in place.
"""

from __future__ import annotations

import platform
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

ROWS_FROM = 16
"""With fewer rows than these oneDNN wins nothing, and with one it loses half."""

WEIGHTS_FROM = 1 << 18
"""A layer of fewer weights keeps torch's own way: a call of oneDNN's costs 12 us more, which a small product never wins
back; from 512 x 512 on it does."""


def quicken(model: nn.Module) -> None:
    """Have every linear layer of `model` take the faster way from now on, if there is one here for it."""
    if not has_faster_products():
        return
    for module in model.modules():
        # A subclass may do something else: quantised layers, adapters.
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter and _is_worth_it(module.weight):
            module.forward = partial(_linear, module)  # type: ignore[method-assign]


def has_faster_products() -> bool:
    """Whether oneDNN is there, and is quicker than MKL on this processor."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() == "AuthenticAMD"
    )


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """x W^T for x (B, K) and W (N, K), which is no layer's own: (B, N), by the faster way."""
    if len(rows) < ROWS_FROM or not _is_worth_it(weight) or torch.is_grad_enabled() or not _has_faster_products():
        return nn.functional.linear(rows, weight)
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return made


_has_faster_products = cache(has_faster_products)


def _is_worth_it(weight: Tensor) -> bool:
    is_ours = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_ours and weight.numel() >= WEIGHTS_FROM


def _linear(module: nn.Linear, rows: Tensor) -> Tensor:
    """x W^T + b for x (..., in): (..., out)."""
    if rows.numel() < ROWS_FROM * module.in_features or torch.is_grad_enabled():
        return nn.functional.linear(rows, module.weight, module.bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, module.weight, module.bias, "none", [], "")
    return product


def _vendor() -> str:
    """The processor's vendor as it names itself; "" where that cannot be read."""
    if platform.system() != "Linux":
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
