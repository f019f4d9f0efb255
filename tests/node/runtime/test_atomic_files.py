"""A file that somebody named for a result is replaced whole or not at all, and only if it is a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.runtime.atomic_files import PICTURE, require_place, write_private, write_whole
from node.runtime.errors import RunError, UsageError


def write(partial: Path) -> None:
    partial.write_bytes(b"new")


def fail(partial: Path) -> None:
    write(partial)
    raise OSError(28, "No space left on device")


def test_the_new_one_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    for _ in range(2):
        require_place(path, "--picture", ending=PICTURE)
        write_whole(path, write)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("plan.png", b"new")]


def test_the_old_one_stays_if_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        write_whole(path, fail)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("plan.png", b"old")]


def test_a_private_file_is_its_owners_alone_whatever_lies_there(tmp_path: Path) -> None:
    for name in ("token", ".token.draft"):
        (tmp_path / name).write_bytes(b"old")
        (tmp_path / name).chmod(0o666)
    write_private(tmp_path / "token", b"new")
    (made,) = tmp_path.iterdir()
    assert (made.name, made.read_bytes(), made.stat().st_mode & 0o777) == ("token", b"new", 0o600)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "plan.png").symlink_to(kept / "plan.png")
    write_whole(tmp_path / "plan.png", write)
    assert (tmp_path / "plan.png").is_symlink()
    assert [(one.name, one.read_bytes()) for one in kept.iterdir()] == [("plan.png", b"new")]


def test_where_a_link_leads_nothing_can_be_written_is_found_out_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "plan.png").symlink_to(tmp_path / "none" / "plan.png")
    with pytest.raises(RunError, match="No such file"):
        require_place(tmp_path / "plan.png", "--picture", ending=PICTURE)


def test_a_device_or_a_directory_is_never_replaced(tmp_path: Path) -> None:
    """Root may: a picture named /dev/null would be the end of /dev/null."""
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    (tmp_path / "link.png").symlink_to(pipe)
    (tmp_path / "directory.png").mkdir()
    for name in ("pipe.png", "link.png", "directory.png"):
        with pytest.raises(RunError, match=rf"{name} cannot be written: .*--picture"):
            require_place(tmp_path / name, "--picture", ending=PICTURE)
        with pytest.raises(OSError, match=r"device|directory"):
            write_whole(tmp_path / name, write)
    assert pipe.is_fifo()
    assert {one.name for one in tmp_path.iterdir()} == {"pipe.png", "link.png", "directory.png"}


def test_what_cannot_be_is_found_out_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "none" / "a.png", "No such file"), (tmp_path / "file" / "a.png", "Not a directory")):
        with pytest.raises(RunError, match=why):
            require_place(path, "--picture", ending=PICTURE)
    require_place(tmp_path / "none" / "deeper" / "recording.jsonl", "--record", makes_directory=True)
    with pytest.raises(UsageError, match=r"must end in \.png"):
        require_place(tmp_path / "plan.svg", "--picture", ending=PICTURE)
