"""Decide when to ask a service again, and whether it is down, without a clock or a socket.

A pure core. An outage only costs waiting time. It causes no storm of requests, and no run that drops its groups at full
speed.

Invariants:

- Pauses double and are jittered, so that processes that failed together do not come back together.
- The pause that a service asks for with Retry-After is kept.
- A service that is down is asked one question at a time until it answers. All other questions wait for that, as long as
  their own time allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Literal

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 8.0
"""Maximum seconds between two attempts. A service that restarts is back within a minute, and is noticed soon after."""

MAX_RETRY_AFTER_S = 3600.0
"""Maximum seconds of a Retry-After. The time of every question is over long before."""

DOWN_AFTER = 3
"""Failures in a row after which a service counts as down. A single lost connection is no outage."""

LOOK_S = 0.1
"""Seconds between two looks of a waiting question at whether the service is back."""

Kind = Literal["down", "broken", "denied", "busy", "rejected", "unreadable"]
"""Kinds of failed requests. down: no answer. broken: the server failed, or closed the connection in the middle.
denied: it does not accept the key or the address. busy: it has too many requests. rejected: it does not accept the
questions. unreadable: its answer cannot be read."""


class RequestFailed(Exception):
    """A request got no answer; says why."""

    def __init__(self, kind: Kind, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def may_be_one(self) -> bool:
        """Whether one of several questions may be the cause."""
        return self.kind in ("broken", "rejected", "unreadable")


def pause_s(attempt: int, chance: float) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, from 0 on. `chance` lies in [0, 1)."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * chance)


def read_retry_after(told: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After asks for, as a number or a date. None if it cannot be read."""
    if not told:
        return None
    text = told.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), MAX_RETRY_AFTER_S)


@dataclass(kw_only=True)
class Health:
    """Whether a service may be asked now. Call `began` for each request, then one of the other methods.

    `max_pause_s`: between two questions while it is down. It must be less than a question's own time, or some questions
    would never be asked.
    """

    chance: Random = field(default_factory=Random)
    max_pause_s: float = MAX_PAUSE_S
    _failures: int = 0
    _not_before_s: float = 0.0
    _is_tried: bool = False
    """The service is down, and one request is open to find out whether it is back."""

    @property
    def is_down(self) -> bool:
        return self._failures >= DOWN_AFTER

    def wait_s(self, now_s: float) -> float:
        """Return 0 if the service may be asked, else the seconds to wait before calling this again."""
        if now_s < self._not_before_s:
            return self._not_before_s - now_s
        return LOOK_S if self.is_down and self._is_tried else 0.0

    def began(self) -> None:
        """Record that a request was sent."""
        self._is_tried = self.is_down

    def answered(self) -> bool:
        """Record that the service has answered anything. Returns whether it was down."""
        was_down, self._failures, self._is_tried = self.is_down, 0, False
        if was_down:
            self._not_before_s = 0.0
        return was_down

    def failed(self, now_s: float, *, at_once: bool = False) -> bool:
        """Record that it has not answered. `at_once`: it will not answer others either. Returns whether it is down from
        now on."""
        was_down = self.is_down
        if was_down and not self._is_tried:
            return False  # this request was sent before the service was known to be down
        self._failures = max(DOWN_AFTER, self._failures + 1) if at_once else self._failures + 1
        self._is_tried = False
        if self.is_down:
            pause = min(self.max_pause_s, pause_s(self._failures - DOWN_AFTER, self.chance.random()))
            self._not_before_s = max(self._not_before_s, now_s + pause)
        return self.is_down and not was_down

    def busy(self, now_s: float, retry_after_s: float) -> None:
        """Record that the service asks for a pause of so many seconds."""
        self._is_tried = False
        self._not_before_s = max(self._not_before_s, now_s + retry_after_s)

    def left(self) -> None:
        """Record that the caller left before an answer."""
        self._is_tried = False
