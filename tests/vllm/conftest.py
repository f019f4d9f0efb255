"""Where the real vLLM is: the environment that `make test-vllm` builds, or the one that VOLERY_VLLM names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.conftest import Models, models, tmp_path

__all__ = ["Models", "models", "tmp_path"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of an environment with vLLM. Skips where there is none, but under `make test-vllm`."""
    named = os.environ.get("VOLERY_VLLM")
    python = Path(named) if named else ROOT / ".venv-vllm" / "bin" / "python"
    if not (python.is_file() and list(python.parent.parent.glob("lib/python*/site-packages/vllm/__init__.py"))):
        if named:
            pytest.fail(f"VOLERY_VLLM={named} has no vLLM")
        pytest.skip("no environment with vLLM: `make test-vllm` builds one (3.5 GB) and runs these")
    return python
