"""The tail of the log: whole lines, each once and in order, whatever happens to the file."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.page import event_tail as module
from node.commands.page.event_tail import EventTail
from node.runtime import events as log_module
from node.runtime.events import EventLog


def numbers(tail: EventTail) -> list[int]:
    """Return the number in each event that there is."""
    found: list[int] = []
    while (logged := tail.read()) is not None:
        found += [one.fields["number"] for one in logged]
    return found


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl")


@pytest.fixture
def tail(tmp_path: Path) -> EventTail:
    return EventTail(path=tmp_path / "events.jsonl")


def test_events_come_once_with_their_time_and_fields(log: EventLog, tail: EventTail) -> None:
    assert tail.read() is None, "there is no file yet"
    log.emit("step", number=1, text="Zoë\n")
    (one,) = tail.read() or []
    assert (one.event, one.fields) == ("step", {"number": 1, "text": "Zoë\n"})
    assert one.at > 1.7e9
    assert tail.read() is None
    log.emit("step", number=2)
    assert numbers(tail) == [2]


def test_a_rotation_loses_nothing(log: EventLog, tail: EventTail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_LOG_BYTES", 300)
    found, sent = [], count()
    for burst in (1, 3, 1, 2, 1, 1, 2, 3):  # up to three events of some 60 bytes between two looks
        for _ in range(burst):
            log.emit("e", number=next(sent))
        found += numbers(tail)
    assert found == list(range(14))


def test_what_is_written_between_the_last_look_and_the_rotation_is_read(log: EventLog, tail: EventTail) -> None:
    log.emit("e", number=1)
    assert numbers(tail) == [1]
    log.emit("e", number=2)
    path = tail.path
    path.replace(path.with_name("events.jsonl.1"))
    log.close()
    log.emit("e", number=3)
    assert numbers(tail) == [2, 3]


def test_while_a_log_is_between_two_names_nothing_is_lost(log: EventLog, tail: EventTail) -> None:
    log.emit("e", number=1)
    assert numbers(tail) == [1]
    tail.path.unlink()
    assert numbers(tail) == []
    log.emit("e", number=2)
    assert numbers(tail) == [2]


def test_a_log_that_is_emptied_in_its_place_is_read_from_its_beginning(log: EventLog, tail: EventTail) -> None:
    for number in range(5):
        log.emit("e", number=number)
    assert numbers(tail) == [0, 1, 2, 3, 4]
    tail.path.write_bytes(b"")
    assert numbers(tail) == []
    log.emit("e", number=5)
    assert numbers(tail) == [5]


def test_half_a_line_is_read_when_its_end_has_come(tail: EventTail) -> None:
    line = json.dumps({"at": 1.5, "event": "e", "number": 1}).encode() + b"\n"
    for place in range(len(line)):
        with tail.path.open("ab") as file:
            file.write(line[place : place + 1])
        assert numbers(tail) == ([1] if place == len(line) - 1 else [])


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"null", b"3", b"[1]", b'{"event": "e"}', b'{"at": "x", "event": "e"}', b'{"at": null, "event": "e"}',
     b"\xff\xfe", b"[" * 5000, b'{"at": 1, "event"', b'\x00\x00\x00\x00'],
)  # fmt: skip
def test_a_torn_line_costs_itself_alone(log: EventLog, tail: EventTail, line: bytes) -> None:
    log.emit("e", number=1)
    log.close()
    with tail.path.open("ab") as file:
        file.write(line + b"\n")
    log.emit("e", number=2)
    assert numbers(tail) == [1, 2]


def test_a_huge_line_costs_itself_alone_and_is_never_held(tail: EventTail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 100)
    hidden = b'{"at": 1, "event": "e", "number": 9}'
    with tail.path.open("wb") as file:
        file.write(b'{"at": 1, "event": "e", "number": 1}\n' + b"x" * 1000 + hidden + b"\n")
        file.write(b'{"at": 1, "event": "e", "number": 2}\n')
    found: list[int] = []
    while (logged := tail.read()) is not None:
        found += [one.fields["number"] for one in logged]
        assert len(tail._rest) <= 100
    assert found == [1, 2]


def test_a_long_log_is_read_from_a_recent_line_on(
    log: EventLog, tail: EventTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        log.emit("e", number=number)
    monkeypatch.setattr(module, "BEGIN_BYTES", 1000)
    found = numbers(tail)
    assert found == list(range(100 - len(found), 100))
    assert 10 < len(found) < 25


@given(st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["rotate", "remove", "look"])), max_size=30))
def test_any_order_of_writing_looking_and_renaming(
    tmp_path_factory: pytest.TempPathFactory, acts: list[int | str]
) -> None:
    """What was written before a look is read by it, whatever became of the file after that look."""
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log, tail = EventLog(path), EventTail(path=path)
    found, sent, unread = [], count(), 0
    for act in acts:
        if isinstance(act, int):
            for _ in range(act):
                log.emit("e", number=next(sent))
            unread += 1
        elif act == "look":
            found += numbers(tail)
            unread = 0
        elif not unread and path.exists():
            path.unlink() if act == "remove" else path.replace(path.with_suffix(".1"))
            log.close()
    found += numbers(tail)
    assert found == list(range(next(sent)))
    tail.close()
    log.close()
