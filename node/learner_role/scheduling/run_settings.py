"""Change settings of a running learner: staleness window, learning rate, period of evaluations, publication.

A change holds until the learner ends. The next start takes the values of swarm.toml.

Invariants:

- Every change is an event in the log, with who asked for it.
- A value that the run cannot take is refused with a sentence, and nothing changes.
- With a smaller window, a batch never holds a group beyond it: the check when a batch is taken sees the new window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from learner.provisioning.planner.planner import Planner
from node.config.swarm_config import MAX_WINDOW
from node.learner_role.shared.context import Service
from protocol.work import Window

STALENESS, LEARNING_RATE, EVALUATE, PUBLISH = "staleness", "learning_rate", "every_versions", "publish"
"""The names of the settings: those of the keys in swarm.toml, and whether versions are published."""


class NoSetting(ValueError):
    """A setting cannot have that value. The message says why."""


@dataclass(kw_only=True, eq=False)
class RunSettings(Service):
    """The settings of one run that may change. `planner`: plans with the window."""

    planner: Planner

    def change(self, key: str, value: float, by: str) -> None:
        """Give a setting a value from now on; `by` says who asked for it. Raises NoSetting."""
        setters: Mapping[str, Callable[[float], None]] = {
            STALENESS: self._set_window,
            LEARNING_RATE: self._set_learning_rate,
            EVALUATE: self._set_evaluation,
            PUBLISH: self._set_publication,
        }
        if key not in setters:
            raise NoSetting(f"{key!r} cannot be changed while the run goes on. These can: {', '.join(setters)}.")
        setters[key](value)
        self.events.emit("setting_changed", key=key, value=value, by=by)
        self.state.notify()

    def _set_window(self, value: float) -> None:
        window, kappa = _whole(STALENESS, value), self.state.kappa
        if self.capacity.window == 0 or window == 0:
            raise NoSetting("S = 0 is the sequential mode, which a run keeps from its start on. Set [learn] mode.")
        if not kappa <= window <= MAX_WINDOW:
            raise NoSetting(f"S must be from {kappa}, the training steps between versions, to {MAX_WINDOW}.")
        self.capacity.window = self.capacity.buffer.window = window
        self.planner.set_staleness(window)
        for peer, session in self.state.present.items():
            if session.takes_windows:
                self.signals.tell(peer, Window(staleness=window))

    def _set_learning_rate(self, value: float) -> None:
        if not (math.isfinite(value) and 0 < value <= 1):
            raise NoSetting("A learning rate is a number above 0, such as 1e-6, and at most 1.")
        self.state.live.learning_rate = value

    def _set_evaluation(self, value: float) -> None:
        every = _whole(EVALUATE, value)
        if every < 0:
            raise NoSetting("every_versions is 0 (the first and the last version alone), or a number of versions.")
        self.state.live.every_versions = every

    def _set_publication(self, value: float) -> None:
        if value not in (0, 1):
            raise NoSetting("publish is 1 (versions are published) or 0 (they are not).")
        self.state.live.publishes = value == 1


def _whole(key: str, value: float) -> int:
    if not math.isfinite(value) or value != round(value):
        raise NoSetting(f"{key} is a whole number, not {value}.")
    return round(value)
