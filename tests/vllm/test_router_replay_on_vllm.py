"""Router replay in a swarm whose node is on vLLM: the trainer follows its experts, and nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import machine
from tests.e2e.programs import Machine, wait_done
from tests.e2e.test_router_replay import check_followed, in_bfloat16, mixture, replaying

__all__ = ["machine", "mixture"]


def test_a_trainer_follows_the_experts_of_vllm(
    machine: Machine, mixture: Path, vllm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(vllm_python.parents[1] / "home"))
    swarm = replaying(machine, mixture)
    learner = swarm.learn()
    wait_done(learner, *swarm.join_all(learner, ["one", "--config", in_bfloat16(swarm, "vllm")], engine="vllm"))
    check_followed(swarm)
