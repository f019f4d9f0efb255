"""Describe how to run a child process: its command, its environment, and how often it is restarted.

Pure.

Invariants:

- No library in a child looks for anything on the network.
- All libraries use as many threads as the spec says.
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
"""Settings that keep libraries offline: weights come as chunks, and no library may phone home."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


READY_S = 300.0
"""Seconds that a child may take until it is ready, for its imports. vLLM's take 8 to 16 s on a fast disk; from a cold,
slow one they were seen to take minutes."""


DYING_S = 10.0
"""Seconds that a child may take to end after it closed its pipe unasked; then it is ended. An interpreter with an
exception to report first frees a GPU, or waits for threads, and its last words would be lost."""


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """Limits of restarting a child that crashes: after `max_restarts` restarts within `window_s` it is given up.

    The delay doubles with every restart in the window, from `first_delay_s` to `max_delay_s`.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    max_restarts: int = 5
    window_s: float = 600.0


def restart_delay(limits: RestartLimits, restarts: Sequence[float], now: float) -> float | None:
    """Return the seconds until the next restart, or None to give up. `restarts`: the times of those before."""
    recent = sum(1 for at in restarts if now - at < limits.window_s)
    if recent >= limits.max_restarts:
        return None
    return min(limits.first_delay_s * 2.0**recent, limits.max_delay_s)


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to run a child.

    Args:
        argv: the command, which begins with an executable.
        env: variables that are added to ours.
        nice: niceness, 0 to 19.
        max_in_flight: most requests without a reply, those of cancelled callers included; further callers wait.
        cancel_op: the request that tells the child that a caller was cancelled; None: it is not told.
        memory_bytes: most memory of the child and all below it (`node.processes.memory_limit`). A child that holds more
            is ended as if it had crashed; None: no limit.
        yields_memory: whether the kernel should end this child first when memory runs out.
        dying_s: seconds in which a child that closed its pipe unasked must end.
        grace_s: seconds in which a child that is asked to end must end.
        scratch: directory of its temporary files (`node.processes.temp_directory`); None: the system's.
        timeout_s: seconds after which a child that owes a reply and sends no frame counts as hanging. It is ended as if
            it had crashed. A call may allow more.
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
    timeout_s: float = math.inf
    restarts: RestartLimits = field(default_factory=RestartLimits)


def child_environment(spec: ChildSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with offline settings, the thread count, the directory of temporary files and the spec's own
    variables, which win."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(spec.threads))
    return {**base, **ENVIRONMENT, **threads, **scratch.environment(spec.scratch), **spec.env}
