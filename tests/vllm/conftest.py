"""Where the real vLLM is: in the environment that `make test-vllm` builds, and names in VOLERY_VLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.engine.vllm_install import has_vllm
from tests.support.node_fixtures import Models, models, tmp_path

__all__ = ["Models", "models", "tmp_path"]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of an environment with vLLM."""
    named = os.environ.get("VOLERY_VLLM")
    if not named:
        pytest.skip("VOLERY_VLLM names no environment with vLLM; `make test-vllm` builds one and runs this")
    python = Path(named).absolute()
    assert has_vllm(python), f"VOLERY_VLLM={named} has no vLLM"
    return python
