"""Record the study: one line of JSON for each finished cell.

Invariants:

- A line is written whole, or cut off by a kill. A cell whose line was cut off, or whose recipe has changed since, is
  run again.
- Lines keep their order of arrival, so that a repository shows what was added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import add_row, read_rows
from benchmarks.lagged.laboratory import Outcome, hyperparameters
from benchmarks.lagged.recipe import MODEL, RECIPES, Cell

Records = dict[Cell, Outcome]

STRIDE = 4
"""Metrics are kept of one step in STRIDE evaluations, so that five hundred cells do not make the repository too
large."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The file of a study."""

    path: Path

    def read(self) -> Records:
        """Return all cells of the current recipes."""
        found: Records = {}
        for row in read_rows(self.path):
            cell = Cell(**row["cell"])
            if cell.recipe in RECIPES and row["recipe"] == recipe_of(cell):
                found[cell] = _outcome(row["outcome"])
        return found

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Append one cell, on disk when this returns."""
        thin = replace(outcome, steps=outcome.steps[:: STRIDE * RECIPES[cell.recipe].every])
        add_row(self.path, {"cell": asdict(cell), "recipe": recipe_of(cell), "outcome": asdict(thin)})


def recipe_of(cell: Cell) -> dict[str, Any]:
    """Return everything apart from its own fields that a cell's outcome depends on, in the form of a record."""
    recipe = RECIPES[cell.recipe]
    return {**asdict(recipe), "model": dict(MODEL), "betas": list(hyperparameters(cell, recipe).betas)}


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(
        curve=tuple((int(step), float(value)) for step, value in row["curve"]),
        final=float(row["final"]),
        greedy=float(row["greedy"]),
        steps=tuple(row["steps"]),
    )
