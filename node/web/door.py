"""Wait at a live page's address for the first browser, and start the process that serves it.

The listening socket belongs to the run's program and is handed to the server, as inetd did. The server ends by itself
when nobody has looked for a while; the next browser starts another.

Invariants:

- No server runs before a browser connects.
- A server gets no Ctrl-C. It ends when its standard input does, which is when the run's program ends, however that
  ends.
- A server that fails is reported once, and started again after a pause that doubles.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import trio

from node.runtime.events import EventLog
from node.web.terms import MODULE, PageTerms

LOG = "page.log"
"""File in the state directory with what the server printed, which is nothing unless it fails."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Seconds between two servers if the first failed. A browser asks again within that time."""

GOODBYE_S = 3.0
"""Seconds that a server has to tell its browsers that the run has ended."""


@dataclass(kw_only=True, eq=False)
class PageDoor:
    """Serves the page of one run, from `listener`, until cancelled."""

    listener: socket.socket
    terms: PageTerms
    events: EventLog
    command: tuple[str, ...] = (sys.executable, "-m", MODULE)
    _failures: int = field(default=0, init=False)

    async def run(self) -> None:
        """Start a server whenever a browser connects and none runs. Close the socket at the end."""
        with self.listener:
            while True:
                await trio.lowlevel.wait_readable(self.listener)
                if await self._serve() == 0:
                    self._failures = 0
                    continue
                self._failures += 1
                if self._failures == 1:
                    log = Path(self.terms.state) / LOG
                    self.events.trouble(f"The live page cannot be served, and is tried again. Its messages: {log}")
                await trio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._failures - 1)))

    async def _serve(self) -> int:
        """Run one server, and return its exit code."""
        with ExitStack() as stack:
            log: IO[bytes] | int = subprocess.DEVNULL
            with suppress(OSError):  # a full disk takes the messages, not the page
                log = stack.enter_context((Path(self.terms.state) / LOG).open("wb"))
            server = await trio.lowlevel.open_process(
                self.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(self.listener.fileno(),),
                start_new_session=True,
            )
        assert server.stdin is not None
        try:
            with suppress(trio.BrokenResourceError):
                await server.stdin.send_all(msgspec.json.encode(self.terms) + b"\n")
            return await server.wait()
        finally:
            with trio.move_on_after(GOODBYE_S, shield=True):
                await server.stdin.aclose()
                await server.wait()
            if server.returncode is None:
                server.kill()
