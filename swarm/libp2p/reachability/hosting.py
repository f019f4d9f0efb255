"""Declare the parts of the host that reaching others, and being reached, uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import trio

from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.connection import Connection, Route
from swarm.libp2p.haste import Haste
from swarm.libp2p.security import Identity, RawConnection, SecureChannel, SecurityTable
from swarm.libp2p.sockets.addresses import Address
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.interface import StreamHandler

T = TypeVar("T")


class Hosting(Protocol):
    """The interface of `swarm.libp2p.host.Host` that this package uses."""

    identity: Identity
    security: SecurityTable
    haste: Haste
    listeners: tuple[trio.SocketListener, ...]

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> list[str]: ...

    def is_trusted(self, peer: PeerId) -> bool: ...

    def connections(self) -> list[Connection]: ...

    def connections_to(self, peer: PeerId) -> list[Connection]: ...

    def is_met(self, peer: PeerId) -> bool: ...

    def relist(self) -> None: ...

    def open_connection(self, peer: PeerId) -> Connection | None: ...

    async def open_stream_on(self, connection: Connection, protocol: str, first: bytes = b"") -> Libp2pStream: ...

    async def connect(
        self,
        wanted: PeerId,
        address: Address,
        *,
        is_initiator: bool = True,
        leaves: Leaves = Leaves.IF_IT_CAN,
        way: Way = Way.DIALLED,
    ) -> None: ...

    async def connect_apart(self, wanted: PeerId, address: Address, leaves: Leaves = Leaves.ANEW) -> Connection: ...

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool = False) -> PeerId: ...

    async def unless_met(self, peer: PeerId, act: Callable[[], Awaitable[T]]) -> T | None: ...

    def handle(self, protocol: str, handler: StreamHandler) -> None: ...

    def add(
        self, channel: SecureChannel, raw: RawConnection, route: Route, *, is_member: bool, is_initiator: bool
    ) -> Connection: ...
