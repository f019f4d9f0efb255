"""The plan: every figure that `volery plan` prints, draws or exports, as one value.

What always holds: text, picture and JSON are made of this and of nothing else, so they cannot contradict each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from learner.provisioning.model.machine_selection import Choice
from learner.provisioning.model.what_if import Change, Remedies, changes, remedies
from learner.provisioning.model.windows import Infeasible, Outcome, Window, Windows
from node.commands.plan.inputs import Terms
from node.commands.plan.measured_run import Measured


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answers to `terms`, for every window from 0 on; `asked` is the one that was asked for.

    `greedy` keeps our rule with the paper's way to choose. Without machines that suffice there are `remedies`, and no
    `changes`.
    """

    terms: Terms
    windows: tuple[Window, ...]
    asked: Window
    greedy: Outcome | None
    changes: tuple[Change, ...]
    remedies: Remedies | None
    measured: Measured | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether the window that was asked for has a set of machines with which the learner never waits."""
        return isinstance(self.asked.ours, Outcome)

    def kinds(self, choice: Choice) -> Counter[str]:
        """How many of each row of the pool are in `choice`."""
        return Counter(self.terms.kinds[one.name] for one in choice.chosen)

    @property
    def pool(self) -> Counter[str]:
        """How many there are of each row."""
        return Counter(self.terms.kinds[one.name] for one in self.terms.setting.candidates)


def make_plan(terms: Terms) -> Plan:
    """Answer `terms`."""
    windows, staleness = Windows(terms.setting), terms.staleness
    ours = windows.ours(staleness) if staleness else None
    same = ours.choice if isinstance(ours, Outcome) else None
    rows = tuple(windows.window(each, same=same) for each in range(terms.max_staleness + 1))
    planned = ours if isinstance(ours, Outcome) else None
    return Plan(
        terms=terms,
        windows=rows,
        asked=rows[staleness],
        greedy=windows.greedy(staleness, planned.kappa) if planned else None,
        changes=tuple(changes(windows, planned)) if planned else (),
        remedies=remedies(terms.setting, staleness) if isinstance(ours, Infeasible) else None,
    )
