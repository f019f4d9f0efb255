"""Cut a model's files into the chunks of its manifest, and put them together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from protocol.core.digest import cid_of
from protocol.core.ids import Cid
from protocol.versions.chunking import Source, Tables, exactly, plan_files, tables_of
from protocol.versions.manifest import Manifest


def describe(sources: Iterable[Source], *, chunk_bytes: int | None = None) -> Tables:
    """Return the manifest's tables for `sources`: cut, read and hash them, one piece in memory at a time.

    Equal chunks are listed once, wherever they occur. Raises LayoutError, and everything that `read` raises.
    """
    plans = plan_files(sources, chunk_bytes=chunk_bytes)
    return tables_of(plans, lambda plan, start, end: cid_of(exactly(plan.source, start, end)))


def read_file(manifest: Manifest, name: str, chunk: Callable[[Cid], bytes]) -> Iterator[bytes]:
    """Yield the file called `name` chunk by chunk, given `chunk(cid)`. Raises KeyError when no such file is listed."""
    entry = next((entry for entry in manifest.files if entry.name == name), None)
    if entry is None:
        raise KeyError(name)
    return (chunk(manifest.chunks[index].name) for index in entry.chunks)
