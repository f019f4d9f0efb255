"""A server of OpenEnv that is started here, on a free port of the loopback interface, for this process alone.

Invariants:
- It is started when it is first needed, and again when it is needed and has ended.
- It ends with this process: its standard input ends then, and it is a member of this process's group, which a node
  kills as one.
- It is ready within START_S, or its start has failed. Of what it prints the last TAIL_LINES are kept, for the error.
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
"""Until it serves: importing OpenEnv takes 9 s on a slow machine, and an environment may load data."""

LOOK_S = 0.2
"""How often it is asked whether it has ended while its start is waited for."""

END_S = 2.0
"""For the system to bury it."""

TAIL_LINES = 20
MAX_LINE = 1000
"""Characters that are kept of each."""

BACKLOG = 128
"""Connections that wait to be accepted: more than a verifier opens at a time."""


@dataclass(kw_only=True)
class LocalServer:
    """See the module's paragraph. `python` runs it."""

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
        """Where it is. Starts it if it is not there, and waits until it serves. Raises ServerFault."""
        with self._lock:
            if self._process is None or self._process.poll() is not None or self._address is None:
                self._address = self._start()
            return self._address

    def close(self) -> None:
        """End it, if it is there."""
        with self._lock:
            self._end()

    @property
    def last_words(self) -> str:
        """What it printed last."""
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
        """Keep the end of what it prints: a pipe that nobody reads would hold it up."""
        assert process.stdout is not None, "it was asked for"
        with process.stdout as output:
            while line := output.readline(MAX_LINE):
                if line.strip():
                    self._tail.append(line.strip())

    def _wait_ready(self, ready: int) -> None:
        """Return once it serves. Raises ServerFault, and then it has ended."""
        assert self._process is not None, "it was started"
        until = monotonic() + self.start_s
        while monotonic() < until:
            if select.select([ready], [], [], LOOK_S)[0]:
                if os.read(ready, 1):
                    return
                break  # it has ended, and its end of the pipe with it
        is_late = self._process.poll() is None and monotonic() >= until
        why = f"does not serve within {self.start_s:g} s" if is_late else "ends while it starts"
        self._end()
        raise ServerFault(
            f"task 'openenv': the server {self.module}:{self.app} {why}. It said: {self.last_words}. Try it: "
            f"uvicorn {self.module}:{self.app}."
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        atexit.unregister(self.close)
        if process is None:
            return
        assert process.stdin is not None, "it was asked for"
        process.kill()
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # it hangs in the kernel, and ends when that lets go of it
            return
