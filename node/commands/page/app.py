"""Answer the requests of browsers: the document, changes as they come, rows of peers, samples, files, orders.

An application for ASGI, on Starlette. Changes travel as server-sent events (HTML standard, section 9.2).

Invariants:

- Every request passes `access` first, and has the least right that its path asks for (`PageApp.build`).
- A watcher that takes nothing of what it is sent is dropped, by the system (`node.web.address.UNREAD_MS`). There are
  at most MAX_WATCHERS.
- What a request asks for is bounded before it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.commands.page import document
from node.commands.page.access import NO_TOKEN, Access, Refusal, Right
from node.commands.page.board import Board
from node.commands.page.feed import Feed
from node.commands.page.orders import obey
from node.commands.page.parts import learner_page, node_page, peers, samples
from node.reports.html.charts.markup import Fragment
from node.reports.html.peer_page import peer_pages
from node.reports.model.report import OwnReport, SwarmReport
from node.runtime.errors import NodeError
from node.state.order_files import MAX_ORDER_BYTES

MAX_WATCHERS = 64
"""Browsers that may follow a page at a time. Each costs a connection and what it is sent."""

BODY_S = 10.0
"""Seconds in which an order must have come."""

QUIET_S = 15.0
"""Seconds after which something is sent even if nothing has changed, so that a dead connection is noticed."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer."""

MAX_QUERY_CHARS = 2000


