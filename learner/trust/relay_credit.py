"""Decide which peers are credited for relaying, by comparing receivers' receipts with what the learner itself knows.

A pure core; signatures were checked before. All that it holds is bounded by the constants below. A receipt or record
beyond them is not remembered, which costs the relays credit and affects no other peer.

    version:   offered --> retired                 (it left the window, or the learner forgot it)
    receiver:  silent --receipt--> waiting --record--> credited
               silent --record--> proven --receipt--> credited

Invariants:

- Only a receiver's first receipt for a version that names anything to credit counts.
- Bytes are those of the manifest's own chunk table. Each chunk counts for one relay, and in total never more than the
  size of the version's files.
- No peer is credited by itself; neither the learner nor a peer that is no member is credited.
- Nothing is credited before the receiver has an admitted record made with that version. So identities that do no work
  cannot create credit for each other.
- A receipt that waits for such a record is forgotten with the version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.core.ids import ManifestHash, PeerId

MAX_VERSIONS = 64
"""Versions of the window that are followed: S / kappa of them, and training goes wrong long before S is 64."""

MAX_WAITING = 1024
"""Receipts of one version that wait for their receiver's first record: one for each connection that the learner
accepts."""

MAX_WAITING_BYTES = 64 << 20
"""Bytes of all receipts that wait, as they were signed. One has a byte for each chunk, so 100 peers with a model of 300
GiB in 4 MiB chunks send 8 MB a version."""

MAX_PROVEN = 4096
"""Receivers of one version with an admitted record, credited or not: more than are ever here while it is fresh."""


@dataclass(frozen=True, kw_only=True)
class VersionOffered:
    """A version may be credited from now on. `sizes` are those of its chunk table, patches included, in bytes."""

    manifest: ManifestHash
    sizes: Sequence[int]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class VersionRetired:
    """No record made with this version will be admitted any more."""

    manifest: ManifestHash


@dataclass(frozen=True, kw_only=True)
class ReceiptHeard:
    """`receiver` signed `raw`: which peer gave it which chunk. `members` are those of the givers that ever joined."""

    receiver: PeerId
    manifest: ManifestHash
    givers: Mapping[int, PeerId]
    members: Collection[PeerId]
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class RecordAdmitted:
    """A record of `receiver` was admitted, and this version made at least one of its tokens."""

    receiver: PeerId
    manifest: ManifestHash


Event = VersionOffered | VersionRetired | ReceiptHeard | RecordAdmitted


@dataclass(frozen=True, kw_only=True)
class Credit:
    """Effect: write that these relays gave `receiver` these bytes of the version, by its receipt `raw`."""

    receiver: PeerId
    manifest: ManifestHash
    shares: Mapping[PeerId, int]
    raw: bytes


@dataclass(kw_only=True)
class _Version:
    """`waiting` are receivers without a record, `proven` those with one and whether they have been credited."""

    sizes: Sequence[int]
    total_bytes: int
    waiting: dict[PeerId, Credit] = field(default_factory=dict)
    proven: dict[PeerId, bool] = field(default_factory=dict)


@dataclass(kw_only=True)
class RelayCredit:
    """The receipts and records of all versions in the window. `learner` is the learner's own peer id."""

    learner: PeerId
    _versions: dict[ManifestHash, _Version] = field(default_factory=dict)
    _waiting_bytes: int = 0

    @property
    def versions(self) -> Collection[ManifestHash]:
        """The versions that may be credited."""
        return self._versions.keys()

    def is_proven(self, receiver: PeerId, manifest: ManifestHash) -> bool:
        """Return whether a record of `receiver` was admitted with this version, so that another one says nothing
        new."""
        version = self._versions.get(manifest)
        return version is not None and receiver in version.proven

    def handle(self, event: Event) -> list[Credit]:
        """Take in one event; return what is to be credited."""
        match event:
            case VersionOffered(manifest=manifest, sizes=sizes, total_bytes=total_bytes):
                if manifest not in self._versions and len(self._versions) < MAX_VERSIONS:
                    self._versions[manifest] = _Version(sizes=sizes, total_bytes=total_bytes)
            case VersionRetired(manifest=manifest):
                if (retired := self._versions.pop(manifest, None)) is not None:
                    self._waiting_bytes -= sum(len(credit.raw) for credit in retired.waiting.values())
            case ReceiptHeard(manifest=manifest) if (version := self._versions.get(manifest)) is not None:
                return self._hear(version, event)
            case RecordAdmitted(receiver=receiver, manifest=manifest) if (
                version := self._versions.get(manifest)
            ) is not None:
                return self._prove(version, receiver)
            case _:
                pass
        return []

    def _hear(self, version: _Version, event: ReceiptHeard) -> list[Credit]:
        receiver = event.receiver
        if receiver in version.waiting or version.proven.get(receiver):
            return []
        if not (shares := self._shares(version, event)):
            return []
        credit = Credit(receiver=receiver, manifest=event.manifest, shares=shares, raw=event.raw)
        if receiver in version.proven:
            version.proven[receiver] = True
            return [credit]
        if len(version.waiting) < MAX_WAITING and self._waiting_bytes + len(event.raw) <= MAX_WAITING_BYTES:
            version.waiting[receiver] = credit
            self._waiting_bytes += len(event.raw)
        return []

    def _prove(self, version: _Version, receiver: PeerId) -> list[Credit]:
        if receiver in version.proven or len(version.proven) >= MAX_PROVEN:
            return []
        credit = version.waiting.pop(receiver, None)
        version.proven[receiver] = credit is not None
        if credit is None:
            return []
        self._waiting_bytes -= len(credit.raw)
        return [credit]

    def _shares(self, version: _Version, event: ReceiptHeard) -> dict[PeerId, int]:
        """Return bytes by relay, with chunks in the order of the table, until the version's size is reached.

        The files come first there. So if a patch failed and everything was fetched again, the patch is left out.
        """
        allowed = set(event.members) - {event.receiver, self.learner}
        shares: dict[PeerId, int] = {}
        left = version.total_bytes
        for chunk, relay in sorted(event.givers.items()):
            if 0 <= chunk < len(version.sizes) and relay in allowed and version.sizes[chunk] <= left:
                shares[relay] = shares.get(relay, 0) + version.sizes[chunk]
                left -= version.sizes[chunk]
        return shares
