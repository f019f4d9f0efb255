"""Start an OpenEnv server on a free port of the loopback interface, for this process alone.

Invariants:

- The server starts when it is first needed, and again when it is needed and has ended.
- It ends with this process: its standard input ends then, and it belongs to this process's group, which a node kills as
  a whole.
- If it is not ready within START_S, its start has failed. The last TAIL_LINES that it printed are kept for the error.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

from node.tasks.adapters.openenv.messages import ServerFault
from node.tasks.adapters.openenv.session import Address

PROGRAM = Path(__file__).with_name("server_program.py")

START_S = 120.0
"""Seconds until it must serve. Importing OpenEnv takes 9 s on a slow machine, and an environment may load data."""

LOOK_S = 0.2
"""Seconds between two checks, during the start, of whether it has ended."""

END_S = 2.0
"""Seconds to wait until the system has ended the killed process."""

TAIL_LINES = 20
MAX_LINE = 1000
"""Characters to keep of each line."""

BACKLOG = 128
"""Connections that may wait to be accepted: more than a verifier opens at a time."""


@dataclass(kw_only=True)
class LocalServer:
    """A server of ours. `python`: the interpreter that runs it."""

    module: str
    app: str
    directory: Path
    python: str
    start_s: float = START_S
    _lock: Lock = field(default_factory=Lock)
    _process: subprocess.Popen[str] | None = None
    _address: Address | None = None
    _tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    def address(self) -> Address:
        """Return its address. Starts it if it does not run, and waits until it serves. Raises ServerFault."""
        with self._lock:
            if self._process is None or self._process.poll() is not None or self._address is None:
                self._address = self._start()
            return self._address

    def close(self) -> None:
        """End it, if it runs."""
        with self._lock:
            self._end()

    @property
    def last_words(self) -> str:
        """The last lines that it printed."""
        return " | ".join(self._tail) or "nothing"

    def _start(self) -> Address:
        self._end()
        self._tail.clear()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(BACKLOG)
            port = listening.getsockname()[1]
            read_end, write_end = os.pipe()
            try:
                self._process = self._run(listening.fileno(), write_end)
                os.close(write_end)
                write_end = -1
                self._wait_ready(read_end)
            finally:
                os.close(read_end)
                if write_end >= 0:
                    os.close(write_end)
        return Address(socket=f"ws://127.0.0.1:{port}/ws", web=f"http://127.0.0.1:{port}", is_here=True)

    def _run(self, listening: int, ready: int) -> subprocess.Popen[str]:
        command = [self.python, str(PROGRAM), str(self.directory), self.module, self.app, str(listening), str(ready)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(listening, ready),
                cwd=self.directory,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise ServerFault(
                f"task 'openenv': {self.python} cannot be started: {error}. Correct python= in the spec."
            ) from error
        Thread(target=self._drain, args=(process,), name="openenv server", daemon=True).start()
        atexit.register(self.close)
        return process

    def _drain(self, process: subprocess.Popen[str]) -> None:
        """Keep the last lines of its output. A full pipe would block it."""
        assert process.stdout is not None, "Popen was called with a pipe"
        with process.stdout as output:
            while line := output.readline(MAX_LINE):
                if line.strip():
                    self._tail.append(line.strip())

    def _wait_ready(self, ready: int) -> None:
        """Return once it serves. If it does not, end it and raise ServerFault."""
        assert self._process is not None, "the process was started"
        until = monotonic() + self.start_s
        while monotonic() < until:
            if select.select([ready], [], [], LOOK_S)[0]:
                if os.read(ready, 1):
                    return
                break  # it has ended, which closed its end of the pipe
        is_late = self._process.poll() is None and monotonic() >= until
        why = f"does not serve within {self.start_s:g} s" if is_late else "ends while it starts"
        self._end()
        raise ServerFault(
            f"task 'openenv': the server {self.module}:{self.app} {why}. Its output: {self.last_words}. Try it with: "
            f"uvicorn {self.module}:{self.app}."
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        atexit.unregister(self.close)
        if process is None:
            return
        assert process.stdin is not None, "Popen was called with a pipe"
        process.kill()
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # it hangs in the kernel, and ends when the kernel releases it
            return
