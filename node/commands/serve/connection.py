"""Speak HTTP/1.1 on one connection with h11: read heads and bodies within bounds, and send answers and events.

Invariants:

- At most MAX_HEAD_BYTES, MAX_REQUEST_BYTES and READ_BYTES of a request are held, whatever a client sends.
- Every wait for a client has a timeout: for a head, a body, and every piece that is sent.
- If a request is refused before it was read completely, the connection is closed after the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h11
import trio

from node.commands.serve.api_error import ApiError
from node.commands.serve.limits import (
    BODY_S,
    HEAD_S,
    IDLE_S,
    LINGER_S,
    MAX_HEAD_BYTES,
    MAX_REQUEST_BYTES,
    READ_BYTES,
    STALL_S,
)

Headers = Sequence[tuple[str, str]]


class ConnectionGone(Exception):
    """The client left or timed out, so no answer can be sent."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds that a client has for each part of a request and its answer."""

    head_s: float = HEAD_S
    idle_s: float = IDLE_S
    body_s: float = BODY_S
    stall_s: float = STALL_S


@dataclass(frozen=True, kw_only=True)
class Head:
    """A request's first line and headers. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """Return the announced length of the body in bytes; None if there is none."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdecimal() else None


class Connection:
    """One connection of a client."""

    def __init__(self, stream: trio.abc.Stream, timeouts: Timeouts = Timeouts()) -> None:
        self._stream = stream
        self._timeouts = timeouts
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._is_used = False
        self._wants_head = False

    @property
    def can_answer(self) -> bool:
        """Whether no answer has been begun."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    # Reading.

    async def next_head(self) -> Head | None:
        """Return the next request's head; None if the client has left, or sends none in time.

        Raises ApiError if the data is not HTTP, or is too long.
        """
        with trio.move_on_after(self._timeouts.idle_s if self._is_used else self._timeouts.head_s) as waiting:
            if self._is_used and not self._http.trailing_data[0] and not await self._read_more():
                return None
            self._is_used = True
            waiting.deadline = min(waiting.deadline, trio.current_time() + self._timeouts.head_s)
            event = await self._event()
            if isinstance(event, h11.Request):
                self._wants_head = event.method == b"HEAD"  # the answer then has no body
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                path = event.target.decode("latin-1").partition("?")[0]
                if not headers.keys() & {"content-length", "transfer-encoding"}:
                    await self._event()  # the end of the request, which has already come
                return Head(method=event.method.decode("latin-1"), path=path, headers=headers)
        return None

    async def read_body(self, head: Head) -> bytes:
        """Return the body of the request.

        Raises ApiError 413 if it is too long, before all of it is read; 408 if it is slow; and ConnectionGone.
        """
        too_long = ApiError(413, f"A request may have at most {MAX_REQUEST_BYTES} bytes. Shorten the conversation.")
        if head.length is not None and head.length > MAX_REQUEST_BYTES:
            raise too_long
        body = bytearray()
        with trio.move_on_after(self._timeouts.body_s):
            while True:
                event = await self._event()
                if isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                if not isinstance(event, h11.Data):
                    raise ConnectionGone("the client left in the middle of a request")
                if len(body) + len(event.data) > MAX_REQUEST_BYTES:
                    raise too_long
                body += event.data
        raise ApiError(408, f"The request's body did not come within {self._timeouts.body_s:.0f} s.")

    async def wait_gone(self) -> None:
        """Return when the client closes its end. If it sends more data instead, it is no longer watched."""
        try:
            if await self._read_more():
                await trio.sleep_forever()
        except (ConnectionGone, trio.BrokenResourceError):
            return

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._read_more()
        except h11.RemoteProtocolError as error:
            raise ApiError(error.error_status_hint or 400, f"The request is not valid HTTP/1.1: {error}.") from error
        return event

    async def _read_more(self) -> bool:
        """Give h11 the next data; return False at the end."""
        try:
            data = await self._stream.receive_some(READ_BYTES)
        except trio.BrokenResourceError as error:
            raise ConnectionGone("the connection broke") from error
        self._http.receive_data(bytes(data))
        return bool(data)

    # Answering.

    async def answer(self, status: int, body: Mapping[str, Any], headers: Headers = ()) -> None:
        """Send one JSON object. Raises ConnectionGone."""
        data = json.dumps(body, ensure_ascii=False).encode(errors="replace")
        told = [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers]
        if not self._read_whole:
            told.append(("Connection", "close"))
        await self._send(h11.Response(status_code=status, headers=told))
        if not self._wants_head:
            await self._send(h11.Data(data=data))
        await self._send(h11.EndOfMessage())

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error. Raises ConnectionGone."""
        await self.answer(error.status, error.body, error.headers)

    async def begin_events(self, headers: Headers = ()) -> None:
        """Begin an answer of server-sent events. Raises ConnectionGone."""
        told = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), *headers]
        await self._send(h11.Response(status_code=200, headers=told))

    async def send_event(self, data: Mapping[str, Any] | str) -> None:
        """Send one event. Raises ConnectionGone if the client does not take it in time."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        await self._send(h11.Data(data=b"data: " + text.encode(errors="replace") + b"\n\n"))

    async def end_events(self) -> None:
        """End the answer. Raises ConnectionGone."""
        await self._send(h11.EndOfMessage())

    @property
    def _read_whole(self) -> bool:
        return self._http.their_state in (h11.DONE, h11.MUST_CLOSE)

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if not data:
            return
        with trio.move_on_after(self._timeouts.stall_s):
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionGone("the client has left") from error
            return
        raise ConnectionGone("the client did not take the answer in time")

    # The end.

    def go_on(self) -> bool:
        """Prepare for the next request; return False if the connection must be closed."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def close(self) -> None:
        """End the connection so that the client can still read what was sent."""
        await linger(self._stream)


async def linger(stream: trio.abc.Stream) -> None:
    """Close a connection after its client has, or after LINGER_S. Data that the client sends meanwhile is discarded."""
    with trio.move_on_after(LINGER_S):
        try:
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while await stream.receive_some(READ_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    await trio.aclose_forcefully(stream)
