"""Decide whether a notice is posted again, and when. A pure core.

Invariants:

- Pauses double from FIRST_PAUSE_S to MAX_PAUSE_S and are jittered. A longer pause that the service asks for is kept.
- What the service will never accept is not posted again.
- No notice is older than KEEP_S when it is posted again.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 300.0
"""Seconds between two attempts: a lost connection is back at once, a service that is down in minutes or hours."""

KEEP_S = 6 * 3600.0
"""Seconds for which a notice is of use: a night without a network loses what came before, not what is new."""

TOO_BUSY = (408, 425, 429)
"""Status codes that ask to come again."""


@dataclass(frozen=True, kw_only=True)
class Posted:
    """The service has accepted a notice."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A notice was not accepted. `is_final`: it never will be. `asked_s`: the pause that the service asks for."""

    detail: str
    is_final: bool = False
    asked_s: float = 0.0


Outcome = Posted | Failed


def outcome_of(status: int, detail: str, asked_s: float | None = None) -> Outcome:
    """Return what a reply with this status means. `asked_s` is its Retry-After in seconds, if it has one."""
    if 200 <= status < 300:
        return Posted()
    is_final = status < 500 and status not in TOO_BUSY
    return Failed(detail=detail, is_final=is_final, asked_s=asked_s or 0.0)


def pause_s(failed: Failed, attempt: int, age_s: float, chance: float) -> float | None:
    """Return the seconds until the next attempt; None if there is none.

    Args:
        attempt: number of the attempt that failed, from 0 on.
        age_s: how old the notice is, in seconds.
        chance: a random number in [0, 1).
    """
    if failed.is_final:
        return None
    pause = max(failed.asked_s, min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * chance))
    return None if age_s + pause > KEEP_S else pause
