"""Run the demo with every objective and S = 0, 1, 3, 6, one cell after the other, and print a table of the results.

    make demo-matrix                                                  all cells, into runs/matrix
    demo_matrix.py OUT --objectives gspo tis --staleness 3 --steps 60 some of them, shorter

Invariants:

- A cell with a summary is not run again, so the program resumes where it was stopped.
- A cell that fails is reported and does not stop the others.
- The exit code is 0 only if every cell has run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from learner.trainer_api.presets import PRESETS


def main() -> int:
    options = arguments()
    failed = []
    print(f"{'objective':>10}  S  greedy          sampled         s")
    for objective in options.objectives:
        for staleness in options.staleness:
            out = options.out / f"{objective}-{staleness}"
            if not (out / "summary.json").exists() and not run(out, objective, staleness, options):
                failed.append(out)
                print(f"{objective:>10} {staleness:2}  failed: see {out}.log", flush=True)
                continue
            told = json.loads((out / "summary.json").read_text(encoding="utf-8"))
            greedy, sampled = (f"{told[f'{kind}_start']:.3f} -> {told[f'{kind}_end']:.3f}" for kind in SCORES)
            print(f"{objective:>10} {staleness:2}  {greedy}  {sampled}  {told['wall_s']:.0f}", flush=True)
    return 1 if failed else 0


SCORES = ("greedy", "sampled")


def run(out: Path, objective: str, staleness: int, options: argparse.Namespace) -> bool:
    """Run one cell, with its output in a file beside it; return whether it succeeded."""
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "node", "demo", "--plain", "--out", str(out), "--objective", objective]
    command += ["--staleness", str(staleness), "--seed", str(options.seed)]
    command += ["--steps", str(options.steps)] if options.steps else []
    with out.with_suffix(".log").open("w", encoding="utf-8") as log:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The demo with every objective.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--objectives", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 3, 6])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
