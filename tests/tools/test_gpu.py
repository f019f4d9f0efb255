"""Test the trial on a GPU machine: its summary, its settings, and a rehearsal of all of it on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainer_gpu import FULL, TINY, flop_per_token, peak_of
from node.config.loader import read_node_config, read_swarm_config
from protocol.core.ids import PolicyVersion
from tests.support.ledgers import ALPHA, open_story, peer_row
from tests.support.paths import ROOT
from tools.gpu import run, summary, trial

STEPS = 7
VLLM = "no vLLM here"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """What a run leaves whose learner trains for 6 s of a step's 10, waits for 3 and publishes for 1; its first steps
    wait longer."""
    kept = tmp_path / "transformers"
    kept.mkdir()
    story = open_story(kept / "ledger.sqlite")
    story.join(peer_row(ALPHA, "n0"))
    for step in range(1, STEPS + 1):
        waited_s = 3.0 if step > summary.LEFT_OUT else 50.0
        lease = story.lease(ALPHA)
        story.deliver(lease, ALPHA, version=PolicyVersion(1, step - 1))
        story.now_s += waited_s + (1.0 if step > 1 else 0.0)
        story.train(step, {lease: 0}, waited_s=waited_s, train_s=6.0)
        story.now_s += 6.0
    story.ledger.close()
    versions = [
        {
            "event": "version_published",
            "version": f"1.{n}",
            "total_bytes": 10**9,
            "patch_bytes": 6_000_000,
            "patches": 2,
        }
        | {"seconds": 1.5, "export_seconds": 0.5, "patch_seconds": 0.25 if n > summary.LEFT_OUT else 9.0}
        for n in range(1, STEPS + 1)
    ]
    skipped = {"event": "versions_skipped", "first": 3, "last": 4}
    judged = [{"event": "delivery_judged", "at": at, "tokens": 40, "admitted": 4, "refused": 0} for at in (10.0, 14.0)]
    write_lines(kept / "events.jsonl", [*versions, skipped, *judged, {"event": "audited", "passed": True}])
    fetched = {"event": "version_fetched", "seconds": 2.0, "fetched_bytes": 9, "patch_bytes": 9}
    fetches = [fetched | {"patches": 0, "apply_seconds": 0.0}, fetched | {"patches": 2, "apply_seconds": 1.2}]
    write_lines(kept / "n0-events.jsonl", [*fetches, {"event": "speed_measured", "tokens_per_s": 100.0}])
    (kept / "settings.json").write_text(json.dumps({"prompt": 768}))
    (kept / "nvidia-smi.csv").write_text("40, 1000\n[N/A], 1000\n60, 1000\n")
    made = {"device": "NVIDIA H200", "config": dict(FULL.config)}
    (tmp_path / "model.json").write_text(json.dumps(made))
    write_run(tmp_path, tiny=False)
    (tmp_path / "trainer.json").write_text(json.dumps({"bars": [{"name": "mfu", "value": 0.5}], "figures": {}}))
    return tmp_path


def write_lines(path: Path, events: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "cut sh')


def write_run(out: Path, *, tiny: bool) -> None:
    skipped = {"vllm": VLLM, "plain_vllm": VLLM}
    (out / "run.json").write_text(json.dumps({"commit": "0" * 40, "tiny": tiny, "skipped": skipped}))


def told_by(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    return told


def test_the_time_is_the_ledgers_and_the_first_steps_do_not_count(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["summary", str(out)])
    assert summary.main() == 1, "training is below its bar"
    figures = told_by(out)["figures"]
    assert (figures["steps"], figures["steady_steps"]) == (STEPS, STEPS - summary.LEFT_OUT)
    assert (figures["training_pct"], figures["waiting_pct"], figures["blocked_pct"]) == (60, 30, 10)
    assert figures["training_pct_of_not_waiting"] == pytest.approx(100 * 6 / 7, abs=1e-3)
    assert (figures["step_s"], figures["train_s"]) == (10, 6)
    assert (figures["patch_gb_per_s"], figures["patch_mb"], figures["publish_s"]) == (8, 3, 1.5)
    assert (figures["apply_s"], figures["fetch_s"], figures["versions_skipped"]) == (0.6, 2, 2)
    assert (figures["delivered_tokens_per_s"], figures["gpu_busy_pct"], figures["audits_passed"]) == (20, 50, 1)
    tokens = 4 * 768 + 40
    peak = peak_of("NVIDIA H200")
    assert peak is not None
    assert figures["mfu"] == round(tokens * flop_per_token(FULL.config, tokens / 4) / 6 / peak, 4)
    rows = (out / "transformers" / "steps.csv").read_text().splitlines()
    assert len(rows) == 1 + STEPS
    wall_s, *kinds = map(float, rows[-1].split(",")[3:])
    assert wall_s == sum(kinds) == 10
    said = capsys.readouterr().out
    assert said == (out / "gpu.txt").read_text()
    assert "Events of trouble, transformers: versions_skipped 1" in said


def test_what_was_not_measured_says_why(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["summary", str(out)])
    summary.main()
    bars = {bar["name"]: bar for bar in told_by(out)["bars"]}
    assert {name: bar["value"] for name, bar in bars.items() if name != "mfu"} == {
        "training_pct": 60,
        "blocked_pct": 10,
        "mfu_alone": 0.5,
        "patch_gb_per_s": 8,
        "apply_s": 0.6,
        "vllm_vs_bare": None,
    }
    assert bars["vllm_vs_bare"]["why"] == VLLM
    write_run(out, tiny=True)
    summary.main()
    rehearsed = told_by(out)
    assert all(bar["value"] is None and bar["why"] == summary.REHEARSED for bar in rehearsed["bars"])
    assert rehearsed["figures"]["training_pct"] == 60


def test_a_run_without_a_swarm_still_has_its_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = {"transformers": "the swarm took no step in time"}
    (tmp_path / "run.json").write_text(json.dumps({"commit": "0" * 40, "tiny": False, "skipped": skipped}))
    monkeypatch.setattr(sys, "argv", ["summary", str(tmp_path)])
    assert summary.main() == 1
    bars = {bar["name"]: bar["why"] for bar in told_by(tmp_path)["bars"]}
    assert bars["training_pct"] == bars["mfu"] == bars["apply_s"] == skipped["transformers"]


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_settings_are_the_programs(tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        **(run.VLLM_SETTINGS if engine == "vllm" else {}),
        "MODEL": str(tmp_path / "model"),
        "ENGINE_PYTHON": sys.executable,
    }
    settings = trial.read_settings(given)
    (tmp_path / "swarm.toml").write_text(trial.swarm_toml(settings))
    (tmp_path / "node.toml").write_text(trial.node_toml(settings, 0))
    swarm, node = read_swarm_config(tmp_path / "swarm.toml"), read_node_config(tmp_path / "node.toml")
    assert (swarm.learn.staleness, swarm.learn.publish_every, swarm.trainer.compile) == (3, 1, engine != "vllm")
    assert node.engine.kind == engine
    tokens = settings["prompts_per_step"] * settings["group"] * (settings["prompt"] + settings["new"])
    assert tokens == FULL.sequences * FULL.length == 131_072, "a step of the swarm is one of the trainer alone"
    assert capsys.readouterr().err == "", "no old name is used"


def test_the_tiny_model_is_a_small_one_of_the_same_kind() -> None:
    assert TINY.config.keys() == FULL.config.keys()
    assert flop_per_token(TINY.config, 64) < flop_per_token(FULL.config, 2048) / 1000


@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    """All parts but those of vLLM, as `make gpu-rehearsal` runs them, only shorter."""
    out = tmp_path / "out"
    own = {"TINY": "1", "OUT": str(out), "ROOM": str(tmp_path / "room"), "A_RUN_S": "5", "PYTHONPATH": str(ROOT)}
    nowhere = {"PARTS": str(tmp_path), "VLLM_PYTHON": run.NO_VLLM}
    environment = {**os.environ, **own, **nowhere}
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu.run"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == told_by(out)
    figures = told["figures"]
    for name in ("training_pct", "patch_gb_per_s", "apply_s", "export_s", "node_tokens_per_s", "alone_step_s"):
        assert figures[name] > 0, name
    kinds = [name for name in figures if name.endswith("_pct") and not name.startswith(("blocked", "gpu"))]
    assert sum(figures[name] for name in kinds) == pytest.approx(100, abs=0.01)
    assert not (tmp_path / "room" / "places").exists()
