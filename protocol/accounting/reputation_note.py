"""Reputation notes: the learner's signed word on a peer, with the observations that it rests on.

What always holds after `open_reputation_note`: the operator stands behind the signer; days are in order, each once, and
within the window; score, shares, strikes and band are those that `protocol.accounting.reputation` makes of these
observations. So a reader has to believe the learner's counts, and nothing else; and can count them anew for a later
day.
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
"""Eleven counts of nine bytes at most and an array's head for each day."""

Thousandths = Annotated[int, Meta(ge=0, le=1000)]

ROUNDING = 1
"""Thousandths by which two programs may differ: powers are rounded differently on other machines."""


class ReputationNote(Signable, frozen=True, kw_only=True):
    """How `peer` stands on day `day`, by the rules of number `scale`, from what was observed on `days`.

    Shares are thousandths. `banned`: why it is banned, "" if it is not.
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
        """What follows from `days`."""
        return reputation_of(self.days, self.day, banned=bool(self.banned))


SHARES = ("score", "availability", "timeliness", "honesty", "soundness", "service")


def reputation_note(
    *, peer: str, day: int, days: list[ObservedDay], banned: str, issued_ms: int, certificate: bytes
) -> ReputationNote:
    """The note that says what follows from `days`, of which those outside the window are left out."""
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
    """Return the note in `raw`; PeerError unless a key certified at its date signed it and it says what follows from
    its observations.
    """
    envelope = open_envelope(raw, kind=Kind.REPUTATION, swarm=authority.swarm, limit=MAX_REPUTATION_NOTE_BYTES)
    note: ReputationNote = decode(ReputationNote, envelope.payload, MAX_REPUTATION_NOTE_BYTES)
    authority.require_learner(envelope, note.certificate, note.issued_ms)
    if note.scale != SCALE:
        raise PeerError(
            Fault.MALFORMED, f"reputation: by rules of number {note.scale}, this program knows {SCALE}: use a newer one"
        )
    if note.day > note.issued_ms // DAY_MS:
        raise PeerError(Fault.MALFORMED, "reputation: it speaks of a day after it was signed")
    if any(one.day >= other.day for one, other in pairwise(note.days)):
        raise PeerError(Fault.MALFORMED, "reputation: its days are not in order, each once")
    if any(not 0 <= note.day - one.day <= WINDOW_DAYS for one in note.days):
        raise PeerError(Fault.MALFORMED, f"reputation: a day is not of the {MAX_OBSERVED_DAYS} up to {note.day}")
    _require_follows(note)
    return note


def _require_follows(note: ReputationNote) -> None:
    found = note.reputation
    for name in SHARES:
        told, computed = getattr(note, name), round(1000 * getattr(found, name))
        if abs(told - computed) > ROUNDING:
            raise PeerError(
                Fault.BROKEN_PROMISE, f"reputation: {name} is said to be {told}, its observations come to {computed}"
            )
    if note.band is not found.band:
        raise PeerError(
            Fault.BROKEN_PROMISE,
            f"reputation: it is said to be {note.band.value}, its observations say {found.band.value}",
        )


assert MAX_REPUTATION_NOTE_BYTES + OVERHEAD_BYTES < 1 << 16
