"""Pass an operator's orders to a learner: one file for each (`order_files`).

    <state>/orders/<time>-<number>.json      {"order": "ban", "peer": "12D3Koo...", "reason": "..."}     `volery ban`
                                             {"order": "pardon", "peer": "12D3Koo..."}                   `volery pardon`
                                             {"order": "change", "key": "staleness", "value": 4, "by": "the live page"}
                                             {"order": "stop", "by": "the live page"}

The rules for values that a change may have are here as well: the page checks by them, and the learner again.

A ban or a pardon also reaches a learner that is not running. A change or a stop is for the run that it was given to.

Invariants:

- Orders are obeyed in the order in which they were given, once each. An order is removed when its consequences are in
  the ledger.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from node.config.swarm_config import MAX_WINDOW
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


# Settings that may change while a run goes on. The page and the learner use the same rules.

STALENESS, LEARNING_RATE, EVALUATE, PUBLISH = "staleness", "learning_rate", "every_versions", "publish"
"""The names of the settings: those of the keys in swarm.toml, and whether versions are published."""

SETTINGS = (STALENESS, LEARNING_RATE, EVALUATE, PUBLISH)


class NoSetting(ValueError):
    """A setting cannot have that value. The message says why."""


def checked_setting(key: str, value: float, *, is_sequential: bool, kappa: int) -> float:
    """Return the value that a setting may have: a whole number where that is asked for. Raises NoSetting.

    is_sequential: whether the run takes turns (S = 0). kappa: training steps between published versions.
    """
    match key:
        case "staleness":
            return _window(value, is_sequential=is_sequential, kappa=kappa)
        case "learning_rate":
            if not (math.isfinite(value) and 0 < value <= 1):
                raise NoSetting("A learning rate is a number above 0, such as 1e-6, and at most 1.")
            return value
        case "every_versions":
            if (every := _whole(key, value)) < 0:
                raise NoSetting("every_versions is 0 (the first and the last version alone), or a number of versions.")
            return every
        case "publish":
            if value not in (0, 1):
                raise NoSetting("publish is 1 (versions are published) or 0 (they are not).")
            return round(value)
    raise NoSetting(f"{key!r} cannot be changed while the run goes on. These can: {', '.join(SETTINGS)}.")


def setting_words(key: Any, value: Any) -> str:
    """Return what holds after a change, as a part of a sentence, whatever a log says of it."""
    match key, value:
        case "staleness", int() | float():
            return f"the staleness window is S = {value:g}"
        case "learning_rate", int() | float():
            return f"the learning rate is {value:g}"
        case "every_versions", 0:
            return "only the first and the last version are evaluated"
        case "every_versions", 1:
            return "every version is evaluated"
        case "every_versions", int() | float():
            return f"one in {value:g} versions is evaluated"
        case "publish", 0:
            return "new versions are held back"
        case "publish", _:
            return "new versions are published"
    return f"{key} is {value}"


def _window(value: float, *, is_sequential: bool, kappa: int) -> int:
    window = _whole(STALENESS, value)
    if is_sequential or window == 0:
        raise NoSetting("S = 0 is the sequential mode, which a run keeps from its start on. Set [learn] mode.")
    if not kappa <= window <= MAX_WINDOW:
        raise NoSetting(f"S must be from {kappa}, the training steps between versions, to {MAX_WINDOW}.")
    return window


def _whole(key: str, value: float) -> int:
    if not math.isfinite(value) or value != round(value):
        raise NoSetting(f"{key} is a whole number, not {value:g}.")
    return round(value)
