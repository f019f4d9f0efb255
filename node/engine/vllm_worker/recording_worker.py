"""Extend vLLM's worker so that it records the routing of a mixture of experts from the first pass on.

Routers are bound after the model is loaded and before it is compiled or captured in graphs. A graph replays what was
captured, so a graph that was captured earlier would record nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.platforms import current_platform

from protocol.experts import Routing

from .expert_recording import RECORDER, ROUTING

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Base
else:
    from vllm.v1.worker.gpu_worker import Worker as Base


class RecordingWorker(Base):  # type: ignore[misc]  # vLLM is not in the environment that checks types
    """Loads the model, binds its routers, and answers requests to the recorder of its process."""

    def load_model(self, **more: Any) -> None:
        """Load the model and bind its routers."""
        super().load_model(**more)
        RECORDER.bind(self.model_runner, self.vllm_config, Routing(**self.vllm_config.additional_config[ROUTING]))

    def volery_unsupported(self) -> str:
        """Return why experts cannot be reported; empty if they can."""
        return RECORDER.unsupported

    def volery_experts(self, names: Sequence[str], forgotten: Sequence[str]) -> list[bytes]:
        """Return the recorded experts, as `Recorder.take` does."""
        return RECORDER.take(names, forgotten)
