"""What the operator is to hear of services: kept here until the verifier's next answer carries it to the node.

What always holds: at most MAX_REMARKS wait, of which the oldest are forgotten first; nothing in them is secret.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Literal

MAX_REMARKS = 64
"""A verifier answers again within moments; what comes faster repeats itself."""

How = Literal["down", "back", "unclear"]
HOWS: tuple[How, ...] = ("down", "back", "unclear")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """The service called `service` is down or back, or gave an answer that says nothing; `detail` tells which."""

    service: str
    how: How
    detail: str


_lock = Lock()
_waiting: deque[Remark] = deque(maxlen=MAX_REMARKS)


def remark(service: str, how: How, detail: str) -> None:
    """Let the operator hear of it. From any thread."""
    with _lock:
        _waiting.append(Remark(service=service, how=how, detail=detail))


def take_remarks() -> list[Remark]:
    """Those that wait, which then wait no longer."""
    with _lock:
        found = list(_waiting)
        _waiting.clear()
    return found
