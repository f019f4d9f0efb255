"""The log: whole lines, each with its time and level; bounded, also on a full disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from node.reports.model.report import Role
from node.runtime.errors import UsageError
from node.runtime.event_reference import LEARNER_EVENTS, NODE_EVENTS
from node.ui import log_lines
from node.ui.live_view import ViewState
from node.ui.log_lines import (
    DEBUG_EVENTS,
    ERROR_EVENTS,
    KEPT_FILES,
    MOST_WAITING,
    WARNING_EVENTS,
    Level,
    LogFile,
    LogFormat,
    LogLines,
    level_of,
)
from node.ui.view_updates import apply
from tests.support.ledgers import ALPHA

AT = 1_764_460_800.25


class Kept:
    """Keeps the lines that are written to it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, lines: list[str]) -> None:
        self.lines += lines


def opened(form: LogFormat) -> tuple[ViewState, LogLines, Kept, Callable[..., None]]:
    state, kept = ViewState(role=Role.LEARNER), Kept()
    log = LogLines(form=form, state=state, sink=kept, now=lambda: AT)

    def happens(event: str, **fields: object) -> None:
        apply(state, event, fields)
        log.take(event, fields)

    return state, log, kept, happens


def test_an_event_is_one_object_of_json_with_time_level_text_and_fields() -> None:
    _, log, kept, happens = opened(LogFormat.JSON)
    happens("peer_joined", peer=ALPHA, name="at\nlas", engine="fake", machine="m")
    happens("version_published", version="1.8", seconds=0.5)
    happens("alarm_raised", alarm="clipped", step=3, text="A bound acts.")
    happens("heartbeat", peer=ALPHA)
    log.say("The invite.\n\n  volery join volery1abc\n")
    log.update()
    joined, published, alarm, said = map(json.loads, kept.lines)
    assert joined == {
        "time": "2025-11-30T00:00:00.250Z",
        "level": "info",
        "event": "peer_joined",
        "text": f"at\nlas {ALPHA[-6:]} joined",
        "fields": {"peer": ALPHA, "name": "at\nlas", "engine": "fake", "machine": "m"},
    }
    assert (published["event"], "text" in published, published["fields"]["version"]) == (
        "version_published",
        False,
        "1.8",
    )
    assert (alarm["level"], alarm["text"]) == ("warning", "ALARM at step 3: A bound acts.")
    assert (said["level"], said["text"]) == ("info", "The invite.\n\n  volery join volery1abc\n")
    assert all("\n" not in line for line in kept.lines)


def test_as_text_only_sentences_are_lines_and_the_state_once_a_minute() -> None:
    state, log, kept, happens = opened(LogFormat.TEXT)
    happens("version_published", version="1.8", seconds=0.5)
    happens("alarm_raised", alarm="clipped", step=3, text="A bound\x1b[2J acts.")
    log.say("two\n\nlines")
    for second in (1.0, 59.0, 60.0, 61.0, 120.0):
        state.tick(second)
        log.update()
    at = "2025-11-30T00:00:00.250Z"
    assert kept.lines[:3] == [
        f"{at} warning ALARM at step 3: A bound\\x1b[2J acts.",
        f"{at} info    two",
        f"{at} info    lines",
    ]
    assert [line.split()[2] for line in kept.lines[3:]] == ["step", "step"]


def test_lines_that_nobody_takes_are_bounded_and_counted() -> None:
    _, log, kept, happens = opened(LogFormat.JSON)
    for number in range(MOST_WAITING + 7):
        happens("finished", steps=number)
    log.update()
    assert len(kept.lines) == MOST_WAITING + 1
    assert json.loads(kept.lines[0])["text"] == "7 lines of this log left out here: too many came at once"
    assert json.loads(kept.lines[1])["fields"]["steps"] == 7
    log.update()
    assert len(kept.lines) == MOST_WAITING + 1, "it is said once"


def test_every_event_with_a_level_is_emitted() -> None:
    assert {*LEARNER_EVENTS, *NODE_EVENTS} >= DEBUG_EVENTS | WARNING_EVENTS | ERROR_EVENTS
    assert not DEBUG_EVENTS & WARNING_EVENTS | WARNING_EVENTS & ERROR_EVENTS | DEBUG_EVENTS & ERROR_EVENTS
    assert [level_of(event) for event in ("heartbeat", "step", "trouble", "gave_up")] == list(Level)


# Files


def test_a_file_is_rotated_and_the_oldest_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "FILE_BYTES", 100)
    file = LogFile(tmp_path / "run.log", lambda text: pytest.fail(text))
    lines = [f"line {number:04} {'x' * 30}" for number in range(100)]
    for line in lines:
        file.write([line])
    found = sorted(tmp_path.iterdir())
    assert [path.name for path in found] == ["run.log", *(f"run.log.{age}" for age in range(1, KEPT_FILES + 1))]
    assert all(path.stat().st_size <= 100 for path in found)
    kept = [line for path in [*reversed(found[1:]), found[0]] for line in path.read_text().splitlines()]
    assert kept == lines[-len(kept) :]


def test_a_full_disk_costs_lines_and_is_told_once() -> None:
    troubles = list[str]()
    file = LogFile(Path("/dev/full"), troubles.append)
    for _ in range(3):
        file.write(["a line", "another"])
    assert troubles == [
        "--log-file /dev/full cannot be written: No space left on device; its lines are lost until it can be"
    ]


def test_when_there_is_room_again_the_log_goes_on_with_whole_lines(tmp_path: Path) -> None:
    troubles, path = list[str](), tmp_path / "run.log"
    file = LogFile(path, troubles.append)
    file.write(["first"])
    file._file.stream = _Cut(path)  # type: ignore[assignment]
    file.write(["lost, all but its start"])
    file.write(["second"])
    assert path.read_text().splitlines() == [
        "first", "lost", "second", "1 line of this log lost: the file could not be written"
    ]  # fmt: skip
    assert len(troubles) == 1


class _Cut:
    """A stream on a disk that has room for four more bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text[:4])
        raise OSError(28, "No space left on device")

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def seek(self, *_: int) -> None: ...

    def tell(self) -> int:
        return 0


def test_a_file_in_no_directory_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened: No such file or directory"):
        LogFile(tmp_path / "none" / "run.log", lambda text: pytest.fail(text))
