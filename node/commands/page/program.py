"""Run the page server: read its terms, follow the run, serve browsers on the socket that it was given.

A process of its own, started by `node.web.door` with the first browser. It ends when its standard input does, which
means that the run's program has ended, and after IDLE_S without any browser.

Invariant: it writes nothing into the state directory but orders.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from node.commands.page.access import Access
from node.commands.page.app import PageApp
from node.commands.page.feed import Feed
from node.config.loader import read_swarm_config
from node.runtime.errors import NodeError
from node.runtime.stdout import complain
from node.state.locate import StateLocation
from node.web.terms import MAX_TERMS_BYTES, PageTerms
from swarm.transport.error_groups import first_cause

IDLE_S = 300.0
"""Seconds without a browser after which the server ends. Starting another takes about two."""

LOOK_S = 5.0

GOODBYE_S = 1.0
"""Seconds that browsers have to hear that the run has ended."""

NICENESS = 5
"""The run has the processor first."""


def main() -> int:
    """Serve one page, and return the exit code."""
    os.nice(NICENESS)
    terms = msgspec.json.decode(sys.stdin.buffer.readline(MAX_TERMS_BYTES), type=PageTerms)
    trio.run(_run, terms)
    return 0


def _place(terms: PageTerms) -> StateLocation:
    """Return the state directory, with its configuration as far as that can be read now."""
    config = None
    if terms.config:
        try:
            config = read_swarm_config(Path(terms.config))
        except NodeError as error:  # it was edited since the start: the page does without it
            complain(str(error))
    return StateLocation(state=Path(terms.state), is_learner=terms.kind == "learner", config=config)


async def _run(terms: PageTerms) -> None:
    feed = Feed(terms=terms, place=_place(terms))
    access = Access(
        token=terms.token, public=terms.public, is_local=terms.is_local, hosts=frozenset(map(str.lower, terms.hosts))
    )
    app, stop = PageApp(feed=feed, access=access), trio.Event()
    with first_cause():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.run)
            nursery.start_soon(_stop_with_parent, app, stop)
            nursery.start_soon(_stop_when_idle, app, stop)
            asgi: Any = app.build()  # Starlette and Hypercorn type the same protocol differently
            await serve(asgi, _config(terms.socket), shutdown_trigger=stop.wait)
            nursery.cancel_scope.cancel()


def _config(socket: int) -> Config:
    config = Config()
    config.bind = [f"fd://{socket}"]
    config.accesslog = None
    config.errorlog = "-"
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.graceful_timeout = GOODBYE_S
    config.keep_alive_timeout = 15.0
    config.h11_max_incomplete_size = 32 * 1024
    config.alpn_protocols = ["http/1.1"]
    return config


async def _stop_with_parent(app: PageApp, stop: trio.Event) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as told:
        async for _ in told:
            pass
    app.feed.end()
    app.over.set()
    with trio.move_on_after(GOODBYE_S):
        while app.watchers:
            await trio.sleep(0.05)
    stop.set()
    await trio.sleep(GOODBYE_S)
    os._exit(0)  # a browser that reads nothing would hold the port, which the run's next start needs


async def _stop_when_idle(app: PageApp, stop: trio.Event) -> None:
    while app.watchers or trio.current_time() - app.seen_at < IDLE_S:
        await trio.sleep(LOOK_S)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
