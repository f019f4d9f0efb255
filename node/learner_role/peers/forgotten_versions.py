"""Detect published versions that the ledger does not know, because the ledger was restored from an older copy.

Names of versions only increase. Members that hold version 4.25 ignore a learner that starts again at 3.10, and the
swarm would stand still. So the learner asks members which version they hold, when they connect and from time to time,
by the request that also repairs gossip. The proof is an announcement with this learner's own signature, which is in the
ledger before anybody gets it. So neither a stranger nor a lying member can make the learner change its incarnation. At
the start, the learner also compares the ledger with the versions and checkpoints in the state directory.

Invariants:

- The ledger records that an incarnation is taken before anything is done about it.
- An announcement that the ledger knows changes nothing, no matter how often and by which peer it is sent.
- No single announcement raises the incarnation by more than MAX_JUMP.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import trio

from node.learner_role.shared.context import Service
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PeerId, PolicyVersion, PublicKey
from protocol.versions import exchange
from protocol.versions.announcement import SignedAnnouncement, open_announcement
from swarm.transport.interface import PeerConnected, Report, StreamBroken, StreamRefused, Transport
from swarm.versions.manifest_search import ask

MAX_JUMP = 10_000
"""Most incarnations that are skipped at once. Nobody starts a learner so often between two copies. Each one is a number
in every chain, so a thief of the learner's key could otherwise fill its memory."""

ASK_EVERY_S = 20.0
"""Seconds after which a random member is asked, in case the first answer was lost."""

QUESTION_TIMEOUT_S = 5.0
"""Seconds to wait for an answer, which has 1 KiB."""

MAX_ASKED = 64
"""Most members that are asked at a time. Others that connect are only asked from time to time."""

ADVICE = (
    "This learner continues above that version. The ledger has lost steps, records, bans and pardons between the copy "
    "and that version. Receipts that nodes hold stay valid."
)


@dataclass(kw_only=True, eq=False)
class Forgotten(Service):
    """Asks members for their newest announcement, and compares it with the ledger."""

    transport: Transport
    report: Report
    rng: random.Random = field(default_factory=random.Random)
    _asking: set[PeerId] = field(default_factory=set)
    _known: set[bytes] = field(default_factory=set)
    """Announcements that the ledger knows, or that were acted on. Each present peer has at most one."""

    def look_here(self, checkpoints: Path) -> None:
        """Compare the ledger with the store and the checkpoints beside it, at the start.

        It reads the disk: call it on a worker thread.
        """
        begun = max((one.incarnation for one in self.ledger.training.incarnations()), default=0)
        held = [
            one.version
            for one in self.context.store.versions()
            if not self.ledger.training.published(one.version, one.hash)
        ]
        saved = [found for one in checkpoints.glob("*.*") if (found := _version_of(one.name)) is not None]
        if newer := [found for found in (*held, *saved) if begun < found.incarnation <= begun + MAX_JUMP]:
            self.ledger.training.incarnation_seen(max(newer).incarnation)
            self._tell(max(newer), "The state directory holds")
        self.state.forgotten = self.ledger.training.incarnations_seen()

    async def run(self) -> None:
        """Ask each peer that connects, and a random peer from time to time, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_now_and_then)
            while True:  # a channel of events ends when its reader is too slow; the next begins with the present peers
                async for event in self.transport.events():
                    if isinstance(event, PeerConnected) and len(self._asking) < MAX_ASKED:
                        nursery.start_soon(self._ask, event.peer)

    async def _ask_now_and_then(self) -> None:
        while True:
            await trio.sleep(ASK_EVERY_S)
            if peers := sorted(self.transport.connected_peers()):
                await self._ask(self.rng.choice(peers))

    async def _ask(self, peer: PeerId) -> None:
        if peer in self._asking:
            return
        self._asking.add(peer)
        try:
            answer = await ask(self.transport, peer, exchange.AskNewest(), timeout_s=QUESTION_TIMEOUT_S)
            if isinstance(answer, exchange.TellNewest) and answer.announcement:
                await self.hear(answer.announcement)
        except (StreamBroken, StreamRefused, trio.TooSlowError):
            pass
        except PeerError as error:
            self.report(peer, error.fault, error.detail)
        finally:
            self._asking.discard(peer)

    async def hear(self, raw: bytes) -> None:
        """Judge an announcement that a member holds. Raises PeerError if it is not from a learner of this swarm."""
        if raw == self.state.announcement or raw in self._known:
            return
        me = self.identity
        learner = PublicKey(me.keypair.public)
        told = open_announcement(raw, me.authority, own=learner, now_ms=self.context.now_ms())
        begun = self.capacity.chain.head.incarnation
        if told.version.incarnation > begun + MAX_JUMP:
            raise PeerError(
                Fault.BROKEN_PROMISE, f"it announces version {told.version}, but this learner is at incarnation {begun}"
            )
        is_news = await trio.to_thread.run_sync(self._judge, told)
        if len(self._known) >= MAX_ASKED:
            self._known.clear()
        self._known.add(raw)
        if is_news:
            self.state.forgotten = max(self.state.forgotten, told.version.incarnation)
            self._tell(told.version, "Members of the swarm hold")
            self.state.notify()

    def _judge(self, told: SignedAnnouncement) -> bool:
        """Return whether the announcement is news to the ledger, which then records that its incarnation is taken."""
        if self.ledger.training.published(told.version, told.manifest):
            return False
        is_news = told.version.incarnation > self.ledger.training.incarnations_seen()
        if is_news:
            self.ledger.training.incarnation_seen(told.version.incarnation)
        return is_news

    def _tell(self, version: PolicyVersion, who: str) -> None:
        self.events.emit(
            "ledger_restored",
            version=str(version),
            incarnation=version.incarnation,
            text=f"{who} version {version}, but the ledger does not: it is an older copy. {ADVICE}",
        )


def _version_of(name: str) -> PolicyVersion | None:
    """Return the version in the name of a checkpoint's directory; None if it is no such name."""
    incarnation, _, step = name.partition(".")
    if not (incarnation.isdecimal() and step.isdecimal() and len(name) <= 32 and name.isascii()):
        return None
    return PolicyVersion(int(incarnation), int(step))
