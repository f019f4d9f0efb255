"""Post notices while a program runs, from a queue, over HTTP.

A task consumes the queue, waits for the service, and is woken by a new notice. `notifying` opens it around a run.

Invariants:

- The run never waits for a notice, and no failure of the service affects it. At the end it waits CLOSE_S at most.
- At most QUEUE notices wait. If more come, the oldest are lost, and the next report of a failure says how many.
- A failure is one event, until the service has accepted a notice again.
- At most MAX_REPLY_BYTES of a reply are read, within TIMEOUT_S. No redirect is followed: the URL is a secret.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Protocol

import trio

from node.notices.destination import Destination
from node.notices.flood_limit import FloodLimit
from node.notices.notice import Notice
from node.notices.retry_policy import Failed, Outcome, Posted, outcome_of, pause_s
from node.notices.shapes import Request, request_of
from node.runtime.events import Clock, EventLog, Fields
from node.tasks.services.retries import read_retry_after
from protocol.core.visible import one_line
from swarm.transport.error_groups import first_cause

if TYPE_CHECKING:
    import httpx

QUEUE = 64
"""Most notices that wait: hours of an outage at the most that the flood limit admits."""

TIMEOUT_S = 15.0
"""Seconds for one attempt. The services answer within one second."""

MAX_REPLY_BYTES = 2048
"""Bytes to read of an error reply: its first sentences."""

MAX_DETAIL_CHARS = 300

CLOSE_S = 5.0
"""Most seconds at the end of a run for the notices that wait, among them that the run has ended."""

CLOSE_STOPPED_S = 1.5
"""The same when somebody stops the program: Ctrl-C must end it within 5 s, of which metrics may take 3."""


class Notices(Protocol):
    """Chooses notices from events: `LearnerNotices` or `NodeNotices`."""

    def handle(self, event: str, fields: Fields, now_ms: int, /) -> Notice | None:
        """Return the notice of an event; None if it has none now."""
        ...


class Client:
    """The connections to one service."""

    def __init__(self, to: Destination) -> None:
        import httpx  # only when it is needed, because it takes a tenth of a second

        logging.getLogger("httpx").setLevel(logging.WARNING)  # below that, it logs whole URLs
        context = httpx.create_ssl_context()
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)  # besides certifi's: those of a company
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "volery"}
        self._to = to
        self._client = httpx.AsyncClient(headers=headers, verify=context, follow_redirects=False, timeout=None)

    async def post(self, request: Request) -> Outcome:
        """Post once, within TIMEOUT_S."""
        try:
            with trio.fail_after(TIMEOUT_S):
                async with self._client.stream("POST", request.url, content=request.body) as reply:
                    return await self._judge(reply)
        except trio.TooSlowError:
            return Failed(detail=f"no answer within {TIMEOUT_S:g} s")
        except Exception as error:  # a third-party library may raise anything, and the run must go on
            return Failed(detail=self._plain(f"no connection ({str(error) or type(error).__name__})"))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _judge(self, reply: httpx.Response) -> Outcome:
        status = reply.status_code
        if reply.is_success:
            return outcome_of(status, "")
        if 300 <= status < 400:
            return outcome_of(status, f"HTTP {status}: the address has moved. Set its new URL")
        said = (await _first_bytes(reply)).decode("utf-8", "replace").strip()
        asked_s = read_retry_after(reply.headers.get("retry-after"), datetime.now(UTC))
        return outcome_of(status, self._plain(f"HTTP {status}: {said}" if said else f"HTTP {status}"), asked_s)

    def _plain(self, text: str) -> str:
        return one_line(self._to.without_secret(text), MAX_DETAIL_CHARS)


async def _first_bytes(reply: httpx.Response) -> bytes:
    held = bytearray()
    async for part in reply.aiter_raw():
        held += part
        if len(held) >= MAX_REPLY_BYTES:
            break
    return bytes(held[:MAX_REPLY_BYTES])


@dataclass(kw_only=True)
class NoticeSender:
    """Posts the notices that `notices` chooses from the events that `note` gets."""

    to: Destination
    notices: Notices
    events: EventLog
    client: Client
    now_ms: Callable[[], int] = Clock.now_ms
    chance: Random = field(default_factory=Random)
    _queue: deque[Notice] = field(default_factory=deque)
    _limit: FloodLimit = field(default_factory=FloodLimit)
    _lost: int = 0
    _is_failing: bool = False
    _wake: trio.Event = field(default_factory=trio.Event)
    _closing: trio.Event = field(default_factory=trio.Event)
    _scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    """Everything that `run` does. A program that is cancelled still has a moment for what waits."""

    def note(self, event: str, fields: Fields) -> None:
        """Queue the notice of an event, if it has one. Never waits."""
        if (notice := self.notices.handle(event, fields, self.now_ms())) is None:
            return
        if (admitted := self._limit.admit(notice)) is None:
            return
        if len(self._queue) >= QUEUE:
            self._queue.popleft()
            self._lost += 1
        self._queue.append(admitted)
        self._wake.set()

    async def run(self) -> None:
        """Post notices until `close` was called and none waits, or one fails after that."""
        with self._scope:
            attempt = 0
            while self._queue or not self._closing.is_set():
                if not self._queue:
                    self._wake = trio.Event()
                    await self._wake.wait()
                    continue
                is_last = self._closing.is_set()
                attempt = await self._try(self._queue[0], attempt)
                if attempt and is_last:
                    break
            await self.client.close()

    async def _try(self, notice: Notice, attempt: int) -> int:
        """Post a notice once. Return the number of the next attempt, after its pause; 0 if there is none."""
        outcome = await self.client.post(request_of(notice, self.to))
        if isinstance(outcome, Posted):
            self._drop(notice)
            self._is_failing = False
            return 0
        pause = pause_s(outcome, attempt, (self.now_ms() - notice.at_ms) / 1000, self.chance.random())
        if pause is None:
            self._drop(notice)
            self._lost += 1
        self._report(outcome, pause)
        if pause is None:
            return 0
        with trio.move_on_after(pause):
            await self._closing.wait()
        return attempt + 1

    def close(self, limit_s: float) -> None:
        """Let `run` end within that time: what waits is tried once more, at once."""
        self._closing.set()
        self._wake.set()
        self._scope.deadline = trio.current_time() + limit_s

    def _drop(self, notice: Notice) -> None:
        """Remove a notice that was tried, unless a full queue has lost it meanwhile."""
        if self._queue and self._queue[0] is notice:
            self._queue.popleft()

    def _report(self, failed: Failed, pause: float | None) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        lost, self._lost = self._lost, 0
        retry_s = None if pause is None else round(pause, 1)
        self.events.emit("notices_failed", to=self.to.shown, reason=failed.detail, retry_s=retry_s, lost=lost)


@asynccontextmanager
async def notifying(
    to: Destination | None, notices: Notices, events: EventLog
) -> AsyncIterator[Callable[[str, str], None]]:
    """Post notices of all events while inside.

    Yields a function that queues a notice which is no event of the log: `ended`, with a text. Leaving the block by an
    error is the notice `failed`, and by a cancellation `stopped`. Then waiting notices are posted for a moment.
    """
    if to is None:
        yield lambda event, text: None
        return
    sender = NoticeSender(to=to, notices=notices, events=events, client=Client(to))
    events.listen(sender.note)
    limit_s = CLOSE_STOPPED_S
    with first_cause():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            try:
                yield lambda event, text: sender.note(event, {"text": text})
                limit_s = CLOSE_S
            except trio.Cancelled:
                sender.note("stopped", {})
                raise
            except Exception as error:
                limit_s = CLOSE_S
                sender.note("failed", {"text": str(error) or type(error).__name__})
                raise
            finally:
                sender.close(limit_s)
