"""How a child process is to be run: its command, its environment, how patiently it is started again.

Pure. What always holds: no library in a child looks for anything on the network, and all use as many threads as the
spec says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.processes import temp_directory as scratch

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Nothing leaves the swarm: weights come as chunks, and no library may phone home."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


READY_S = 300.0
"""How long a child may take to be ready: its imports. vLLM's take 8 to 16 s on a fast disk; from a cold, slow one they
were seen to take minutes."""


DYING_S = 10.0
"""How long a child that closed its pipe unasked may take to end, before it is ended: an interpreter that has an
exception to tell frees a GPU first, or waits for threads, and what it says last would be lost."""


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """How patiently a crashing child is restarted: after `max_restarts` restarts within `window_s` we give up.

    The delay doubles with every restart in the window, from `first_delay_s` to `max_delay_s`.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    max_restarts: int = 5
    window_s: float = 600.0


def restart_delay(limits: RestartLimits, restarts: Sequence[float], now: float) -> float | None:
    """Return how long to wait before the next restart, or None to give up; `restarts` are the times of those before."""
    recent = sum(1 for at in restarts if now - at < limits.window_s)
    if recent >= limits.max_restarts:
        return None
    return min(limits.first_delay_s * 2.0**recent, limits.max_delay_s)


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to run and how.

    `argv` starts with an executable; `env` is added to ours; `nice` 0..19; `max_in_flight` requests may be unanswered
    at a time, those of cancelled callers included, and further callers wait; `cancel_op`: tell the child when a caller
    is cancelled. A child that holds more than `memory_bytes` with all below it is ended as if it had crashed
    (`node.processes.memory_limit`); None: no bound. One that `yields_memory` is what the kernel ends first when memory
    runs out. One that closes its pipe unasked has `dying_s` to end, and one that is asked to has `grace_s`. Its
    temporary files lie in `scratch` (`node.processes.temp_directory`); None: where the system has them. One that owes a
    reply and sends no frame for `silence_s` hangs, and is ended as if it had crashed; a call may allow it more.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    nice: int = 0
    max_in_flight: int = 256
    ready_timeout_s: float = READY_S
    grace_s: float = 2.0
    dying_s: float = DYING_S
    cancel_op: str | None = None
    memory_bytes: int | None = None
    yields_memory: bool = False
    scratch: Path | None = None
    silence_s: float = math.inf
    restarts: RestartLimits = field(default_factory=RestartLimits)


def child_environment(spec: ChildSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with offline settings, the thread count, the place of temporary files and the spec's additions, the
    latter winning."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(spec.threads))
    return {**base, **ENVIRONMENT, **threads, **scratch.environment(spec.scratch), **spec.env}
