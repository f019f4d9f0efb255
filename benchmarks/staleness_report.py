"""Claim "staleness_report": the recorded study of staleness meets its bars, and a cell of it can be reproduced.

The benchmark judges `benchmarks/recorded/staleness.jsonl` by the bars of `benchmarks/staleness.py` without running
anything. Then it runs one recorded cell again, the default objective at S = 6 with the study's first seed (or --seed
more), and compares. Bars: those of the study; and rerun_points, the points of accuracy between the cell's end and its
record.

Invariants:

- The record is only read.
- On the same machine and software, the cell's curve equals the recorded one to the last digit.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, say
from benchmarks.lagged.recipe import DEFAULT, RECIPES, SEEDS, Cell
from benchmarks.lagged.record import Record, Records
from benchmarks.lagged.verdict import best_rate
from benchmarks.staleness import RECORDED, be_quiet, judge, run_cell

RERUN_POINTS_AT_MOST = 3.0
"""Another processor rounds differently, which makes another run of the same seed. Such runs end closer than this."""


def rerun(records: Records, seed: int) -> float:
    """Run the default at S = 6 again, and return the points between its end and the recorded one."""
    recipe = "reversal"
    cell = Cell(recipe=recipe, objective=DEFAULT, staleness=6, learning_rate=best_rate(records, recipe), seed=seed)
    if cell not in records:
        raise BenchmarkError(f"{cell} is not recorded; run `make bench-staleness` to the end, it resumes where it was.")
    be_quiet()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="volery-bench-") as scratch:
        outcome = run_cell(cell, Path(scratch))
    recorded = records[cell]
    same = sum(now == then for now, then in zip(outcome.curve, recorded.curve, strict=True))
    say(
        f"\n{cell}, again in {time.monotonic() - began:.0f} s: {outcome.final:.4f}, recorded {recorded.final:.4f}; "
        f"{same} of {len(recorded.curve)} evaluations to the last digit"
    )
    return 100 * abs(outcome.final - recorded.final)


def claim() -> int:
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--record", type=Path, default=RECORDED, help="the file of the study")
    asked = parser.parse_args()
    records = Record(path=asked.record).read()
    if not records:
        raise BenchmarkError(f"{asked.record} holds no study; `make bench-staleness` makes one, in hours.")
    bars, figures = judge(records, list(RECIPES))
    bars.append(Bar(name="rerun_points", value=rerun(records, SEEDS[0] + asked.seed), at_most=RERUN_POINTS_AT_MOST))
    return conclude("staleness_report", bars, figures)


if __name__ == "__main__":
    main(claim)
