"""Claim "staleness": the default objective loses almost nothing at S = 6, and does not collapse at S = 11.

Small models are taught by example, then trained on rollouts that are exactly S steps old (`benchmarks/lagged/`). The
tasks are string reversal and reasoning-gym's basic_arithmetic, with S in 0, 1, 3, 6, 11 and ten paired seeds. The
current policy is evaluated on 2048 held-out problems by one draw at T = 1 each; the mean of the last five evaluations
counts. S = 0 has the best of several learning rates, and every other S uses the same rate, without any tuning. Our
default is compared with plain GRPO, truncated importance sampling, and no correction.

Bars, each the worst of the recipes:

- loss_s6_bound and loss_s11_bound: points lost against S = 0, as the one-sided 95 % bound over the seeds.
- collapses: collapses of the default at any S.
- steps_to_08_s6: steps to 0.8 at S = 6 over those at S = 0.

Invariants:

- A recorded cell is not run again, so the study may be stopped and started at any time.
- A cell gives the same figures each time on the same machine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

from benchmarks.harness import ROOT, Bar, arguments, conclude, main, number, say, table
from benchmarks.lagged.laboratory import Laboratory, Outcome, prepare
from benchmarks.lagged.picture import draw_study
from benchmarks.lagged.recipe import CONSTANT, DEFAULT, LAGS, OTHERS, RECIPES, SEEDS, Cell, fresh_cells, stale_cells
from benchmarks.lagged.record import Record, Records
from benchmarks.lagged.verdict import best_rate, has_collapsed, loss, missing, runs, steps_to_target

RECORDED = ROOT / "benchmarks" / "recorded" / "staleness.jsonl"
PICTURE = ROOT / "docs" / "images" / "staleness.png"

LOSS_S6_AT_MOST = 2.0
LOSS_S11_AT_MOST = 4.0
STEPS_AT_MOST = 1.25


def run_cell(cell: Cell, models: Path) -> Outcome:
    """Run one cell on one thread; `models` stores the models that cells of one seed begin with."""
    recipe = RECIPES[cell.recipe]
    return Laboratory(cell, recipe, prepare(recipe, cell.seed, _model_of(cell, models))).run()


def study(record: Record, recipes: Sequence[str], workers: int) -> None:
    """Run the cells that are not recorded yet: S = 0 at every rate first, since the others use the best of these."""
    with tempfile.TemporaryDirectory(prefix="volery-bench-") as scratch:
        models = Path(scratch)
        # Leaving the pool ends its processes, also in the middle of a cell: only that cell is lost.
        with multiprocessing.get_context("spawn").Pool(workers, initializer=_begin_worker) as pool:
            _run_all(pool, record, [cell for recipe in recipes for cell in fresh_cells(recipe)], models)
            rates = {recipe: best_rate(record.read(), recipe) for recipe in recipes}
            stale = [cell for recipe in recipes for cell in stale_cells(recipe, rates[recipe])]
            stale.sort(key=_is_beside)  # the cells that bars depend on come first
            _run_all(pool, record, stale, models)


def _is_beside(cell: Cell) -> bool:
    """Return whether a cell is only a comparison that no bar depends on."""
    return cell.objective != DEFAULT or cell.constant


def be_quiet() -> None:
    """Prepare a process for computing: one thread, no progress bars."""
    import torch

    from learner.training.model.loading import quiet_transformers

    torch.set_num_threads(1)
    quiet_transformers()


def _begin_worker() -> None:
    """Prepare a worker. Ctrl-C reaches the whole terminal, but only the parent may end its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    be_quiet()


def _run_all(pool: Pool, record: Record, cells: Sequence[Cell], models: Path) -> None:
    left = missing(record.read(), cells)
    if not left:
        return
    say(f"{len(left)} of {len(cells)} cells to run")
    # Make the models first: otherwise two workers would make the same one at the same time.
    pool.map(_make_model, [(cell, models) for cell in _first_of_each_model(left)], chunksize=1)
    began = time.monotonic()
    for done, (cell, outcome) in enumerate(pool.imap_unordered(_run, [(cell, models) for cell in left]), 1):
        record.add(cell, outcome)
        rest = (time.monotonic() - began) / done * (len(left) - done)
        say(f"{done:4d}  {cell}: {outcome.final:.3f} ({rest / 60:.0f} min left)")


def _first_of_each_model(cells: Sequence[Cell]) -> list[Cell]:
    return list({(cell.recipe, cell.seed): cell for cell in reversed(cells)}.values())


def _make_model(asked: tuple[Cell, Path]) -> None:
    cell, models = asked
    prepare(RECIPES[cell.recipe], cell.seed, _model_of(cell, models))


