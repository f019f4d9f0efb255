"""Keep the child's standard input and output clean for frames to and from its node.

Light, so that it can run before the imports that take seconds.

Invariants, after `claim_pipes`:

- Only frames reach the node, even if a library prints something.
- Only this program reads what the node sends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from protocol.core.pipe import PREFIX, Arrays, Header, decode_frame, frame_sizes, read_exactly, read_frame


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Reserve stdin and stdout for frames: from now on file 0 is empty and file 1 is stderr, for all other code.

    Call it before any other import, because libraries may print while they are imported.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    return requests, replies


def frames_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole frames, with their prefix, until the stream ends. Raises BadFrame."""
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
    """Return the header and arrays of a frame; the arrays are views of a copy of its body. Raises BadFrame."""
    header_size, _ = frame_sizes(frame[: PREFIX.size])
    end = PREFIX.size + header_size
    return decode_frame(frame[PREFIX.size : end], frame[end:])
