"""Change settings of a running learner: staleness window, learning rate, period of evaluations, publication.

A change holds until the learner ends. The next start takes the values of swarm.toml.

Invariants:

- Every change is an event in the log, with who asked for it.
- A value that the run cannot take is refused with a sentence, and nothing changes.
- With a smaller window, a batch never holds a group beyond it: the check when a batch is taken sees the new window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from learner.provisioning.planner.planner import Planner
from node.learner_role.shared.context import Service
from node.state.operator_orders import EVALUATE, LEARNING_RATE, PUBLISH, STALENESS, checked_setting
from protocol.work import Window


@dataclass(kw_only=True, eq=False)
class RunSettings(Service):
    """The settings of one run that may change. `planner`: plans with the window."""

    planner: Planner

    def change(self, key: str, value: float, by: str) -> None:
        """Give a setting a value from now on; `by` says who asked for it. Raises NoSetting."""
        value = checked_setting(key, value, is_sequential=self.capacity.window == 0, kappa=self.state.kappa)
        setters: Mapping[str, Callable[[float], None]] = {
            STALENESS: self._set_window,
            LEARNING_RATE: self._set_learning_rate,
            EVALUATE: self._set_evaluation,
            PUBLISH: self._set_publication,
        }
        setters[key](value)
        self.events.emit("setting_changed", key=key, value=value, by=by)
        self.state.notify()

    def _set_window(self, value: float) -> None:
        window = round(value)
        self.capacity.window = self.capacity.buffer.window = window
        self.planner.set_staleness(window)
        for peer, session in self.state.present.items():
            if session.takes_windows:
                self.signals.tell(peer, Window(staleness=window))

    def _set_learning_rate(self, value: float) -> None:
        self.state.live.learning_rate = value

    def _set_evaluation(self, value: float) -> None:
        self.state.live.every_versions = round(value)

    def _set_publication(self, value: float) -> None:
        self.state.live.publishes = value == 1
