"""Open the live page of a run: its socket, its token, and the door that serves it.

Invariants:

- The token is the same after a restart, so a page that is open can still give orders.
- Only the owner of the state directory can read the token there.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import trio

from learner.artifacts.regular_file import read_file
from node.config.common import LearnerWebSection, WebSection
from node.runtime.atomic_files import write_private
from node.runtime.events import EventLog
from node.web.address import PortTaken, open_listener, read_listen, url_of
from node.web.door import PageDoor
from node.web.terms import LEAST_TOKEN_CHARS, Kind, PageTerms
from swarm.transport.error_groups import first_cause

FILE = "page.json"
"""File in the state directory with the page's port and token."""

_TOKEN = re.compile(rf"[\w-]{{{LEAST_TOKEN_CHARS},64}}", re.ASCII)


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    port: int
    token: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page that can be opened. `text`: what people are told about it. `door`: None if there is no page."""

    text: str
    door: PageDoor | None = None


def open_page(
    web: WebSection,
    *,
    kind: Kind,
    title: str,
    state: Path,
    events: EventLog,
    config: Path | None = None,
    patience_s: float = 0.0,
) -> Page:
    """Open the page of the run with the directory `state`. Raises UsageError if `[web] listen` is no address.

    That no port is free is told in the text, and the run goes on without a page. This waits for `patience_s` at most
    if the page's last port is in use.
    """
    listen = read_listen(web.listen)
    if listen is None:
        return Page(text="")
    port, token = _before(state)
    try:
        listener = open_listener(listen, port, patience_s=patience_s)
    except PortTaken as error:
        return Page(text=f"There is no live page: {error}")
    token = token or secrets.token_urlsafe(18)
    _remember(state, listener.getsockname()[1], token)
    terms = PageTerms(
        socket=listener.fileno(),
        kind=kind,
        title=title,
        state=str(state.absolute()),
        config="" if config is None else str(config.absolute()),
        token=token,
        public=isinstance(web, LearnerWebSection) and web.public,
        is_local=listen.is_local,
        hosts=web.hosts,
        pid=os.getpid(),
        began=psutil.Process().create_time(),
    )
    door = PageDoor(listener=listener, terms=terms, events=events)
    return Page(text=f"Live page: {url_of(listener, token)}", door=door)


ServePage = Callable[[Page], None]


def serve_nothing(page: Page) -> None:
    """Serve no page: what stands for the server before it is there."""


def local_url(state: Path) -> str:
    """Return the address of the page that the run in `state` last had on this machine; "" if it had none."""
    port, token = _before(state)
    return f"http://127.0.0.1:{port}/#token={token}" if port and token else ""


@asynccontextmanager
async def page_server() -> AsyncIterator[ServePage]:
    """Yield a function that serves a page until the block ends. Exceptions of the block keep their types."""
    with first_cause():
        async with trio.open_nursery() as nursery:

            def serve(page: Page) -> None:
                if page.door is not None:
                    nursery.start_soon(page.door.run)

            yield serve
            nursery.cancel_scope.cancel()


def _before(state: Path) -> tuple[int | None, str]:
    """Return the port and the token of the last start; None and "" if they are not known."""
    with suppress(OSError, ValueError):
        told = msgspec.json.decode(read_file(state / FILE), type=Remembered)
        return (told.port if 0 < told.port < 1 << 16 else None), (told.token if _TOKEN.fullmatch(told.token) else "")
    return None, ""


def _remember(state: Path, port: int, token: str) -> None:
    with suppress(OSError):  # a full disk: another port and token then, after the next start
        state.mkdir(parents=True, exist_ok=True)
        write_private(state / FILE, msgspec.json.encode(Remembered(port=port, token=token)))