def _run(asked: tuple[Cell, Path]) -> tuple[Cell, Outcome]:
    cell, models = asked
    return cell, run_cell(cell, models)


def _model_of(cell: Cell, models: Path) -> Path:
    return models / f"{cell.recipe}-{cell.seed}"


def judge(records: Records, recipes: Sequence[str]) -> tuple[list[Bar], dict[str, float | None]]:
    """Print the tables; return bars and figures."""
    figures: dict[str, float | None] = {}
    verdicts = {recipe: _judge_recipe(records, recipe, figures) for recipe in recipes}
    bounds = {staleness: [v.bounds[staleness] for v in verdicts.values()] for staleness in (6, 11)}
    bars = [
        Bar(name="loss_s6_bound", value=_worst(bounds[6]), at_most=LOSS_S6_AT_MOST),
        Bar(name="loss_s11_bound", value=_worst(bounds[11]), at_most=LOSS_S11_AT_MOST),
        Bar(name="collapses", value=float(sum(v.collapses for v in verdicts.values())), at_most=0.0),
        Bar(name="steps_to_08_s6", value=_worst([v.slower for v in verdicts.values()]), at_most=STEPS_AT_MOST),
    ]
    return bars, figures


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """The verdict on one recipe.

    `bounds`: bounds on the loss by S, None where seeds are missing. `slower`: steps to 0.8 at S = 6 over those at
    S = 0.
    """

    bounds: dict[int, float | None]
    collapses: int
    slower: float | None


def _judge_recipe(records: Records, recipe: str, figures: dict[str, float | None]) -> _Verdict:
    rate = best_rate(records, recipe)

    def found(staleness: int) -> dict[int, Outcome]:
        return runs(records, recipe, DEFAULT, staleness, rate)

    say(f"\n{recipe}: {len(found(0))} seeds, learning rate {rate:g} (the best at S = 0)")
    rows = [(objective, staleness, False) for objective in (DEFAULT, *OTHERS) for staleness in LAGS]
    rows += [(objective, staleness, True) for objective, staleness in CONSTANT[recipe]]
    header = ["objective", "S", "accuracy", "worst seed", "loss", "bound", "collapses", "steps to 0.8"]
    shown = [row for row in rows if row[1] or row[0] == DEFAULT]
    say(table(header, [_row(records, recipe, rate, *row) for row in shown]))
    bounds: dict[int, float | None] = {}
    for staleness in (6, 11):
        lost = loss(found(0), found(staleness))
        bounds[staleness] = lost.bound if lost is not None and lost.seeds == len(SEEDS) else None
        figures[f"{recipe}_loss_s{staleness}"] = lost.mean if lost else None
    fresh, stale = (steps_to_target(list(found(staleness).values())) for staleness in (0, 6))
    return _Verdict(
        bounds=bounds,
        collapses=sum(has_collapsed(outcome) for staleness in LAGS for outcome in found(staleness).values()),
        slower=stale / fresh if fresh and stale else None,
    )


def _row(records: Records, recipe: str, rate: float, objective: str, staleness: int, constant: bool) -> list[str]:
    found = runs(records, recipe, objective, staleness, rate, constant=constant)
    name = f"{objective}, constant rate" if constant else objective
    if not found:
        return [name, str(staleness), *"------"]
    outcomes = list(found.values())
    finals = [outcome.final for outcome in outcomes]
    lost = loss(runs(records, recipe, DEFAULT, 0, rate), found)
    return [
        name,
        str(staleness),
        f"{sum(finals) / len(finals):.3f}",
        f"{min(finals):.3f}",
        number(lost.mean if lost else None),
        number(lost.bound if lost else None),
        str(sum(map(has_collapsed, outcomes))),
        number(steps_to_target(outcomes), 1),
    ]


def _worst(values: Sequence[float | None]) -> float | None:
    """Return the largest value; None if one could not be measured."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) and known else None


def options() -> Namespace:
    parser = arguments(__doc__ or "", reps=len(SEEDS))
    parser.add_argument("--record", type=Path, default=RECORDED, help="the file of the study")
    parser.add_argument("--recipe", choices=sorted(RECIPES), action="append", help="only this one; may be repeated")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


def claim() -> int:
    asked = options()
    recipes = asked.recipe or list(RECIPES)
    record = Record(path=asked.record)
    asked.record.parent.mkdir(parents=True, exist_ok=True)
    study(record, recipes, asked.workers)
    records = record.read()
    draw_study(records, recipes, asked.picture)
    bars, figures = judge(records, recipes)
    return conclude("staleness", bars, figures)


if __name__ == "__main__":
    main(claim)
