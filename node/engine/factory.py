"""Open the engine that the configuration names, as a `PolicyEngine`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from node.config.common import GB
from node.config.node_config import DrillSection, EngineSection, LimitsSection
from node.config.swarm_config import SwarmConfig
from node.engine.cheating import Cheat, CheatingEngine
from node.engine.fake import FakeConfig, open_fake_engine
from node.engine.interface import PolicyEngine
from node.engine.transformers import TransformersConfig
from node.engine.vllm import VllmConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.processes.event_log import child_events
from node.processes.temp_directory import FOLDER
from node.runtime.events import EventLog
from node.runtime.user_paths import as_path
from protocol.versions.formats import FP8, INT4, INT8

NO_LIMITS = LimitsSection()
HONEST = DrillSection()


def half_the_cores() -> int:
    """Return the threads of an engine if the configuration names none."""
    return max(1, (os.cpu_count() or 2) // 2)


@asynccontextmanager
async def open_verifying_engine(
    section: EngineSection, events: EventLog, *, name: str, state: Path
) -> AsyncIterator[WorkerEngine]:
    """Open an engine that can also check whether the seeded sampler draws given tokens. It runs on transformers,
    whatever the section's kind is."""
    config = transformers_config(section, NO_LIMITS, name=name, scratch=state / FOLDER / name)
    async with open_worker_engine(config, on_event=child_events(events, name)) as engine:
        yield engine


@asynccontextmanager
async def open_engine(
    section: EngineSection,
    events: EventLog,
    *,
    name: str,
    limits: LimitsSection = NO_LIMITS,
    state: Path | None = None,
    testing: DrillSection = HONEST,
) -> AsyncIterator[PolicyEngine]:
    """Open the configured engine and its process, within `limits`. `name` is its name in events and errors.

    `node.engine.selection` has already resolved "auto". `state`: the node's state directory, below which the process
    keeps its temporary files; the caller holds its lock. Raises EngineError.
    """
    scratch = None if state is None else state / FOLDER / name
    opened: AbstractAsyncContextManager[PolicyEngine]
    if section.kind == "fake":
        opened = open_fake_engine(FakeConfig(seconds_per_token=testing.fake_token_s))
    else:
        configure = vllm_config if section.kind == "vllm" else transformers_config
        config = configure(section, limits, name=name, scratch=scratch)
        opened = open_worker_engine(config, on_event=child_events(events, name))
    async with opened as engine:
        yield CheatingEngine(engine, Cheat(testing.cheat)) if testing.cheat else engine


def learners_engine(config: SwarmConfig) -> EngineSection:
    """Return the section of the learner's own engine, which evaluates, audits, and serves for a trial of a run."""
    return EngineSection(
        kind="transformers",
        threads=1,
        nice=10,
        device=config.evaluate.device,
        kv_cache_gb=config.evaluate.kv_cache_gb,
        compute_dtype="float32" if config.trust.required_compute_dtype == "float32" else "auto",
    )


def transformers_config(
    section: EngineSection, limits: LimitsSection, *, name: str, scratch: Path | None = None
) -> TransformersConfig:
    """Return the settings of a transformers engine for these sections."""
    held = section.quantization if section.quantization in (INT8, INT4) else ""
    return TransformersConfig(
        vram_share=limits.vram_share, quantization=held, **_common(section, limits, name, scratch)
    )


def vllm_config(section: EngineSection, limits: LimitsSection, *, name: str, scratch: Path | None = None) -> VllmConfig:
    """Return the settings of a vLLM engine for these sections. The smaller of two shares of GPU memory counts."""
    return VllmConfig(
        tensor_parallel_size=section.tensor_parallel_size,
        gpu_memory_utilization=min(section.gpu_memory_utilization, limits.vram_share or 1.0),
        max_model_len=section.max_model_len,
        quantization=section.quantization if section.quantization == FP8 else "",
        on_new_version=section.on_new_version,
        **_common(section, limits, name, scratch),
    )


def _common(section: EngineSection, limits: LimitsSection, name: str, scratch: Path | None) -> dict[str, Any]:
    return {
        "name": name,
        "python": as_path(section.python or sys.executable),
        "device": section.device,
        "compute_dtype": section.compute_dtype,
        "threads": section.threads or half_the_cores(),
        "nice": section.nice,
        "ram_bytes": limits.ram_bytes(psutil.virtual_memory().total),
        "kv_cache_bytes": 0 if section.kv_cache_gb is None else max(1, round(section.kv_cache_gb * GB)),
        "scratch": scratch,
    }
