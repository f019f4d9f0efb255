"""Keep notices about services for the operator, until the verifier's next answer carries them to the node.

Invariants:

- At most MAX_REMARKS wait. The oldest are forgotten first.
- They contain no secret.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Literal

MAX_REMARKS = 64
"""A verifier answers within moments, so a larger number of notices would only be repetitions."""

How = Literal["down", "back", "unclear"]
HOWS: tuple[How, ...] = ("down", "back", "unclear")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """The service called `service` is down, is back, or gave an unclear answer. `detail` says more."""

    service: str
    how: How
    detail: str


_lock = Lock()
_waiting: deque[Remark] = deque(maxlen=MAX_REMARKS)


def remark(service: str, how: How, detail: str) -> None:
    """Keep a notice for the operator. May be called on any thread."""
    with _lock:
        _waiting.append(Remark(service=service, how=how, detail=detail))


def take_remarks() -> list[Remark]:
    """Return the notices that wait, and forget them."""
    with _lock:
        found = list(_waiting)
        _waiting.clear()
    return found
