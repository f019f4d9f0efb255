"""What a service of the learner is given when it is built, as one value.

Invariants:
- The context is frozen. What changes during a run is in `RunState`, the ledger and the store, and, for the certificate,
  in `LearnerIdentity`: to renew it is one assignment, and whoever signs reads it at that moment.
- `signing_ms` is asked for what is about to be signed: the certificate in force covers that time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from learner.ledger.ledger import Ledger
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.lease_scheduler import LeaseScheduler
from node.learner_role.shared.run_state import RunState
from node.learner_role.shared.signals import LearnerSignals
from node.learner_role.shared.time_keeper import TimeKeeper
from node.runtime.events import EventLog
from protocol.core.genesis import Authority
from protocol.core.identity import Keypair
from protocol.core.ids import SwarmId
from swarm.store import ChunkStore


@dataclass(kw_only=True)
class LearnerIdentity:
    """Who this learner is: its key, its swarm's authority, the operator's certificate in force for that key, and the
    secret by which it decides what peers cannot foresee."""

    keypair: Keypair
    authority: Authority
    certificate: bytes
    secret: bytes

    @property
    def swarm(self) -> SwarmId:
        return self.authority.swarm


@dataclass(frozen=True, kw_only=True)
class LearnerContext:
    """`now_ms` and `signing_ms`: milliseconds since 1970; `signing_ms` raises RunError where no certificate holds."""

    identity: LearnerIdentity
    state: RunState
    ledger: Ledger
    store: ChunkStore
    events: EventLog
    signals: LearnerSignals
    time: TimeKeeper
    now_ms: Callable[[], int]
    signing_ms: Callable[[], int]


@dataclass(kw_only=True, eq=False)
class Service:
    """A part of the learner that lives for one run. It reads the parts of its context under short names."""

    context: LearnerContext

    @property
    def state(self) -> RunState:
        return self.context.state

    @property
    def scheduler(self) -> LeaseScheduler:
        return self.context.state.scheduler

    @property
    def capacity(self) -> LeaseCapacity:
        return self.context.state.scheduler.capacity

    @property
    def identity(self) -> LearnerIdentity:
        return self.context.identity

    @property
    def signals(self) -> LearnerSignals:
        return self.context.signals

    @property
    def ledger(self) -> Ledger:
        return self.context.ledger

    @property
    def time(self) -> TimeKeeper:
        return self.context.time

    @property
    def events(self) -> EventLog:
        return self.context.events

    def now_ms(self) -> int:
        return self.context.now_ms()
