"""Keys on disk: made once, private, never overwritten, also when two programs start at once or one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.runtime.errors import RunError, UsageError
from node.state.keys import load_key, load_or_create_key, load_or_create_secret
from tests.support.disks import file_limit


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "node.key"
    key = load_or_create_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == key.seed.hex() + "\n"
    assert load_or_create_key(path).peer_id == load_key(path).peer_id == key.peer_id
    assert [one.name for one in path.parent.iterdir()] == ["node.key"]
    assert load_or_create_secret(tmp_path / "other") != key.seed


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    load_or_create_key(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"{path} can be read by others.*chmod 600 {path}"):
        load_or_create_key(path)


@pytest.mark.parametrize("content", ["", "x" * 64, "00" * 31, "00" * 33, "é", "{}"])
def test_what_is_no_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "node.key"
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(UsageError, match=r"is not a key.*Restore it from a copy"):
        load_or_create_key(path)
    assert path.read_text(encoding="utf-8") == content


def test_a_key_that_should_be_there_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such key"):
        load_key(tmp_path / "operator.key")
    assert list(tmp_path.iterdir()) == []


def test_of_programs_that_start_at_once_all_get_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    code = (
        "import sys; from pathlib import Path; from node.state.keys import load_or_create_key as k; sys.stdin.read(); "
        f"print(k(Path({str(path)!r})).peer_id)"
    )
    programs = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
    ]
    for program in programs:  # all have imported what they need, or nearly; now they race
        assert program.stdin is not None
        program.stdin.close()
    outputs = set()
    for program in programs:
        assert program.stdout is not None
        outputs.add(program.stdout.read())
        program.stdout.close()
        assert program.wait() == 0
    assert outputs == {load_key(path).peer_id.encode() + b"\n"}
    assert [one.name for one in tmp_path.iterdir()] == ["node.key"]


def test_killed_while_it_is_made_there_is_no_key_yet_and_the_next_start_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    if (child := os.fork()) == 0:
        os.link = lambda *names: os._exit(9)  # type: ignore[assignment]
        try:
            load_or_create_key(path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not path.exists()
    load_or_create_key(path)


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    with file_limit(10), pytest.raises(RunError, match=rf"{path} cannot be used: File too large"):
        load_or_create_key(path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_where_the_key_should_be(tmp_path: Path) -> None:
    (tmp_path / "node.key").mkdir(mode=0o700)
    with pytest.raises(RunError, match=r"node\.key cannot be used: Is a directory"):
        load_or_create_key(tmp_path / "node.key")
