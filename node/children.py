"""Child processes: started, watched, restarted and ended here; one framed pipe (`protocol.pipe`) each.

The engine and the trainer run as children, so that neither torch nor an out-of-memory kill reaches the node. The
conversation:

    node -> child   {"id": n, "op": name, ...}; {"op": cancel_op, "target": n}, only if the spec names a cancel op
    child -> node   {"id": n, "ok": true, ...} | {"id": n, "ok": false, "kind": word, "error": sentence}
                    {"event": "ready", ...} once, when its imports are done; other events as it likes

What always holds: a frame is written whole or not at all, whoever is cancelled, because one task does all the writing;
every request gets one reply, an error or `ChildCrashed`; leaving `open_child` ends the process within `grace_s` +
`TERM_S` + `KILL_S`. A child sits in a session of its own: Ctrl-C in the terminal reaches the node alone, which ends
its children in order. A child must exit when its stdin ends, so that it cannot outlive a node that was killed.
(PR_SET_PDEATHSIG would not do: it fires when the *thread* that forked ends, and trio starts processes in worker
threads that come and go.)
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, TypeVar

import trio

from protocol.pipe import PREFIX, Arrays, BadFrame, Header, decode_frame, encode_frame, frame_sizes

STDERR_TAIL_LINES = 20
"""Lines of stderr that a crash report quotes: a Python traceback's end and the message."""
MAX_STDERR_LINE_BYTES = 4096
"""A longer line is cut into several; a progress bar without newlines must not grow without bound."""
READ_BYTES = 1 << 20
"""Largest single read from a pipe; Linux hands out at most the pipe's 64 KiB anyway unless it was enlarged."""
TERM_S = 1.0
"""Between SIGTERM and SIGKILL. With the default grace of 2 s a child is gone in 3 s; the promise to people is 5 s."""
KILL_S = 1.0
"""For the kernel to bury a killed process, and to drain what it last wrote on stderr."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Nothing leaves the swarm: weights come as chunks, and no library may phone home."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """How patiently a crashing child is restarted: after `max_restarts` restarts within `window_s` we give up.

    The delay doubles with every restart in the window, from `first_delay_s` to `max_delay_s`.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    max_restarts: int = 5
    window_s: float = 600.0


def restart_delay(limits: RestartLimits, restarts: Sequence[float], now: float) -> float | None:
    """Return how long to wait before the next restart, or None to give up; `restarts` are the times of those before."""
    recent = sum(1 for at in restarts if now - at < limits.window_s)
    if recent >= limits.max_restarts:
        return None
    return min(limits.first_delay_s * 2.0**recent, limits.max_delay_s)


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to run and how.

    `argv` starts with an executable; `env` is added to ours; `nice` 0..19; `max_in_flight` requests may be unanswered
    at a time, those of cancelled callers included, and further callers wait; `cancel_op`: tell the child when a caller
    is cancelled.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    nice: int = 0
    max_in_flight: int = 256
    ready_timeout_s: float = 300.0
    grace_s: float = 2.0
    cancel_op: str | None = None
    restarts: RestartLimits = field(default_factory=RestartLimits)


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended: `returncode` as in subprocess (negative: a signal), `reason` if we ended it ourselves, last
    stderr lines."""

    name: str
    returncode: int | None
    reason: str | None
    stderr_tail: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"the {self.name} process {self._how()}"]
        lines += [f"  | {line}" for line in self.stderr_tail]
        return "\n".join(lines)

    def _how(self) -> str:
        if self.reason is not None:
            return f"was ended: {self.reason}"
        match self.returncode:
            case None:
                return "does not end, not even when killed"
            case -9:
                return "was killed by SIGKILL; if nobody did that, the machine ran out of memory"
            case code if code < 0:
                return f"was killed by {signal.Signals(-code).name}"
            case code:
                return f"ended with exit code {code}"


class ChildError(Exception):
    """Base of what a call to a child raises."""


class ChildCrashed(ChildError):
    """The child ended under this call, or before it was first ready. It is being restarted unless the error says
    otherwise."""

    def __init__(self, exit: ChildExit) -> None:
        super().__init__(str(exit))
        self.exit = exit


class ChildGaveUp(ChildError):
    """The child crashed too often and is not restarted any more; `exit` is its last end."""

    def __init__(self, exit: ChildExit, limits: RestartLimits) -> None:
        often = f"restarted {limits.max_restarts} times in {limits.window_s:.0f} s and given up"
        super().__init__(f"{exit}\n{often}; mend the cause above, then start the node again")
        self.exit = exit


class ChildRefused(ChildError):
    """The child answered that it cannot do this; `kind` is for programs, `error` for people."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind
        self.error = error


