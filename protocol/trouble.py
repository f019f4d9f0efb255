"""What a rollout node cannot do, as it tells the learner in every heartbeat.

A trouble is a claim: nothing is admitted, refused or paid by it.

Invariants:
- A heartbeat names at most MAX_TROUBLES of them; a reader takes the last of each kind.
- It is state, not an event: what a heartbeat does not name any more is over.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocol.core.codec import Count, OpenEnum, Row, Shown
from protocol.core.ids import PolicyVersion

MAX_TROUBLES = 5
"""One of each kind, and one to spare for a kind that is younger than this program."""

MAX_TROUBLE_CHARS = 240
"""One reason: as long as a line in a view. Five of them in letters of four bytes add 5 KB to a heartbeat."""


class TroubleKind(OpenEnum):
    """What fails: fetching a version, installing one (or proving what was installed), using leases, keeping the engine
    alive."""

    FETCH = "fetch"
    INSTALL = "install"
    LEASE = "lease"
    ENGINE = "engine"
    OTHER = "other"


class Trouble(Row, frozen=True, array_like=True):
    """It failed so many `times` in a row, last for this `reason`, with this `version`, if with one."""

    kind: TroubleKind
    times: Count
    reason: Annotated[str, Meta(max_length=MAX_TROUBLE_CHARS), Shown]
    version: PolicyVersion | None = None


TroubleList = Annotated[list[Trouble], Meta(max_length=MAX_TROUBLES)]
