"""Decide which peers can meet, and which addresses of a peer another one gets.

Invariants:

- A node that does not know circuits gets no circuit addresses, because one address that it cannot read makes it ignore
  all.
- A peer that can be dialled is introduced with its own addresses. Other peers are introduced with them only to peers in
  the same network, and through relays to all others.
- A private address is never sent outside its network, where it would belong to another machine. Most homes use the same
  few private networks, so a peer could otherwise make all others dial their own printers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache

from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ADDRESSES
from protocol.reach import Reach, ReachKind
from protocol.versions.exchange import PeerAddresses
from swarm.libp2p import BadAddress, circuit_address, is_private, parse_address
from swarm.work.neighbour_graph import Meets

MEETS = {
    ReachKind.DIRECTLY: Meets.ALL,
    ReachKind.MAPPED: Meets.ALL,
    ReachKind.BY_PUNCHING: Meets.MOST,
    ReachKind.NOT: Meets.OPEN_ONES,
}
"""By a peer's reach: which peers it can meet. A peer that does not report its reach, or does not know it yet, is
introduced to all, as all peers once were."""

REMEMBERED = 16_384
"""Cached results about addresses and origins, which every introduction needs again: a few for each of 4096 members."""

CIRCUITS_TOLD = 4
"""Most circuit addresses of a peer: two relays, with an IPv4 and an IPv6 address each."""


def meets_of(reach: Reach | None, *, carries_bulk: bool = False) -> Meets:
    """Return which peers a peer with this reach can meet.

    If the learner `carries_bulk`, peers that cannot be dialled meet each other through it.
    """
    meets = Meets.ALL if reach is None else MEETS.get(reach.kind, Meets.ALL)
    return Meets.MOST if carries_bulk and meets is Meets.OPEN_ONES else meets


def addresses_for(
    asker: Reach | None,
    peer: PeerId,
    reach: Reach | None,
    told: Sequence[str],
    relays: Mapping[PeerId, Sequence[str]],
    *,
    shares_network: bool,
) -> PeerAddresses:
    """Return the addresses of `peer` for another peer.

    Args:
        asker: the other peer's own reach.
        peer: the peer to introduce.
        reach: its reach, as it reports it.
        told: its addresses, as it reports them.
        relays: the addresses of all possible relays.
        shares_network: whether the two seem to be behind one router.
    """
    if not shares_network:
        told = [address for address in told if not _is_inside(address)]
    if reach is None or asker is None:
        return PeerAddresses(peer=peer, addresses=list(told))
    if reach.kind in {ReachKind.BY_PUNCHING, ReachKind.NOT}:
        direct = [address for address in told if _is_inside(address)]
    else:
        direct = [*(f"{address}/p2p/{peer}" for address in reach.addresses), *told]
    by_relay = [
        circuit_address(address, peer) for relay in reach.relays for address in relays.get(PeerId(relay), ())[:2]
    ]
    some = list(dict.fromkeys(direct))[: MAX_ADDRESSES - CIRCUITS_TOLD]
    return PeerAddresses(peer=peer, addresses=[*some, *by_relay[:CIRCUITS_TOLD]])


def share_network(one: str | None, other: str | None) -> bool:
    """Return whether two origins may be in one network: they are equal, or both are in the learner's own network."""
    if one is None or other is None:
        return False
    return one == other or not (_is_outside(one) or _is_outside(other))


@lru_cache(maxsize=REMEMBERED)
def _is_outside(origin: str) -> bool:
    try:
        return ipaddress.ip_network(origin).is_global
    except ValueError:
        return True


@lru_cache(maxsize=REMEMBERED)
def _is_inside(address: str) -> bool:
    """Return whether an address is private, as inside a home."""
    try:
        return is_private(parse_address(address))
    except BadAddress:
        return False
