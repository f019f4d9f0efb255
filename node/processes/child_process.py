"""Run one process of a child, from its start until it is gone.

Invariants:

- A frame is written whole or not at all, no matter which caller is cancelled, because one task does all the writing.
- Every request gets one reply, an error or `ChildCrashed`. That holds for a process that hangs, too, if its spec limits
  how long it may send nothing.
- The process and its whole group are gone when `run` returns, at most `grace_s` + `TERM_S` + `KILL_S` after the request
  to end.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import trio

from learner.trainer_api.exit_reasons import HEARD_LINES
from node.processes.memory_limit import offer_first, wait_over
from node.processes.outcomes import ChildCrashed, ChildError, ChildExit, ChildRefused, ChildSaid, OnEvent, OnFrame
from node.processes.spec import ChildSpec, child_environment
from protocol.core.pipe import PREFIX, Arrays, BadFrame, Header, decode_frame, encode_frame, frame_sizes
from protocol.core.visible import visible

MAX_STDERR_LINE_BYTES = 4096
"""Bytes after which a line is cut, so that a progress bar without newlines cannot grow without bound."""
READ_BYTES = 1 << 20
"""Largest single read from a pipe. Linux returns at most the pipe's 64 KiB unless the pipe was enlarged."""
TERM_S = 1.0
"""Seconds between SIGTERM and SIGKILL. With the default grace of 2 s a child is gone in 3 s; people are promised 5
s."""
LOOK_S = 5.0
"""Most seconds between checks whether the child hangs."""
LOOKS = 4
"""Least number of checks before a child counts as hanging."""
KILL_S = 1.0
"""Seconds for the kernel to remove a killed process, and to drain what it last wrote on stderr."""

Stream = TypeVar("Stream")


