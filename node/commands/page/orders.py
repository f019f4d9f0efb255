"""Carry out what somebody with the token asks for: leave an order for the running program, as its commands do.

Invariants:

- An order has the same form, and the same effect, as the command of that name.
- What is no order is told with the field that is wrong, and changes nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from node.config.daily_hours import MAX_CHARS
from node.config.live_limits import as_toml, kept, with_limit
from node.config.node_config import NodeConfig
from node.reports.explain.meant_peer import LIFTED, REFUSED_LATER, Meant, meant_peer
from node.runtime.errors import UsageError
from node.state.locate import StateLocation
from node.state.operator_orders import (
    Ban,
    Change,
    NoSetting,
    OperatorDecisions,
    Pardon,
    Stop,
    checked_setting,
    setting_words,
)
from node.state.owner_orders import Drain, Limit, LimitOrders, OwnerRequests
from protocol.core.limits import MAX_REASON_CHARS

BY_PAGE = "the live page"

Peer = Annotated[str, Meta(min_length=1, max_length=128)]


class BanOrder(msgspec.Struct, frozen=True, tag="ban", tag_field="order", forbid_unknown_fields=True):
    """Exclude a peer."""

    peer: Peer
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""


class PardonOrder(msgspec.Struct, frozen=True, tag="pardon", tag_field="order", forbid_unknown_fields=True):
    """Let a peer come back."""

    peer: Peer


class PauseOrder(msgspec.Struct, frozen=True, tag="pause", tag_field="order", forbid_unknown_fields=True):
    """Let the node rest."""


class ResumeOrder(msgspec.Struct, frozen=True, tag="resume", tag_field="order", forbid_unknown_fields=True):
    """Let the node work again."""


class DrainOrder(msgspec.Struct, frozen=True, tag="drain", tag_field="order", forbid_unknown_fields=True):
    """Let the node deliver what it has, and end."""


class LimitOrder(msgspec.Struct, frozen=True, tag="limit", tag_field="order", forbid_unknown_fields=True):
    """Give a limit another value; no value lifts it."""

    key: Annotated[str, Meta(max_length=32)]
    value: float | Annotated[str, Meta(max_length=MAX_CHARS)] | None = None


class ChangeOrder(msgspec.Struct, frozen=True, tag="change", tag_field="order", forbid_unknown_fields=True):
    """Give a setting another value."""

    key: Annotated[str, Meta(max_length=32)]
    value: float


class StopOrder(msgspec.Struct, frozen=True, tag="stop", tag_field="order", forbid_unknown_fields=True):
    """Let the learner end after its present training step."""


OperatorOrder = BanOrder | PardonOrder | ChangeOrder | StopOrder
OwnerOrder = PauseOrder | ResumeOrder | DrainOrder | LimitOrder


def obey(body: bytes, place: StateLocation) -> str:
    """Leave the order in `body` for the program at `place`, and return a sentence about it. Raises NodeError."""
    kinds = OperatorOrder if place.is_learner else OwnerOrder
    try:
        order: OperatorOrder | OwnerOrder = msgspec.json.decode(body, type=kinds)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is no order: {error}.") from None
    match order:
        case BanOrder(peer=named, reason=reason):
            meant = meant_peer(named, place.state)
            OperatorDecisions(place.state).give(Ban(peer=meant.peer, reason=reason))
            return f"Banned: {meant.description}. The learner obeys within a second.{_unknown(meant, REFUSED_LATER)}"
        case PardonOrder(peer=named):
            meant = meant_peer(named, place.state)
            OperatorDecisions(place.state).give(Pardon(peer=meant.peer))
            return f"Pardoned: {meant.description}. It may join again in a second.{_unknown(meant, LIFTED)}"
        case ChangeOrder(key=key, value=value):
            value = _checked(key, value, place)
            OperatorDecisions(place.state).give(Change(key=key, value=value, by=BY_PAGE))
            return f"Within a second, {setting_words(key, value)}; a notice says when."
        case StopOrder():
            OperatorDecisions(place.state).give(Stop(by=BY_PAGE))
            return "The learner ends after its present training step, and saves what it has learned."
        case PauseOrder():
            OwnerRequests(place.state).pause(BY_PAGE)
            return "The node rests within a second."
        case ResumeOrder():
            OwnerRequests(place.state).resume()
            return "The node works again within a second."
        case DrainOrder():
            OwnerRequests(place.state).drain(Drain())
            return "The node takes no more work, delivers what it has, and ends."
        case LimitOrder(key=key, value=value):
            with_limit(NodeConfig(), key, value)
            LimitOrders(place.state).give(Limit(key=key, value=value, by=BY_PAGE))
            return f"{as_toml(key, value)}, within a second and until the node ends. {kept(key, value)}"


def _checked(key: str, value: float, place: StateLocation) -> float:
    """Return the value that the run can take. Raises UsageError. The learner looks again, and has the last word."""
    is_sequential, kappa = False, 1
    if place.config is not None:
        is_sequential, kappa = place.config.learn.staleness == 0, max(1, place.config.learn.publish_every)
    try:
        return checked_setting(key, value, is_sequential=is_sequential, kappa=kappa)
    except NoSetting as error:
        raise UsageError(str(error)) from None


def _unknown(meant: Meant, what_then: str) -> str:
    """Return the sentence about a peer that has not joined; "" if it has."""
    return "" if meant.has_joined else f" {what_then}"
