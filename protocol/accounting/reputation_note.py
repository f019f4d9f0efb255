"""Define reputation notes: the learner's signed statement about a peer, with the observations behind it.

A reader has to believe the learner's counts and nothing else, and can compute the reputation for a later day from them.

Invariants, after `open_reputation_note`:

- The operator certified the signer.
- Days are in order, each once, and within the window.
- Score, shares, strikes and band are those that `protocol.accounting.reputation` computes from these observations.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from msgspec import Meta

from protocol.accounting.reputation import DAY_MS, SCALE, WINDOW_DAYS, Band, ObservedDay, Reputation, reputation_of
from protocol.core.codec import Count, Millis, PeerText, Reason, decode
from protocol.core.envelope import OVERHEAD_BYTES, Kind, Signable, open_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority
from protocol.core.limits import MAX_REASON_CHARS

MAX_OBSERVED_DAYS = WINDOW_DAYS + 1

MAX_REPUTATION_NOTE_BYTES = 112 * MAX_OBSERVED_DAYS + 4 * MAX_REASON_CHARS + MAX_CERTIFICATE_BYTES + 512
"""Size in bytes: for each day at most eleven counts of nine bytes and an array's head."""

Thousandths = Annotated[int, Meta(ge=0, le=1000)]

ROUNDING = 1
"""Thousandths by which two programs may differ, because machines round powers differently."""


class ReputationNote(Signable, frozen=True, kw_only=True):
    """The reputation of `peer` on day `day`, by the rules of number `scale`, from the observations of `days`.

    Shares are in thousandths. `banned` is the reason of a ban, "" if there is none.
    """

    KIND: ClassVar[Kind] = Kind.REPUTATION

    peer: PeerText
    scale: Count
    day: Count
    band: Band
    score: Thousandths
    availability: Thousandths
    timeliness: Thousandths
    honesty: Thousandths
    soundness: Thousandths
    service: Thousandths
    days: Annotated[list[ObservedDay], Meta(max_length=MAX_OBSERVED_DAYS)]
    banned: Reason = ""
    issued_ms: Millis
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]

    @property
    def reputation(self) -> Reputation:
        """The reputation that follows from `days`."""
        return reputation_of(self.days, self.day, banned=bool(self.banned))


SHARES = ("score", "availability", "timeliness", "honesty", "soundness", "service")


def reputation_note(
    *, peer: str, day: int, days: list[ObservedDay], banned: str, issued_ms: int, certificate: bytes
) -> ReputationNote:
    """Return the note that states what follows from `days`. Days outside the window are left out."""
    inside = sorted((one for one in days if 0 <= day - one.day <= WINDOW_DAYS), key=lambda one: one.day)
    found = reputation_of(inside, day, banned=bool(banned))
    return ReputationNote(
        peer=peer,
        scale=SCALE,
        day=day,
        band=found.band,
        days=inside,
        banned=banned[:MAX_REASON_CHARS],
        issued_ms=issued_ms,
        certificate=certificate,
        **{name: round(1000 * getattr(found, name)) for name in SHARES},
    )


def open_reputation_note(raw: bytes, authority: Authority) -> ReputationNote:
    """Return the note in `raw`.

    Raises PeerError unless a key that was certified at its date signed it, and its statements follow from its
    observations.
    """
    envelope = open_envelope(raw, kind=Kind.REPUTATION, swarm=authority.swarm, limit=MAX_REPUTATION_NOTE_BYTES)
    note: ReputationNote = decode(ReputationNote, envelope.payload, MAX_REPUTATION_NOTE_BYTES)
    authority.require_learner(envelope, note.certificate, note.issued_ms)
    if note.scale != SCALE:
        raise PeerError(
            Fault.MALFORMED,
            f"reputation: it uses rules number {note.scale}, but this program knows {SCALE}: use a newer program",
        )
    if note.day > note.issued_ms // DAY_MS:
        raise PeerError(Fault.MALFORMED, "reputation: its day is after the day on which it was signed")
    if any(one.day >= other.day for one, other in pairwise(note.days)):
        raise PeerError(Fault.MALFORMED, "reputation: its days are not in order, or one is repeated")
    if any(not 0 <= note.day - one.day <= WINDOW_DAYS for one in note.days):
        raise PeerError(Fault.MALFORMED, f"reputation: a day is not one of the {MAX_OBSERVED_DAYS} up to {note.day}")
    _require_follows(note)
    return note


def _require_follows(note: ReputationNote) -> None:
    found = note.reputation
    for name in SHARES:
        told, computed = getattr(note, name), round(1000 * getattr(found, name))
        if abs(told - computed) > ROUNDING:
            raise PeerError(
                Fault.BROKEN_PROMISE, f"reputation: {name} is stated as {told}, but its observations give {computed}"
            )
    if note.band is not found.band:
        raise PeerError(
            Fault.BROKEN_PROMISE,
            f"reputation: the band is stated as {note.band.value}, but its observations give {found.band.value}",
        )


assert MAX_REPUTATION_NOTE_BYTES + OVERHEAD_BYTES < 1 << 16
