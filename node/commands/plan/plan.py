"""Make the plan: every number that `volery plan` prints, draws or exports, as one value.

Invariants:

- Text, picture and JSON are made from this value alone, so they cannot contradict each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from learner.provisioning.model.echo2 import Comparison, compare
from learner.provisioning.model.machine_selection import Choice
from learner.provisioning.model.what_if import Change, Remedies, changes, remedies
from learner.provisioning.model.windows import Infeasible, Outcome, Window, Windows
from node.commands.plan.inputs import Terms
from node.commands.plan.measured_run import Measured


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answers to `terms`, for every window from 0 on; `asked` is the requested one.

    Without enough machines there are `remedies`, and no `changes`. `comparison`: ECHO-2's rule, None unless requested.
    """

    terms: Terms
    windows: tuple[Window, ...]
    asked: Window
    changes: tuple[Change, ...]
    remedies: Remedies | None
    measured: Measured | None = None
    comparison: Comparison | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether there are machines with which the learner never waits, in the requested window."""
        return isinstance(self.asked.ours, Outcome)

    def kinds(self, choice: Choice) -> Counter[str]:
        """Return how many machines of each row of the pool are in `choice`."""
        return Counter(self.terms.kinds[one.name] for one in choice.chosen)

    @property
    def papers(self) -> dict[int, Outcome]:
        """Return what ECHO-2's rule would choose, by window; empty without a comparison."""
        windows = self.comparison.windows if self.comparison is not None else ()
        return {one.staleness: one.outcome for one in windows if one is not None and one.outcome is not None}

    @property
    def pool(self) -> Counter[str]:
        """Return how many machines each row of the pool has."""
        return Counter(self.terms.kinds[one.name] for one in self.terms.setting.candidates)


def make_plan(terms: Terms, *, with_echo2: bool = False) -> Plan:
    """Return the answer to `terms`; `with_echo2` adds ECHO-2's rule."""
    windows, staleness = Windows(terms.setting), terms.staleness
    ours = windows.ours(staleness) if staleness else None
    same = ours.choice if isinstance(ours, Outcome) else None
    rows = tuple(windows.window(each, same=same) for each in range(terms.max_staleness + 1))
    planned = ours if isinstance(ours, Outcome) else None
    return Plan(
        terms=terms,
        windows=rows,
        asked=rows[staleness],
        changes=tuple(changes(windows, planned)) if planned else (),
        remedies=remedies(terms.setting, staleness) if isinstance(ours, Infeasible) else None,
        comparison=compare(windows, terms.max_staleness, planned) if with_echo2 else None,
    )
