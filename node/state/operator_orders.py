"""Pass an operator's orders to a learner: one file for each (`order_files`).

    <state>/orders/<time>-<number>.json      {"order": "ban", "peer": "12D3Koo...", "reason": "..."}     `volery ban`
                                             {"order": "pardon", "peer": "12D3Koo..."}                   `volery pardon`
                                             {"order": "change", "key": "staleness", "value": 4, "by": "the live page"}
                                             {"order": "stop", "by": "the live page"}

A ban or a pardon also reaches a learner that is not running. A change or a stop is for the run that it was given to.

Invariants:

- Orders are obeyed in the order in which they were given, once each. An order is removed when its consequences are in
  the ledger.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from node.state.order_files import OrderFiles, read_as
from protocol.core.codec import PeerText


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """An order of the operator."""


class Ban(Order, frozen=True, tag="ban"):
    """The peer is excluded, and its work is not trained on."""

    peer: PeerText
    reason: str


class Pardon(Order, frozen=True, tag="pardon"):
    """The peer may come back, as a newcomer."""

    peer: PeerText


class Change(Order, frozen=True, tag="change"):
    """A setting has another value until the learner ends. `by`: through what the operator asked for it."""

    key: str
    value: float
    by: str = ""


class Stop(Order, frozen=True, tag="stop"):
    """The learner ends in order after the training step that it takes now."""

    by: str = ""


AnyOrder = Ban | Pardon | Change | Stop


class OperatorDecisions(OrderFiles):
    """The orders in the state directory of a learner."""


def read_order(path: Path) -> AnyOrder:
    """Return the order in a file. Raises NoOrder."""
    order: AnyOrder = read_as(path, AnyOrder)
    return order
