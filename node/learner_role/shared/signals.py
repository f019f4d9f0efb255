"""News that one service of the learner has for others: each signal, and what its news promises.

A service subscribes while it is built, so the order in which news is heard is that of construction
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
    """A lease ended without an admitted record, or was handed back before it was finished: `status` says how, `begun`
    with which version its peer had begun it. A lease that was withdrawn before its peer saw it is none."""

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
    """Records of `peer`, made by these versions, were admitted and wait for no audit, or passed it."""

    peer: PeerId
    manifests: Collection[ManifestHash]


@dataclass(frozen=True, kw_only=True)
class PeerBanned:
    """`peer` is banned for this reason, and the ledger knows it. Its revised receipts are told first, then it loses its
    leases and its connection, and only then what waits of it is forgotten."""

    peer: PeerId
    why: str


@dataclass(frozen=True, kw_only=True)
class StepTrained:
    """A training step is over, and in the ledger."""

    row: StepRow
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class TrainerSpoke:
    """The trainer's process says something unasked."""

    header: Header
    arrays: Arrays


@dataclass(frozen=True, kw_only=True)
class PeerTold:
    """`message` is for `peer`. It goes out if the peer is connected, else it is lost."""

    peer: PeerId
    message: FromLearner


@dataclass(frozen=True, kw_only=True)
class PeerDismissed:
    """`peer` is told `last_word`, then its connection ends."""

    peer: PeerId
    last_word: Refused | Farewell


@dataclass(frozen=True, kw_only=True)
class LearnerSignals:
    """All signals of one learner. What each promises stands below it, or in the class of its news."""

    lease_closed: Signal[LeaseClosed] = field(default_factory=Signal)
    records_admitted: Signal[RecordsAdmitted] = field(default_factory=Signal)
    records_believed: Signal[RecordsBelieved] = field(default_factory=Signal)
    peer_judged: Signal[PeerId] = field(default_factory=Signal)
    """An audit of this peer failed or left doubt, or it was banned or pardoned; the ledger knows it."""
    peer_banned: Signal[PeerBanned] = field(default_factory=Signal)
    quarantine_changed: Signal[None] = field(default_factory=Signal)
    """Somebody came into quarantine, or out of it."""
    peers_changed: Signal[None] = field(default_factory=Signal)
    """A peer came or left, or said something new of its owner's hours."""
    version_adopted: Signal[SignedManifest] = field(default_factory=Signal)
    """The store can serve this version, and nobody has heard of it yet."""
    version_published: Signal[SignedManifest] = field(default_factory=Signal)
    """This version is in the ledger, announced, and the newest of the run's state."""
    step_trained: Signal[StepTrained] = field(default_factory=Signal)
    time_passed: Signal[TimeRow] = field(default_factory=Signal)
    certificate_renewed: Signal[None] = field(default_factory=Signal)
    """What is signed from now on carries a new certificate: `LearnerIdentity.certificate` is it already."""
    trainer_spoke: Signal[TrainerSpoke] = field(default_factory=Signal)
    """The trainer said this without being asked."""
    trainer_died: Signal[None] = field(default_factory=Signal)
    """The trainer's process ended; what it had not made durable is lost."""
    prompts_ready: Signal[None] = field(default_factory=Signal)
    """Prompts are there again for which a request for leases has waited."""
    peer_told: Signal[PeerTold] = field(default_factory=Signal)
    peer_dismissed: Signal[PeerDismissed] = field(default_factory=Signal)

    def tell(self, peer: PeerId, message: FromLearner) -> None:
        """Say this to `peer`, see `PeerTold`."""
        self.peer_told.emit(PeerTold(peer=peer, message=message))


def connect_peers(signals: LearnerSignals, connections: WorkServer) -> None:
    """What is said to peers goes out by these connections from now on."""
    signals.peer_told.subscribe(lambda news: connections.tell(news.peer, news.message))
    signals.peer_dismissed.subscribe(lambda news: connections.dismiss(news.peer, news.last_word))
