"""Start a trainer as the node does: a process, or as many as torchrun starts, and a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, BinaryIO

from protocol.core.pipe import PREFIX, Arrays, Header, decode_frame, encode_frame, frame_sizes
from tests.support.paths import ROOT


class Child:
    """A trainer process and the two ends of its pipe. `command`: the arguments after the interpreter's name.

    Without `log` its output goes where ours does: a pipe that nobody reads would fill up.
    """

    def __init__(self, *command: str, log: int | None = subprocess.PIPE) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("-m", "learner.training.server"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.replies: BinaryIO = self.process.stdout  # type: ignore[assignment]
        self.log: BinaryIO | None = self.process.stderr  # type: ignore[assignment]

    def receive(self) -> tuple[Header, Arrays]:
        header_size, body_size = frame_sizes(self.replies.read(PREFIX.size))
        return decode_frame(self.replies.read(header_size), self.replies.read(body_size))

    def send(self, op: str, arrays: Arrays | None = None, **fields: Any) -> None:
        self.requests.write(encode_frame({"id": 3, "op": op, **fields}, arrays))
        self.requests.flush()

    def ask(self, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
        self.send(op, arrays, **fields)
        reply, _ = self.receive()
        assert reply["ok"], reply
        return reply

    def end(self) -> int:
        """Close stdin and return the exit status; check that stdout only had frames."""
        self.requests.close()
        assert self.replies.read() == b""
        return self.bury()[0]

    def bury(self) -> tuple[int, str]:
        """Wait until it has ended by itself; return its exit status and its output."""
        said = b"" if self.log is None else self.log.read()
        for stream in (self.requests, self.replies, self.log):
            if stream is not None:
                stream.close()
        return self.process.wait(), said.decode()
