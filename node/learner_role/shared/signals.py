"""Define the signals by which services of the learner tell each other news, and what each signal promises.

A service subscribes while it is built, so services get news in the order of their construction
(`node.learner_role.services`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from learner.ledger.rows import StepRow, TimeRow
from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.rollouts.buffer import Batch
from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.versions.manifest import SignedManifest
from protocol.work import Farewell, FromLearner, Refused
from swarm.work.server import WorkServer


@dataclass(frozen=True, kw_only=True)
class LeaseClosed:
    """A lease ended without an admitted record, or was returned unfinished.

    `status` says how it ended, and `begun` is the version with which its peer had begun it. There is no such news for a
    lease that was withdrawn before its peer saw it.
    """

    granted: GrantedLease
    begun: PolicyVersion | None
    status: str


@dataclass(frozen=True, kw_only=True)
class RecordsAdmitted:
    """Every record of a lease was admitted, and its peer is not banned."""

    granted: GrantedLease
    group: Sequence[AdmittedRecord]


@dataclass(frozen=True, kw_only=True)
class RecordsBelieved:
    """Records of `peer`, made by these versions, were admitted, and passed their audit or need none."""

    peer: PeerId
    manifests: Collection[ManifestHash]


@dataclass(frozen=True, kw_only=True)
class PeerBanned:
    """`peer` is banned for this reason, and the ledger has it.

    Its revised receipts are sent first. Then it loses its leases and its connection, and only then its waiting records
    are dropped.
    """

    peer: PeerId
    why: str


@dataclass(frozen=True, kw_only=True)
class StepTrained:
    """A training step is over, and recorded in the ledger."""

    row: StepRow
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class TrainerSpoke:
    """The trainer's process sent an event."""

    header: Header
    arrays: Arrays


@dataclass(frozen=True, kw_only=True)
class PeerTold:
    """A message for `peer`. It is sent if the peer is connected, and lost otherwise."""

    peer: PeerId
    message: FromLearner


@dataclass(frozen=True, kw_only=True)
class PeerDismissed:
    """`last_word` is sent to `peer`, then its connection ends."""

    peer: PeerId
    last_word: Refused | Farewell


@dataclass(frozen=True, kw_only=True)
class LearnerSignals:
    """All signals of one learner. The promise of each is below it, or in the class of its news."""

    lease_closed: Signal[LeaseClosed] = field(default_factory=Signal)
    records_admitted: Signal[RecordsAdmitted] = field(default_factory=Signal)
    records_believed: Signal[RecordsBelieved] = field(default_factory=Signal)
    peer_judged: Signal[PeerId] = field(default_factory=Signal)
    """An audit of this peer failed or raised suspicion, or it was banned or pardoned. The ledger has it."""
    peer_banned: Signal[PeerBanned] = field(default_factory=Signal)
    quarantine_changed: Signal[None] = field(default_factory=Signal)
    """A peer came into quarantine, or left it."""
    peers_changed: Signal[None] = field(default_factory=Signal)
    """A peer came or left, or reported a change of its owner's hours."""
    version_adopted: Signal[SignedManifest] = field(default_factory=Signal)
    """The store can serve this version, which is not announced yet."""
    version_published: Signal[SignedManifest] = field(default_factory=Signal)
    """This version is in the ledger, announced, and the newest in the run's state."""
    step_trained: Signal[StepTrained] = field(default_factory=Signal)
    time_passed: Signal[TimeRow] = field(default_factory=Signal)
    certificate_renewed: Signal[None] = field(default_factory=Signal)
    """The certificate was renewed. `LearnerIdentity.certificate` is the new one already."""
    trainer_spoke: Signal[TrainerSpoke] = field(default_factory=Signal)
    """The trainer sent an event, which is no reply to a request."""
    trainer_died: Signal[None] = field(default_factory=Signal)
    """The trainer's process ended. Its state after the last durable checkpoint is lost."""
    prompts_ready: Signal[None] = field(default_factory=Signal)
    """Prompts are available again after a request for leases had to wait for some."""
    peer_told: Signal[PeerTold] = field(default_factory=Signal)
    peer_dismissed: Signal[PeerDismissed] = field(default_factory=Signal)

    def tell(self, peer: PeerId, message: FromLearner) -> None:
        """Send `message` to `peer`, see `PeerTold`."""
        self.peer_told.emit(PeerTold(peer=peer, message=message))


def connect_peers(signals: LearnerSignals, connections: WorkServer) -> None:
    """Send all messages to peers by these connections from now on."""
    signals.peer_told.subscribe(lambda news: connections.tell(news.peer, news.message))
    signals.peer_dismissed.subscribe(lambda news: connections.dismiss(news.peer, news.last_word))
