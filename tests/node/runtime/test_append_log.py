"""Append whole lines or none, whatever the disk and the last process did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.runtime import append_log as module
from node.runtime.append_log import LineFile
from tests.support.disks import file_limit

ROOMY = 1 << 20


def test_lines_are_appended_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines"
    for line in (b"one\n", b"two\n"):
        file = LineFile(path, most_bytes=ROOMY)
        file.append(line)
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("look_back", [1, 3, 64 * 1024])
@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (b"", b""),
        (b"whole\n", b"whole\n"),
        (b"whole\ntorn by a kill", b"whole\n"),
        (b"torn from the first", b""),
        (b"a\n\n", b"a\n\n"),
    ],
)
def test_what_a_kill_left_of_a_line_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes, kept: bytes, look_back: int
) -> None:
    monkeypatch.setattr(module, "LOOK_BACK_BYTES", look_back)
    path = tmp_path / "lines"
    path.write_bytes(left)
    file = LineFile(path, most_bytes=ROOMY)
    file.append(b"next\n")
    file.close()
    assert path.read_bytes() == kept + b"next\n"


@pytest.mark.parametrize("reopened", [False, True])
def test_a_full_disk_leaves_no_torn_line(tmp_path: Path, reopened: bool) -> None:
    path = tmp_path / "lines"
    file = LineFile(path, most_bytes=ROOMY)
    file.append(b"before\n")
    with file_limit(path.stat().st_size + 3):
        for _ in range(3):
            with pytest.raises(OSError, match=r"only 3 of 8 bytes"):
                file.append(b"too long")
            assert not file.is_open
            assert path.read_bytes() == b"before\n"
    if reopened:
        file = LineFile(path, most_bytes=ROOMY)
    file.append(b"after\n")
    file.close()
    assert path.read_bytes() == b"before\nafter\n"


def test_a_full_file_is_set_aside_in_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.with_name("lines.1").write_bytes(b"old\n")
    file = LineFile(path, most_bytes=10)
    file.append(b"12345\n")
    assert not file.is_full
    file.append(b"67890\n")
    assert file.is_full
    file.set_aside()
    assert not file.is_open
    assert not file.is_full
    file.append(b"next\n")
    file.close()
    assert path.with_name("lines.1").read_bytes() == b"12345\n67890\n"
    assert path.read_bytes() == b"next\n"
    assert sorted(os.listdir(tmp_path)) == ["lines", "lines.1"]


def test_a_file_that_is_removed_is_told_and_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = LineFile(path, most_bytes=1000)
    file.append(b"one\n")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="removed while it was written to"):
        file.append(b"two\n")
    assert not file.is_open
    file.append(b"three\n")
    file.close()
    assert path.read_bytes() == b"three\n"
