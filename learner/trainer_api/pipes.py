"""The child's end of the pipe to its node: standard input and output, kept clean for frames.

What always holds after `claim_pipes`: nothing but frames reaches the node, whatever a library prints, and nothing
but us reads what the node sends. Light, so that it can run before the imports that take seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from protocol.core.pipe import PREFIX, Arrays, Header, decode_frame, frame_sizes, read_exactly, read_frame


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout for frames alone: from now on file 0 is empty and file 1 is stderr, whoever reads or
    prints.

    Call it before anything else is imported: libraries print while they are imported, too.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    return requests, replies


def frames_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield frames, prefix and all, until the stream ends. Raises BadFrame."""
    while (prefix := read_exactly(stream, PREFIX.size)) is not None:
        header_size, body_size = frame_sizes(prefix)
        rest = read_exactly(stream, header_size + body_size)
        if rest is None:
            return
        yield prefix + rest


def requests_of(stream: BinaryIO) -> Iterator[tuple[Header, Arrays]]:
    """Yield decoded frames until the stream ends. Raises BadFrame."""
    while (frame := read_frame(stream)) is not None:
        yield frame


def decoded(frame: bytes) -> tuple[Header, Arrays]:
    """Header and arrays of a frame, the arrays as views of a copy of its body. Raises BadFrame."""
    header_size, _ = frame_sizes(frame[: PREFIX.size])
    end = PREFIX.size + header_size
    return decode_frame(frame[PREFIX.size : end], frame[end:])
