"""A relay of ours between peers of different implementations, which know nothing of us but the specification."""

from __future__ import annotations

from tests.support.partners.circuits import ours, through, until_reserved
from tests.support.partners.go_peer import go_behind, go_name, go_peer, go_pings
from tests.support.partners.js_peer import js_name, js_peer
from tests.support.partners.programs import needs_go, needs_js
from tests.support.partners.stock_peer import stock_peer, stock_pings

GO, JS, STOCK = 7, 8, 9


@needs_go
@needs_js
async def test_go_reaches_js() -> None:
    async with (
        ours(1, members=[go_name(GO), js_name(JS)]) as relay,
        js_peer(JS, relays=relay.addresses()) as js,
        go_peer(GO) as go,
    ):
        await go.connect(js.peer, through(relay, js.peer))
        await go_pings(go, js.peer)


@needs_go
@needs_js
async def test_js_reaches_go() -> None:
    async with (
        ours(1, members=[go_name(GO), js_name(JS)]) as relay,
        go_behind(relay.addresses()[0], GO) as go,
        js_peer(JS) as js,
    ):
        await until_reserved(relay, go.peer)
        assert (await js.order("dial", address=through(relay, go.peer)))["limited"]
        await js.order("ping", peer=go.peer)
        said = await js.order("identify", peer=go.peer)
        assert (said["peer"], said["agent"]) == (go.peer, "p2pd/0.1")


@needs_go
async def test_the_stock_peer_reaches_go() -> None:
    async with (
        ours(1, members=[go_name(GO)]) as relay,
        go_behind(relay.addresses()[0], GO) as go,
        stock_peer(STOCK) as stock,
    ):
        relay.trust(stock.peer)
        await until_reserved(relay, go.peer)
        await stock.circuit_to(through(relay, go.peer))
        await stock_pings(stock, go.peer)


@needs_go
async def test_go_reaches_the_stock_peer() -> None:
    async with ours(1, members=[go_name(GO)]) as relay, stock_peer(STOCK) as stock, go_peer(GO) as go:
        relay.trust(stock.peer)
        assert await stock.reserve(relay.addresses()[0])
        await go.connect(stock.peer, through(relay, stock.peer))
        await go_pings(go, stock.peer)


@needs_js
async def test_js_reaches_the_stock_peer() -> None:
    async with ours(1, members=[js_name(JS)]) as relay, stock_peer(STOCK) as stock, js_peer(JS) as js:
        relay.trust(stock.peer)
        assert await stock.reserve(relay.addresses()[0])
        assert (await js.order("dial", address=through(relay, stock.peer)))["limited"]
        await js.order("ping", peer=stock.peer)


@needs_js
async def test_the_stock_peer_reaches_js() -> None:
    async with (
        ours(1, members=[js_name(JS)]) as relay,
        js_peer(JS, relays=relay.addresses()) as js,
        stock_peer(STOCK) as stock,
    ):
        relay.trust(stock.peer)
        await stock.circuit_to(through(relay, js.peer))
        await stock_pings(stock, js.peer)