@dataclass(kw_only=True, eq=False)
class PageApp:
    """The application. `seen_at`: when a browser last asked for anything, on trio's clock."""

    feed: Feed
    access: Access
    watchers: int = 0
    over: trio.Event = field(default_factory=trio.Event)
    seen_at: float = field(default_factory=trio.current_time)

    def build(self) -> ASGIApp:
        """Return the application with its rules in front."""
        routes = [
            _route("/", Right.NOTHING, self._document),
            _route("/health", Right.NOTHING, self._health),
            _route("/content", Right.READ_PUBLIC, self._content),
            _route("/numbers", Right.READ_PUBLIC, self._numbers),
            _route("/peers", Right.READ_PUBLIC, self._peers),
            _route("/peer", Right.READ, self._peer),
            _route("/samples", Right.READ, self._samples),
            _route("/receipts.jsonl", Right.READ, self._receipts),
            _route("/orders", Right.CHANGE, self._orders, "POST"),
        ]
        inner = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=1000)])

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                if scope["type"] == "lifespan":
                    await inner(scope, receive, send)
                return
            self.seen_at = trio.current_time()
            send = _with_headers(send)
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            scope["right"] = self.access.right_of(headers)
            refused = self.access.refusal(scope["method"], headers)
            if refused is None:
                refused = _malformed(scope)
            if refused is not None:
                await _refuse(refused)(scope, receive, send)
            elif scope["path"] == "/events":
                await self._events(scope, receive, send)
            else:
                await inner(scope, receive, send)

        return guarded

    # What is read

    def _board(self, right: Right) -> Board:
        return self.feed.public if right is Right.READ_PUBLIC else self.feed.board

    async def _document(self, request: Request) -> Response:
        """Return the whole page, or its frame alone to somebody who may not read without the token."""
        right = request.scope["right"]
        if right is Right.NOTHING:
            text = f'<section id="locked"><h1>Volery</h1><p>{NO_TOKEN.text}</p></section>'
            whole = document.document("Volery", (), [text], revision=0)
        else:
            board = self._board(right)
            whole = document.document(self._title, self._links(right), self._parts(right), revision=board.revision)
        return HTMLResponse(whole, headers={"Content-Security-Policy": document.policy()})

    @property
    def _title(self) -> str:
        live = self.feed.live
        return f"{live.state.value}: {live.view.title or 'Volery'}"

    def _parts(self, right: Right) -> list[str]:
        board = self._board(right)
        return [board.html(key) for key in self.feed.keys(is_public=right is Right.READ_PUBLIC)]

    def _links(self, right: Right) -> list[document.Link]:
        board, keys = self._board(right), self.feed.keys(is_public=right is Right.READ_PUBLIC)
        links = learner_page.NAVIGATION if self.feed.place.is_learner else node_page.NAVIGATION
        return [
            document.Link(key=key, name=name, is_empty=board.html(key) == learner_page.empty(key).text)
            for key, name in links
            if key in keys
        ]

    async def _content(self, request: Request) -> Response:
        """Return the parts for a browser whose script has the token."""
        right = request.scope["right"]
        told = {
            "title": self._title,
            "links": [(link.key, link.name, link.is_empty) for link in self._links(right)],
            "parts": self._parts(right),
            "revision": self._board(right).revision,
            "may_change": right is Right.CHANGE,
        }
        return JSONResponse(told)

    async def _health(self, request: Request) -> Response:
        """Return the run's state in a word, to everybody; status 503 if its program has ended."""
        state = self.feed.live.state
        return PlainTextResponse(f"{state.value}\n", status_code=503 if self.over.is_set() else 200)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send changed parts as they come, until the browser leaves, does not read, or the run's program ends."""
        right = scope["right"]
        if right is Right.NOTHING:
            await _refuse(NO_TOKEN)(scope, receive, send)
            return
        if self.watchers >= MAX_WATCHERS:
            refused = Refusal(status=503, text=f"{MAX_WATCHERS} browsers follow this page already.")
            await _refuse(refused, {"Retry-After": "10"})(scope, receive, send)
            return
        self.watchers += 1
        try:
            async with trio.open_nursery() as nursery:

                async def watch_leave() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch_leave)
                await self._stream(self._board(right), _after(scope), send)
                nursery.cancel_scope.cancel()
        finally:
            self.watchers -= 1
            self.seen_at = trio.current_time()

    async def _stream(self, board: Board, revision: int, send: Send) -> None:
        headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": _encoded(headers),
        }
        await send(start)
        is_over = False
        while not is_over:
            changed = board.since(revision)
            revision = board.revision
            is_over = self.over.is_set()
            parts = [{"id": part.key, "html": part.html} for part in changed]
            told = {"revision": revision, "title": self._title, "parts": parts, "over": is_over}
            event = {"type": "http.response.body", "body": f"data: {json.dumps(told)}\n\n".encode(), "more_body": True}
            await send(event)
            if not is_over:
                with trio.move_on_after(QUIET_S):
                    await self._wait_news(board, revision)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_news(self, board: Board, revision: int) -> None:
        async with trio.open_nursery() as nursery:

            async def until(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, self.over.wait)
            nursery.start_soon(until, lambda: board.wait_changed(revision))

    async def _numbers(self, request: Request) -> Response:
        """Return a plot's values."""
        report, key = self.feed.report, request.query_params.get("plot", "")
        found = None
        if isinstance(report, SwarmReport):
            found = await trio.to_thread.run_sync(learner_page.numbers_of, report, key)
        elif isinstance(report, OwnReport):
            found = node_page.numbers_of(report, key)
        return self._fragment(request, "Numbers", found, "There is no such plot.")

    async def _peers(self, request: Request) -> Response:
        """Return rows of the table of peers."""
        right, report = request.scope["right"], self.feed.report
        if not isinstance(report, SwarmReport):
            return JSONResponse({"total": 0, "rows": []})
        asked = request.query_params
        question = peers.Question(
            first=_number(asked, "first", 0, 1 << 20),
            count=_number(asked, "count", peers.FIRST_ROWS, peers.MOST_ROWS),
            by=asked.get("by", "")[:64],
            is_descending=asked.get("way", "down") != "up",
            find=asked.get("find", ""),
        )
        found = peers.rows(report, question, is_public=right is Right.READ_PUBLIC)
        return JSONResponse({"total": found.total, "rows": found.html})

    async def _peer(self, request: Request) -> Response:
        """Return the part about one peer."""
        report = self.feed.report
        named, found = request.query_params.get("id", ""), None
        if isinstance(report, SwarmReport):
            found = await trio.to_thread.run_sync(_page_of, report, named)
        return self._fragment(request, "Peer", found, "There is no page about that peer (yet).")

    async def _samples(self, request: Request) -> Response:
        """Return samples of one version."""
        if not self.feed.place.is_learner:
            return self._fragment(request, "Samples", None, "Only a learner keeps samples.")
        asked = request.query_params
        wanted = samples.Wanted(
            version=asked.get("version", "")[:32].strip(),
            best=_number(asked, "best", samples.BEST, samples.MOST),
            worst=_number(asked, "worst", samples.WORST, samples.MOST),
            find=asked.get("find", "")[:200],
        )
        found = await trio.to_thread.run_sync(samples.part, self.feed.place.state, wanted)
        return self._fragment(request, "Samples", found, "")

    async def _receipts(self, request: Request) -> Response:
        """Return the node's receipts as a file, as `volery receipts export` writes them."""
        try:
            data = await trio.to_thread.run_sync(_exported, self.feed.place.state, "proofs" in request.query_params)
        except NodeError as error:
            return PlainTextResponse(f"{error}\n", status_code=409)
        attached = {"Content-Disposition": 'attachment; filename="receipts.jsonl"'}
        return Response(data, media_type="application/jsonl", headers=attached)

    # What is changed

    async def _orders(self, request: Request) -> Response:
        """Take an order of somebody with the token."""
        body = b""
        with trio.move_on_after(BODY_S) as time_limit, suppress(ClientDisconnect):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_ORDER_BYTES:
                    return _refuse(Refusal(status=413, text="The order is too long."))
        if time_limit.cancelled_caught:
            return _refuse(Refusal(status=408, text=f"The order did not come within {BODY_S:.0f} s."))
        try:
            told = await trio.to_thread.run_sync(obey, body, self.feed.place)
        except NodeError as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        return JSONResponse({"told": told})

    def _fragment(self, request: Request, title: str, found: Fragment | None, otherwise: str) -> Response:
        """Return a piece of the page: alone to the script, in a document of its own to a browser without one."""
        if request.headers.get("accept", "").startswith("text/html") and "x-part" not in request.headers:
            text = found.text if found is not None else f"<p>{otherwise}</p>"
            whole = document.piece(title, text)
            policy = {"Content-Security-Policy": document.policy()}
            return HTMLResponse(whole, status_code=404 if found is None else 200, headers=policy)
        if found is None:
            return PlainTextResponse(otherwise, status_code=404)
        return HTMLResponse(found.text)


