"""Supervise a child: a process with one framed pipe (`protocol.core.pipe`) that is restarted when it ends.

The engine and the trainer run as children, so that neither torch nor an out-of-memory kill reaches the node. The
conversation:

    node -> child   {"id": n, "op": name, ...}; {"op": cancel_op, "target": n}, only if the spec names a cancel op
    child -> node   {"event": "waiting", "text": sentence} as often as it likes, before it is ready
                    {"id": n, "ok": true, ...} | {"id": n, "ok": false, "kind": word, "error": sentence}
                    {"event": "ready", ...} once, when its imports are done; other events as it likes

A child has a session of its own: Ctrl-C in the terminal reaches only the node, which ends its children in order. A
child must exit when its stdin ends, so that it cannot outlive a node that was killed. (PR_SET_PDEATHSIG would not do:
it fires when the *thread* that forked ends, and trio starts processes in worker threads that come and go.)

Invariants:

- A child that dies is started again within the limits of its spec, but not while it rests.
- Each process keeps the invariants of `node.processes.child_process`.
- No process and no temporary file is left when the scope of `open_child` ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from node.processes import temp_directory as scratch
from node.processes.child_process import ChildProcess, Prepare, open_process
from node.processes.outcomes import (
    ChildAbandoned,
    ChildCrashed,
    ChildDied,
    ChildExit,
    ChildGaveUp,
    ChildRestarting,
    ChildStarted,
    OnEvent,
    OnFrame,
)
from node.processes.spec import ChildSpec, restart_delay
from protocol.core.pipe import Arrays, Header


class SupervisedChild:
    """A child that is restarted when it ends. `open_child` creates it. Calls during a restart wait for it."""

    def __init__(self, spec: ChildSpec, prepare: Prepare | None, on_event: OnEvent, on_frame: OnFrame) -> None:
        self._spec = spec
        self._prepare = prepare
        self._on_event = on_event
        self._on_frame = on_frame
        self._life: ChildProcess | None = None
        self._gave_up: ChildGaveUp | None = None
        self._changed = trio.Event()
        self._settled = trio.Event()
        self._stillborn: ChildExit | None = None
        self._process: ChildProcess | None = None
        self._lives = False
        self._wanted = trio.Event()
        self._wanted.set()

    @property
    def pid(self) -> int | None:
        """Return the process id of the child in service; None while there is none."""
        return None if self._life is None else self._life.pid

    async def call(
        self,
        op: str,
        header: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        *,
        timeout_s: float | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        """Send a request and return the reply's header and arrays. Many callers may call at once, and replies come in
        any order.

        `timeout_s`: seconds that the child may send nothing while it owes this reply, in place of the spec's limit.
        `sent` is called once the request has its place before all later ones.

        Raises ChildRefused, ChildCrashed (the call may be repeated), ChildGaveUp. A cancelled call leaves the pipe
        sound: its reply is discarded when it comes.
        """
        while self._life is None:
            if self._gave_up is not None:
                raise ChildGaveUp(self._gave_up.exit, self._spec.restarts)
            await self._changed.wait()
        return await self._life.call(op, header, arrays, timeout_s=timeout_s, sent=sent)

    def end(self, reason: str) -> None:
        """Kill the process in service with its whole group, if there is one. It is started again as after any other
        end."""
        if self._life is not None:
            self._life.condemn(reason)
            self._announce(None)

    async def wait_in_service(self) -> None:
        """Return when the child can be called: at once, unless it is being restarted; never, once it was given up."""
        while self._life is None:
            await self._changed.wait()

    async def rest(self) -> None:
        """End the process, so that its memory is free, until `wake`. Return when it is gone.

        Calls in flight raise ChildCrashed; later ones wait until the child is awake. A child that was given up stays
        so.
        """
        if self._wanted.is_set():
            self._wanted = trio.Event()
        if self._process is not None:
            self._process.dismiss()
        while self._lives:
            await self._changed.wait()

    def wake(self) -> None:
        """Start the child again after `rest`; do nothing without a rest."""
        self._wanted.set()

    async def _supervise(self) -> None:
        """Keep a child alive until it has crashed too often. End at once if it never came into service."""
        restarts: list[float] = []
        while True:
            while not self._wanted.is_set():
                await self._wanted.wait()
            self._lives = True
            exit = await self._live()
            rests = self._settled.is_set() and not self._wanted.is_set()
            self._lives = False
            self._announce(None)
            if rests:
                continue
            if not self._settled.is_set():
                # A child that cannot start even once is misconfigured: another try would only hide the message.
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
        """Run one process from its start to its end."""
        started = trio.current_time()
        try:
            await self._scratch(scratch.make_empty)
            process = await open_process(self._spec)
        except OSError as error:
            return ChildExit(name=self._spec.name, returncode=None, reason=f"could not start: {error}", stderr_tail=())
        life = self._process = ChildProcess(self._spec, process, self._on_event, self._on_frame)
        if not self._wanted.is_set():  # `rest` was called while it was started
            life.dismiss()

        async def enter_service() -> None:
            if await life.become_ready(self._prepare):
                self._on_event(ChildStarted(name=self._spec.name, pid=life.pid, start_s=trio.current_time() - started))
                self._announce(life)
                self._settled.set()

        try:
            return await life.run(enter_service)
        finally:
            self._process = None
            self._announce(None)
            with trio.CancelScope(shield=True):
                await self._scratch(scratch.remove)

    async def _scratch(self, do: Callable[[Path], None]) -> None:
        """Apply `do` to the directory of the child's temporary files, if it has one."""
        if self._spec.scratch is not None:
            await trio.to_thread.run_sync(do, self._spec.scratch)

    def _announce(self, life: ChildProcess | None) -> None:
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
) -> AsyncIterator[SupervisedChild]:
    """Start a child, wait until it is ready and prepared, yield it, and end it when the scope is left.

    Raises ChildCrashed at once if it ends before it was first ready. Later crashes restart it: see `RestartLimits`.
    """
    child = SupervisedChild(spec, prepare, on_event, on_frame)
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
    """Unwrap the nursery's group of one. Our tasks raise nothing of their own, so it is the exception of the body."""
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
