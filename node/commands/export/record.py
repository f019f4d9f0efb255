"""Write and read the record of an export: `volery.json`, beside the model.

It names the files that volery wrote, so that a later push replaces only those. It may come back from a repository that
anybody can write to, so it is read as a stranger's text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from learner.artifacts.atomic_directory import write_json
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.errors import RunError, UsageError

RECORD = "volery.json"
CARD = "README.md"

FORMAT = "volery export 1"

MAX_RECORD_BYTES = 1 << 20
"""Most bytes of a record: ten thousand file names. A model of a terabyte has a thousand shards."""

MAX_NAMED = 5
"""Most files that a message names."""

_FileName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^/\\\x00-\x1f]+$")]


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The version and form of an export, and the names of all its files, including this one."""

    format: str = FORMAT
    swarm: Annotated[str, Meta(max_length=64)]
    version: Annotated[str, Meta(max_length=64)]
    manifest: Annotated[str, Meta(max_length=64)]
    form: Annotated[str, Meta(max_length=16)]
    files: Annotated[tuple[_FileName, ...], Meta(max_length=10_000)]


def write_record(directory: Path, *, swarm: str, version: str, manifest: str, form: str) -> ExportRecord:
    """Write the record of all files in `directory`. Raises OSError."""
    names = sorted({RECORD, *(path.name for path in directory.iterdir())})
    record = ExportRecord(swarm=swarm, version=version, manifest=manifest, form=form, files=tuple(names))
    write_json(directory / RECORD, msgspec.to_builtins(record))
    return record


def read_record(path: Path) -> ExportRecord | None:
    """Return the record at `path`; None if the file is missing or is something else. Raises OSError."""
    try:
        record = msgspec.convert(parse_json(read_file(path, MAX_RECORD_BYTES)), ExportRecord)
    except FileNotFoundError:
        return None
    except ValueError:  # it is not text, not JSON, or not a record
        return None
    return record if record.format == FORMAT and not {".", ".."} & set(record.files) else None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a push changes in a repository: files that it puts there, and files of an earlier push that it removes."""

    put: tuple[str, ...]
    remove: tuple[str, ...]


def changes(repo: str, theirs: Collection[str], before: ExportRecord | None, now: ExportRecord) -> Changes:
    """Return what changes a repository with the files `theirs` to the export `now`.

    `before` is the record of the push before, None if there was none. Raises UsageError if the push would replace files
    that volery did not write, or another run's model.
    """
    if before is not None and before.swarm != now.swarm:
        raise UsageError(
            f"--push {repo}: it holds version {before.version} of another swarm ({before.swarm[:8]}), and was not "
            "changed. Push to another repository."
        )
    own = set(before.files) if before is not None else set()
    foreign = sorted((set(now.files) & set(theirs)) - own)
    if foreign:
        more = f" and {len(foreign) - MAX_NAMED} more" if len(foreign) > MAX_NAMED else ""
        raise UsageError(
            f"--push {repo}: it holds files that volery did not put there and would replace "
            f"({', '.join(foreign[:MAX_NAMED])}{more}), and was not changed. Push to another repository, or remove "
            "them there."
        )
    return Changes(put=now.files, remove=tuple(sorted((own - set(now.files)) & set(theirs))))


def require_whole(directory: Path, record: ExportRecord) -> None:
    """Raise RunError if a file of the export is missing."""
    missing = [name for name in record.files if not (directory / name).is_file()]
    if missing:
        raise RunError(
            f"{directory} lacks {', '.join(missing[:MAX_NAMED])}. Export the version again, to another directory."
        )