def _route(path: str, least: Right, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
    """Return the route that lets those with the `least` right through to `answer`."""

    async def checked(request: Request) -> Response:
        return _refuse(NO_TOKEN) if request.scope["right"] < least else await answer(request)

    return Route(path, checked, methods=[method])


def _with_headers(send: Send) -> Send:
    """Return `send` with HEADERS in the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(HEADERS)]}
        await send(message)

    return sending


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _page_of(report: SwarmReport, named: str) -> Fragment | None:
    for page in peer_pages(report, only=named):
        return page
    return None


def _exported(state: Path, with_proofs: bool) -> bytes:
    from node.commands.statements.command import export_receipts

    with TemporaryDirectory() as folder:
        path = Path(folder) / "receipts.jsonl"
        export_receipts(state, path, peer="", proofs=with_proofs)
        return path.read_bytes()


def _malformed(scope: Scope) -> Refusal | None:
    """Return why a request cannot be answered, whoever asks."""
    if len(scope["query_string"]) > MAX_QUERY_CHARS:
        return Refusal(status=414, text="The question is too long.")
    if scope["http_version"] not in ("1.0", "1.1"):  # one connection of HTTP/2 would carry many requests
        return Refusal(status=505, text="This page speaks HTTP/1.1.")
    if scope["path"] == "/events" and scope["method"] != "GET":
        return Refusal(status=405, text="Events are read with GET.")
    return None


def _refuse(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{refusal.text}\n", status_code=refusal.status, headers=headers)


def _after(scope: Scope) -> int:
    """Return the revision after which changes are asked for; 0, all, if the question has none."""
    asked = Request(scope).query_params
    return _number(asked, "after", 0, 1 << 53)


def _number(asked: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    with suppress(ValueError):
        return max(0, min(int(asked.get(name, "")), most))
    return otherwise
