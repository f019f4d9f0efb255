"""Hold one episode's connection to an OpenEnv server: a WebSocket with one request at a time.

Invariants:

- A reply may take `wait_s`. After any failure, also of a caller that gives up, the session is broken, so a late reply
  is never taken for the next one.
- A server that sends something unrequested has failed. So has a server whose episode at the end is another one than at
  the beginning, because then its sessions share one environment.
- At most MAX_MESSAGE_BYTES of a reply are read.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from node.installation.extras import line_of_extra
from node.tasks.adapters.openenv.messages import (
    MAX_MESSAGE_BYTES,
    Observed,
    Refused,
    ServerFault,
    ServerFull,
    read_episode,
    read_observed,
    read_tools,
    read_unasked,
    short_form,
    write_request,
)
from node.tasks.api.interface import TaskError

T = TypeVar("T")

CONNECT_S = 10.0
"""Timeout of a connection attempt, in seconds. Even across the world one takes about a second."""

CLOSE_S = 1.0
"""Timeout of closing a session, in seconds. The server is left even if it does not answer. It is less than a host waits
after a call that took too long."""

AGAIN_S = 0.25
"""Seconds between two attempts when a server is full, as its sessions end while others wait."""

MAX_SCHEMA_BYTES = 1 << 20
"""Maximum bytes of a schema, which is part of the prompt if actions have several fields."""

WEB = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is, without a slash at the end. `socket`: for sessions. `web`: for its pages."""

    socket: str
    web: str
    is_here: bool


def read_address(text: str) -> Address:
    """Return the address of the server that a URL names. Raises TaskError."""
    try:
        url: SplitResult = urlsplit(text)
        port = url.port  # raises ValueError if it is not a port
    except ValueError as error:
        raise TaskError(f"task 'openenv': {text!r} is not a URL ({error}). Write it as http://HOST:PORT.") from None
    if url.scheme not in WEB or not url.hostname or url.query or url.fragment or port == 0:
        raise TaskError(
            f"task 'openenv': {text!r} is not the address of a server. Write http://HOST:PORT, https://HOST, or "
            "MODULE:APP for a server that is started here."
        )
    scheme, rest = WEB[url.scheme], f"{url.netloc}{url.path.rstrip('/')}"
    web = scheme.replace("ws", "http")
    return Address(socket=f"{scheme}://{rest}/ws", web=f"{web}://{rest}", is_here=url.hostname in LOOPBACK)


def require_websockets() -> Any:
    """Return the library, or raise TaskError with the command that installs it."""
    try:
        return importlib.import_module("websockets.asyncio.client")
    except ImportError as error:
        raise TaskError(
            f"task 'openenv' needs websockets, which cannot be imported here ({error}). Type: "
            f"{line_of_extra('environments')}"
        ) from error


def action_schema(address: Address, wait_s: float) -> Mapping[str, Any] | None:
    """Return the JSON schema of the server's actions, or None if the server does not give it. Waits."""
    proxies = [urllib.request.ProxyHandler({})] if address.is_here else []
    try:
        with urllib.request.build_opener(*proxies).open(f"{address.web}/schema", timeout=wait_s) as reply:
            told = json.loads(reply.read(MAX_SCHEMA_BYTES))
    except (OSError, urllib.error.URLError, ValueError, RecursionError):
        return None
    schema = told.get("action") if isinstance(told, dict) else None
    return schema if isinstance(schema, dict) else None


