"""Pass an owner's orders to a node on the same machine: pause, resume, drain, limits. Files in its state directory,
and signals.

    <state>/paused    while it is there, the node makes nothing     `volery pause`, SIGUSR1; `volery resume`, SIGUSR2
    <state>/drain     the node delivers what it has leased and ends `volery drain`
    <state>/orders/   a limit has another value (`order_files`)     `volery limits`
                      {"order": "limit", "key": "upload_mbit", "value": 10, "by": "`volery limits`"}

A file needs no listener: it also reaches a node that is not running, survives a restart of machine or node, and only
needs the right to write there. (A socket would be lost with the process, and a process id may be another program's by
now.)

Invariants:

- A node is paused while the file is there and at no other time, no matter who created it, and notices it within LOOK_S.
- An order to drain, and a limit, are for the running node; the next one does not obey them.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.config.daily_hours import MAX_CHARS
from node.runtime.errors import RunError
from node.runtime.startup import remembered
from node.state.order_files import OrderFiles, read_as

LOOK_S = 1.0
"""Seconds between looks at the files. A look is two system calls, and nobody measures a pause to the second."""

BY_COMMAND = "`volery pause`"
BY_LIMITS = "`volery limits`"
BY_SIGNAL = "SIGUSR1"


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Deliver what is leased, and end. At `deadline_ms` since 1970, if there is one, the rest is returned."""

    deadline_ms: int | None = None


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order", tag="limit"):
    """A limit has another value until the node ends (`node.config.live_limits`). `by`: through what it was ordered."""

    key: Annotated[str, Meta(max_length=32)]
    value: float | Annotated[str, Meta(max_length=MAX_CHARS)] | None = None
    by: Annotated[str, Meta(max_length=128)] = ""


class LimitOrders(OrderFiles):
    """The orders about limits in the state directory of a node."""


def read_limit(path: Path) -> Limit:
    """Return the order in a file. Raises NoOrder."""
    order: Limit = read_as(path, Limit)
    return order


@dataclass(frozen=True)
class OwnerRequests:
    """The files in the state directory `root`."""

    root: Path

    @property
    def pause_file(self) -> Path:
        return self.root / "paused"

    @property
    def drain_file(self) -> Path:
        return self.root / "drain"

    def pause(self, by: str) -> None:
        """Pause the node from now on; `by` says through what. Raises RunError."""
        if not self.pause_file.exists():
            self._write(self.pause_file, {"by": by, "at": round(time.time(), 3)})

    def resume(self) -> None:
        """End the pause from now on. Raises RunError."""
        _remove(self.pause_file)

    def drain(self, order: Drain) -> None:
        """Order the running node to drain. Raises RunError."""
        self._write(self.drain_file, {"deadline_ms": order.deadline_ms})

    def forget_drain(self) -> None:
        """Remove the order to drain: its node is gone, or has obeyed it. Raises RunError."""
        _remove(self.drain_file)

    @property
    def paused_by(self) -> str:
        """Return through what the node is paused; "" if it is not. An empty file, as from `touch`, counts."""
        if not self.pause_file.exists():
            return ""
        by = _read(self.pause_file).get("by")
        return by if isinstance(by, str) and by else f"the file {self.pause_file}"

    @property
    def drained(self) -> Drain | None:
        """Return the order to drain, None if there is none."""
        if not self.drain_file.exists():
            return None
        deadline_ms = _read(self.drain_file).get("deadline_ms")
        return Drain(deadline_ms=deadline_ms if isinstance(deadline_ms, int) else None)

    def _write(self, path: Path, told: dict[str, object]) -> None:
        draft = path.with_name(f".{path.name}.draft")
        try:
            draft.write_text(json.dumps(told), encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}. Check who owns it, and the disk.") from None


def _read(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        told = parse_json(read_file(path))
        if isinstance(told, dict):
            return told
    return {}


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be removed: {error.strerror}. Check who owns it.") from None


@dataclass(eq=False)
class OwnerSignals:
    """The last of SIGUSR1 (pause) and SIGUSR2 (resume) that came: `wanted`; None once it was obeyed."""

    wanted: bool | None = None
    told: trio.Event = field(default_factory=trio.Event)

    def heed(self, orders: OwnerRequests) -> None:
        """Change the files as the signal asks. Raises RunError."""
        wanted, self.wanted = self.wanted, None
        self.told = trio.Event()
        if wanted:
            orders.pause(BY_SIGNAL)
        elif wanted is not None:
            orders.resume()


@contextmanager
def owner_signals() -> Iterator[OwnerSignals]:
    """Remember the two signals while inside, where they would otherwise end the process, and any that came since the
    program began (`node.runtime.startup`)."""
    signals = OwnerSignals()
    token = trio.lowlevel.current_trio_token()

    def wake() -> None:
        signals.told.set()

    def tell(number: int, _frame: FrameType | None) -> None:
        signals.wanted = number == signal.SIGUSR1
        token.run_sync_soon(wake, idempotent=True)

    before = {number: signal.signal(number, tell) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    if signals.wanted is None and (early := remembered()) is not None:
        tell(early, None)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
