"""An owner's orders to a node: files that anybody may have written, signals to a real process, and the right node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli.owner_commands import roots
from node.runtime.errors import UsageError
from node.runtime.loop_delay import LoopFigures
from node.state.about import ABOUT_FILE
from node.state.keys import load_or_create_key
from node.state.locate import find_place
from node.state.owner_orders import BY_SIGNAL, Drain, OwnerRequests
from node.state.status_file import FILE, NodeStatus, StatusFile, standing_of

PROGRAM = """
import sys
import trio
from pathlib import Path
from node.state.owner_orders import OwnerRequests, owner_signals

async def main():
    orders = OwnerRequests(Path(sys.argv[1]))
    with owner_signals() as signals:
        print("ready", flush=True)
        while True:
            await signals.told.wait()
            signals.heed(orders)
            print(repr(orders.paused_by), flush=True)

trio.run(main)
"""


def test_signals_make_and_remove_the_file(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "ready\n"
            running.send_signal(signal.SIGUSR1)
            assert running.stdout.readline() == f"{BY_SIGNAL!r}\n"
            assert OwnerRequests(tmp_path).paused_by == BY_SIGNAL, "a restart finds it so"
            running.send_signal(signal.SIGUSR2)
            assert running.stdout.readline() == "''\n"
            assert running.poll() is None
        finally:
            running.kill()


def test_a_signal_that_comes_while_python_still_imports_ends_nothing(tmp_path: Path) -> None:
    """A typer that is told to pause while it is imported."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nraise SystemExit(7)\n")
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    ended = subprocess.run([sys.executable, "-m", "node", "join", "x"], env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 7


def test_the_last_signal_before_anybody_listened_is_heeded(tmp_path: Path) -> None:
    early = """
import os, signal
from node.runtime.startup import remember
remember()
for name in sys.argv[2:]:
    os.kill(os.getpid(), getattr(signal, name))
"""
    program = PROGRAM.replace("trio.run(main)", f"{early}\ntrio.run(main)")
    for names, paused_by in ((["SIGUSR1"], BY_SIGNAL), (["SIGUSR1", "SIGUSR2"], "")):
        with subprocess.Popen(
            [sys.executable, "-c", program, tmp_path, *names], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            try:
                assert [running.stdout.readline() for _ in range(2)] == ["ready\n", f"{paused_by!r}\n"]
            finally:
                running.kill()


def test_a_pause_is_a_file_whatever_is_in_it(tmp_path: Path) -> None:
    orders = OwnerRequests(tmp_path)
    assert orders.paused_by == ""
    orders.pause("`volery pause`")
    orders.pause(BY_SIGNAL)
    assert orders.paused_by == "`volery pause`", "who came first"
    orders.resume()
    orders.resume()
    assert orders.paused_by == ""
    for strange in (b"", b"\xff", b"[]", b'{"by": 3}', b"{"):
        orders.pause_file.write_bytes(strange)
        assert orders.paused_by == f"the file {orders.pause_file}"


@pytest.mark.parametrize("order", [Drain(), Drain(deadline_ms=1_800_000_000_000)])
def test_an_order_to_drain_is_read_as_it_was_given(tmp_path: Path, order: Drain) -> None:
    orders = OwnerRequests(tmp_path)
    assert orders.drained is None
    orders.drain(order)
    assert orders.drained == order
    orders.forget_drain()
    assert orders.drained is None
    orders.drain_file.touch()
    assert orders.drained == Drain(), "as `touch` says it"


def test_who_runs_is_told_from_who_was_killed(tmp_path: Path) -> None:
    standing = NodeStatus(doing="at work", limits={"[engine] nice": "5"})
    assert standing_of(tmp_path) is None
    board = StatusFile(tmp_path)
    board.show(standing)
    assert standing_of(tmp_path) == standing
    figures = LoopFigures(p99_s=0.004, longest_s=0.21, culprit="somebody")
    board.show(replace(standing, loop=figures))
    assert standing_of(tmp_path) == replace(standing, loop=figures)
    newer = (tmp_path / FILE).read_text().replace('"worst_s"', '"of_another_version"')
    (tmp_path / FILE).write_text(newer)
    assert standing_of(tmp_path) == replace(standing, loop=figures)
    board.show(standing)
    ours = (tmp_path / FILE).read_text()
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / FILE).write_text(ours.replace(f'"pid": {os.getpid()}', f'"pid": {other.pid}'))
        assert standing_of(tmp_path) is None, "another program has the number now"
        other.kill()
    (tmp_path / FILE).write_text(ours.replace(f'"pid": {os.getpid()}', f'"pid": {other.pid}'))
    assert standing_of(tmp_path) is None, "nobody has it"
    for strange in ("", "{}", "[]", '{"pid": "x"}'):
        (tmp_path / FILE).write_text(strange)
        assert standing_of(tmp_path) is None
    board.clear()
    board.clear()
    assert not (tmp_path / FILE).exists()


def test_a_node_is_named_by_its_directory_or_display_name_or_is_the_only_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path))
    first, second = (tmp_path / "0123456789abcdef" / f"node-{number}" for number in (1, 2))
    for root, name in ((first, "kitchen-pc"), (second, "gaming-pc")):
        root.mkdir(parents=True)
        load_or_create_key(root / "node.key")
        (root / ABOUT_FILE).write_text(json.dumps({"name": name}))
    assert roots(Path("node-2"), all_nodes=False) == [second] == roots(Path("gaming-pc"), all_nodes=False)
    with pytest.raises(UsageError, match="node-3: no such file or directory, and no node here has that name"):
        find_place(Path("node-3"))
    boards = [StatusFile(first), StatusFile(second)]
    boards[1].show(NodeStatus(doing="at work", limits={}))
    assert find_place(None).state == second
    assert roots(None, all_nodes=False) == [second]
    boards[0].show(NodeStatus(doing="paused by SIGUSR1", limits={}))
    with pytest.raises(UsageError) as told:
        find_place(None)
    assert str(told.value).splitlines()[1:] == [
        f"  node-1 (kitchen-pc): paused by SIGUSR1, {first}",
        f"  node-2 (gaming-pc): at work, {second}",
    ]
    (first / ABOUT_FILE).write_text("damaged")
    assert find_place(Path("node-1")).state == first


def test_which_node_is_meant_is_never_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="There is no node in the usual places"):
        roots(None, all_nodes=True)
    first, second = (tmp_path / "0123456789abcdef" / f"node-{number}" for number in (1, 2))
    first.mkdir(parents=True)
    load_or_create_key(first / "node.key")
    assert roots(None, all_nodes=False) == [first] == roots(first, all_nodes=False)
    second.mkdir()
    load_or_create_key(second / "node.key")
    with pytest.raises(UsageError, match=r"2 nodes on this machine may be meant, and 0 of them run.*choose --all"):
        roots(None, all_nodes=False)
    assert roots(None, all_nodes=True) == [first, second]
    assert roots(second, all_nodes=False) == [second]
    with pytest.raises(UsageError, match="not both"):
        roots(second, all_nodes=True)
    learner = tmp_path / "learner"
    learner.mkdir()
    load_or_create_key(learner / "learner.key")
    assert find_place(learner).is_learner
    with pytest.raises(UsageError, match=r"belongs to a learner; Ctrl-C stops that"):
        roots(learner, all_nodes=False)
