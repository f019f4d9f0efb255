"""Estimate the power of devices without a meter, by the design power that their makers give.

A GPU's figure is that of its board (TGP, TDP). A processor's figure is that of its package, spread over its threads, so
a machine that has only some of them, as rented ones do, counts only those. Generation draws less than that most of the
time, and the rest of the machine is not included: it is an estimate, and reports call it so (`table`).

Sources: the makers' data sheets, for NVIDIA's data centre GPUs and GeForce (nvidia.com), EPYC and Ryzen (amd.com), Core
and Xeon (ark.intel.com). The clouds' own variants of processors have none. A device that is not here has no figure, and
`[energy] watts` gives it one.
"""

from __future__ import annotations

import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

GPU_WATTS: tuple[tuple[str, float], ...] = (
    (r"B300", 1400), (r"GB200", 1200), (r"B200", 1000), (r"H200 NVL", 600), (r"H200|GH200|H800", 700),
    (r"H100 NVL", 400), (r"H100 PCIe", 350), (r"H100", 700), (r"H20", 400), (r"A100.PCIe", 300),
    (r"A100", 400), (r"A800", 400), (r"L40S", 350), (r"L40", 300), (r"L4\b", 72), (r"A40\b", 300), (r"A30\b", 165),
    (r"A10\b", 150), (r"A10G", 300), (r"A16\b", 250), (r"A2\b", 60), (r"V100.*PCI", 250), (r"V100", 300),
    (r"P100", 250), (r"T4\b", 70),
    (r"RTX PRO 6000", 600), (r"RTX 6000 Ada", 300), (r"RTX 5000 Ada", 250), (r"RTX 4000 Ada", 130),
    (r"RTX A6000", 300), (r"RTX A5000", 230), (r"RTX A4500", 200), (r"RTX A4000", 140), (r"RTX A2000", 70),
    (r"RTX 5090", 575), (r"RTX 5080", 360), (r"RTX 5070 Ti", 300), (r"RTX 5070", 250), (r"RTX 5060 Ti", 180),
    (r"RTX 5060", 145), (r"RTX 4090", 450), (r"RTX 4080", 320), (r"RTX 4070 Ti", 285), (r"RTX 4070 SUPER", 220),
    (r"RTX 4070", 200), (r"RTX 4060 Ti", 165), (r"RTX 4060", 115), (r"RTX 3090 Ti", 450), (r"RTX 3090", 350),
    (r"RTX 3080 Ti", 350), (r"RTX 3080", 320), (r"RTX 3070 Ti", 290), (r"RTX 3070", 220), (r"RTX 3060 Ti", 200),
    (r"RTX 3060", 170), (r"RTX 2080 Ti", 250), (r"RTX 2080", 215), (r"RTX 2070", 175), (r"RTX 2060", 160),
    (r"GTX 1660", 120), (r"GTX 1080 Ti", 250), (r"GTX 1080", 180), (r"GTX 1070", 150), (r"GTX 1060", 120),
)  # fmt: skip
"""Board power by the name that NVML gives a GPU; the first pattern found in the name counts. Laptops' GPUs are excluded
below: their makers set anything between 35 W and 175 W."""

CPU_WATTS: tuple[tuple[str, float, int], ...] = (
    (r"EPYC 9965", 500, 384), (r"EPYC 9755", 500, 256), (r"EPYC 9754", 360, 256), (r"EPYC 9654", 360, 192),
    (r"EPYC 9554", 360, 128), (r"EPYC 9454", 290, 96), (r"EPYC 9354", 280, 64), (r"EPYC 7763", 280, 128),
    (r"EPYC 7742", 225, 128), (r"EPYC 7713", 225, 128), (r"EPYC 7702", 200, 128), (r"EPYC 7543", 225, 64),
    (r"EPYC 7502", 180, 64), (r"EPYC 7452", 155, 64), (r"Platinum 8592\+", 350, 128), (r"Platinum 8580", 350, 120),
    (r"Platinum 8480\+", 350, 112), (r"Platinum 8380", 270, 80), (r"Platinum 8358", 250, 64),
    (r"Platinum 8280", 205, 56), (r"Gold 6448Y", 225, 64), (r"Gold 6338", 205, 64), (r"Gold 6248", 150, 40),
    (r"Gold 6230", 125, 40), (r"Threadripper 3990X", 280, 128), (r"Ryzen 9 9950X", 170, 32),
    (r"Ryzen 9 7950X3D", 120, 32), (r"Ryzen 9 7950X", 170, 32), (r"Ryzen 9 7900X3D", 120, 24),
    (r"Ryzen 9 7900X", 170, 24), (r"Ryzen 9 [35]950X", 105, 32), (r"Ryzen 9 [35]900X", 105, 24),
    (r"Ryzen 7 7800X3D", 120, 16), (r"Ryzen 7 7700X", 105, 16), (r"Ryzen 7 9700X", 65, 16), (r"Ryzen 7 5800X", 105, 16),
    (r"Ryzen 7 [35]700X", 65, 16), (r"Ryzen 5 7600X", 105, 12), (r"Ryzen 5 [35]600", 65, 12),
    (r"Ultra 9 285K", 125, 24), (r"Ultra 7 265K", 125, 20), (r"i9-1[34]900K", 125, 32), (r"i9-12900K", 125, 24),
    (r"i9-10900K", 125, 20), (r"i9-9900K", 95, 16), (r"i7-14700K", 125, 28), (r"i7-13700K", 125, 24),
    (r"i7-12700K", 125, 20), (r"i7-10700\b", 65, 16), (r"i7-8700\b", 65, 12), (r"i5-1[34]600K", 125, 20),
    (r"i5-12400", 65, 12), (r"i5-8400", 65, 6), (r"\bN100\b", 6, 4),
)  # fmt: skip
"""Design power and threads of a package, by the name that it reports."""

LAPTOP = re.compile(r"laptop|mobile|max-q", re.IGNORECASE)


def gpu_watts(name: str) -> float | None:
    """Return the watts of one GPU with that name; None if it is not in the table."""
    if LAPTOP.search(name):
        return None
    return next((watts for pattern, watts in GPU_WATTS if re.search(pattern, name, re.IGNORECASE)), None)


def cpu_watts(name: str, threads: int) -> float | None:
    """Return the watts of `threads` threads of processors with that name; None if they are not in the table."""
    found = next(((watts, of) for pattern, watts, of in CPU_WATTS if re.search(pattern, name, re.IGNORECASE)), None)
    return None if found is None else found[0] / found[1] * threads


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the name that the processors report; "" if it cannot be read."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else ""
