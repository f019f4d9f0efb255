"""Define the troubles that a rollout node reports in every heartbeat: what it cannot do now.

A trouble is a claim. No record is admitted or rejected because of it, and nothing is paid.

Invariants:

- A heartbeat names at most MAX_TROUBLES troubles. A reader takes the last of each kind.
- A trouble is state, not an event: it is over when a heartbeat no longer names it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocol.core.codec import Count, OpenEnum, Row, Shown
from protocol.core.ids import PolicyVersion

MAX_TROUBLES = 5
"""Troubles in one heartbeat: one of each kind, OTHER included."""

MAX_TROUBLE_CHARS = 240
"""Length of one reason: one line on a screen. Five reasons in letters of four bytes add 5 KB to a heartbeat."""


class TroubleKind(OpenEnum):
    """The task that fails: fetching a version, installing one (or proving which one is installed), using leases, or
    keeping the engine alive. OTHER is a kind that a newer program added."""

    FETCH = "fetch"
    INSTALL = "install"
    LEASE = "lease"
    ENGINE = "engine"
    OTHER = "other"


class Trouble(Row, frozen=True, array_like=True):
    """One failure: how many `times` it happened in a row, the latest `reason`, and the `version` that it concerned."""

    kind: TroubleKind
    times: Count
    reason: Annotated[str, Meta(max_length=MAX_TROUBLE_CHARS), Shown]
    version: PolicyVersion | None = None


TroubleList = Annotated[list[Trouble], Meta(max_length=MAX_TROUBLES)]
