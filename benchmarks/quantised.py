"""Claim "quantised": a policy learns as much from int8 and int4 rollouts as from rollouts of the published weights.

Two tasks train a model of 0.2 M parameters that was taught by example until a fifth (a half) of its completions are
right: reversal of six letters, and reasoning-gym's basic_arithmetic, sums of two numbers. The second is harder: it ends
at 0.85 where reversal ends at 0.98, since carries are learned late, so a loss would show. Each step's weights are
published in bfloat16 and installed by the product's engine, whose seeded sampler draws eight completions of a prompt.
The product's trainer takes the step with the default objective, whose ratio corrects the difference of the formats
(`benchmarks/cards/laboratory.py`). Ten paired seeds; the policy is evaluated in full on 2048 held-out problems, and the
mean of the last five evaluations counts.

Bars:

- loss_points_int8 and loss_points_int4, at most 2: points of accuracy by which a policy ends below that of the same
  seed with published weights. It is the upper end of the 95 % interval of the mean, for the worse of the two tasks.
- bytes_of_bf16_int8, at most 0.6, and bytes_of_bf16_int4, at most 0.35: the memory of the weights, embeddings included,
  over two bytes a parameter. The engine has installed a model of Qwen3-0.6B's shapes.

Finished runs are stored in --record, so that seeds can be run a few at a time (--seeds 10 11).
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio
from scipy.stats import t as student

from benchmarks.cards.laboratory import FormatCell, QuantisedLaboratory
from benchmarks.cards.random_model import QWEN3_06B, write_random_model
from benchmarks.harness import ROOT, Bar, add_row, arguments, conclude, main, number, read_rows, say, table
from benchmarks.lagged.laboratory import Outcome, prepare
from benchmarks.lagged.recipe import DEFAULT, RECIPES, SEEDS, Cell
from benchmarks.staleness import be_quiet
from node.engine.interface import InstalledVersion
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import open_worker_engine
from protocol.core.ids import ManifestHash, PolicyVersion

RECORDED = ROOT / "benchmarks" / "recorded" / "quantised.jsonl"
RATES = {"reversal": 1.8e-3, "arithmetic": 1.35e-3}
"""The best rates of the study of staleness at S = 0."""

FORMS = ("int8", "int4")
BESIDE = "stored"
LOSS_AT_MOST = 2.0
BYTES_AT_MOST = {"int8": 0.6, "int4": 0.35}
MEASURES = ("mismatch_kl", "entropy", "ess", "clip_share", "max_log_ratio")

Finished = Mapping[FormatCell, Mapping[str, float]]
"""By run: the figures from which the verdict is computed."""


def run_cell(cell: FormatCell, models: Path) -> dict[str, float]:
    """Run one cell on one thread; `models` stores the models that runs of one seed begin with."""
    recipe = RECIPES[cell.recipe]
    asked = Cell(recipe=cell.recipe, objective=DEFAULT, staleness=0, learning_rate=RATES[cell.recipe], seed=cell.seed)
    model = prepare(recipe, cell.seed, models / f"{cell.recipe}-{cell.seed}")
    with tempfile.TemporaryDirectory(prefix="volery-bench-") as folder:
        outcome = QuantisedLaboratory(asked, recipe, model, cell.form, Path(folder)).run()
    return figures_of(outcome)


def figures_of(outcome: Outcome) -> dict[str, float]:
    """Return the final and the best accuracy, and means over all steps."""
    told = {"final": outcome.final, "greedy": outcome.greedy, "best": max(value for _, value in outcome.curve)}
    for name in MEASURES:
        if found := [step[name] for step in outcome.steps if name in step]:
            told[name] = statistics.fmean(found)
    return {name: float(f"{value:.5g}") for name, value in told.items()}


def upper_end(points: Sequence[float]) -> float | None:
    """Return the upper end of the 95 % interval of the mean; None for fewer than two points."""
    if len(points) < 2:
        return None
    spread = statistics.stdev(points) / math.sqrt(len(points))
    return statistics.fmean(points) + float(student.ppf(0.975, len(points) - 1)) * spread


def lost(finished: Finished, recipe: str, form: str) -> list[float]:
    """Return the points that each seed lost against published weights."""
    pairs = [
        (finished[FormatCell(recipe=recipe, form=BESIDE, seed=cell.seed)], told)
        for cell, told in sorted(finished.items())
        if (cell.recipe, cell.form) == (recipe, form)
        and FormatCell(recipe=recipe, form=BESIDE, seed=cell.seed) in finished
    ]
    return [100 * (beside["final"] - told["final"]) for beside, told in pairs]


def read_record(path: Path) -> dict[FormatCell, Mapping[str, float]]:
    """Return the recorded runs."""
    return {FormatCell(**row["cell"]): row["told"] for row in read_rows(path)}


def study(options: Namespace) -> dict[FormatCell, Mapping[str, float]]:
    """Run the cells that are not recorded."""
    be_quiet()
    finished = read_record(options.record)
    cells = [
        FormatCell(recipe=recipe, form=form, seed=seed)
        for seed in options.seeds
        for recipe in options.recipe or RATES
        for form in (BESIDE, *FORMS)
    ]
    with tempfile.TemporaryDirectory(prefix="volery-bench-") as models:
        for cell in cells:
            if cell in finished:
                continue
            began = time.monotonic()
            finished[cell] = told = run_cell(cell, Path(models))
            row = {"cell": {"recipe": cell.recipe, "form": cell.form, "seed": cell.seed}, "told": told}
            add_row(options.record, row)
            say(f"{cell.recipe} {cell.form} seed {cell.seed}: {told['final']:.3f} in {time.monotonic() - began:.0f} s")
    return finished


async def weights_of_bf16(directory: Path, form: str, parameters: int) -> tuple[float, float]:
    """Return the size of the weights over two bytes a parameter: as the engine reports it, and as its process grew."""
    version = InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(bytes(32)))
    async with open_worker_engine(TransformersConfig(device="cpu", quantization=form)) as engine:
        before = _anonymous_bytes(engine.pid)
        await engine.install(version, directory)
        grown = _anonymous_bytes(engine.pid) - before
        told = (await engine.describe())["weight_bytes"]
    return told / (2 * parameters), grown / (2 * parameters)


def _anonymous_bytes(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def claim() -> int:
    """Run what is missing, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=len(SEEDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="only these (default: all ten)")
    parser.add_argument("--recipe", choices=sorted(RATES), action="append", help="only this task; may be repeated")
    parser.add_argument("--record", type=Path, default=RECORDED, help="the file of finished runs")
    parser.add_argument("--no-memory", action="store_true", help="measure no engine's memory")
    options = parser.parse_args()
    finished = study(options)
    recipes = options.recipe or list(RATES)
    tell(finished, recipes)
    bars, figures = [], dict[str, float | None]()
    for form in FORMS:
        ends = {recipe: upper_end(lost(finished, recipe, form)) for recipe in recipes}
        known = [end for end in ends.values() if end is not None]
        whole = len(known) == len(ends) and all(len(lost(finished, one, form)) >= len(SEEDS) for one in recipes)
        why = "" if whole else "not all seeds were run"
        bars.append(Bar(name=f"loss_points_{form}", value=max(known) if whole else None, at_most=LOSS_AT_MOST, why=why))
        for recipe in recipes:
            points = lost(finished, recipe, form)
            figures[f"{recipe}_{form}_lost"] = statistics.fmean(points) if points else None
            figures[f"{recipe}_{form}_lost_upper"] = ends[recipe]
            for name in ("mismatch_kl", "entropy"):
                figures[f"{recipe}_{form}_{name}"] = mean_of(finished, recipe, form, name)
    bars += [] if options.no_memory else memory_bars(figures)
    return conclude("quantised", bars, figures)


