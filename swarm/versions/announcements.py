"""Decide whether to fetch, queue or ignore an announced version.

    nothing --heard--> in flight --completed--> held          a newer version is heard: it comes next
                          |  ^
                          |  +-- retry -- failed              a higher incarnation is heard: abandoned for it

Invariants:

- Versions only increase (a higher incarnation wins over any version of a lower one), also after those held at the
  start.
- At most one version is in flight.
- A version in flight is finished, not replaced, while it has the newest incarnation. If each announcement replaced it,
  slow peers would never finish one.
- The next version is always the newest one heard of.
- Two manifests with one name are equivocation: the second is refused, and reported once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.announcement import SignedAnnouncement

REMEMBERED_NAMES = 256
"""Number of names kept to recognise equivocation. Older versions can no longer be fetched anyway."""


@dataclass(frozen=True, kw_only=True)
class _OfAnnouncement:
    announcement: SignedAnnouncement


class Fetch(_OfAnnouncement):
    """Effect: begin fetching this version."""


class Abandon(_OfAnnouncement):
    """Effect: stop fetching this version, because a restarted learner announced a higher incarnation."""


class Relay(_OfAnnouncement):
    """Effect: store this announcement durably, because it is new, and send it to peers that ask."""


@dataclass(frozen=True, kw_only=True)
class Equivocation:
    """Effect: the learner signed two manifests with one name. Refuse `second`; notify the operator and the owner."""

    version: PolicyVersion
    first: ManifestHash
    second: ManifestHash


Effect = Fetch | Abandon | Relay | Equivocation


@dataclass(kw_only=True)
class Announcements:
    """The announced versions of one node. `held` is the newest complete version, `in_flight` the one being fetched."""

    held: PolicyVersion | None = None
    newest: SignedAnnouncement | None = None
    in_flight: SignedAnnouncement | None = None
    _names: dict[PolicyVersion, ManifestHash] = field(default_factory=dict)
    _shown: set[ManifestHash] = field(default_factory=set)

    def note_stored(self, version: PolicyVersion, manifest: ManifestHash, *, complete: bool) -> None:
        """Note a version that the store held at the start: remember its name and, if it is complete, hold it."""
        self._names[version] = manifest
        self._forget_old_names()
        if complete:
            self._hold(version)

    def hear(self, announcement: SignedAnnouncement) -> list[Effect]:
        """Handle an announcement whose signature was checked. Return the effects."""
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
        """Note that the version is complete and verified. Return the effects."""
        self._land(announcement)
        self._hold(announcement.version)
        return self._next()

    def note_failure(self, announcement: SignedAnnouncement) -> list[Effect]:
        """Note that the version could not be fetched. A newer one is fetched at once, the same at the next `retry`."""
        self._land(announcement)
        return [] if self.is_newest(announcement) else self._next()

    def retry(self) -> list[Effect]:
        """Try a failed version again, because something changed (a peer appeared, time passed)."""
        return self._next()

    def is_newest(self, announcement: SignedAnnouncement) -> bool:
        """Return whether no newer version was heard of. The certificates of the announcements do not matter."""
        return self.newest is not None and announcement.version == self.newest.version

    def _is_renewed(self, announcement: SignedAnnouncement) -> bool:
        """Return whether this announces the newest version again, with a certificate that is valid for longer.

        When the older certificate ends, peers would reject the older announcement.
        """
        newest = self.newest
        return newest is not None and announcement.version == newest.version and announcement.until_ms > newest.until_ms

    def _is_old(self, version: PolicyVersion) -> bool:
        """Return whether we know this version or a newer one. The held version may be announced, for other peers."""
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
        """End the flight of `announcement`. An abandoned version that ends late must not end its successor's flight."""
        if self.in_flight is announcement:
            self.in_flight = None

    def _hold(self, version: PolicyVersion) -> None:
        self.held = version if self.held is None else max(self.held, version)

    def _forget_old_names(self) -> None:
        while len(self._names) > REMEMBERED_NAMES:
            del self._names[min(self._names)]
