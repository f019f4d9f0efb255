"""Ask one gateway for one port by PCP or NAT-PMP, and find out which of them it speaks.

A gateway that speaks only NAT-PMP must answer PCP with "unsupported version" (RFC 6886 section 3.5), yet some say
nothing. So both are asked at the same time, with requests that change nothing; PCP is preferred.

Invariants:

- An answer counts only if it repeats the request's nonce, protocol and port (PCP), or its port (NAT-PMP).
- Nothing that a gateway sends raises an error here.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field

import trio

from swarm.libp2p.port_mapping import nat_pmp, pcp
from swarm.libp2p.port_mapping.epoch import EpochWatch
from swarm.libp2p.port_mapping.gateway_client import GatewayClient, GatewayUnreachable
from swarm.libp2p.port_mapping.lease import Forgot, Moved
from swarm.libp2p.port_mapping.outcomes import (
    Answer,
    BadDatagram,
    Granted,
    IPAddress,
    MappedBy,
    NoAnswer,
    Refused,
    why_no_external,
)
from swarm.libp2p.sockets.addresses import Address

FORGOTTEN = "the router has forgotten it: it was restarted, or has another connection to the internet"


async def find_spoken(client: GatewayClient) -> MappedBy | None:
    """Return the protocol that the gateway speaks, PCP if it speaks both; None if it answers neither."""
    spoken: list[MappedBy] = []

    def read(datagram: bytes) -> MappedBy | None:
        if not datagram or datagram[0] != pcp.VERSION:
            return _read_other(datagram)
        match pcp.decode_answer(datagram):
            case pcp.VersionUnsupported():
                return None
            case _:
                return MappedBy.PCP

    def _read_other(datagram: bytes) -> MappedBy | None:
        match nat_pmp.decode_answer(datagram):
            case nat_pmp.Failure(result=nat_pmp.Result.UNSUPPORTED_VERSION):
                return MappedBy.NAT_PMP  # this is its answer to PCP
            case nat_pmp.ExternalAddress() | nat_pmp.Failure():
                spoken.append(MappedBy.NAT_PMP)
        return None

    requests = [pcp.encode_announce(client.own)]
    if client.gateway.host.version == 4:
        requests.append(nat_pmp.encode_address_request())
    try:
        return await client.ask(requests, read, lambda: bool(spoken)) or next(iter(spoken), None)
    except GatewayUnreachable:
        return None


@dataclass(kw_only=True)
class PcpWay:
    """A mapping by PCP, which its nonce makes ours: nobody else can renew or delete it."""

    client: GatewayClient
    internal_port: int
    protocol: MappedBy = MappedBy.PCP
    _nonce: bytes = field(default_factory=lambda: secrets.token_bytes(pcp.NONCE_BYTES))
    _host: IPAddress | None = None
    """The external address that we have."""
    _epoch: EpochWatch = field(default_factory=lambda: EpochWatch(protocol=MappedBy.PCP))

    async def ask(self, external_port: int, lifetime_s: int) -> Answer:
        """Ask for the port, or renew it."""
        match await self._map(external_port, lifetime_s):
            case pcp.MapAnswer(result=pcp.Result.SUCCESS) as answer if not answer.lifetime_s:
                return Refused(why="the router granted the port for 0 s")
            case pcp.MapAnswer(result=pcp.Result.SUCCESS) as answer:
                if answer.external_host.version != self.client.own.version:
                    return Refused(why=f"the router grants {answer.external_host}, which is not of our IP version")
                self._host = answer.external_host
                return Granted(
                    external=_address(answer.external_host, answer.external_port), lifetime_s=answer.lifetime_s
                )
            case pcp.PcpAnswer() as answer:
                is_conflict = answer.result == pcp.Result.CANNOT_PROVIDE_EXTERNAL
                return Refused(why=pcp.explain(answer.result), is_conflict=is_conflict, wait_s=answer.lifetime_s)
            case pcp.VersionUnsupported(speaks=speaks):
                return Refused(why=f"the router speaks only version {speaks} of PCP")
            case None:
                return NoAnswer(why="the router does not answer PCP")

    async def look(self) -> Forgot | Moved | None:
        """Return what happened to the mapping; None if nothing did, or the gateway is silent."""

        def read(datagram: bytes) -> pcp.PcpAnswer | None:
            answer = pcp.decode_answer(datagram)
            return answer if isinstance(answer, pcp.PcpAnswer) and answer.opcode == pcp.Opcode.ANNOUNCE else None

        try:
            answer = await self.client.ask([pcp.encode_announce(self.client.own)], read)
        except GatewayUnreachable:
            return None
        if answer is not None and self._epoch.has_forgotten(answer.epoch, trio.current_time()):
            return Forgot(why=FORGOTTEN)
        return None

    async def release(self) -> None:
        """Delete the mapping."""
        await self._map(0, 0)

    async def _map(self, external_port: int, lifetime_s: int) -> pcp.PcpAnswer | pcp.VersionUnsupported | None:
        own = self.client.own
        nowhere = ipaddress.ip_address("0.0.0.0" if own.version == 4 else "::")
        if own.version == 6 and lifetime_s:  # a pinhole: nothing is translated
            external_port, nowhere = self.internal_port, own
        request = pcp.encode_map(
            client=own,
            nonce=self._nonce,
            internal_port=self.internal_port,
            external_port=external_port,
            external=self._host if self._host is not None and lifetime_s else nowhere,
            lifetime_s=lifetime_s,
        )
        answer: pcp.PcpAnswer | pcp.VersionUnsupported | None
        try:
            answer = await self.client.ask([request], self._read)
        except GatewayUnreachable:
            return None
        if isinstance(answer, pcp.PcpAnswer):
            self._epoch.has_forgotten(answer.epoch, trio.current_time())  # only noted: this answer is new anyway
        return answer

    def _read(self, datagram: bytes) -> pcp.PcpAnswer | pcp.VersionUnsupported | None:
        match pcp.decode_answer(datagram):
            case pcp.VersionUnsupported() as answer:
                return answer
            case pcp.MapAnswer() as answer if (answer.nonce, answer.protocol, answer.internal_port) != (
                self._nonce,
                pcp.TCP,
                self.internal_port,
            ):
                return None
            case pcp.PcpAnswer(opcode=pcp.Opcode.MAP) as answer:
                return answer
            case _:
                return None


@dataclass(kw_only=True)
class NatPmpWay:
    """A mapping by NAT-PMP, which belongs to this machine's address and internal port."""

    client: GatewayClient
    internal_port: int
    protocol: MappedBy = MappedBy.NAT_PMP
    _host: ipaddress.IPv4Address | None = None
    _epoch: EpochWatch = field(default_factory=lambda: EpochWatch(protocol=MappedBy.NAT_PMP))

    async def ask(self, external_port: int, lifetime_s: int) -> Answer:
        """Ask for the port, or renew it."""
        match await self._address():
            case nat_pmp.ExternalAddress(host=host):
                self._host = host
            case nat_pmp.Failure(result=result):
                return Refused(why=nat_pmp.explain(result))
            case None:
                return NoAnswer(why="the router does not answer NAT-PMP")
        match await self._map(external_port, lifetime_s):
            case nat_pmp.Failure(result=result):
                return Refused(why=nat_pmp.explain(result))
            case nat_pmp.PortAnswer() as answer if answer.lifetime_s:
                return Granted(external=_address(self._host, answer.external_port), lifetime_s=answer.lifetime_s)
            case nat_pmp.PortAnswer():
                return Refused(why="the router granted the port for 0 s")
            case None:
                return NoAnswer(why="the router does not answer NAT-PMP")

    async def look(self) -> Forgot | Moved | None:
        """Return what happened to the mapping; None if nothing did, or the gateway is silent."""
        match await self._address():
            case nat_pmp.ExternalAddress(host=host, epoch=epoch):
                if self._epoch.has_forgotten(epoch, trio.current_time()):
                    return Forgot(why=FORGOTTEN)
                if host != self._host:
                    self._host = host
                    return Moved(host=str(host))
        return None

    async def release(self) -> None:
        """Delete the mapping."""
        await self._map(0, 0)

    async def _address(self) -> nat_pmp.ExternalAddress | nat_pmp.Failure | None:
        def read(datagram: bytes) -> nat_pmp.ExternalAddress | nat_pmp.Failure | None:
            match nat_pmp.decode_answer(datagram):
                case nat_pmp.ExternalAddress() as answer:
                    return answer
                case nat_pmp.Failure(opcode=nat_pmp.Opcode.ADDRESS) as answer:
                    return answer
                case _:
                    return None

        try:
            return await self.client.ask([nat_pmp.encode_address_request()], read)
        except GatewayUnreachable:
            return None

    async def _map(self, external_port: int, lifetime_s: int) -> nat_pmp.PortAnswer | nat_pmp.Failure | None:
        def read(datagram: bytes) -> nat_pmp.PortAnswer | nat_pmp.Failure | None:
            match nat_pmp.decode_answer(datagram):
                case nat_pmp.PortAnswer(internal_port=port) as answer if port == self.internal_port:
                    return answer
                case nat_pmp.Failure(opcode=nat_pmp.Opcode.MAP_TCP) as answer:
                    return answer
                case _:
                    return None

        request = nat_pmp.encode_map(
            internal_port=self.internal_port, external_port=external_port, lifetime_s=lifetime_s
        )
        answer: nat_pmp.PortAnswer | nat_pmp.Failure | None
        try:
            answer = await self.client.ask([request], read)
        except GatewayUnreachable:
            return None
        if answer is not None:
            self._epoch.has_forgotten(answer.epoch, trio.current_time())
        return answer


def _address(host: IPAddress, port: int) -> Address:
    """Return the address. The decoders let no invalid one through."""
    if why := why_no_external(host, port):
        raise BadDatagram(why)
    return Address(kind=f"ip{host.version}", host=str(host), port=port)
