"""What peers were leased and did not deliver: which of it the learner draws itself, and what follows from what it was
worth.

What always holds: what was recalled, or belongs to an episode that goes on, is nobody's choice and not looked at; of a
peer so few wait at a time that it cannot crowd out the others; what was found is on disk before anything follows from
it; what follows is a ban, or nothing. The trio thread never waits for the disk.
"""

from __future__ import annotations

import hmac
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import trio

from learner.intake import GrantedLease
from learner.leasing import seed_of
from learner.ledger import Ledger
from learner.ledger_rows import WithheldRow
from learner.verification.sequential import History, is_convicted, log_evidence
from learner.verification.withheld import Worth, alike, heard_withheld, is_worse
from node.engine.port import GenerationRequest
from node.events import EventLog
from node.evidence import requests_of
from node.learner_run import LearnerRun
from protocol.ids import ManifestHash, PeerId, PolicyVersion, short
from swarm.store import ChunkStore, StoreError

MAX_WAITING = 64
MAX_OF_A_PEER = 8
"""Leases that wait to be drawn; what comes while so many do is not looked at, whatever it is worth."""

PEERS_REMEMBERED = 4096
"""Of whom is remembered what the ledger knows."""

LOOKED_AT = frozenset({"returned", "expired", "lost"})
"""How a lease ends that was not delivered, but for what the learner recalled."""


@dataclass(frozen=True, kw_only=True)
class Withheld:
    """A lease that was not delivered, and the version that its peer says it was made with, or is taken to have."""

    granted: GrantedLease
    version: PolicyVersion
    manifest: ManifestHash


@dataclass(kw_only=True)
class WithheldDesk:
    """See the module's paragraph. `convict` bans a peer, with the reason; `secret` is the learner's; `looks`: whether
    anything is drawn."""

    run: LearnerRun
    ledger: Ledger
    store: ChunkStore
    secret: bytes
    convict: Callable[[PeerId, str], Awaitable[None]]
    now_ms: Callable[[], int]
    events: EventLog
    looks: bool = True
    added: trio.Event = field(default_factory=trio.Event)
    drawn: int = 0
    _waiting: deque[Withheld] = field(default_factory=deque)
    _of_peer: Counter[PeerId] = field(default_factory=Counter)
    _known: dict[PeerId, History] = field(default_factory=dict)

    def __len__(self) -> int:
        """Leases that wait to be drawn."""
        return len(self._waiting)

    def withdrawn(self, granted: GrantedLease, begun: PolicyVersion | None, status: str) -> None:
        """A lease has ended so, which its peer began with that version, if it did."""
        version = begun or granted.lease.minimum
        manifest = self.run.manifests.get(version)
        if not self.looks or status not in LOOKED_AT or granted.place is not None or manifest is None:
            return
        if len(self._waiting) >= MAX_WAITING or self._of_peer[granted.peer] >= MAX_OF_A_PEER:
            return
        try:
            self.store.pin(manifest)
        except StoreError:
            return  # too old to be drawn, which is nobody's fault
        self._waiting.append(Withheld(granted=granted, version=version, manifest=manifest))
        self._of_peer[granted.peer] += 1
        self.added.set()

    def next(self) -> Withheld | None:
        """What is to be drawn now: of the version of what has waited longest; the same again until it is `over`."""
        return self._waiting[0] if self._waiting else None

    def over(self, one: Withheld) -> None:
        """It was drawn, or cannot be."""
        self._waiting.remove(one)
        self._of_peer[one.granted.peer] -= 1
        if not self._of_peer[one.granted.peer]:
            del self._of_peer[one.granted.peer]
        self.store.unpin(one.manifest)

    def requests(self, one: Withheld) -> list[GenerationRequest]:
        """The group that was withheld, and after it as many completions of the same prompt with seeds of our own."""
        theirs = requests_of(one.granted.lease)
        key = hmac.digest(self.secret, b"withheld", "sha256")
        ours = [
            GenerationRequest(
                prompt=asked.prompt,
                seed=seed_of(key, one.granted.id, index),
                temperature=asked.temperature,
                max_new_tokens=asked.max_new_tokens,
                stop_ids=asked.stop_ids,
            )
            for index, asked in enumerate(theirs)
        ]
        return [*theirs, *ours]

    async def conclude(self, one: Withheld, worth: Sequence[Worth]) -> None:
        """What the completions of `requests` are worth: write it, and do what follows."""
        self.drawn += 1
        half = len(worth) // 2
        withheld, drawn = alike(worth[:half], worth[half:])
        if (worse := is_worse(withheld, drawn)) is None:
            return
        peer = one.granted.peer
        history = heard_withheld(await self._history(peer), worse)
        self._known[peer] = history
        row = WithheldRow(
            lease=one.granted.id,
            peer=peer,
            at_ms=self.now_ms(),
            withheld=fmean(withheld),
            drawn=fmean(drawn),
            heard=history.audits,
            log_wealth=history.log_wealth,
        )
        await trio.to_thread.run_sync(self.ledger.withheld_drawn, row)
        evidence = log_evidence(history)
        self.events.emit(
            "withheld_drawn",
            peer=peer,
            lease=short(one.granted.id),
            withheld=round(row.withheld, 4),
            drawn=round(row.drawn, 4),
            evidence=round(evidence, 3),
        )
        if is_convicted(history):
            for other in [other for other in self._waiting if other.granted.peer == peer]:
                self.over(other)
            await self.convict(peer, await trio.to_thread.run_sync(self._why, peer))

    async def forgive(self, peer: PeerId) -> None:
        """The operator pardons this peer: it begins anew, and what was found stays to be read."""
        await trio.to_thread.run_sync(self.ledger.withheld_forgiven, peer)
        self._known.pop(peer, None)

    def _why(self, peer: PeerId) -> str:
        """On a thread."""
        worse, heard = self.ledger.withheld_of(peer)
        return (
            f"{worse} of {heard} groups that it did not deliver were worth less than others drawn of the same prompts, "
            "where half would be by chance: it withholds what it does not like"
        )

    async def _history(self, peer: PeerId) -> History:
        if peer not in self._known:
            if len(self._known) >= PEERS_REMEMBERED:
                self._known.clear()
            self._known[peer] = await trio.to_thread.run_sync(self.ledger.withheld_history, peer)
        return self._known[peer]
