"""Send one request to a service, and read a limited reply.

It has no timeout of its own except for the connection; its caller sets one.

Invariants:

- The body of a reply has at most MAX_REPLY_BYTES on the wire, and is not decompressed.
- No redirect is followed, because the key would be sent along.
- Proxies and passwords of the environment are not used.
- The text of an error from the service is shown without the key.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from node.tasks.api.interface import TaskError
from node.tasks.services.retries import RequestFailed, read_retry_after
from node.tasks.services.terms import ServiceTerms, shortened

if TYPE_CHECKING:
    import httpx

MAX_REPLY_BYTES = 1 << 20
"""Maximum bytes of a reply. A judge's long explanation has some 10 KB, 1,024 rewards with names 200 KB."""

MAX_ERROR_BYTES = 2048
"""Bytes to read of an error reply: its first sentences."""

CONNECT_S = 10.0

DENIED = (401, 403, 404, 405)
"""Status codes that every other request would get too: a wrong key, or a wrong address."""

BUSY = (408, 425, 429)


class HttpClient:
    """The connections to one service. It belongs to the asyncio loop on which it is first used."""

    def __init__(self, terms: ServiceTerms) -> None:
        """Prepare the connections. Raises TaskError if the key is not in the environment."""
        import httpx  # only when it is needed, because it takes a tenth of a second

        self._httpx = httpx
        self._key = key_of(terms)
        headers = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "identity"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=ssl.create_default_context(),
            trust_env=False,
            proxy=terms.proxy or None,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=terms.at_once, max_keepalive_connections=terms.at_once),
        )

    async def post(self, url: str, body: bytes) -> bytes:
        """Return the body of the reply. Raises RequestFailed."""
        try:
            async with self._client.stream("POST", url, content=body) as reply:
                return await self._read(reply)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            said = shortened(str(error)) or "the connection was lost"
            is_there = not isinstance(error, self._httpx.ConnectError | self._httpx.TimeoutException)
            detail = self._plain(f"{type(error).__name__}: {said}")
            raise RequestFailed("broken" if is_there else "down", detail) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _read(self, reply: httpx.Response) -> bytes:
        status = reply.status_code
        if not reply.is_success:
            said = shortened((await _first_bytes(reply)).decode("utf-8", "replace"))
            raise self._failure(reply, f"HTTP {status}{f': {said}' if said else ''}")
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise RequestFailed("unreadable", "a compressed reply, which was not requested")
        held = bytearray()
        async for part in reply.aiter_raw():
            held += part
            if len(held) > MAX_REPLY_BYTES:
                raise RequestFailed("unreadable", f"a reply of more than {MAX_REPLY_BYTES:,} bytes")
        return bytes(held)

    def _failure(self, reply: httpx.Response, detail: str) -> RequestFailed:
        status, detail = reply.status_code, self._plain(detail)
        wait_s = read_retry_after(reply.headers.get("retry-after"), datetime.now(UTC))
        if status in BUSY or (status == 503 and wait_s is not None):
            return RequestFailed("busy", detail, retry_after_s=wait_s)
        if 300 <= status < 400:
            to = shortened(reply.headers.get("location", "nowhere"), 200)
            return RequestFailed("denied", self._plain(f"HTTP {status}: it redirects to {to}; give that address"))
        if status in DENIED:
            return RequestFailed("denied", detail)
        return RequestFailed("rejected" if 400 <= status < 500 else "broken", detail, retry_after_s=wait_s)

    def _plain(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def key_of(terms: ServiceTerms) -> str:
    """Return the key, or "" if none is needed. Raises TaskError if it is not in the environment."""
    if not terms.api_key_env:
        return ""
    key = os.environ.get(terms.api_key_env, "").strip()
    if not key:
        raise TaskError(
            f"{terms.name} api_key_env: {terms.api_key_env} is not set in the environment here, where rewards are "
            "computed. Set it there and start again."
        )
    if not (key.isascii() and key.isprintable()):
        raise TaskError(f"{terms.name} api_key_env: {terms.api_key_env} has characters that no key has. Set it again.")
    return key


async def _first_bytes(reply: httpx.Response) -> bytes:
    held = bytearray()
    async for part in reply.aiter_raw():
        held += part
        if len(held) >= MAX_ERROR_BYTES:
            break
    return bytes(held[:MAX_ERROR_BYTES])
