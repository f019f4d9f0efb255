"""Put reputations into words: what is known of recent behaviour, and what would raise each share. Pure.

Invariants:

- A share that lacks nothing has no advice.
- The numbers are those from which the score is made.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.runtime import formatting as words
from protocol.accounting.reputation import HALF_LIFE_DAYS, QUARANTINE_STRIKES, Band, Reputation

SHOWN = 0.995
"""From this value on a share is written as 1.00."""

BANDS = {
    Band.NEW: "new: too little is known about it yet",
    Band.STEADY: "steady",
    Band.FAIR: "fair",
    Band.UNSTEADY: "unsteady",
    Band.QUARANTINED: "in quarantine: its quota is at most a newcomer's",
    Band.BANNED: "banned",
}


def in_a_line(found: Reputation) -> str:
    """Return the score, the band, and the shares in one sentence."""
    shares = ("availability", "timeliness", "honesty", "soundness", "service")
    told = ", ".join(f"{name} {getattr(found, name):.2f}" for name in shares)
    return f"Reputation {found.score:.2f} of 1, {BANDS[found.band]} ({told})."


def known_lately(found: Reputation) -> str:
    """Return the observations from which the shares were made."""
    seen = found.lately
    here = f"{words.duration(seen.present_ms / 1000)} present, {words.duration(seen.missed_ms / 1000)} missing"
    leases = f"{_count(seen.leases_in_time)} leases in time, {_count(seen.leases_failed)} not"
    groups = f"{_count(seen.groups_clean)} groups clean, {_count(seen.groups_blamed)} blamed"
    audits = f"{_count(seen.audits_passed)} audits passed, {_count(seen.audits_failed)} failed"
    relayed = f"{words.size(round(seen.bytes_given))} sent to others, {words.size(round(seen.bytes_had))} received"
    each = f"Recent observations, which count half after {HALF_LIFE_DAYS} days"
    return f"{each}: {here}; {leases}; {groups}; {audits}; {relayed}."


def advice(found: Reputation) -> Iterator[str]:
    """Yield a sentence for each active strike and each share that lacks something; nothing for a banned peer."""
    if found.banned:
        return
    for strike in found.strikes:
        yield f"Soft strike: {strike.value}. It expires with time and good work, or by the operator's pardon."
    if found.availability < SHOWN:
        yield "Availability rises with time in the swarm. Stop the node with Ctrl-C or drain: that is no absence."
    if found.timeliness < SHOWN:
        yield "Timeliness rises with leases delivered in time: lower [engine] batch_rollouts, set hours, drain to stop."
    if found.honesty < SHOWN:
        yield "Honesty rises with groups that no rule blames: correct what the rejections name."
    if found.soundness < SHOWN:
        weeks = "a week" if found.soundness > 2.0 ** (-2 * QUARANTINE_STRIKES) / 1.01 else "some weeks"
        yield f"Soundness recovers within {weeks} in which audits pass: look for bad memory or a changed engine."


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"
