"""The demo with vLLM behind its nodes: it learns, and what came of vLLM passes the audit that everybody's passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.auditing import audit
from tests.e2e.conftest import machine
from tests.e2e.programs import Machine, rows_of

__all__ = ["machine"]

DEADLINE_S = 1800.0
"""Seconds for a demo with three vLLMs on two cores that others use, too; it takes seven minutes where they do not."""
TOLERANCE = 1e-3
"""Nats; float32 on both sides."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "mixed"])
def test_the_demo_learns_and_its_records_pass_the_audit(
    engine: str, machine: Machine, vllm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(vllm_python.parents[1] / "home"))
    out = machine.root / "demo"
    demo = machine.start("demo", "demo", "--out", out, "--plain", "--engine", engine, state=out)
    assert demo.wait(DEADLINE_S) == 0, demo.story()
    facts = json.loads((out / "summary.json").read_text())
    assert facts["greedy_end"] >= 0.95
    assert facts["verdicts"].keys() == {"admitted"}
    engines = dict(rows_of(out / "learner" / "ledger.sqlite", "SELECT peer, engine FROM peers WHERE role = 'rollout'"))
    on_vllm = {peer for peer, engine in engines.items() if engine.startswith("vllm")}
    assert (len(on_vllm), len(engines)) == ((3, 3) if engine == "vllm" else (1, 3))
    audited = audit(out / "learner")
    assert on_vllm <= audited.tokens.keys(), "a node on vLLM made nothing that could be audited"
    admitted = {peer["id"]: peer["admitted"] for peer in facts["peers"]}
    assert all(admitted[peer] for peer in on_vllm)
    assert max(audited.gap.values()) <= TOLERANCE
    assert max(audited.apart.values()) <= TOLERANCE
