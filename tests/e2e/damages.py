"""List the ways in which a file on a disk can be damaged, and apply and undo each of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

FLIPS = 6
"""Number of bits flipped, one at a time, at random places of each file. In a SQLite file as many again are flipped in
its schema."""

DEEP = 100_000
"""Brackets in brackets: Python's stack ends at some 1,000."""

SQLITE = b"SQLite format 3\0"
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One damage. `do` turns the sound bytes into the damaged ones, or puts something else at the path."""

    name: str
    do: Callable[[Path, bytes], None]


def damages_of(path: Path, rng: Random) -> list[Damage]:
    """Return every damage that can be done to the file at `path`."""
    size = path.stat().st_size
    places = [rng.randrange(8 * size) for _ in range(FLIPS)] if size else []
    with path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            places += [8 * 100 + rng.randrange(8 * (PAGE_BYTES - 100)) for _ in range(FLIPS)]
            places += [8 * _in_schema(path, rng) + 7 for _ in range(FLIPS)]
    return [
        *(Damage(name=f"bit {place % 8} of byte {place // 8} flipped", do=_flipped(place)) for place in places),
        *(Damage(name=f"cut to {share:.0%}", do=_cut(share)) for share in (0.03, 0.5, 0.97)),
        Damage(name="empty", do=_write(b"")),
        Damage(name="not UTF-8", do=_write(b"\xff\xfe\xfa" * 50)),
        Damage(name="zeros", do=lambda path, sound: _put(path, bytes(len(sound)))),
        Damage(name="nested lists", do=_write(b"[" * DEEP + b"]" * DEEP)),
        Damage(name="nested objects", do=_write(b'{"a":' * DEEP + b"1" + b"}" * DEEP)),
        Damage(name="another kind of JSON", do=_write(b"[1]\n")),
        Damage(name="an object with nothing in it", do=_write(b"{}\n")),
        Damage(name="missing", do=lambda path, sound: path.unlink()),
        Damage(name="a directory", do=_directory),
        Damage(name="a pipe", do=_pipe),
        Damage(name="a loop of links", do=_loop),
        Damage(name="a device", do=_device),
    ]


@contextmanager
def damaged(path: Path, damage: Damage) -> Iterator[None]:
    """Apply the damage inside this context, and undo it afterwards."""
    kept, status = path.read_bytes(), path.stat()
    damage.do(path, kept)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(kept)
        path.chmod(status.st_mode)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)


def flip(path: Path, place: int) -> None:
    """Flip one bit of a file."""
    _flipped(place)(path, path.read_bytes())


def _in_schema(path: Path, rng: Random) -> int:
    """Return the place of a byte in the text of a database's schema: on its first page, or on the pages that this one
    points at.
    """
    data = path.read_bytes()
    found = [at for at in range(len(data) - 6) if data[at : at + 6] == b"CREATE"]
    return rng.choice(found) + rng.randrange(60)


def _flipped(place: int) -> Callable[[Path, bytes], None]:
    def do(path: Path, sound: bytes) -> None:
        changed = bytearray(sound)
        changed[place // 8] ^= 1 << place % 8
        _put(path, bytes(changed))

    return do


def _cut(share: float) -> Callable[[Path, bytes], None]:
    return lambda path, sound: _put(path, sound[: int(len(sound) * share)])


def _write(data: bytes) -> Callable[[Path, bytes], None]:
    return lambda path, sound: _put(path, data)


def _put(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:  # the same file, with the same rights
        file.truncate(0)
        file.write(data)


def _directory(path: Path, sound: bytes) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path, sound: bytes) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _loop(path: Path, sound: bytes) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _device(path: Path, sound: bytes) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")
