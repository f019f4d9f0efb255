"""Count the transactions that a ledger's file has seen."""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8xI4x8s8x")
"""Header of the log: the page size, and the salt of its present frames."""

_FRAME = struct.Struct(">4xI8s8x")
"""Header of each page: the pages of the database after a transaction, 0 within one; and the salt."""


def commits(ledger: Path) -> int:
    """Return the transactions in the write-ahead log (https://sqlite.org/fileformat2.html#walformat).

    The log begins again after 1,000 pages, so compare two counts of a short test only.
    """
    log = ledger.with_name(f"{ledger.name}-wal").read_bytes()
    size, salt = _HEADER.unpack_from(log)
    frames = (_FRAME.unpack_from(log, at) for at in range(_HEADER.size, len(log), _FRAME.size + size))
    return sum(pages > 0 and of == salt for pages, of in frames)
