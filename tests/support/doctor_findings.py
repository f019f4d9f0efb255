"""Provide findings of machines as they exist, for tests of the conclusions from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from node.doctor.findings import (
    ClockOffset,
    Contact,
    Disk,
    EngineFinding,
    Findings,
    Listening,
    LocalNetwork,
    NotKnown,
    PortMapping,
    Rate,
    Where,
)
from node.network.newcomer import Found
from protocol.core.genesis import read_genesis
from protocol.core.ids import PeerId
from protocol.versions.exchange import TellTerms
from swarm.transport.reach_evidence import ReachEvidence, Sight, TriedAddress
from tests.support.store_fixture import small_model, small_swarm

SWARM = small_swarm()
SIGNED = SWARM.publish(small_model(1))
FOUND = Found(
    genesis=read_genesis(SWARM.genesis)[0],
    learner=PeerId(SWARM.learner.peer_id),
    certificate=None,
    terms=TellTerms(certificate=SWARM.certificate, model="Small", steps=3),
    newest=SIGNED,
)
HOME, SEEN = "/ip4/192.168.1.2/tcp/4001", "/ip4/45.0.0.1/tcp/4001"


def sight(address: str = SEEN, origin: str = "45.0.1.1", local: str = HOME, *, from_listening: bool = True) -> Sight:
    """Return an observation: a peer at `origin` sees us at an address."""
    return Sight(
        peer=PeerId(f"peer at {origin}"), origin=origin, address=address, local=local, from_listening=from_listening
    )


def tried(address: str = SEEN, *sources: str, is_reached: bool = False, failed_by: int = 0) -> TriedAddress:
    """Return the test of an address of ours, observed unless `sources` say otherwise."""
    return TriedAddress(
        address=address,
        sources=frozenset(sources or ("observed",)),
        is_reached=is_reached,
        failed_by=frozenset(f"45.0.1.{number + 1}" for number in range(failed_by)),
    )


def evidence(*sights: Sight, addresses: tuple[TriedAddress, ...] = (), num_helpers: int = 1) -> ReachEvidence:
    return ReachEvidence(sights=sights, addresses=addresses, num_helpers=num_helpers)


def findings(**changes: Any) -> Findings:
    """Return findings on a machine behind a router as most homes have it, which two observers looked at."""
    usual = Findings(
        network=LocalNetwork(ip4=("192.168.1.2",), gateways=("192.168.1.1",)),
        listening=Listening(ports=(4001,), is_fixed=True),
        map_port=True,
        contact=Contact(found=FOUND, where=Where.INTERNET, num_members=1),
        failure="",
        is_usage=False,
        evidence=evidence(sight(), sight(origin="45.0.2.2"), addresses=(tried(failed_by=1),)),
        mapping=PortMapping(refusals=(("192.168.1.1", "the router does not answer"),)),
        hops=("192.168.1.1", "45.0.0.254"),
        clock=ClockOffset(ahead_s=0.002, error_s=0.01, round_trip_s=0.02),
        down=Rate(size_bytes=8 << 20, seconds=2.0, is_coarse=False),
        up=Rate(size_bytes=2 << 20, seconds=1.0, is_coarse=False),
        engine=EngineFinding(kind="transformers", device="auto", why="there is no NVIDIA GPU here"),
        speed=NotKnown(why="no version is here"),
        disk=Disk(place="/home/me/volery", free_bytes=10 << 30, quota_bytes=64_000_000_000),
        is_with_invite=True,
    )
    return replace(usual, **changes)


def without_invite() -> Findings:
    """Return findings on the same machine, without any observer."""
    nothing = NotKnown(why="that needs an invite")
    parts = ("listening", "contact", "evidence", "mapping", "hops", "clock", "down", "up")
    return findings(is_with_invite=False, **dict.fromkeys(parts, nothing))
