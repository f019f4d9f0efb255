"""How this machine is connected, from what its router did to connections, and from what others could reach.

The words are those of RFC 5382: a router's mapping is the port that it shows to others, its filtering whom it lets in.
Mapping takes two observers who do not sit together; where there is one, that is said.

A pure core.

Invariants:
- Nothing is taken for known that only one peer says of mapping, or that nobody has tried.
- A dial back that arrived is proof, whatever else is not known.
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
"""Who must tell where they see us before anything is concluded from whether they agree."""


class Mapping(Enum):
    """What a router makes of the port from which this machine's connections leave."""

    NONE = "none"
    SAME_PORT = "same_port"
    ANOTHER_PORT = "another_port"
    NOT_KNOWN = "not_known"


class Filtering(Enum):
    """Whom the router, or a firewall, lets in unasked."""

    LETS_IN = "lets_in"
    LETS_NOBODY_IN = "lets_nobody_in"
    NOT_KNOWN = "not_known"


class SecondRouter(Enum):
    """Whether a provider's router, or another one at home, stands behind the first."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"
    NOT_KNOWN = "not_known"


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What is concluded, each with a reason, a clause.

    `seen_at` is where others see this machine over IPv4, `kept_port` whether at the port that it listens on;
    `reached` are addresses that somebody dialled, `not_reached` those that everybody dialled in vain. `shared`: the
    address that a second router gives to the first.
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
    """What the findings say of the way from this machine to others."""
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
    """Why nobody outside could say anything of this machine, as a clause; empty if somebody could."""
    match findings.contact:
        case NotKnown() if not findings.is_with_invite:
            return "nobody outside was asked: that needs an invite"
        case NotKnown():
            return "the learner was not reached"
        case Contact(where=where) if where is not Where.INTERNET:
            return f"the learner is {where.value}, so nobody looked from outside"
        case _:
            return "" if isinstance(findings.evidence, ReachEvidence) else findings.evidence.why


def _mapping(sights: Sequence[Sight], findings: Findings) -> tuple[Mapping, str]:
    if not sights:
        return Mapping.NOT_KNOWN, _why_not_seen(findings)
    if any(_host(one.address) == _host(one.local) for one in sights):
        return Mapping.NONE, "others see this machine's own address"
    seen = {one.origin: one.address for one in sights}
    if len(seen) < OBSERVERS:
        return Mapping.NOT_KNOWN, f"one observer, and it takes {OBSERVERS}"
    who = counted(len(seen), "observer")
    if len(set(seen.values())) == len(seen):
        return Mapping.ANOTHER_PORT, f"{who} see {len(seen)} different ports"
    return Mapping.SAME_PORT, f"{who} see the same"


def _why_not_seen(findings: Findings) -> str:
    if why := why_nothing_outside(findings):
        return why
    if not isinstance(findings.listening, Listening) or not findings.listening.ports:
        return "the node listens nowhere"
    if not findings.network.ip4:
        return "this machine has no IPv4 address"
    return "nobody has said where it sees this machine over IPv4"


def _filtering(
    reached: Sequence[TriedAddress], failed: Sequence[TriedAddress], findings: Findings, evidence: ReachEvidence
) -> tuple[Filtering, str]:
    """By addresses that no router was asked to open: what it opened says nothing of what it does unasked."""
    plain = [one for one in reached if "mapped" not in one.sources]
    if plain:
        return Filtering.LETS_IN, f"{plain[0].address} was dialled from outside, by somebody it had spoken to"
    closed = [one for one in failed if "mapped" not in one.sources]
    if closed:
        tried = ", ".join(one.address for one in closed)
        who = counted(max(len(one.failed_by) for one in closed), "peer")
        return Filtering.LETS_NOBODY_IN, f"{who} dialled {tried} in vain"
    if reached or failed:
        return Filtering.NOT_KNOWN, "the port was opened before it was tried"
    if why := why_nothing_outside(findings):
        return Filtering.NOT_KNOWN, why
    if not evidence.num_helpers:
        return Filtering.NOT_KNOWN, "nobody here dials back"
    return Filtering.NOT_KNOWN, "nobody has dialled back in time" if evidence.addresses else "there was nothing to dial"


def _second_router(findings: Findings, mapping: Mapping) -> tuple[SecondRouter, str]:
    if mapping is Mapping.NONE:
        return SecondRouter.NO, "no router translates addresses here"
    if shared := [host for host in findings.network.ip4 if _is_shared(host)]:
        return SecondRouter.YES, f"{shared[0]}, this machine's address, is of those that providers share out"
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
    """By the routers that were found on the way: the first one that is not this machine's own."""
    beyond = [host for host in hops if host not in set(gateways)]
    if beyond and _is_shared(beyond[0]):
        return SecondRouter.YES, f"the router behind yours has {beyond[0]}, of those that providers share out"
    if beyond and not ipaddress.ip_address(beyond[0]).is_global:
        return SecondRouter.PERHAPS, f"behind your router comes one with the private address {beyond[0]}"
    return SecondRouter.NO, "behind your router comes no other with an address that is not public"


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
