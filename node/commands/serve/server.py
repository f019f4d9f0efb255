"""Listen for connections within bounds, and answer each in a task of its own.

Invariants:

- At most MAX_CONNECTIONS are served, and at most MAX_REFUSALS more are told that the server is full.
- An error of one connection ends no other.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from node.commands.serve.api import Api
from node.commands.serve.api_error import ApiError, busy
from node.commands.serve.connection import Connection, ConnectionGone, Timeouts, linger
from node.commands.serve.limits import MAX_CONNECTIONS, MAX_REFUSALS, RETRY_AFTER_S
from node.runtime.errors import UsageError


@dataclass(kw_only=True)
class Server:
    """Serves connections, and refuses those beyond the limits."""

    api: Api
    timeouts: Timeouts = Timeouts()  # noqa: RUF009  (it is frozen)
    most_connections: int = MAX_CONNECTIONS
    most_refusals: int = MAX_REFUSALS
    num_connections: int = 0
    num_refusals: int = 0

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Answer until cancelled, then close the listeners."""
        await trio.serve_listeners(self.welcome, list(listeners))

    async def welcome(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Answer one connection to its end, and close it."""
        try:
            if self.num_connections >= self.most_connections:
                await self._send_away(stream)
                return
            self.num_connections += 1
            try:
                await self._answer_all(Connection(stream, self.timeouts))
            finally:
                self.num_connections -= 1
        except ConnectionGone:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer_all(self, connection: Connection) -> None:
        while True:
            try:
                head = await connection.next_head()
            except ApiError as error:
                if connection.can_answer:
                    await connection.refuse(error)
                break
            if head is None:
                return
            try:
                await self.api.handle(connection, head)
            except ConnectionGone:
                raise
            except Exception as error:  # a bug of ours, or of a library with a stranger's data: report it
                trouble = "".join(traceback.format_exception(error)).rstrip()
                self.api.model.tell(f"A request failed because of a bug in volery:\n{trouble}")
                if connection.can_answer:
                    await connection.refuse(ApiError(500, "This request failed on the server. Its log has the reason."))
                break
            if not connection.go_on():
                break
        await connection.close()

    async def _send_away(self, stream: trio.abc.HalfCloseableStream) -> None:
        if self.num_refusals >= self.most_refusals:
            return
        self.num_refusals += 1
        try:
            with trio.move_on_after(self.timeouts.stall_s):
                await stream.send_all(TOO_MANY)
            await linger(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.num_refusals -= 1


def _too_many() -> bytes:
    body = json.dumps(busy("Too many connections are open. Try again later.").body).encode()
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


TOO_MANY = _too_many()
"""The answer to a connection beyond the limit, for any request."""


async def listen(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on that address. Raises UsageError if that is impossible."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}. Name another port, or 0 for "
            "any free one."
        ) from error
