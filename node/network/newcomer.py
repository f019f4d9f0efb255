"""Ask what anybody with an invite may learn of a swarm without joining it.

Invariants:

- Asking does not join the swarm: the learner sees an address and a key, and writes nothing down.
- Claims of the operator are kept apart from what was checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from node.network.first_contact import ask_terms, find_swarm, require_certified
from node.runtime.events import Clock
from protocol.core.errors import PeerError
from protocol.core.genesis import Genesis, LearnerCertificate, read_genesis
from protocol.core.ids import PeerId
from protocol.core.invite import Invite
from protocol.versions import exchange
from protocol.versions.announcement import open_announcement
from protocol.versions.manifest import SignedManifest
from swarm.transport.interface import StreamBroken, StreamRefused, Transport, ignore_report
from swarm.versions.manifest_search import ManifestSearch, ask


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was learned without joining. `terms` is None if they are not told; `newest`, if there is no version yet."""

    genesis: Genesis
    learner: PeerId
    certificate: LearnerCertificate | None
    terms: exchange.TellTerms | None
    newest: SignedManifest | None


async def look_around(transport: Transport, invite: Invite, wait_s: float) -> Found:
    """Ask the learner that `invite` names; `transport` stays connected to it. Raises UsageError or RunError, as joining
    would."""
    learner, told = await find_swarm(transport, invite, wait_s)
    genesis, _ = read_genesis(told.genesis)
    terms = await ask_terms(transport, learner, told, invite)
    certificate = None if terms is None else require_certified(terms, learner, invite, now_ms=Clock.now_ms())
    newest = await find_newest(transport, learner, invite)
    return Found(genesis=genesis, learner=learner, certificate=certificate, terms=terms, newest=newest)


async def find_newest(transport: Transport, learner: PeerId, invite: Invite) -> SignedManifest | None:
    """Return the newest version's manifest; None if there is no version yet, or the connection broke."""
    try:
        answer = await ask(transport, learner, exchange.AskNewest())
        if not isinstance(answer, exchange.TellNewest) or not answer.announcement:
            return None
        newest = open_announcement(answer.announcement, invite.authority, now_ms=Clock.now_ms())
        search = ManifestSearch(transport=transport, authority=invite.authority, report=ignore_report)
        return await search.find(newest.manifest, size_bytes=newest.manifest_bytes, in_a_hurry=lambda: True)
    except (StreamRefused, StreamBroken, trio.TooSlowError, PeerError):
        return None
