"""Apply the planner's decisions during a run: which peers are active, and how often versions are published.

It wakes every `review_s`, and when a peer comes or goes, at most once in SOON_S. The observations go to the planner on
a worker thread. Then active peers are leased work, peers on standby get a reason, and the publication period is set.

Invariants:

- A new peer is served until the first review that knows of it.
- A peer on standby keeps its connection, and fetches and relays every version. Each of its requests is answered with
  the reason for its standby, and what would change it.
- Every change is an event, a row in the ledger, and a line in the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from learner.ledger.rows import PlanRow
from learner.provisioning.estimation.recording import Planned
from learner.provisioning.planner.constants import SOON_S
from learner.provisioning.planner.planner import Planner
from learner.provisioning.planner.review import Decision, situation_of
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.shared.context import Service
from protocol.accounting.claims import MICROS
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_REASON_CHARS


@dataclass(kw_only=True, eq=False)
class Provisioner(Service):
    """Reviews the plan, and applies it. `review_s`: seconds from one review to the next."""

    recorder: RunRecorder
    planner: Planner
    review_s: float
    _last: Decision | None = None
    _resting: frozenset[str] = frozenset()
    _called: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.signals.peers_changed.subscribe(lambda _: self._called.set())

    async def run(self) -> None:
        """Review until cancelled."""
        await self.state.opened.wait()
        while True:
            began_s = trio.current_time()
            self._called = trio.Event()
            await self.review()
            with trio.move_on_after(self.review_s):
                await self._called.wait()
            await trio.sleep_until(began_s + min(SOON_S, self.review_s))

    async def review(self) -> None:
        """Ask the planner for a decision, and apply it."""
        situation = situation_of(self.recorder.observatory, self.recorder.now_s())
        decision = await trio.to_thread.run_sync(self.planner.review, situation)
        is_new = self._is_new(decision)
        standing = [peer for peer in self.state.present if peer not in decision.active]
        others = self._resting.symmetric_difference(situation.resting)  # the reason for their standby has changed
        self._resting = frozenset(situation.resting)
        to_tell = [peer for peer in standing if is_new or peer in others or not self.scheduler.worker(peer).standby]
        # On a thread as well: each explanation looks at the whole pool.
        told = await trio.to_thread.run_sync(lambda: {peer: self.planner.explain(peer) for peer in to_tell})
        self._switch(decision, told)
        if is_new:
            await self._announce(decision)
        self._last = decision

    def _switch(self, decision: Decision, told: Mapping[PeerId, str]) -> None:
        """Activate the peers of the decision, and put others on standby. New peers are served until the next review."""
        served = False
        for peer, presence in self.state.present.items():
            worker = self.scheduler.worker(peer)
            is_active = peer in decision.active or not (told.get(peer) or worker.standby)
            served = served or (is_active and not presence.is_active)
            presence.switch(is_active=is_active, now_s=trio.current_time())
            worker.standby = "" if is_active else told.get(peer, worker.standby)[:MAX_REASON_CHARS]
        if served:
            self.state.notify()

    def _is_new(self, decision: Decision) -> bool:
        """Return whether the decision is news. In a new incarnation, whose recording has no plan, every decision is."""
        last = self._last
        if last is None or self.recorder.observatory.plan is None:
            return True
        return (decision.active, decision.kappa) != (last.active, last.kappa) or bool(decision.changes)

    async def _announce(self, decision: Decision) -> None:
        if self.state.kappa != decision.kappa:
            self.events.emit("period_changed", kappa=decision.kappa, reason=decision.kappa_reason)
            self.state.kappa = decision.kappa
        active = sorted(decision.active)
        reasons = [*self._tell_changes(decision), *([decision.kappa_reason] if decision.kappa_reason else [])]
        self.recorder.record(
            Planned(
                at_s=self.recorder.now_s(), kappa=decision.kappa, active=active, price=decision.price, reasons=reasons
            )
        )
        row = PlanRow(
            at_ms=self.now_ms(),
            kappa=decision.kappa,
            active=tuple(map(PeerId, active)),
            micros_per_hour=round(decision.price * MICROS),
            reasons=tuple(reasons),
        )
        await trio.to_thread.run_sync(partial(self.ledger.peers.planned, row))

    def _tell_changes(self, decision: Decision) -> list[str]:
        """Emit an event for each change, and return the changes as sentences."""
        told = []
        for change in decision.changes:
            name = presence.name if (presence := self.state.present.get(PeerId(change.peer))) else ""
            self.events.emit(
                "peer_activated" if change.active else "peer_released",
                peer=change.peer,
                name=name,
                reason=change.reason,
            )
            told.append(f"{name or change.peer[-6:]} {change.reason}")
        return told
