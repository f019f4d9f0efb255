"""Claim "publication": a learner trains on while it publishes versions and writes checkpoints.

Bars, each a median:

- blocked_pct_demo and blocked_pct_50m: the percentage of the learner's time in which publication or a checkpoint kept
  it from training, as reports show it (`learner.provisioning.estimation.learner_time`). The first is of `volery demo`,
  the second of a model of 50 M parameters that is published with every step.
- pace_of_alone: training steps a second of that learner over those of its trainer alone, with the same batches ready.
- publish_cpu_s_per_gib: processor seconds from the snapshot of a model of 1 GiB to its announcement, patches from two
  versions included.
- publish_of_write: seconds of that publication over those of a plain write of as many bytes.
- apply_s_per_gib: seconds from the last chunk of a patch of 0.5 % of a model of 1 GiB until an engine may load it.

Invariants:

- Trainer, learner, node, store and patches are real.
- Nodes beside the learner of 50 M parameters generate no rollouts, which would take the cores that are timed
  (`benchmarks/publishing/beside.py`).
- Runs alternate, and a ratio is taken within a repetition.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, arguments, conclude, main, median, number, run, say, scratch, table
from benchmarks.publishing.applied import Applied, applications, publish_update
from benchmarks.publishing.beside import Beside, prepare, run_alone, run_beside, write_config

REPS = 3

TENSORS = 32
"""Number of tensors of 32 MiB each in the model that patches are applied to: 1 GiB."""

APPLICATIONS = 5

BLOCKED_PERCENT_AT_MOST = 3.0
PACE_AT_LEAST = 0.85
CPU_S_PER_GIB_AT_MOST = 6.0
OF_WRITE_AT_MOST = 1.3
APPLY_S_PER_GIB_AT_MOST = 1.0


def claim() -> int:
    """Run everything, print the tables and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    with scratch(options.keep) as out:
        demo = run_demo(out, options.seed)
        tell_demo(demo)
        pairs = run_pairs(out, options.reps)
        tell_pairs(pairs)
        gibibyte = run_gibibyte(out, options.reps)
        applied = run_applications(out)
        tell_gibibyte(gibibyte, applied)
    beside = [one for _, one in pairs]
    bars = [
        Bar(name="blocked_pct_demo", value=100 * demo["blocked"], at_most=BLOCKED_PERCENT_AT_MOST),
        Bar(
            name="blocked_pct_50m",
            value=median([one.blocked_percent for one in beside]),
            at_most=BLOCKED_PERCENT_AT_MOST,
        ),
        Bar(
            name="pace_of_alone",
            value=median([one.steps_per_s / rate for rate, one in pairs]),
            at_least=PACE_AT_LEAST,
        ),
        Bar(
            name="publish_cpu_s_per_gib",
            value=gibibyte["publish_cpu_s_per_gib"],
            at_most=CPU_S_PER_GIB_AT_MOST,
        ),
        Bar(name="publish_of_write", value=gibibyte["publish_of_write"], at_most=OF_WRITE_AT_MOST),
        Bar(
            name="apply_s_per_gib",
            value=median([one.wall_s_per_gib for one in applied]),
            at_most=APPLY_S_PER_GIB_AT_MOST,
        ),
    ]
    return conclude("publication", bars, {"demo": demo, "gibibyte": gibibyte})


def run_demo(out: Path, seed: int) -> dict[str, Any]:
    """Return how the learner of `volery demo` spent its time."""
    directory = out / "demo"
    argv = ["-m", "node", "demo", "--out", str(directory), "--seed", str(seed), "--plain"]
    run(argv, log=out / "demo.log", caches=out / "caches", measure_memory=False)
    time: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["learner_time"]
    return time


def tell_demo(time: dict[str, Any]) -> None:
    kinds = ("training", "waiting", "publication", "checkpoint", "batch", "ledger", "starting")
    say(table(["the demo's learner", *kinds], [["seconds", *(number(time[f"{kind}_s"], 1) for kind in kinds)]]))


def run_pairs(out: Path, reps: int) -> list[tuple[float, Beside]]:
    """Return, for each repetition, the training steps a second of the trainer alone, and the swarm's run."""
    place = out / "50m"
    place.mkdir()
    prepare(place)
    found = []
    for repetition in range(reps):
        config = write_config(out / f"beside-{repetition}", place)
        found.append((run_alone(config), run_beside(config)))
    return found


def tell_pairs(pairs: list[tuple[float, Beside]]) -> None:
    say("\n50 M parameters, published with every step:\n")
    rows = [
        [
            number(rate, 3),
            number(one.steps_per_s, 3),
            number(one.steps_per_s / rate),
            number(one.blocked_percent, 1),
            one.published,
            one.installed,
            number(median(one.made_s)),
        ]
        for rate, one in pairs
    ]
    header = ["alone, steps/s", "beside", "ratio", "blocked %", "published", "installed", "snapshot to announced, s"]
    say(table(header, rows))


def run_gibibyte(out: Path, reps: int) -> dict[str, Any]:
    """Return the figures of publishing 1 GiB. A process of its own runs it, since only its end frees the memory."""
    place, log = out / "gibibyte", out / "gibibyte.log"
    place.mkdir()
    argv = ["-m", "benchmarks.publishing.gibibyte", str(place), str(reps)]
    run(argv, log=log, caches=out / "caches", measure_memory=False)
    found: dict[str, Any] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    return found


def run_applications(out: Path) -> list[Applied]:
    """Return the times of patches applied in a node's store. The first warms up and is not counted."""
    update = publish_update(out / "update", TENSORS)
    return list(islice(applications(update, out / "applied"), 1 + APPLICATIONS))[1:]


def tell_gibibyte(found: dict[str, Any], applied: list[Applied]) -> None:
    say("\n1 GiB:\n")
    rows = [
        ["with two patches", *(number(found[key]) for key in ("publish_s", "publish_cpu_s_per_gib"))],
        ["without", *(number(found[key]) for key in ("without_patches_s", "without_patches_cpu_s_per_gib"))],
        ["a plain write", number(found["write_s"]), "-"],
        ["a patch applied", *(number(median(every)) for every in zip(*map(astuple, applied), strict=True))],
    ]
    say(table(["", "seconds", "of processors, a GiB"], rows))


if __name__ == "__main__":
    main(claim)
