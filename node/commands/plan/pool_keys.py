"""Define the keys of a pool: its columns, the keys of its tables, and their allowed values; and the equivalent options.

Invariants:

- A judged value is known, finite and in its range.
- An error is a UsageError that names the place, the key and the allowed values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.runtime.errors import UsageError
from node.runtime.formatting import plain_name

MAX_MACHINES = 1000
"""Most machines of a plan: the exact choice was tried with that many, and takes seconds."""

MAX_WINDOW = 100
"""Widest window of a plan, which has a row for each window up to the requested one."""

MAX_NUMBER = 1e12

NAME_CHARS = 64


@dataclass(frozen=True, kw_only=True)
class Key:
    """A column of a pool, a key of its tables, or an option: a number from `low` to `high`, or a text."""

    name: str
    meaning: str
    """The help of an option."""
    short: str = ""
    """Another name of the option."""
    low: float = 0.0
    above: bool = False
    """Whether `low` itself is not allowed."""
    high: float = MAX_NUMBER
    whole: bool = False
    text: bool = False
    needed: str = ""
    """The advice if the key is missing; "" if it is optional."""

    def judge(self, value: object, where: str) -> Any:
        """Return `value` as the key's type. Raises UsageError, which names `where`."""
        if self.text:
            return self._text(value, where)
        number = _number(value)
        if number is None:
            raise UsageError(f"{where}: {self.name} = {quoted_value(value)} is not a number.")
        if number == math.inf and isinstance(value, int):
            raise UsageError(f"{where}: {self.name} = {quoted_value(value)} is out of range: {self._range()}.")
        if not math.isfinite(number):
            raise UsageError(f"{where}: {self.name} = {number} is not a finite number.")
        if number < self.low or (self.above and number == self.low) or number > self.high:
            raise UsageError(f"{where}: {self.name} = {number:g} is out of range: {self._range()}.")
        if self.whole and number != int(number):
            raise UsageError(f"{where}: {self.name} = {number:g} is not a whole number.")
        return int(number) if self.whole else number

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str) or not (text := plain_name(value, NAME_CHARS)):
            raise UsageError(
                f"{where}: {self.name} = {quoted_value(value)} is not a text of 1 to {NAME_CHARS} characters."
            )
        return text

    def _range(self) -> str:
        least = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        return f"{least}, and at most {self.high:g}"


COLUMNS = (
    Key(name="name", meaning="name in the plan", text=True, needed="give every machine a name"),
    Key(name="price", meaning="per hour", needed="give its price per hour, 0 for a volunteer's"),
    Key(name="rate", meaning="rollouts per second", above=True, needed="give mu, admitted rollouts per second"),
    Key(name="count", meaning="number of equal machines", low=1, high=MAX_MACHINES, whole=True),
    Key(name="up_mbit", meaning="upload rate"),
    Key(name="down_mbit", meaning="download rate", above=True),
    Key(name="broadcast_s", meaning="its T_bcast"),
    Key(name="generation_s", meaning="its T_gen"),
    Key(name="start_s", meaning="seconds until it delivers"),
    Key(name="start_price", meaning="price of one start"),
    Key(name="stops_per_hour", meaning="how often it is taken away", high=3600),
    Key(name="back_s", meaning="seconds until it is back", above=True),
    Key(name="batch_rollouts", meaning="rollouts that its engine generates at once", low=1, high=1 << 20, whole=True),
    Key(name="fixed_share", meaning="seconds of a batch of one, as a fraction of a full batch's", high=1),
    Key(name="spread", meaning="standard deviation over mean of a batch's seconds", high=10),
    Key(name="currency", meaning="three capital letters", text=True),
)  # fmt: skip

OPTIONS = (
    Key(name="train_s", meaning="T_train: seconds of one training step.", above=True),
    Key(name="rollouts", meaning="R: rollouts of one training step.", low=1, whole=True),
    Key(name="staleness", meaning="S: staleness window, in training steps. Default: 3.", high=MAX_WINDOW, whole=True),
    Key(name="max_staleness", meaning="Widest window in the table. Default: 11.", high=MAX_WINDOW, whole=True),
    Key(name="generation_s", meaning="T_gen: seconds of a slow rollout, until admitted."),
    Key(name="broadcast_s", meaning="T_bcast: seconds until most machines use a version."),
    Key(name="weights_mb", meaning="Compute T_bcast from 10^6 bytes for a version.", above=True),
    Key(name="learner_up_mbit", meaning="With --weights-mb: uplink of the learner, Mbit/s.", above=True),
    Key(name="install_s", meaning="Seconds to install a version that has arrived."),
    Key(name="kappa", meaning="Training steps between versions. Default: planned.", low=1, high=1000, whole=True),
    Key(name="ahead", meaning="Batches leased or waiting at most.", low=1, high=64),
    Key(name="margin", meaning="Multiply needed rates by this. Default: 1.05.", low=1, high=10),
    Key(name="hours", meaning="Hours to spread the cost of a start over. Default: 24.", above=True),
    Key(name="learner_price", meaning="Price per hour of the learner's machine."),
)
"""Options of `volery plan`, and keys of the `[swarm]` table."""

SETTINGS = (
    *OPTIONS,
    Key(name="group_size", meaning="rollouts of a lease", low=2, high=1024, whole=True),
    Key(name="train_spread", meaning="standard deviation over mean of T_train", high=10),
    Key(name="publish_s", meaning="seconds of the learner's time for a publication"),
    Key(name="currency", meaning="three capital letters", text=True),
)

_WHO = Key(name="machine", meaning="name of a machine, or of a row of equal ones", text=True, needed="name a machine")

ABSENCES = (
    _WHO,
    Key(name="from_s", meaning="second when it goes", needed="say when it goes, in seconds from the beginning"),
    Key(name="until_s", meaning="second when it is back"),
)

CHANGES = (
    _WHO,
    Key(name="at_s", meaning="second of the change", needed="say when, in seconds from the beginning"),
    Key(name="price", meaning="per hour"),
    Key(name="speed", meaning="factor on its rate", above=True, high=1000),
    Key(name="delay", meaning="factor on its T_bcast", high=1000),
)


def judged(keys: Sequence[Key], values: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return `values` as the types of `keys`, without empty ones. Raises UsageError, which names `where`."""
    known = {key.name: key for key in keys}
    for name in values:
        if name not in known:
            raise UsageError(f"{where}: unknown key {quoted_value(name)}. Known are: {', '.join(known)}.")
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    for key in keys:
        if key.needed and key.name not in given:
            raise UsageError(f"{where}: {key.name} is missing: {key.needed}.")
    return {name: known[name].judge(value, where) for name, value in given.items()}


def judged_options(keys: Sequence[Key], options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are not None as the types of `keys`. Raises UsageError, which names them as typed."""
    found: dict[str, Any] = {}
    for key in keys:
        found |= judged([key], {key.name: options.get(key.name)}, f"--{key.name.replace('_', '-')}")
    return found


def _number(value: object) -> float | None:
    """Return a TOML number, or the number in a CSV cell; None for anything else, also for a date or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def quoted_value(value: object) -> str:
    """Return a value that a person wrote as a message quotes it."""
    return plain_name(repr(value), NAME_CHARS)
