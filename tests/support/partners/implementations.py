"""Give other implementations of libp2p one interface for shared tests: start, reserve, reach and ping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from protocol.core.ids import PeerId
from swarm.libp2p.identify import PING_PROTOCOL
from swarm.libp2p.reachability.autonat.server import DIAL_REQUEST
from swarm.libp2p.reachability.relaying.relay import HOP, STOP
from swarm.libp2p.security import NOISE, TLS, Identity
from tests.support.partners.go_peer import GoError, GoPeer, go_behind, go_peer, go_pings
from tests.support.partners.js_peer import JsError, JsPeer, js_peer
from tests.support.partners.programs import needs_go, needs_js
from tests.support.partners.stock_peer import StockPeer, stock_peer, stock_pings

ONLY = {TLS: "-noise=false", NOISE: "-tls=false"}
"""Flags with which go-libp2p's daemon speaks one security protocol alone."""

JS_NAMES = {TLS: "tls", NOISE: "noise"}


class Peer(Protocol):
    """A running peer of another implementation."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def addresses(self) -> list[str]: ...

    async def reach(self, peer: PeerId, address: str) -> None:
        """Connect to a peer at an address, which may lead through a relay. Raises the implementation's own errors."""

    async def ping(self, peer: PeerId) -> None:
        """Have a connected peer send back what is sent."""


class Opened(Protocol):
    """Starts a peer, which ends with the scope. With `relay`, an address, the peer reserves there, now or soon;
    without, it can be a relay itself.
    """

    def __call__(self, seed: int, *, relay: str = "", security: str = "") -> AbstractAsyncContextManager[Peer]: ...


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One implementation.

    Args:
        agent: its name in identify, as far as that does not change with versions.
        speaks: protocols that it names among others.
        error: the exception of its peers where a relay refuses something.
        told: the words in that exception that show the relay's answer.
    """

    title: str
    open: Opened
    agent: str
    speaks: frozenset[str]
    error: type[Exception]
    told: Callable[[str], str] = lambda status: status
    marks: tuple[pytest.MarkDecorator, ...] = ()


def name_of(seed: int) -> PeerId:
    """Return the name of the peer with this seed, in any implementation."""
    return Identity.from_seed(bytes([seed]) * 32).peer_id


@dataclass(frozen=True)
class _Go:
    go: GoPeer

    @property
    def peer(self) -> PeerId:
        return self.go.peer

    @property
    def addresses(self) -> list[str]:
        return self.go.addresses

    async def reach(self, peer: PeerId, address: str) -> None:
        await self.go.connect(peer, address)

    async def ping(self, peer: PeerId) -> None:
        await go_pings(self.go, peer)


@dataclass(frozen=True)
class _Js:
    js: JsPeer

    @property
    def peer(self) -> PeerId:
        return self.js.peer

    @property
    def addresses(self) -> list[str]:
        return self.js.addresses

    async def reach(self, peer: PeerId, address: str) -> None:
        await self.js.order("dial", address=address)

    async def ping(self, peer: PeerId) -> None:
        await self.js.order("ping", peer=peer)


@dataclass(frozen=True)
class _Stock:
    stock: StockPeer

    @property
    def peer(self) -> PeerId:
        return self.stock.peer

    @property
    def addresses(self) -> list[str]:
        return self.stock.addresses

    async def reach(self, peer: PeerId, address: str) -> None:
        await self.stock.circuit_to(address)

    async def ping(self, peer: PeerId) -> None:
        await stock_pings(self.stock, peer)


@asynccontextmanager
async def _open_go(seed: int, *, relay: str = "", security: str = "") -> AsyncIterator[Peer]:
    flags = [ONLY[security]] if security else []
    async with go_behind(relay, seed, *flags) if relay else go_peer(seed, *flags) as go:
        yield _Go(go)


@asynccontextmanager
async def _open_js(seed: int, *, relay: str = "", security: str = "") -> AsyncIterator[Peer]:
    spoken = [JS_NAMES[security]] if security else list(JS_NAMES.values())
    async with js_peer(seed, relays=[relay] if relay else [], security=spoken) as js:
        yield _Js(js)


@asynccontextmanager
async def _open_stock(seed: int, *, relay: str = "", security: str = "") -> AsyncIterator[Peer]:
    async with stock_peer(seed, relays=not relay, security=security or NOISE) as stock:
        if relay:
            assert await stock.reserve(relay)
        yield _Stock(stock)


GO = Implementation(
    title="go",
    open=_open_go,
    agent="p2pd/0.1",
    speaks=frozenset({HOP, STOP, PING_PROTOCOL}),
    error=GoError,
    marks=(needs_go,),
)
JS = Implementation(
    title="js",
    open=_open_js,
    agent="js-libp2p/",
    speaks=frozenset({HOP, STOP, DIAL_REQUEST}),
    error=JsError,
    marks=(needs_js,),
)
STOCK = Implementation(
    title="stock",
    open=_open_stock,
    agent="",
    speaks=frozenset(),
    error=ConnectionError,
    told=lambda status: f"status {pb.Status.Value(status)}",
)
ALL = (GO, JS, STOCK)