@dataclass(frozen=True, kw_only=True)
class ChildStarted:
    """The child is ready and prepared, `start_s` after it was started."""

    name: str
    pid: int
    start_s: float


@dataclass(frozen=True, kw_only=True)
class ChildSaid:
    """One line on the child's stderr."""

    name: str
    line: str


@dataclass(frozen=True, kw_only=True)
class ChildDied:
    """The child ended although nobody asked it to."""

    name: str
    exit: ChildExit


@dataclass(frozen=True, kw_only=True)
class ChildRestarting:
    """It will be started again after `delay_s`; `attempt` counts from 1."""

    name: str
    delay_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ChildAbandoned:
    """It crashed too often; every call raises ChildGaveUp from now on."""

    name: str
    exit: ChildExit


ChildEvent = ChildStarted | ChildSaid | ChildDied | ChildRestarting | ChildAbandoned
Stream = TypeVar("Stream")
OnEvent = Callable[[ChildEvent], None]
OnFrame = Callable[[Header, Arrays], None]
"""Receives the child's own events but "ready", in the order they and the replies were sent; must not block or raise."""


class Caller(Protocol):
    """What `prepare` is given: the child of this life, before others may call it."""

    async def call(
        self, op: str, header: Mapping[str, object] | None = None, arrays: Arrays | None = None
    ) -> tuple[Header, Arrays]: ...


Prepare = Callable[[Caller], Awaitable[None]]
"""Runs after every start and before any other call. May raise ChildError: that ends this life, as a crash would."""


