"""Wait until all ranks are here: a missing rank is named, and nobody waits for it forever.

Invariants:

- Every rank waits for JOIN_S at most, and says for which ranks it waited.
- Meanwhile one of the ranks that are here names the missing ones: rank 0, or the first that is here.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

JOIN_S = 300.0
"""Seconds that ranks wait for each other: some import torch from a cold disk, or wake a GPU, in a minute."""

TOLD_S = 30.0
"""A wait is reported after this many seconds, and again after as many."""

LOOK_S = 0.2
"""Seconds between two checks for the other ranks."""

HERE = "volery/here/"
"""Prefix of a rank's number, in the store that torchrun's ranks share."""


class Store(Protocol):
    """The part of torch's store that is used here."""

    def set(self, key: str, value: str, /) -> None: ...
    def check(self, keys: list[str], /) -> bool: ...


class NotHere(Exception):
    """Some ranks have not come, or cannot be reached; the message says which."""


def wait_for_all(
    store: Store,
    number: int,
    count: int,
    tell: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Announce rank `number` of `count`, and return when all ranks are here. Raises NotHere after JOIN_S."""
    store.set(f"{HERE}{number}", "")
    began_s, told_s = clock(), 0.0
    while missing := _missing(store, count):
        waited_s = clock() - began_s
        if waited_s > JOIN_S:
            raise NotHere(f"{_called(missing)} of {count} has not come within {JOIN_S:.0f} s")
        if waited_s - told_s >= TOLD_S and not set(range(number)) - set(missing):
            told_s = waited_s
            tell(f"{_called(missing)} of {count} has not come after {waited_s:.0f} s: check its process")
        sleep(LOOK_S)


@contextmanager
def connecting(tell: Callable[[str], None]) -> Iterator[None]:
    """Watch a block in which ranks connect to each other, which nothing can interrupt: report when it takes long, and
    end the process after JOIN_S."""
    done = threading.Event()

    def watch() -> None:
        began_s = time.monotonic()
        while not done.wait(TOLD_S):
            waited_s = time.monotonic() - began_s
            over = os.environ.get("GLOO_SOCKET_IFNAME", "")
            where = f" over interface {over}" if over else ""
            text = (
                f"all ranks are here, but have not connected{where} after {waited_s:.0f} s. Open all TCP ports between "
                "the machines"
            )
            if waited_s > JOIN_S:
                try:
                    print(f"trainer: {text}", file=sys.stderr, flush=True)
                finally:  # even if nobody reads it any more
                    os._exit(1)
            tell(text)

    threading.Thread(target=watch, name="connecting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _missing(store: Store, count: int) -> Sequence[int]:
    if store.check([f"{HERE}{number}" for number in range(count)]):
        return ()
    return [number for number in range(count) if not store.check([f"{HERE}{number}"])]


def _called(numbers: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, numbers))}"
