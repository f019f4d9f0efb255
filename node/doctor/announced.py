"""Find out whether a learner's addresses can be dialled from outside, before it starts, by asking returning members.

Members of a learner that was stopped look for it every few seconds. So a dry run listens where the learner would, meets
the members that come, has them dial the addresses that it announces, and lets them go. They find nothing to do, and
continue to look for their learner.

Invariants:

- The dry run waits only if members are remembered, and no longer than WAIT_S.
- It asks no router for a port, and gives no version, lease or receipt.
- An address that no member has tried is reported as not known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import trio

from node.config.swarm_config import NetworkSection
from node.doctor.findings import LocalNetwork
from node.doctor.local_network import read_local_network
from node.network.transport import open_transport
from node.runtime.formatting import counted
from swarm.libp2p import BadAddress, is_public, parse_address
from swarm.transport.interface import ListenFailed, Transport
from swarm.transport.reach_evidence import ReachEvidence

WAIT_S = 24.0
"""Seconds for members to come and to dial. They look for their learner every 19 s at most."""

LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The result of asking. `num_came` members came within the time. `failure`: why no member could be asked."""

    evidence: ReachEvidence = field(default_factory=ReachEvidence)
    num_came: int = 0
    failure: str = ""


async def ask_members(seed: bytes, network: NetworkSection) -> Asked:
    """Listen for a while with the learner's key, and have the members that come dial its addresses."""
    silent = msgspec.structs.replace(network, map_port=False)
    try:
        async with open_transport(seed, silent) as transport:
            with trio.move_on_after(WAIT_S):
                while not _is_tried(transport.reach_evidence()):
                    await trio.sleep(LOOK_S)
            return _asked(transport)
    except ListenFailed as error:
        return Asked(failure=f"{error}. Stop the program that listens there, or set another port in [network] listen.")


def _asked(transport: Transport) -> Asked:
    return Asked(evidence=transport.reach_evidence(), num_came=len(transport.connected_peers()))


def _is_tried(evidence: ReachEvidence) -> bool:
    return bool(evidence.addresses) and all(one.is_tried for one in evidence.addresses)


async def describe_addresses(network: NetworkSection, asked: Asked | None) -> list[str]:
    """Return what to say about the addresses, in sentences. `asked` is None if no member was asked."""
    return list(address_lines(network, await read_local_network(), asked))


def address_lines(network: NetworkSection, local: LocalNetwork, asked: Asked | None) -> Iterator[str]:
    """Yield the same sentences for a machine with the addresses of `local`."""
    if not network.listen:
        yield "No node can join, because the learner listens on no address: [network] listen = []."
        return
    for text in network.announce:
        if why := why_not_outside(text):
            yield f"[network] announce: {text} cannot be dialled from other networks: {why}."
    if not network.announce and not any(ipaddress.ip_address(host).is_global for host in (*local.ip4, *local.ip6)):
        here = ", ".join((*local.ip4, *local.ip6)) or "none"
        yield (
            f"No address is announced, and this machine's addresses ({here}) are private. Other networks reach it only "
            "through a port of its router. Set [network] map_port = true, or forward the port and set announce."
        )
    yield from _tried(asked)


def _tried(asked: Asked | None) -> Iterator[str]:
    if asked is not None and asked.failure:
        yield asked.failure
        return
    tried = [one for one in asked.evidence.addresses if one.is_tried] if asked is not None else []
    for one in tried:
        if one.is_reached:
            yield f"{one.address} can be dialled from outside: a member has done so."
        else:
            who = counted(len(one.failed_by), "member")
            yield (
                f"{one.address} was dialled by {who} without success. Forward that port at the router, and allow it in "
                "the firewall."
            )
    if not tried:
        yield (
            f"Whether these addresses can be dialled from outside is not known: {_why_untried(asked)}. Run `volery "
            "doctor INVITE` on a machine elsewhere, or look at `volery status` once members are here."
        )


def _why_untried(asked: Asked | None) -> str:
    if asked is None:
        return "no member is here to ask"
    if asked.num_came:
        return f"{counted(asked.num_came, 'member')} came, but dialled nothing"
    return f"no member came within {WAIT_S:.0f} s, either because none is looking or because none reaches this machine"


def why_not_outside(text: str) -> str:
    """Return why an address cannot be dialled from other networks, as a clause; "" if it may be."""
    try:
        address = parse_address(text)
    except BadAddress as error:
        return str(error)
    if not address.kind.startswith("ip") or is_public(address):
        return ""
    if ipaddress.ip_address(address.host).is_loopback:
        return f"{address.host} means the dialling machine itself"
    return f"{address.host} is an address of one network, and means nothing outside it"
