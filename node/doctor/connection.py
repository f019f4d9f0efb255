"""Judge how this machine is connected, from what its router did to connections and from which peers could reach it.

The terms are those of RFC 5382: a router's mapping is the port that it shows to others, its filtering is whom it lets
in. Judging the mapping takes two observers in different places. If there is only one, the reason says so.

A pure core.

Invariants:

- The mapping counts as known only by two observers, and the filtering only by dials that were tried.
- A dial-back that arrived is proof, even if nothing else is known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from node.doctor.findings import Contact, Findings, Listening, NotKnown, PortMapping, Where
from node.runtime.formatting import counted
from swarm.libp2p import SHARED, Address, BadAddress, is_public, parse_address
from swarm.transport.reach_evidence import ReachEvidence, Sight, TriedAddress

OBSERVERS = 2
"""Observers that must report where they see us before anything is concluded from whether they agree."""


class Mapping(Enum):
    """How a router translates the port from which this machine's connections leave."""

    NONE = "none"
    SAME_PORT = "same_port"
    ANOTHER_PORT = "another_port"
    NOT_KNOWN = "not_known"


class Filtering(Enum):
    """Whether the router, or a firewall, lets connections in that this machine did not ask for."""

    LETS_IN = "lets_in"
    LETS_NOBODY_IN = "lets_nobody_in"
    NOT_KNOWN = "not_known"


class SecondRouter(Enum):
    """Whether another router, the provider's or one at home, stands behind the first."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"
    NOT_KNOWN = "not_known"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The conclusions, each with its reason as a clause.

    Args:
        seen_at: addresses at which others see this machine over IPv4.
        kept_port: whether the port in `seen_at` is the one that the machine listens on.
        reached: addresses that a peer has dialled with success.
        not_reached: addresses that every peer dialled without success.
        num_helpers: connected peers that dial back on request.
    """

    mapping: Mapping
    mapping_why: str
    filtering: Filtering
    filtering_why: str
    second_router: SecondRouter
    second_router_why: str
    seen_at: tuple[str, ...] = ()
    kept_port: bool = False
    reached: tuple[TriedAddress, ...] = ()
    not_reached: tuple[TriedAddress, ...] = ()
    num_helpers: int = 0


def judge_connection(findings: Findings) -> Connection:
    """Return what the findings say about the way from this machine to others."""
    evidence = findings.evidence if isinstance(findings.evidence, ReachEvidence) else ReachEvidence()
    sights = [sight for sight in evidence.sights if sight.from_listening and _is_public_ip4(sight.address)]
    mapping, mapping_why = _mapping(sights, findings)
    reached = tuple(one for one in evidence.addresses if one.is_reached)
    failed = tuple(one for one in evidence.addresses if one.is_tried and not one.is_reached)
    filtering, filtering_why = _filtering(reached, failed, findings, evidence)
    second, second_why = _second_router(findings, mapping)
    return Connection(
        mapping=mapping,
        mapping_why=mapping_why,
        filtering=filtering,
        filtering_why=filtering_why,
        second_router=second,
        second_router_why=second_why,
        seen_at=tuple(dict.fromkeys(sight.address for sight in sights)),
        kept_port=bool(sights) and all(_port(one.address) == _port(one.local) for one in sights),
        reached=reached,
        not_reached=failed,
        num_helpers=evidence.num_helpers,
    )


def why_nothing_outside(findings: Findings) -> str:
    """Return why no peer outside could report on this machine, as a clause; "" if one could."""
    match findings.contact:
        case NotKnown() if not findings.is_with_invite:
            return "no peer outside was asked, because that needs an invite"
        case NotKnown():
            return "the learner was not reached"
        case Contact(where=where) if where is not Where.INTERNET:
            return f"the learner is {where.value}, so no peer looked from outside"
        case _:
            return "" if isinstance(findings.evidence, ReachEvidence) else findings.evidence.why


