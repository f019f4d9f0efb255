"""When a service is asked again, and whether it is down: rules without a clock or a socket.

A pure core. What always holds: pauses grow by the power of two and are jittered, so that processes that failed together
do not come back together; what a service asks for with Retry-After is waited; a service that is down is asked one
question at a time until it answers, and all others wait for that as long as their own time allows. So an outage costs
waiting, and neither a storm of requests nor a run that throws its groups away at full speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Literal

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 8.0
"""A service that restarts is back within seconds to a minute, and is noticed soon after."""

MAX_RETRY_AFTER_S = 3600.0
"""What is asked for beyond is taken for this: a question's own time is over long before."""

DOWN_AFTER = 3
"""Failures in a row, without one answer: a single lost connection is no outage."""

LOOK_S = 0.1
"""How often those that wait see whether it is back."""

Kind = Literal["down", "broken", "denied", "busy", "rejected", "unreadable"]
"""What went wrong with a request: nobody answers; the server failed, or left in the middle; it does not take the key or
the address; it is asked too much; it does not take the questions; its answer cannot be read."""


class RequestFailed(Exception):
    """A request without an answer, and why."""

    def __init__(self, kind: Kind, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def may_be_one(self) -> bool:
        """Whether one question of several may be the cause."""
        return self.kind in ("broken", "rejected", "unreadable")


def pause_s(attempt: int, chance: float) -> float:
    """How long to wait after the failed attempt of that number, from 0 on. `chance` lies in [0, 1)."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * chance)


def read_retry_after(told: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After asks for: a number, or a date. None where it says nothing that can be read."""
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
    """Whether a service may be asked now. Told of each request: `began`, then one of the others.

    `max_pause_s` between two questions while it is down: less than a question's own time, or some would never be asked.
    """

    chance: Random = field(default_factory=Random)
    max_pause_s: float = MAX_PAUSE_S
    _failures: int = 0
    _not_before_s: float = 0.0
    _is_tried: bool = False
    """It is down, and one request is under way to find out whether it is back."""

    @property
    def is_down(self) -> bool:
        return self._failures >= DOWN_AFTER

    def wait_s(self, now_s: float) -> float:
        """0: it may be asked; else how long to wait before asking here again."""
        if now_s < self._not_before_s:
            return self._not_before_s - now_s
        return LOOK_S if self.is_down and self._is_tried else 0.0

    def began(self) -> None:
        """A request is on its way."""
        self._is_tried = self.is_down

    def answered(self) -> bool:
        """It has answered, whatever. Returns whether it was down."""
        was_down, self._failures, self._is_tried = self.is_down, 0, False
        if was_down:
            self._not_before_s = 0.0
        return was_down

    def failed(self, now_s: float, *, at_once: bool = False) -> bool:
        """It has not answered; `at_once`: nor will it answer others. Returns whether it is down from now on."""
        was_down = self.is_down
        if was_down and not self._is_tried:
            return False  # it was asked before that was known
        self._failures = max(DOWN_AFTER, self._failures + 1) if at_once else self._failures + 1
        self._is_tried = False
        if self.is_down:
            pause = min(self.max_pause_s, pause_s(self._failures - DOWN_AFTER, self.chance.random()))
            self._not_before_s = max(self._not_before_s, now_s + pause)
        return self.is_down and not was_down

    def busy(self, now_s: float, retry_after_s: float) -> None:
        """It wants to be left alone so long."""
        self._is_tried = False
        self._not_before_s = max(self._not_before_s, now_s + retry_after_s)

    def left(self) -> None:
        """Whoever asked went away before it answered."""
        self._is_tried = False
