"""Start, watch, measure and end volery nodes as child processes, for the demo and for end-to-end tests.

Invariants:

- A node that was started here ends when this process ends, even by kill -9, because it watches its stdin.
- `stop_all` ends all nodes within `GRACE_S` and a second.
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
"""Seconds that a node has to end. It ends its own children within 5 s."""


@dataclass(kw_only=True)
class NodeProcess:
    """One `volery` process.

    Args:
        arguments: arguments of the command line.
        log: file that its output is appended to.
        wrap: turns a command line into one that runs where the node belongs.
    """

    name: str
    arguments: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    wrap: Callable[[Sequence[str]], Sequence[str]] = list
    process: trio.Process | None = None

    async def start(self) -> None:
        """Start the process."""
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
        """End the process: by SIGTERM, and after GRACE_S by SIGKILL."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(GRACE_S):
            await self.process.wait()
            return
        self.process.kill()
        await self.process.wait()

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


async def stop_all(processes: Sequence[NodeProcess]) -> None:
    """End all of them at the same time, even if the caller is cancelled meanwhile."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for process in processes:
                nursery.start_soon(process.stop)


def family_pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process and all its descendants, in bytes.

    A page that several processes share is counted once.
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