def child_environment(spec: ChildSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with offline settings, the thread count and the spec's additions, the latter winning."""
    return {**base, **ENVIRONMENT, **dict.fromkeys(THREAD_VARIABLES, str(spec.threads)), **spec.env}


class Child:
    """A child that is there whenever it can be. Obtained from `open_child`; calls during a restart wait for it."""

    def __init__(self, spec: ChildSpec, prepare: Prepare | None, on_event: OnEvent, on_frame: OnFrame) -> None:
        self._spec = spec
        self._prepare = prepare
        self._on_event = on_event
        self._on_frame = on_frame
        self._life: _Life | None = None
        self._gave_up: ChildGaveUp | None = None
        self._changed = trio.Event()
        self._settled = trio.Event()
        self._stillborn: ChildExit | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child in service; None while there is none."""
        return None if self._life is None else self._life.pid

    async def call(
        self, op: str, header: Mapping[str, object] | None = None, arrays: Arrays | None = None
    ) -> tuple[Header, Arrays]:
        """Send one request and return the reply's header and arrays. Callers may be many; replies come in any order.

        Raises ChildRefused, ChildCrashed (the call may be made again), ChildGaveUp. A cancelled call leaves the pipe
        sound: its reply is thrown away when it comes.
        """
        while self._life is None:
            if self._gave_up is not None:
                raise ChildGaveUp(self._gave_up.exit, self._spec.restarts)
            await self._changed.wait()
        return await self._life.call(op, header, arrays)

    async def _supervise(self) -> None:
        """Keep a child alive until it has crashed too often, or at once if it never came into service."""
        restarts: list[float] = []
        while True:
            exit = await self._live()
            if not self._settled.is_set():
                # A child that cannot start even once is misconfigured: trying again would only hide the message.
                self._stillborn = exit
                self._settled.set()
                return
            self._on_event(ChildDied(name=self._spec.name, exit=exit))
            delay_s = restart_delay(self._spec.restarts, restarts, trio.current_time())
            if delay_s is None:
                self._gave_up = ChildGaveUp(exit, self._spec.restarts)
                self._announce(None)
                self._on_event(ChildAbandoned(name=self._spec.name, exit=exit))
                return
            self._on_event(ChildRestarting(name=self._spec.name, delay_s=delay_s, attempt=len(restarts) + 1))
            await trio.sleep(delay_s)
            restarts.append(trio.current_time())

    async def _live(self) -> ChildExit:
        """Run one process from start to end."""
        started = trio.current_time()
        try:
            process = await _open_process(self._spec)
        except OSError as error:
            return ChildExit(name=self._spec.name, returncode=None, reason=f"could not start: {error}", stderr_tail=())
        life = _Life(self._spec, process, self._on_event, self._on_frame)

        async def enter_service() -> None:
            if await life.become_ready(self._prepare):
                self._on_event(ChildStarted(name=self._spec.name, pid=life.pid, start_s=trio.current_time() - started))
                self._announce(life)
                self._settled.set()

        try:
            return await life.run(enter_service)
        finally:
            self._announce(None)

    def _announce(self, life: _Life | None) -> None:
        self._life = life
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_child(
    spec: ChildSpec,
    *,
    prepare: Prepare | None = None,
    on_event: OnEvent = lambda event: None,
    on_frame: OnFrame = lambda header, arrays: None,
) -> AsyncIterator[Child]:
    """Start a child, wait until it is ready and prepared, yield it, end it when the scope is left.

    Raises ChildCrashed at once when it ends before it was first ready; later crashes restart it, see `RestartLimits`.
    """
    child = Child(spec, prepare, on_event, on_frame)
    with _plain_exceptions():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child._supervise)
            await child._settled.wait()
            if child._stillborn is not None:
                raise ChildCrashed(child._stillborn)
            yield child
            nursery.cancel_scope.cancel()


@contextmanager
def _plain_exceptions() -> Iterator[None]:
    """Unwrap the nursery's group of one: our tasks raise nothing of their own, so it is the body's own exception."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        [only] = group.exceptions
        context = only.__context__
        try:
            raise only
        finally:
            only.__context__ = context
            del only


async def _open_process(spec: ChildSpec) -> trio.Process:
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
            # Never nicer than we are ourselves: the kernel does not let us take that back.
            os.setpriority(os.PRIO_PGRP, process.pid, max(spec.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    return process


@dataclass(eq=False)
class _Waiting:
    """A caller of this life. `reply` stays None when the child ended first."""

    replied: trio.Event = field(default_factory=trio.Event)
    reply: tuple[Header, Arrays] | None = None


class _Life:
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
        self._tail: deque[str] = deque(maxlen=STDERR_TAIL_LINES)
        self._reason: str | None = None
        self._exit: ChildExit | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(
        self, op: str, header: Mapping[str, object] | None = None, arrays: Arrays | None = None
    ) -> tuple[Header, Arrays]:
        """As `Child.call`, to this process only."""
        request = next(self._ids)
        frame = encode_frame({**(header or {}), "id": request, "op": op}, arrays)
        waiting = await self._send(request, frame)
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

    async def _send(self, request: int, frame: bytes) -> _Waiting:
        """Hand `frame` to the writer. The slot taken here is given back when the reply comes, not when the caller
        leaves."""
        await self._slots.acquire()
        waiting = self._waiting[request] = _Waiting()
        try:
            await self._outgoing.send(frame)
        except BaseException as error:
            if self._waiting.pop(request, None) is not None:
                self._slots.release()
            if isinstance(error, trio.BrokenResourceError):
                raise ChildCrashed(self._end()) from None
            raise
        return waiting

    def _tell_cancelled(self, request: int) -> None:
        # Advice to stop early: when the writer is busy just now, the child may as well finish.
        if self._spec.cancel_op is not None:
            with suppress(trio.WouldBlock, trio.BrokenResourceError):
                self._outgoing.send_nowait(encode_frame({"op": self._spec.cancel_op, "target": request}))

    async def become_ready(self, prepare: Prepare | None) -> bool:
        """Wait for the ready event, then run `prepare`. False, and the process is condemned, when either fails."""
        with trio.move_on_after(self._spec.ready_timeout_s) as scope:
            await self._ready.wait()
        if scope.cancelled_caught:
            self._condemn(f"not ready within {self._spec.ready_timeout_s:.0f} s")
            return False
        try:
            if prepare is not None:
                await prepare(self)
        except ChildError as error:
            self._condemn(f"could not be prepared: {error}")
            return False
        return True

    async def run(self, enter_service: Callable[[], Awaitable[None]]) -> ChildExit:
        """Carry frames until the child ends or we are cancelled; either way it is gone on return, and its callers were
        told."""
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._read_stderr)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_frames)
                    nursery.start_soon(enter_service)
                    await self._read_frames()
                    nursery.cancel_scope.cancel()
                await _end_process(self._process, self._spec.grace_s)
                with trio.move_on_after(KILL_S):
                    await self._stderr_ended.wait()
                outer.cancel_scope.cancel()
        finally:
            if self._process.returncode is None:
                with trio.CancelScope(shield=True):
                    await _end_process(self._process, self._spec.grace_s)
            self._tell_callers()
        return self._end()

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

    def _condemn(self, reason: str) -> None:
        self._reason = self._reason or reason
        _signal_group(self.pid, signal.SIGKILL)

    async def _write_frames(self) -> None:
        """Consumes frames from callers, one at a time; ends when the child closes its stdin (it is ending then)."""
        with suppress(trio.BrokenResourceError):
            async for frame in self._to_write:
                await self._stdin.send_all(frame)

    async def _read_frames(self) -> None:
        """Consumes the child's frames until its stdout ends; one that we cannot read condemns it."""
        try:
            while (prefix := await self._read_exactly(PREFIX.size)) is not None:
                head_size, body_size = frame_sizes(prefix)
                head, body = await self._read_exactly(head_size), await self._read_exactly(body_size)
                if head is None or body is None:
                    return
                self._take_frame(*decode_frame(head, body))
        except BadFrame as error:
            self._condemn(f"it does not speak the pipe's format ({error}); is something printing on its stdout?")

    async def _read_exactly(self, size: int) -> bytes | None:
        """Return `size` bytes, or None when the stream ends before."""
        data = bytearray()
        while len(data) < size:
            part = await self._stdout.receive_some(min(size - len(data), READ_BYTES))
            if not part:
                return None
            data += part
        return bytes(data)

    def _take_frame(self, header: Header, arrays: Arrays) -> None:
        match header:
            case {"event": "ready"}:
                self._ready.set()
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
        if text := line.decode(errors="replace").rstrip():
            self._tail.append(text)
            self._on_event(ChildSaid(name=self._spec.name, line=text))


def _piped(stream: Stream | None) -> Stream:
    assert stream is not None, "opened with three pipes"
    return stream


async def _end_process(process: trio.Process, grace_s: float) -> None:
    """End a process and whatever it left in its group: close stdin and wait, then SIGTERM and wait, then SIGKILL."""
    await _piped(process.stdin).aclose()
    for wait_s, then in ((grace_s, signal.SIGTERM), (TERM_S, signal.SIGKILL), (KILL_S, signal.SIGKILL)):
        with trio.move_on_after(wait_s):
            await process.wait()
            break
        _signal_group(process.pid, then)
    # A trainer's ranks or a data loader's workers may have outlived the process that was to end them.
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