def memory_bars(figures: dict[str, float | None]) -> list[Bar]:
    """Measure engines with a model of Qwen3-0.6B's shapes."""
    bars = []
    with tempfile.TemporaryDirectory(prefix="volery-bench-") as folder:
        directory = Path(folder) / "model"
        parameters = write_random_model(directory, QWEN3_06B, seed=0)
        for form, most in BYTES_AT_MOST.items():
            told, grown = trio.run(weights_of_bf16, directory, form, parameters)
            bars.append(Bar(name=f"bytes_of_bf16_{form}", value=told, at_most=most))
            figures[f"process_of_bf16_{form}"] = grown
    return bars


def mean_of(finished: Finished, recipe: str, form: str, name: str) -> float | None:
    """Return the mean over the seeds."""
    found = [told[name] for cell, told in finished.items() if (cell.recipe, cell.form) == (recipe, form)]
    return statistics.fmean(found) if found else None


def tell(finished: Finished, recipes: Sequence[str]) -> None:
    """Print a row for each task and format."""
    rows = []
    for recipe in recipes:
        for form in (BESIDE, *FORMS):
            points = lost(finished, recipe, form)
            means = [mean_of(finished, recipe, form, name) for name in ("final", "mismatch_kl", "entropy")]
            shown = [number(mean, places) for mean, places in zip(means, (3, 5, 3), strict=True)]
            loss = statistics.fmean(points) if points else None
            rows.append([recipe, form, str(len(points)), *shown, number(loss), number(upper_end(points))])
    header = ["task", "format", "seeds", "accuracy", "mismatch KL", "entropy", "points lost", "upper end"]
    say(table(header, rows))


if __name__ == "__main__":
    main(claim)
