"""Push an export to a directory that stands for a repository: a mirror, a portable disk, a git checkout.

Invariants:

- All files are copied to a place beside the existing ones before the first of those changes. Until then a full disk or
  Ctrl-C leaves the directory unchanged.
- Then files are renamed, which needs no space. A kill at that moment leaves files of both pushes, and a record that
  names all of them, so that the next push completes it.
- Files that volery did not put there are never changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from learner.artifacts.atomic_directory import json_bytes, replace_file, sync_directory, synced
from learner.artifacts.regular_file import open_file
from node.commands.export.record import RECORD, Changes, ExportRecord, changes, read_record
from node.runtime.errors import RunError

STAGE = ".volery-push"
"""Directory for the files until all are copied."""


def push_to_directory(source: Path, record: ExportRecord, target: Path, *, named: str) -> None:
    """Make `target`, which the user called `named`, hold the export in `source`. Raises UsageError, RunError."""
    try:
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(0, "it is not a directory")
        theirs = {path.name for path in target.iterdir()} - {STAGE} if target.exists() else set[str]()
        found = changes(named, theirs, read_record(target / RECORD), record)
        _put(source, found, target, fresh=not target.exists())
    except OSError as error:
        raise RunError(
            f"--push {named}: it could not be written ({error.strerror}). Fix that and push again; the export is in "
            f"{source}."
        ) from None


def _put(source: Path, found: Changes, target: Path, *, fresh: bool) -> None:
    stage = target / STAGE
    try:
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        for name in found.put:
            with open_file(source / name) as file, synced(stage / name) as copy:
                shutil.copyfileobj(file, copy)
        _name_all(stage, target, found)
        for name in sorted(found.put, key=lambda name: name == RECORD):
            (stage / name).replace(target / name)
        for name in found.remove:
            (target / name).unlink(missing_ok=True)
        sync_directory(target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if fresh and target.is_dir() and not any(target.iterdir()):
            target.rmdir()


def _name_all(stage: Path, target: Path, found: Changes) -> None:
    """Write a record of the files of this push and of the one before, so that a kill leaves no file unrecorded."""
    record = read_record(stage / RECORD)
    assert record is not None, "every export has one"
    both = msgspec.structs.replace(record, files=tuple(sorted({*found.put, *found.remove})))
    replace_file(target / RECORD, json_bytes(msgspec.to_builtins(both)))
