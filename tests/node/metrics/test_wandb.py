"""Weights & Biases: the real package offline, in its own process; and what becomes of the node when it misbehaves."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.metrics import wandb
from node.metrics.board import Row, Series
from node.metrics.wandb import LOG, STATE, WandbSink


def row(step: int, incarnation: int = 1) -> Row:
    return Row(incarnation=incarnation, step=step, at_ms=step, values={Series("entropy"): step / 10})


def written_to(path: Path) -> tuple[str, ...]:
    """A child that writes down what it is told."""
    return (sys.executable, "-c", f"import sys; open({str(path)!r}, 'ab').write(sys.stdin.buffer.read())")


def sink_of(tmp_path: Path, *command: str) -> WandbSink:
    return WandbSink(directory=tmp_path / "wandb", project="p", group="swarm-ab", offline=True, command=command)


def told(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_child_gets_terms_and_then_rows(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, *written_to(tmp_path / "told"))
    sink.begin(1, 0)
    sink.write(row(1))
    sink.close()
    terms, first = told(tmp_path / "told")
    assert terms == {
        "project": "p", "group": "swarm-ab", "id": "swarm-ab-1", "offline": True, "directory": str(tmp_path),
    }  # fmt: skip
    assert first == {"objective/entropy": 0.1, "step": 1}


def test_a_run_goes_on_when_no_step_was_lost_and_else_another_begins(tmp_path: Path) -> None:
    runs = []
    for incarnation, base, steps in ((1, 0, (1, 2)), (2, 2, (3,)), (3, 1, (2,)), (4, 2, ())):
        sink = sink_of(tmp_path, *written_to(tmp_path / "told"))
        sink.begin(incarnation, base)
        for step in steps:
            sink.write(row(step, incarnation))
        sink.close()
        runs.append(json.loads((tmp_path / "wandb" / STATE).read_text())["run"])
    assert runs == ["swarm-ab-1", "swarm-ab-1", "swarm-ab-3", "swarm-ab-3"]


def test_a_child_that_ends_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, sys.executable, "-c", "raise SystemExit('wandb: not logged in')")
    sink.begin(1, 0)
    assert sink._child is not None
    sink._child.wait(300)
    with pytest.raises(RuntimeError, match="its process ended with exit code 1: wandb: not logged in"):
        sink.write(row(1))
    sink.close()


def test_a_child_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "WAIT_S", 0.05)
    command = (sys.executable, "-c", "import sys, time; sys.stdin.read(); time.sleep(60)")
    sink = sink_of(tmp_path, *command)
    sink.begin(1, 0)
    child = sink._child
    assert child is not None
    sink.close()
    try:
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is an extra")
def test_the_real_package_keeps_a_run_offline(tmp_path: Path) -> None:
    sink = WandbSink(directory=tmp_path / "wandb", project="volery-tests", group="swarm-ab", offline=True)
    sink.begin(1, 0)
    for step in (1, 2, 3):
        sink.write(row(step))
    child = sink._child
    assert child is not None
    sink.close()
    assert child.wait(300) == 0, (tmp_path / "wandb" / LOG).read_text()
    [kept] = (tmp_path / "wandb").glob("offline-run-*/run-swarm-ab-1.wandb")
    assert b"objective/entropy" in kept.read_bytes()
