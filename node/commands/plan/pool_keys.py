"""The words of a pool: its columns, the keys of its tables, and what may stand there; and the options that are such
keys.

What always holds: what is judged is known, finite and in its range; a refusal is a UsageError that names the place, the
key and what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.runtime.errors import UsageError
from node.runtime.formatting import plain_name

MAX_MACHINES = 1000
"""As many as the exact choice was tried with, in seconds."""

MAX_WINDOW = 100
"""Of a plan, which has a row for each window up to the one asked for."""

MAX_NUMBER = 1e12

NAME_CHARS = 64


@dataclass(frozen=True, kw_only=True)
class Key:
    """A column of a pool, a key of its tables, or an option: a number from `low` to `high`, or a text."""

    name: str
    meaning: str
    """Of an option it is the help."""
    short: str = ""
    """Another name of an option."""
    low: float = 0.0
    above: bool = False
    """`low` itself is out."""
    high: float = MAX_NUMBER
    whole: bool = False
    text: bool = False
    needed: str = ""
    """What to do when it is missing; empty if it may be."""

    def judge(self, value: object, where: str) -> Any:
        """`value` as the key's type. Raises UsageError naming `where`."""
        if self.text:
            return self._text(value, where)
        number = _number(value)
        if number is None:
            raise UsageError(f"{where}: {self.name} = {shown(value)} is not a number.")
        if number == math.inf and isinstance(value, int):
            raise UsageError(f"{where}: {self.name} = {shown(value)} is out of range: {self._range()}.")
        if not math.isfinite(number):
            raise UsageError(f"{where}: {self.name} = {number} is not a finite number.")
        if number < self.low or (self.above and number == self.low) or number > self.high:
            raise UsageError(f"{where}: {self.name} = {number:g} is out of range: {self._range()}.")
        if self.whole and number != int(number):
            raise UsageError(f"{where}: {self.name} = {number:g} is not a whole number.")
        return int(number) if self.whole else number

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str) or not (text := plain_name(value, NAME_CHARS)):
            raise UsageError(f"{where}: {self.name} = {shown(value)} is not a text of 1 to {NAME_CHARS} characters.")
        return text

    def _range(self) -> str:
        least = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        return f"{least}, and at most {self.high:g}"


COLUMNS = (
    Key(name="name", meaning="what the plan calls it", text=True, needed="give every machine a name"),
    Key(name="price", meaning="per hour", needed="give its price per hour, 0 for a volunteer's"),
    Key(name="rate", meaning="rollouts per second", above=True, needed="give mu, admitted rollouts per second"),
    Key(name="count", meaning="so many alike", low=1, high=MAX_MACHINES, whole=True),
    Key(name="up_mbit", meaning="sends"),
    Key(name="down_mbit", meaning="receives", above=True),
    Key(name="broadcast_s", meaning="its T_bcast"),
    Key(name="generation_s", meaning="its T_gen"),
    Key(name="start_s", meaning="until it supplies"),
    Key(name="start_price", meaning="of one start"),
    Key(name="stops_per_hour", meaning="how often it is taken away", high=3600),
    Key(name="back_s", meaning="until it is back", above=True),
    Key(name="batch_rollouts", meaning="what its engine takes at once", low=1, high=1 << 20, whole=True),
    Key(name="fixed_share", meaning="of a full batch's seconds, what one rollout takes", high=1),
    Key(name="spread", meaning="deviation over mean of a batch's seconds", high=10),
    Key(name="currency", meaning="three capital letters", text=True),
)  # fmt: skip

OPTIONS = (
    Key(name="train_s", meaning="T_train: seconds of one training step.", above=True),
    Key(name="rollouts", meaning="R: rollouts that a training step takes.", low=1, whole=True),
    Key(name="staleness", meaning="S: the window to plan for, in training steps; 3.", high=MAX_WINDOW, whole=True),
    Key(name="max_staleness", meaning="The last window of the table; 11.", high=MAX_WINDOW, whole=True),
    Key(name="generation_s", meaning="T_gen: seconds of a slow rollout, admission too."),
    Key(name="broadcast_s", meaning="T_bcast: seconds until most use a version."),
    Key(name="weights_mb", meaning="Or 10^6 bytes of what travels, to compute it.", above=True),
    Key(name="learner_up_mbit", meaning="The learner's uplink, to compute it.", above=True),
    Key(name="install_s", meaning="Seconds from its arrival until a version is in use."),
    Key(name="kappa", meaning="Publish every so many steps, not as the rules say.", low=1, high=1000, whole=True),
    Key(name="ahead", meaning="Batches leased or waiting at most; else as measured.", low=1, high=64),
    Key(name="margin", meaning="Ask for so many times what suffices; 1.05.", low=1, high=10),
    Key(name="hours", meaning="Hours over which a machine's start is charged; 24.", above=True),
    Key(name="learner_price", meaning="Price per hour of the learner's machine."),
)
"""Of `volery plan`; of the `[swarm]` table, too."""

SETTINGS = (
    *OPTIONS,
    Key(name="group_size", meaning="rollouts of a lease", low=2, high=1024, whole=True),
    Key(name="train_spread", meaning="deviation over mean of T_train", high=10),
    Key(name="publish_s", meaning="what a publication takes of the learner's time"),
    Key(name="currency", meaning="three capital letters", text=True),
)

_WHO = Key(name="machine", meaning="a machine's name, or that of machines alike", text=True, needed="name a machine")

ABSENCES = (
    _WHO,
    Key(name="from_s", meaning="it is taken away", needed="say when it goes, in seconds from the beginning"),
    Key(name="until_s", meaning="it is back"),
)

CHANGES = (
    _WHO,
    Key(name="at_s", meaning="from then on", needed="say when, in seconds from the beginning"),
    Key(name="price", meaning="per hour"),
    Key(name="speed", meaning="a factor on its rate", above=True, high=1000),
    Key(name="delay", meaning="a factor on its T_bcast", high=1000),
)


def judged(keys: Sequence[Key], values: Mapping[str, object], where: str) -> dict[str, Any]:
    """`values` as the types of `keys`, without those that are empty. Raises UsageError naming `where`."""
    known = {key.name: key for key in keys}
    for name in values:
        if name not in known:
            raise UsageError(f"{where}: there is no {shown(name)}. Known are: {', '.join(known)}.")
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    for key in keys:
        if key.needed and key.name not in given:
            raise UsageError(f"{where}: {key.name} is missing: {key.needed}.")
    return {name: known[name].judge(value, where) for name, value in given.items()}


def judged_options(keys: Sequence[Key], options: Mapping[str, object]) -> dict[str, Any]:
    """The options that were given, those that are not None, as the types of `keys`. Raises UsageError naming them as
    they were typed."""
    found: dict[str, Any] = {}
    for key in keys:
        found |= judged([key], {key.name: options.get(key.name)}, f"--{key.name.replace('_', '-')}")
    return found


def _number(value: object) -> float | None:
    """A TOML number, or a CSV cell that holds one; no date, no yes or no."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def shown(value: object) -> str:
    """What somebody wrote, as a message quotes it."""
    return plain_name(repr(value), NAME_CHARS)
