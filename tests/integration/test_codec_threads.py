"""Threads read the first message of a kind at the same time: each reads it, and the process lives on."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ_AT_ONCE = """
import sys
from threading import Barrier, Thread
from typing import Annotated

import msgspec

from protocol.core.codec import Message, decode, encode, ready, require_bounds

READ = WAY
Small = Annotated[int, msgspec.Meta(ge=0)]
sys.setswitchinterval(1e-6)
for number in range(150):
    fields = [(f"field_{place}", dict[str, Small] | None, None) for place in range(40)]
    kind = msgspec.defstruct(f"Kind{number}", fields, bases=(Message,), kw_only=True, frozen=True)
    message, begun, read = kind(field_0={"a": 1}), Barrier(6), []
    raw = encode(message)

    def work():
        begun.wait()
        read.append(READ(kind, message, raw))

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [message] * 6
"""

WAYS = {
    "our own": "lambda kind, message, raw: require_bounds(message)",
    "a peer's": "lambda kind, message, raw: decode(kind, raw, 10_000)",
    "any": "lambda kind, message, raw: msgspec.msgpack.decode(raw, type=ready(kind))",
}


@pytest.mark.parametrize("way", WAYS)
def test_many_threads_may_read_the_first_of_a_kind(way: str) -> None:
    """msgspec 0.22 alone ends the process with SIGSEGV here."""
    program = READ_AT_ONCE.replace("WAY", WAYS[way])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
