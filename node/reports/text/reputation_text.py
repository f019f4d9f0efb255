"""Reputations in words: what is known of late, and what would raise each share.

Pure. What always holds: a share that lacks nothing has no advice; figures are those that the score is made of.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.runtime import formatting as words
from protocol.accounting.reputation import HALF_LIFE_DAYS, QUARANTINE_STRIKES, Band, Reputation

SHOWN = 0.995
"""From here on a share is written as 1.00."""

BANDS = {
    Band.NEW: "new: too little is known of it yet",
    Band.STEADY: "steady",
    Band.FAIR: "fair",
    Band.UNSTEADY: "unsteady",
    Band.QUARANTINED: "in quarantine: no more of its work may be under way than of a newcomer's",
    Band.BANNED: "banned",
}


def in_a_line(found: Reputation) -> str:
    """Score, band, and the shares."""
    shares = ("availability", "timeliness", "honesty", "soundness", "service")
    told = ", ".join(f"{name} {getattr(found, name):.2f}" for name in shares)
    return f"Reputation {found.score:.2f} of 1, {BANDS[found.band]} ({told})."


def known_lately(found: Reputation) -> str:
    """What the shares were made of."""
    seen = found.lately
    here = f"{words.duration(seen.present_ms / 1000)} here, {words.duration(seen.missed_ms / 1000)} missing"
    leases = f"{_count(seen.leases_in_time)} leases in time, {_count(seen.leases_failed)} not"
    groups = f"{_count(seen.groups_clean)} groups clean, {_count(seen.groups_blamed)} blamed"
    audits = f"{_count(seen.audits_passed)} audits passed, {_count(seen.audits_failed)} failed"
    relayed = f"{words.size(round(seen.bytes_given))} given to others, {words.size(round(seen.bytes_had))} had of them"
    each = f"Of late, what is {HALF_LIFE_DAYS} days old counting half"
    return f"{each}: {here}; {leases}; {groups}; {audits}; {relayed}."


def advice(found: Reputation) -> Iterator[str]:
    """A sentence for each strike that stands and for each share that lacks something; none for who is banned."""
    if found.banned:
        return
    for strike in found.strikes:
        yield f"Soft strike: {strike.value}. It passes with time and good work, or by the operator's pardon."
    if found.availability < SHOWN:
        yield "Availability rises with time here; stop the node with Ctrl-C or drain, which is no absence."
    if found.timeliness < SHOWN:
        yield "Timeliness rises with leases delivered in time: lower [engine] batch_rollouts, set hours, drain to stop."
    if found.honesty < SHOWN:
        yield "Honesty rises with groups that no rule blames: mend what the refusals name."
    if found.soundness < SHOWN:
        weeks = "a week" if found.soundness > 2.0 ** (-2 * QUARANTINE_STRIKES) / 1.01 else "some weeks"
        yield f"Soundness comes back within {weeks} in which audits pass: look for bad memory or a changed engine."


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"
