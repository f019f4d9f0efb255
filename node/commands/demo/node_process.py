"""Volery nodes as processes of ours: started, watched, measured and ended. For the demo and for tests of the real
thing.

What always holds: a node started here ends when we do, even by kill -9, because it watches our end of its stdin;
leaving the scope ends all of them, in order, within `GRACE_S` and a second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio

from node.runtime.shutdown import STOP_ON_EOF

GRACE_S = 6.0
"""A node ends its own children within 5 s."""


@dataclass(kw_only=True)
class NodeProcess:
    """One `volery` process. `arguments` are those of the command line; its output goes to `log`; `wrap` makes of a
    command line the one that runs it where it belongs."""

    name: str
    arguments: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    wrap: Callable[[Sequence[str]], Sequence[str]] = list
    process: trio.Process | None = None

    async def start(self) -> None:
        """Start it; the log is appended to."""
        with self.log.open("ab") as log:
            self.process = await trio.lowlevel.open_process(
                self.wrap([sys.executable, "-m", "node", *self.arguments]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env, STOP_ON_EOF: "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.returncode

    async def wait(self) -> int:
        """Wait until it ends and return its exit code."""
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        """End it: politely, then not."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(GRACE_S):
            await self.process.wait()
            return
        self.process.kill()
        await self.process.wait()

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


async def stop_all(processes: Sequence[NodeProcess]) -> None:
    """End all of them at the same time, whoever is cancelled meanwhile."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for process in processes:
                nursery.start_soon(process.stop)


def family_pss_bytes(pid: int) -> int:
    """Proportional set size of a process and all below it, in bytes: shared pages are counted once among those who
    share them.
    """
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(_pss_bytes(member) for member in family)


def _pss_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", 0) or memory.rss)
