"""The log: one JSON object a line, whatever happens to the disk; and whoever watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.runtime import events as module
from node.runtime.events import EventLog, Field
from tests.support.disks import file_limit


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_an_event_is_a_line_and_a_call(tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, Field]]] = []
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.listen(lambda name, fields: heard.append((name, fields)))
    log.emit("step", step=3, reward=0.5, peer=None, final=False, name="Zoë\n\ud800")
    log.close()
    [line] = lines(tmp_path / "deep" / "events.jsonl")
    assert isinstance(line.pop("at"), float)
    assert line == {"event": "step", "step": 3, "reward": 0.5, "peer": None, "final": False, "name": "Zoë\n\ud800"}
    assert heard == [("step", {"step": 3, "reward": 0.5, "peer": None, "final": False, "name": "Zoë\n\ud800"})]


def test_without_a_path_only_listeners_hear(tmp_path: Path) -> None:
    heard: list[str] = []
    log = EventLog()
    log.listen(lambda name, fields: heard.append(name))
    log.emit("first")
    log.write_to(tmp_path / "events.jsonl")
    log.emit("second")
    log.close()
    log.emit("third")
    assert heard == ["first", "second", "third"]
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["second", "third"]


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    for name in ("first", "second"):
        log = EventLog(tmp_path / "events.jsonl")
        log.emit(name)
        log.close()
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["first", "second"]


def test_two_files_bound_what_a_long_run_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 2000)
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for number in range(400):
        log.emit("step", step=number)
    log.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    kept = [
        line["step"] for line in [*lines(path.with_name("events.jsonl.1")), *(lines(path) if path.exists() else [])]
    ]
    assert kept == list(range(400))[-len(kept) :]
    assert len(kept) > 20
    assert all(one.stat().st_size <= 2100 for one in tmp_path.iterdir())


@pytest.mark.parametrize("reopened", [False, True])
def test_a_full_disk_stops_neither_the_node_nor_the_log_for_good(tmp_path: Path, reopened: bool) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.emit("before")
    with file_limit(path.stat().st_size + 10):
        for number in range(5):
            log.emit("lost", number=number)
        log.close()
    if reopened:
        log = EventLog(path)
    log.emit("after")
    log.emit("later")
    log.close()
    raw = path.read_text(encoding="ascii").splitlines()
    assert [json.loads(raw[0])["event"], json.loads(raw[-2])["event"], json.loads(raw[-1])["event"]] == [
        "before",
        "after",
        "later",
    ]
    with pytest.raises(json.JSONDecodeError):
        json.loads(raw[1])  # what was cut short stands in a line of its own


def test_a_path_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = EventLog(tmp_path / "file" / "events.jsonl")
    log.emit("step")
    log.close()


def test_a_log_that_is_removed_is_begun_again(tmp_path: Path) -> None:
    path, log = tmp_path / "events.jsonl", EventLog(tmp_path / "events.jsonl")
    log.emit("first")
    path.unlink()
    log.emit("second")
    log.close()
    assert [line["event"] for line in lines(path)] == ["second"]
