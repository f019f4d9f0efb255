"""Define the context that every service of the learner gets when it is built, as one value.

Invariants:

- The context is frozen. Things that change during a run are in `RunState`, the ledger and the store, and the
  certificate is in `LearnerIdentity`. Renewing it is one assignment, and code that signs reads it at that moment.
- `signing_ms` is called for something that is about to be signed. The certificate in force covers that time.
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
    """The learner's identity: its key, its swarm's authority, and the operator's certificate in force for that key.

    `secret` seeds the decisions that peers must not foresee.
    """

    keypair: Keypair
    authority: Authority
    certificate: bytes
    secret: bytes

    @property
    def swarm(self) -> SwarmId:
        return self.authority.swarm


@dataclass(frozen=True, kw_only=True)
class LearnerContext:
    """Everything that services need.

    `now_ms` and `signing_ms` return milliseconds since 1970. `signing_ms` raises RunError if no certificate is valid.
    """

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
