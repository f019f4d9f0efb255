"""Reach a peer at one of its addresses: try each a little after the one before, and keep the first that succeeds.

Invariants:

- One call at a time dials a peer; others wait for its result.
- Only the peer that the caller named is dialled.
- Every failure is reported; those with the same reason are told together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import trio

from protocol.core.ids import PeerId
from swarm.libp2p.connection import Connection
from swarm.libp2p.racing import Attempt, race
from swarm.libp2p.security import BothDialled, HandshakeFailed
from swarm.libp2p.sockets.addresses import Address, BadAddress, CircuitAddress, parse_dialable
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.transport.interface import DIAL_TIMEOUT_S, DialFailed

CROSSED_S = 1.0
"""Seconds for the other end to dial again where two dials became one connection: a few round trips of a slow link."""

T = TypeVar("T")

FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


class Dialling(Protocol):
    """The parts of the host that the dialler uses."""

    @property
    def peer_id(self) -> PeerId: ...

    def open_connection(self, peer: PeerId) -> Connection | None: ...

    def is_met(self, peer: PeerId) -> bool: ...

    async def unless_met(self, peer: PeerId, act: Callable[[], Awaitable[T]]) -> T | None: ...

    async def connect(
        self, wanted: PeerId, address: Address, *, is_initiator: bool = True, leaves: Leaves = Leaves.IF_IT_CAN
    ) -> None: ...


class Dialler:
    """Dial peers, directly and through relays.

    Args:
        through: connects to a peer through a relay, given the peer's addresses there and whether others named them.
            It returns why it failed, "" if it did not.
        may_dial: whether an address that others named may be dialled.
    """

    def __init__(
        self,
        host: Dialling,
        through: Callable[[Sequence[CircuitAddress], bool], Awaitable[str]],
        may_dial: Callable[[Address], bool],
    ) -> None:
        self._host = host
        self._through = through
        self._may_dial = may_dial
        self._dialling: dict[PeerId, trio.Lock] = {}

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool) -> PeerId:
        """See `swarm.transport.interface.Transport.dial`."""
        await trio.lowlevel.checkpoint()
        try:
            wanted, candidates = parse_dialable(addresses)
        except BadAddress as error:
            raise DialFailed(str(error)) from error
        if wanted == self._host.peer_id:
            raise DialFailed(f"{candidates[0]} is this node itself")
        lock = self._dialling.setdefault(wanted, trio.Lock())
        try:
            async with lock:
                if self._host.open_connection(wanted) is None:
                    direct = [one for one in candidates if isinstance(one, Address)]
                    relays: dict[PeerId | None, list[CircuitAddress]] = {}
                    for one in candidates:
                        if isinstance(one, CircuitAddress):
                            relays.setdefault(one.relay.peer, []).append(one)
                    attempts: list[Attempt] = [
                        partial(self._try, wanted, address, named_by_others) for address in direct
                    ]
                    attempts += [partial(self._through, circuits, named_by_others) for circuits in relays.values()]
                    failures = await race(attempts)
                    if failures and self._host.open_connection(wanted) is None:
                        raise DialFailed(_together(failures))
        finally:
            if not lock.statistics().tasks_waiting:
                self._dialling.pop(wanted, None)
        return wanted

    async def _try(self, wanted: PeerId, address: Address, named_by_others: bool) -> str:
        """Connect to one address; return why that failed, "" if it did not."""
        try:
            with trio.fail_after(DIAL_TIMEOUT_S):
                return await self._connect(wanted, address, named_by_others)
        except trio.TooSlowError:
            return _failure(address, f"no answer within {DIAL_TIMEOUT_S:.0f} s")
        except (OSError, UnicodeError) as error:  # UnicodeError: from a name that no resolver accepts
            return _failure(address, _said(error))

    async def _connect(self, wanted: PeerId, address: Address, named_by_others: bool) -> str:
        """Do the same without a timeout. Raises OSError, and UnicodeError for a name that does not resolve."""
        found = [address] if address.kind not in FAMILIES else await _resolve(address)
        if named_by_others:
            found = [one for one in found if self._may_dial(one)]
            if not found:
                return _failure(
                    address, "leads into a private network, where addresses that others named are not dialled"
                )
        return "; ".join(await race([partial(self._connect_to, wanted, one, address) for one in found]))

    async def _connect_to(self, wanted: PeerId, found: Address, address: Address) -> str:
        try:
            try:
                await self._host.connect(wanted, found)
            except BothDialled:
                await self._connect_again(wanted, found)
        except (OSError, HandshakeFailed) as error:
            return _failure(address, _said(error))
        return ""

    async def _connect_again(self, wanted: PeerId, found: Address) -> None:
        """Connect once more, after two dials became one connection. Raises OSError, HandshakeFailed.

        This dial leaves from a port of its own, so that it cannot cross with the peer's. The node with the smaller id
        dials first, and usually the other one need not dial at all.
        """
        if self._host.peer_id > wanted:
            await self._host.unless_met(wanted, partial(trio.sleep, CROSSED_S))
        if not self._host.is_met(wanted):
            await self._host.connect(wanted, found, leaves=Leaves.ANEW)


def _failure(address: Address, why: str) -> str:
    """Return why an address cannot be reached. Who should answer there is known to whoever dials."""
    return f"{replace(address, peer=None)}: {why}"


def _said(error: Exception) -> str:
    """Return what an error says, without the address, which a system's error may name in a form of its own."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)


def _together(failures: Sequence[str]) -> str:
    """Return all failures, those with the same reason together."""
    where: dict[str, list[str]] = {}
    for failure in "; ".join(failures).split("; "):
        address, _, why = failure.partition(": ")
        where.setdefault(why, []).append(address)
    return "; ".join(f"{', '.join(dict.fromkeys(found))}: {why}".rstrip(": ") for why, found in where.items())


async def _resolve(address: Address) -> list[Address]:
    """Return the IP addresses of a name, in the order that the system prefers. Raises OSError, UnicodeError."""
    found = await trio.socket.getaddrinfo(
        address.host, address.port, family=FAMILIES[address.kind], type=socket.SOCK_STREAM
    )
    hosts = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
    return [Address(kind="ip6" if ":" in host else "ip4", host=host, port=address.port) for host in hosts]
