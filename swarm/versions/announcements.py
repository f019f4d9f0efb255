"""Which version to fetch: new version -> fetch, queue or ignore.

    nothing --heard--> in flight --completed--> held          heard, newer: what comes next
                          |  ^
                          |  +-- retry -- failed              heard, of a higher incarnation: abandoned for it

A pure core. What always holds: names only go up (a higher incarnation wins over any version of a lower one), also
over what was held at the start; at most one version is in flight; a version in flight is finished, not replaced,
while it is of the newest incarnation, because replacing it on every announcement starves slow peers; what comes next
is always the newest heard of. Two manifests under one name are equivocation: the second is refused, and shown once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.announcement import SignedAnnouncement

REMEMBERED_NAMES = 256
"""Names remembered to recognise equivocation; older ones can no longer be fetched anyway."""


@dataclass(frozen=True, kw_only=True)
class _OfAnnouncement:
    announcement: SignedAnnouncement


class Fetch(_OfAnnouncement):
    """Effect: begin fetching this version."""


class Abandon(_OfAnnouncement):
    """Effect: stop fetching this version; a restarted learner has moved on."""


class Relay(_OfAnnouncement):
    """Effect: this was news; remember it durably and tell whoever asks."""


@dataclass(frozen=True, kw_only=True)
class Equivocation:
    """Effect: the learner signed two manifests under one name. Refuse `second`, tell the operator and the user."""

    version: PolicyVersion
    first: ManifestHash
    second: ManifestHash


Effect = Fetch | Abandon | Relay | Equivocation


@dataclass(kw_only=True)
class Announcements:
    """See the module's paragraph. `held` is the newest complete version, `in_flight` the one being fetched."""

    held: PolicyVersion | None = None
    newest: SignedAnnouncement | None = None
    in_flight: SignedAnnouncement | None = None
    _names: dict[PolicyVersion, ManifestHash] = field(default_factory=dict)
    _shown: set[ManifestHash] = field(default_factory=set)

    def note_stored(self, version: PolicyVersion, manifest: ManifestHash, *, complete: bool) -> None:
        """The store holds this version, from before we started: its name is taken, and if complete it is held."""
        self._names[version] = manifest
        self._forget_old_names()
        if complete:
            self._hold(version)

    def hear(self, announcement: SignedAnnouncement) -> list[Effect]:
        """An announcement arrived whose signature was checked."""
        version, manifest = announcement.version, announcement.manifest
        first = self._names.setdefault(version, manifest)
        if first != manifest:
            return self._show(Equivocation(version=version, first=first, second=manifest))
        self._forget_old_names()
        if self._is_renewed(announcement):
            self.newest = announcement
            return [Relay(announcement=announcement)]
        if self._is_old(version):
            return []
        self.newest = announcement
        return [Relay(announcement=announcement), *self._preempt(announcement), *self._next()]

    def note_complete(self, announcement: SignedAnnouncement) -> list[Effect]:
        """The version is complete and verified."""
        self._land(announcement)
        self._hold(announcement.version)
        return self._next()

    def note_failure(self, announcement: SignedAnnouncement) -> list[Effect]:
        """The version could not be fetched: on to something newer at once, to the same again at the next `retry`."""
        self._land(announcement)
        return [] if self.is_newest(announcement) else self._next()

    def retry(self) -> list[Effect]:
        """Something changed (a peer appeared, time passed): a version that failed deserves another try."""
        return self._next()

    def is_newest(self, announcement: SignedAnnouncement) -> bool:
        """Whether nothing newer was heard of; under which certificate does not matter."""
        return self.newest is not None and announcement.version == self.newest.version

    def _is_renewed(self, announcement: SignedAnnouncement) -> bool:
        """Whether it is the newest version once more, under a certificate that holds for longer: who tells the old one
        on would be taken for a liar when that ends."""
        newest = self.newest
        return newest is not None and announcement.version == newest.version and announcement.until_ms > newest.until_ms

    def _is_old(self, version: PolicyVersion) -> bool:
        """Whether we know something newer, or this. The version held may still be announced, for us to tell others."""
        if self.newest is not None and version <= self.newest.version:
            return True
        return self.held is not None and version < self.held

    def _show(self, news: Equivocation) -> list[Effect]:
        if news.second in self._shown:
            return []
        if len(self._shown) >= REMEMBERED_NAMES:
            self._shown.clear()
        self._shown.add(news.second)
        return [news]

    def _preempt(self, news: SignedAnnouncement) -> list[Effect]:
        flying = self.in_flight
        if flying is None or flying.version.incarnation == news.version.incarnation:
            return []
        self.in_flight = None
        return [Abandon(announcement=flying)]

    def _next(self) -> list[Effect]:
        news = self.newest
        if self.in_flight is not None or news is None or (self.held is not None and news.version <= self.held):
            return []
        self.in_flight = news
        return [Fetch(announcement=news)]

    def _land(self, announcement: SignedAnnouncement) -> None:
        """Nothing is in flight any more; but an abandoned version that ends late must not end its successor."""
        if self.in_flight is announcement:
            self.in_flight = None

    def _hold(self, version: PolicyVersion) -> None:
        self.held = version if self.held is None else max(self.held, version)

    def _forget_old_names(self) -> None:
        while len(self._names) > REMEMBERED_NAMES:
            del self._names[min(self._names)]
