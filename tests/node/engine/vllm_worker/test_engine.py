"""Check the names that vLLM is given against its source: vLLM itself is not installed here."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

WORKER = ROOT / "node" / "engine" / "vllm_worker"


def test_what_vllm_loads_by_name_is_there() -> None:
    named = re.findall(r'f"\{__package__\}\.(\w+)[.:](\w+)"', (WORKER / "engine.py").read_text(encoding="utf-8"))
    assert len(named) == 3
    for module, name in named:
        assert f"class {name}" in (WORKER / f"{module}.py").read_text(encoding="utf-8")