async def open_process(spec: ChildSpec) -> trio.Process:
    process = await trio.lowlevel.open_process(
        spec.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(spec, os.environ),
        start_new_session=True,
    )
    if spec.nice:
        with suppress(ProcessLookupError):
            # Never below our own niceness: the kernel does not let us take that back.
            os.setpriority(os.PRIO_PGRP, process.pid, max(spec.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if spec.yields_memory:
        offer_first(process.pid)
    return process


@dataclass(eq=False)
class _Waiting:
    """A caller that waits for this process, and how many seconds without a frame it allows. `reply` stays None if the
    process ended first."""

    timeout_s: float
    replied: trio.Event = field(default_factory=trio.Event)
    reply: tuple[Header, Arrays] | None = None


class ChildProcess:
    """One process of a child, from its start to its end."""

    def __init__(self, spec: ChildSpec, process: trio.Process, on_event: OnEvent, on_frame: OnFrame) -> None:
        self._spec = spec
        self._process = process
        self._stdin, self._stdout, self._stderr = _piped(process.stdin), _piped(process.stdout), _piped(process.stderr)
        self._on_event = on_event
        self._on_frame = on_frame
        self._ready = trio.Event()
        self._ids = count()
        self._waiting: dict[int, _Waiting] = {}
        self._slots = trio.Semaphore(spec.max_in_flight)
        self._outgoing, self._to_write = trio.open_memory_channel[bytes](0)
        self._stderr_ended = trio.Event()
        self._tail: deque[str] = deque(maxlen=HEARD_LINES)
        self._reason: str | None = None
        self._exit: ChildExit | None = None
        self._unheard_s = 0.0
        self._waits = ""
        self._carrying: trio.CancelScope | None = None
        self._dismissed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(
        self,
        op: str,
        header: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        *,
        timeout_s: float | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        """Do the same as `SupervisedChild.call`, for this process only."""
        request = next(self._ids)
        frame = encode_frame({**(header or {}), "id": request, "op": op}, arrays)
        waiting = await self._send(request, frame, self._spec.timeout_s if timeout_s is None else timeout_s)
        sent()
        try:
            await waiting.replied.wait()
        except trio.Cancelled:
            self._tell_cancelled(request)
            raise
        if waiting.reply is None:
            raise ChildCrashed(self._end())
        reply, reply_arrays = waiting.reply
        del reply["id"]
        if not reply.pop("ok", False):
            raise ChildRefused(str(reply.get("kind", "error")), str(reply.get("error", "no reason given")))
        return reply, reply_arrays

    async def _send(self, request: int, frame: bytes, timeout_s: float) -> _Waiting:
        """Give `frame` to the writer. The slot taken here is released when the reply comes, not when the caller
        leaves."""
        await self._slots.acquire()
        if not self._waiting:
            self._unheard_s = 0.0  # it owed no reply
        waiting = self._waiting[request] = _Waiting(timeout_s)
        with ExitStack() as stack:
            stack.callback(self._give_up, request)
            try:
                await self._outgoing.send(frame)
            except trio.BrokenResourceError:
                raise ChildCrashed(self._end()) from None
            stack.pop_all()
        return waiting

    def _give_up(self, request: int) -> None:
        if self._waiting.pop(request, None) is not None:
            self._slots.release()

    def _tell_cancelled(self, request: int) -> None:
        # Advice to stop early: if the writer is busy now, the child may as well finish.
        if self._spec.cancel_op is not None:
            with suppress(trio.WouldBlock, trio.BrokenResourceError):
                self._outgoing.send_nowait(encode_frame({"op": self._spec.cancel_op, "target": request}))

    async def become_ready(self, prepare: Prepare | None) -> bool:
        """Wait for the ready event, then run `prepare`. If either fails, condemn the process and return False."""
        with trio.move_on_after(self._spec.ready_timeout_s) as scope:
            await self._ready.wait()
        if scope.cancelled_caught:
            waits = f": {self._waits}" if self._waits else ""
            self.condemn(f"not ready within {self._spec.ready_timeout_s:.0f} s{waits}")
            return False
        try:
            if prepare is not None:
                await prepare(self)
        except ChildError as error:
            self.condemn(f"could not be prepared: {error}")
            return False
        return True

    async def run(self, enter_service: Callable[[], Awaitable[None]]) -> ChildExit:
        """Carry frames until the child ends or we are cancelled, and return its end. The process is then gone, and its
        callers were told."""
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._read_stderr)
                async with trio.open_nursery() as nursery:
                    self._carrying = nursery.cancel_scope
                    if self._dismissed:
                        nursery.cancel_scope.cancel()
                    nursery.start_soon(self._write_frames)
                    nursery.start_soon(enter_service)
                    if self._spec.timeout_s < math.inf:
                        nursery.start_soon(self._watch_timeout)
                    if self._spec.memory_bytes is not None:
                        nursery.start_soon(self._watch_memory, self._spec.memory_bytes)
                    await self._read_frames()
                    nursery.cancel_scope.cancel()
                wait_s = self._spec.grace_s if self._dismissed else self._spec.dying_s
                if not await _end_process(self._process, wait_s) and not self._dismissed:
                    # Our own signal did not end it: it had closed its pipe before.
                    self._reason = self._reason or f"it closed its pipe, and had not ended {wait_s:g} s later"
                with trio.move_on_after(KILL_S):
                    await self._stderr_ended.wait()
                outer.cancel_scope.cancel()
        finally:
            if self._process.returncode is None:
                with trio.CancelScope(shield=True):
                    await _end_process(self._process, self._spec.grace_s)
            self._tell_callers()
        return self._end()

    def dismiss(self) -> None:
        """End the process in an orderly way. `run` returns when it is gone."""
        self._dismissed = True
        if self._carrying is not None:
            self._carrying.cancel()

    async def _watch_memory(self, limit_bytes: int) -> None:
        held = await wait_over(self.pid, limit_bytes)
        self.condemn(f"it held {held / 1e9:.2f} GB of memory, more than its limit of {limit_bytes / 1e9:.2f} GB")

    async def _watch_timeout(self) -> None:
        every_s = min(LOOK_S, self._spec.timeout_s / LOOKS)
        while True:
            await trio.sleep(every_s)
            # Checks are counted, not seconds: while the machine slept, or this process was stopped, nothing could
            # arrive.
            self._unheard_s += every_s
            allowed_s = max((waiting.timeout_s for waiting in self._waiting.values()), default=math.inf)
            if self._unheard_s >= allowed_s:
                self.condemn(f"it owed replies, and sent nothing for {allowed_s:g} s: it hangs")

    def _end(self) -> ChildExit:
        if self._exit is None:
            code = self._process.returncode
            self._exit = ChildExit(
                name=self._spec.name, returncode=code, reason=self._reason, stderr_tail=tuple(self._tail)
            )
        return self._exit

    def _tell_callers(self) -> None:
        self._to_write.close()
        for waiting in self._waiting.values():
            waiting.replied.set()
            self._slots.release()
        self._waiting.clear()

    def condemn(self, reason: str) -> None:
        """Kill the process, and report `reason` as its end."""
        self._reason = self._reason or reason
        _signal_group(self.pid, signal.SIGKILL)

    async def _write_frames(self) -> None:
        """Write callers' frames, one at a time, until the child closes its stdin, which it does when it ends."""
        with suppress(trio.BrokenResourceError):
            async for frame in self._to_write:
                await self._stdin.send_all(frame)

    async def _read_frames(self) -> None:
        """Read the child's frames until its stdout ends. A frame that cannot be read condemns the child."""
        try:
            while (prefix := await self._read_exactly(PREFIX.size)) is not None:
                head_size, body_size = frame_sizes(prefix)
                head, body = await self._read_exactly(head_size), await self._read_exactly(body_size)
                if head is None or body is None:
                    return
                self._take_frame(*decode_frame(head, body))
        except BadFrame as error:
            self.condemn(f"it does not speak the pipe's format ({error}); is something printing on its stdout?")

    async def _read_exactly(self, size: int) -> bytes | None:
        """Return `size` bytes, or None if the stream ends before."""
        data = bytearray()
        while len(data) < size:
            part = await self._stdout.receive_some(min(size - len(data), READ_BYTES))
            if not part:
                return None
            data += part
        return bytes(data)

    def _take_frame(self, header: Header, arrays: Arrays) -> None:
        self._unheard_s = 0.0
        match header:
            case {"event": "ready"}:
                self._ready.set()
            case {"event": "waiting", "text": str(text)} if not self._ready.is_set():
                self._waits = text
                self._on_frame(header, arrays)
            case {"event": str()}:
                self._on_frame(header, arrays)
            case {"id": int(request)} if (waiting := self._waiting.pop(request, None)) is not None:
                waiting.reply = (header, arrays)
                waiting.replied.set()
                self._slots.release()
            case _:
                raise BadFrame(f"neither an event nor a reply to a request of ours: {str(header)[:200]}")

    async def _read_stderr(self) -> None:
        pending = b""
        while part := await self._stderr.receive_some(MAX_STDERR_LINE_BYTES):
            *lines, pending = (pending + part).replace(b"\r", b"\n").split(b"\n")
            if len(pending) > MAX_STDERR_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._say(line)
        self._say(pending)
        self._stderr_ended.set()

    def _say(self, line: bytes) -> None:
        if text := visible(line.decode(errors="replace").rstrip()):
            self._tail.append(text)
            self._on_event(ChildSaid(name=self._spec.name, line=text))


Prepare = Callable[[ChildProcess], Awaitable[None]]
"""Runs after every start, before others may call the process. May raise ChildError, which ends the process like a
crash."""


def _piped(stream: Stream | None) -> Stream:
    assert stream is not None, "opened with three pipes"
    return stream


async def _end_process(process: trio.Process, grace_s: float) -> bool:
    """End a process and the rest of its group: close stdin and wait, then SIGTERM and wait, then SIGKILL. Return
    whether it ended without a signal of ours."""
    await _piped(process.stdin).aclose()
    by_itself = True
    for wait_s, then in ((grace_s, signal.SIGTERM), (TERM_S, signal.SIGKILL), (KILL_S, signal.SIGKILL)):
        with trio.move_on_after(wait_s):
            await process.wait()
            break
        by_itself = False
        _signal_group(process.pid, then)
    # A trainer's ranks or a data loader's workers may outlive the process that should end them.
    _signal_group(process.pid, signal.SIGKILL)
    return by_itself


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