@dataclass(kw_only=True)
class Session:
    """One connection to a server; `open_session` makes one."""

    address: Address
    wait_s: float
    _socket: Any
    _episode: str | None = field(default=None)
    _is_broken: bool = False

    @classmethod
    async def connect(cls, address: Address, wait_s: float) -> Session:
        """Open a connection. Raises ServerFault."""
        client = require_websockets()
        try:
            async with asyncio.timeout(min(CONNECT_S, wait_s)):
                socket = await client.connect(
                    address.socket,
                    max_size=MAX_MESSAGE_BYTES,
                    proxy=None if address.is_here else True,
                    close_timeout=CLOSE_S,
                )
        except Exception as error:  # from the library, which has a dozen kinds, or from the system
            raise ServerFault(
                f"no OpenEnv server answers at {address.socket}: {_one_line_of(error)}. Start it, or correct the "
                "address."
            ) from error
        return cls(address=address, wait_s=wait_s, _socket=socket)

    async def reset(self, seed: int) -> Observed:
        """Begin an episode. Raises ServerFull, or another ServerFault."""
        reply = await self._ask(write_request("reset", {"seed": seed}), read_observed)
        if isinstance(reply, Refused):
            raise ServerFault(f"the server does not accept a reset with a seed: {reply.why}.")
        self._episode = await self._current()
        return reply

    async def step(self, action: Mapping[str, Any]) -> Observed | Refused:
        """Take one action. Raises ServerFault."""
        reply = await self._ask(write_request("step", action), read_observed)
        if isinstance(reply, Observed) and reply.done:
            await self.require_same_episode()
        return reply

    async def tools(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the server's MCP tools as it lists them, or None if it has no MCP. Raises ServerFault."""
        request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        return await self._ask(write_request("mcp", request), lambda raw: read_tools(raw, 1))

    async def require_same_episode(self) -> None:
        """Raise ServerFault if the server is at another episode than after its reset."""
        if (now := await self._current()) != self._episode:
            raise ServerFault(
                f"the server is at episode {short_form(now)}, but this one began as {short_form(self._episode)}: its "
                "sessions share one environment. Let its create_app make one for each session."
            )

    async def close(self) -> None:
        """Say goodbye and close the connection. Never raises."""
        self._is_broken = True
        with suppress(Exception):  # the connection is given up in any case
            async with asyncio.timeout(CLOSE_S):
                await self._socket.send(write_request("close"))
                await self._socket.close()

    async def _current(self) -> str | None:
        return await self._ask(write_request("state"), read_episode)

    async def _ask(self, request: str, read: Callable[[str | bytes], T]) -> T:
        if self._is_broken:
            raise ServerFault("the connection to the server failed earlier.")
        self._is_broken = True
        reply = read(await self._answered(request))
        self._is_broken = False
        return reply

    async def _answered(self, request: str) -> str | bytes:
        library = importlib.import_module("websockets.exceptions")
        if (unasked := await self._unasked()) is not None:
            read_unasked(unasked)  # a full server says so before any request
        try:
            async with asyncio.timeout(self.wait_s):
                with suppress(library.ConnectionClosed):  # a message from before the end can still be read
                    await self._socket.send(request)
                reply: str | bytes = await self._socket.recv()
                return reply
        except TimeoutError:
            raise ServerFault(f"the server did not answer within {self.wait_s:g} s.") from None
        except library.ConnectionClosed as error:
            raise ServerFault(f"the server closed the connection: {_closed(error)}.") from error

    async def _unasked(self) -> str | bytes | None:
        """Return a message that has arrived since the last reply, or None."""
        library = importlib.import_module("websockets.exceptions")
        with suppress(TimeoutError, library.ConnectionClosed):
            async with asyncio.timeout(0):
                found: str | bytes = await self._socket.recv()
                return found
        return None


def _closed(error: Any) -> str:
    sent, received = getattr(error, "sent", None), getattr(error, "rcvd", None)
    if getattr(sent, "code", None) == 1009:
        return f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB"
    reason = getattr(received, "reason", "") or getattr(sent, "reason", "")
    return reason or "it ended, or closed without a reason"


def _one_line_of(error: BaseException) -> str:
    return "it takes too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


@asynccontextmanager
async def open_session(address: Address, wait_s: float) -> AsyncIterator[Session]:
    """Open a session that is closed afterwards. Raises ServerFault."""
    session = await Session.connect(address, wait_s)
    try:
        yield session
    finally:
        await session.close()


async def begin_episode(address: Address, wait_s: float, seed: int) -> tuple[Session, Observed]:
    """Return a session that has been reset. Tries again for `wait_s` while the server is full. Raises ServerFault."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while True:
        session = await Session.connect(address, wait_s)
        try:
            return session, await session.reset(seed)
        except ServerFull:
            await session.close()
            if loop.time() + AGAIN_S > until:
                raise
            await asyncio.sleep(AGAIN_S)
        except BaseException:
            await session.close()
            raise
