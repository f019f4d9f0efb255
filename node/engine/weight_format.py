"""Select the format of an engine's weights if its owner leaves that open (`quantization = "auto"`): the best one that
the swarm admits and that fits this machine. Pure except `memory_for`.

Invariants:

- An unknown size is no reason to quantise.
- The engine supports the selected format, and the choice comes with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import psutil

from node.config.node_config import EngineSection, LimitsSection, NodeConfig
from node.energy.nvml import gpu_memory_bytes
from node.engine.common_worker.memory_bound import PROCESS_BYTES, memory_bound
from node.engine.vllm_install import has_gpu
from node.runtime.formatting import size
from protocol.versions.exchange import TellTerms
from protocol.versions.formats import FP8, INT4, INT8, STORED, taken_formats
from protocol.versions.manifest import SignedManifest

AUTO = "auto"

FOR_BATCHES = 0.25
"""Fraction of the memory for keys, values and activations: with less, a batch has only a few completions."""

BYTES = {INT8: 1.02, INT4: 0.63, FP8: 1.02}
"""Bytes that a weight takes, with its share of the step sizes. Norms and the like are not quantised, and are few."""

BEST_FIRST = {"transformers": (STORED, INT8, INT4), "vllm": (STORED, FP8)}
"""The formats that each engine can hold, the closest to the published weights first."""


@dataclass(frozen=True, kw_only=True)
class FormatChoice:
    """The section with its final quantization, and the reason, as a clause."""

    section: EngineSection
    why: str


def choose_format(
    section: EngineSection, *, taken: Sequence[str], newest: SignedManifest | None, memory_bytes: int | None
) -> FormatChoice:
    """Resolve "auto" for a swarm that admits the formats `taken`, so that its `newest` version fits the memory; None
    is unknown. Another quantization stays as it is."""
    if section.quantization != AUTO:
        return FormatChoice(section=section, why=f'[engine] quantization = "{section.quantization}"')
    able = [form for form in BEST_FIRST.get(section.kind, (STORED,)) if form in taken]
    if not able:
        return _chosen(section, STORED, "the swarm admits no format that this engine supports")
    if newest is None or memory_bytes is None:
        what = "how large the model is" if newest is None else "how much memory there is"
        return _chosen(section, able[0], f"{what} is not known")
    for form in able:
        needed = _needed(section, form, newest)
        if needed <= (1 - FOR_BATCHES) * memory_bytes:
            return _chosen(section, form, f"it needs {size(needed)} of {size(memory_bytes)}")
    least = _needed(section, able[-1], newest)
    return _chosen(section, able[-1], f"it needs {size(least)} of {size(memory_bytes)}, which may be too little")


def memory_for(section: EngineSection, limits: LimitsSection) -> int | None:
    """Return the bytes in which the engine may hold its weights, on its GPU or in the machine; None if unknown."""
    if section.device.startswith("cuda") or (section.device == AUTO and has_gpu()):
        number = section.device.partition(":")[2]
        found = gpu_memory_bytes(int(number) if number.isdigit() else 0)
        return None if found is None else round(found * (limits.vram_share or 1.0)) * section.tensor_parallel_size
    machine = psutil.virtual_memory().total
    return min(machine, limits.ram_bytes(machine) or machine, memory_bound() or machine)


def in_force_with(config: NodeConfig, terms: TellTerms | None, newest: SignedManifest | None) -> FormatChoice:
    """Resolve "auto" for a node with this configuration, whose `kind` is final, and its learner's terms. The reason is
    empty if nothing was left open."""
    if config.engine.quantization != AUTO:
        return FormatChoice(section=config.engine, why="")
    taken = (STORED,) if terms is None else taken_formats(terms.ext)
    memory = memory_for(config.engine, config.limits)
    return choose_format(config.engine, taken=taken, newest=newest, memory_bytes=memory)


def _needed(section: EngineSection, form: str, newest: SignedManifest) -> int:
    tensors = newest.manifest.tensors
    values = sum(math.prod(tensor.shape) for tensor in tensors)
    on_cpu = section.device == "cpu" or (section.device == AUTO and not has_gpu())
    if form != STORED:
        return round(BYTES[form] * values) + PROCESS_BYTES
    wide = section.compute_dtype == "float32" or (section.compute_dtype == AUTO and on_cpu)
    return (4 * values if wide else newest.manifest.total_bytes) + PROCESS_BYTES


def _chosen(section: EngineSection, form: str, why: str) -> FormatChoice:
    quantization = "" if form == STORED else form
    return FormatChoice(section=msgspec.structs.replace(section, quantization=quantization), why=why)
