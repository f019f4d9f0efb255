"""Notice versions that this learner gave away and its ledger knows nothing of: the ledger was restored from a copy.

Names of versions only go up, so members that hold 4.25 take nothing of a learner that begins 3.10 again: the swarm
would stand still. What members hold is asked of them, by the question that repairs gossip, when they connect and now
and then. The proof is an announcement that carries this learner's own signature, so neither a stranger nor a member
that lies can make it begin anew: an announcement is in the ledger before anybody hears it. What the state directory
itself holds beyond its ledger is looked at once, at the start.

Invariants:
- The ledger knows that an incarnation is taken before anybody acts on it.
- An announcement that the ledger knows changes nothing, however often and by whom it is told.
- No one announcement raises the incarnation by more than MAX_JUMP.
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
"""Incarnations that are skipped at once, at most: nobody starts a learner so often between two copies. Each of them is
a number in every chain, so who stole a learner's key could otherwise fill its memory."""

ASK_EVERY_S = 20.0
"""One member at random is asked so often, in case the first answer was lost."""

QUESTION_TIMEOUT_S = 5.0
"""An answer has 1 KiB."""

MAX_ASKED = 64
"""Members that are asked at once; who connects beyond them is asked now and then."""

ADVICE = (
    "This learner goes on above it; steps, records, bans and pardons between the copy and that version are lost to the"
    " ledger. Receipts that nodes hold stay valid."
)


@dataclass(kw_only=True, eq=False)
class Forgotten(Service):
    """See the module's paragraph."""

    transport: Transport
    report: Report
    rng: random.Random = field(default_factory=random.Random)
    _asking: set[PeerId] = field(default_factory=set)
    _known: set[bytes] = field(default_factory=set)
    """Announcements that the ledger knows, or that were acted on: of the peers that are here, so at most one each."""

    def look_here(self, checkpoints: Path) -> None:
        """Compare the ledger with what lies beside it. Reads the disk: for a worker thread, at the start."""
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
        """Ask whoever connects, and somebody now and then; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_now_and_then)
            while True:  # a channel of events ends when its reader falls behind; the next begins with who is here
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
        """A member holds this announcement. Raises PeerError when it is none of a learner of this swarm."""
        if raw == self.state.announcement or raw in self._known:
            return
        me = self.identity
        learner = PublicKey(me.keypair.public)
        told = open_announcement(raw, me.authority, own=learner, now_ms=self.context.now_ms())
        begun = self.capacity.chain.head.incarnation
        if told.version.incarnation > begun + MAX_JUMP:
            raise PeerError(Fault.BROKEN_PROMISE, f"it tells of version {told.version}, and {begun} is at work")
        is_news = await trio.to_thread.run_sync(self._judge, told)
        if len(self._known) >= MAX_ASKED:
            self._known.clear()
        self._known.add(raw)
        if is_news:
            self.state.forgotten = max(self.state.forgotten, told.version.incarnation)
            self._tell(told.version, "Members of the swarm hold")
            self.state.notify()

    def _judge(self, told: SignedAnnouncement) -> bool:
        """Whether the ledger knows nothing of it; then it is written that its incarnation is taken."""
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
            text=f"{who} version {version}, and the ledger does not: it is an older copy. {ADVICE}",
        )


def _version_of(name: str) -> PolicyVersion | None:
    """The version that a checkpoint's directory is named after."""
    incarnation, _, step = name.partition(".")
    if not (incarnation.isdecimal() and step.isdecimal() and len(name) <= 32 and name.isascii()):
        return None
    return PolicyVersion(int(incarnation), int(step))