def _mapping(sights: Sequence[Sight], findings: Findings) -> tuple[Mapping, str]:
    if not sights:
        return Mapping.NOT_KNOWN, _why_not_seen(findings)
    if any(_host(one.address) == _host(one.local) for one in sights):
        return Mapping.NONE, "others see this machine's own address"
    seen = {one.origin: one.address for one in sights}
    if len(seen) < OBSERVERS:
        return Mapping.NOT_KNOWN, f"only one observer, and {OBSERVERS} are needed"
    who = counted(len(seen), "observer")
    if len(set(seen.values())) == len(seen):
        return Mapping.ANOTHER_PORT, f"{who} see {len(seen)} different ports"
    return Mapping.SAME_PORT, f"{who} see the same port"


def _why_not_seen(findings: Findings) -> str:
    if why := why_nothing_outside(findings):
        return why
    if not isinstance(findings.listening, Listening) or not findings.listening.ports:
        return "the node does not listen"
    if not findings.network.ip4:
        return "this machine has no IPv4 address"
    return "no peer has reported at which IPv4 address it sees this machine"


def _filtering(
    reached: Sequence[TriedAddress], failed: Sequence[TriedAddress], findings: Findings, evidence: ReachEvidence
) -> tuple[Filtering, str]:
    """Judge by addresses that no router was asked to open: an opened port does not show what is let in otherwise."""
    plain = [one for one in reached if "mapped" not in one.sources]
    if plain:
        return Filtering.LETS_IN, f"{plain[0].address} was dialled from outside, by a peer that we had contacted"
    closed = [one for one in failed if "mapped" not in one.sources]
    if closed:
        tried = ", ".join(one.address for one in closed)
        who = counted(max(len(one.failed_by) for one in closed), "peer")
        return Filtering.LETS_NOBODY_IN, f"{who} could not connect to {tried}"
    if reached or failed:
        return Filtering.NOT_KNOWN, "the router had opened the port before it was tried"
    if why := why_nothing_outside(findings):
        return Filtering.NOT_KNOWN, why
    if not evidence.num_helpers:
        return Filtering.NOT_KNOWN, "no connected peer dials back"
    return Filtering.NOT_KNOWN, "no peer dialled back in time" if evidence.addresses else "there was no address to dial"


def _second_router(findings: Findings, mapping: Mapping) -> tuple[SecondRouter, str]:
    if mapping is Mapping.NONE:
        return SecondRouter.NO, "no router translates addresses here"
    if shared := [host for host in findings.network.ip4 if _is_shared(host)]:
        return SecondRouter.YES, f"this machine has {shared[0]}, an address that providers share (CGNAT)"
    ports = findings.mapping.mapped if isinstance(findings.mapping, PortMapping) else ()
    for port in ports:
        host = _host(port.address)
        if port.is_behind_another_nat:
            return SecondRouter.YES, f"the router at {port.gateway} has the address {host}, which is not public"
        if ":" not in host:
            return SecondRouter.NO, f"the router at {port.gateway} has the public address {host}"
    if isinstance(findings.hops, NotKnown):
        return SecondRouter.NOT_KNOWN, findings.hops.why
    return _second_of(findings.hops, findings.network.gateways)


def _second_of(hops: Sequence[str], gateways: Iterable[str]) -> tuple[SecondRouter, str]:
    """Judge by the routers that were found on the way: the first one that is not this machine's own."""
    beyond = [host for host in hops if host not in set(gateways)]
    if beyond and _is_shared(beyond[0]):
        return SecondRouter.YES, f"the router behind yours has {beyond[0]}, an address that providers share (CGNAT)"
    if beyond and not ipaddress.ip_address(beyond[0]).is_global:
        return SecondRouter.PERHAPS, f"behind your router is another one, with the private address {beyond[0]}"
    return SecondRouter.NO, "no router with a private address was found behind yours"


def _is_shared(host: str) -> bool:
    ip = ipaddress.ip_address(host)
    return ip.version == 4 and ip in SHARED


def _is_public_ip4(text: str) -> bool:
    address = _parsed(text)
    return address is not None and address.kind == "ip4" and is_public(address)


def _host(text: str) -> str:
    address = _parsed(text)
    return "" if address is None else address.host


def _port(text: str) -> int:
    address = _parsed(text)
    return 0 if address is None else address.port


def _parsed(text: str) -> Address | None:
    try:
        return parse_address(text)
    except BadAddress:
        return None
