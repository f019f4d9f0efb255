"""Run the real Weights & Biases package in its own process: offline, and with servers that do not answer.

The node must survive its faults.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.learner_role.metrics import wandb
from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.wandb import LOG, STATE, WandbSink
from node.learner_role.metrics.wandb_child import unreachable

DEADLINE_S = 180.0
real = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is an extra")


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
    code = "import sys; sys.stdin.readline(); raise SystemExit('wandb: not logged in')"
    sink = sink_of(tmp_path, sys.executable, "-c", code)
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


@real
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


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that accepts connections and answers none."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def noticed(sink: WandbSink) -> str:
    """Return the sink's notice, once there is one."""
    ends = time.monotonic() + DEADLINE_S
    while not (text := sink.notice()):
        assert time.monotonic() < ends, (sink.directory / LOG).read_text()
        time.sleep(0.05)
    return text


def check_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, why: str) -> None:
    """The real package and a server at `port`: nothing waits for it, that is said, and rows are where it is said."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    sink = WandbSink(directory=tmp_path / "wandb", project="volery-tests", group="swarm-ab")
    sink.begin(1, 0)
    for step in (1, 2, 3):
        sink.write(row(step))
    text = noticed(sink)
    assert text.startswith(f"Weights & Biases gets no metrics of this run: {why}"), text
    child = sink._child
    assert child is not None
    sink.close()
    assert child.wait(DEADLINE_S) == 0, (tmp_path / "wandb" / LOG).read_text()
    assert sink.notice() == ""
    [directory] = (tmp_path / "wandb").glob("offline-run-*")
    assert f"`wandb sync {directory}`" in text
    kept = (directory / "run-swarm-ab-1.wandb").read_bytes()
    assert b"objective/entropy" in kept


@real
def test_a_server_that_cannot_be_reached_is_said_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    check_kept(tmp_path, monkeypatch, closed_port, f"127.0.0.1:{closed_port} cannot be reached (")


@real
@pytest.mark.slow
def test_a_server_that_never_answers_is_said_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    check_kept(tmp_path, monkeypatch, silent_port, "")


OPENED = """
class settings:
    base_url = "http://127.0.0.1:{port}"

class Run:
    url = "https://wandb.example/team/volery-tests/runs/swarm-ab-1?apiKey=secret"
    def define_metric(self, *names, **terms): pass
    def log(self, row): pass
    def finish(self): pass

def setup():
    class library: pass
    library.settings = settings
    return library

def Settings(**terms):
    return terms

def init(**terms):
    return Run()
"""
"""A package `wandb` whose server has opened the run, as no test can have a real one."""


def test_where_the_server_shows_the_run_is_said_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    (tmp_path / "wandb.py").write_text(OPENED.replace("{port}", str(silent_port)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sink = WandbSink(directory=tmp_path / "files", project="volery-tests", group="swarm-ab")
    sink.begin(1, 0)
    sink.write(row(1))
    assert noticed(sink) == (
        "Weights & Biases shows this run at https://wandb.example/team/volery-tests/runs/swarm-ab-1"
    )
    sink.close()


def test_what_is_looked_for_is_the_server_or_the_proxy_before_it(
    monkeypatch: pytest.MonkeyPatch, silent_port: int, closed_port: int
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert unreachable(f"http://127.0.0.1:{silent_port}") == ""
    assert unreachable(f"https://127.0.0.1:{closed_port}").startswith(f"127.0.0.1:{closed_port} cannot be reached (")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent_port}")
    assert unreachable("https://nowhere.invalid") == "", "the proxy is reachable, which is all that can be checked"
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{closed_port}")
    assert unreachable("https://nowhere.invalid").startswith(f"the proxy 127.0.0.1:{closed_port} cannot be reached (")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert unreachable(f"https://127.0.0.1:{silent_port}") == ""
    assert "cannot be reached" in unreachable("https://")
