"""Claim "soak": in a day nothing grows but the ledger: not memory, handles, tasks or files.

A learner and four nodes live for a day of virtual time in one process (`benchmarks/soaks/day.py`): versions, leases,
deliveries, nodes that come and go, and a learner that is started again every hour. Besides, thousands of nodes join
over real connections (`benchmarks/soaks/joins.py`), whose time cannot run faster.

The bars are on the slope of each kind of usage, by its 95 % interval (`benchmarks/soaks/trend.py`). That of memory ends
under 1 MiB an hour, or under 1 MiB a thousand joins (`*_mib`). No slope lies wholly above 0 (`*_grow`: the lower end).
The first WARM_UP_H hours do not count: caches fill, and all nodes have to come once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import trio
from harness import Bar, arguments, conclude, main, number, say, scratch, table

from benchmarks.soaks.day import Day
from benchmarks.soaks.joins import join
from benchmarks.soaks.trend import Trend, trend
from benchmarks.soaks.usage import Usage
from node.runtime.startup import prepare_process

HOURS = 24.0
WARM_UP_H = 4.0
JOINS = 4000
MIB_AT_MOST = 1.0

HEADER = ["at", "memory [MiB]", "handles", "tasks", "files", "disk [MiB]"]


def benchmark() -> int:
    """Run both parts, print the usage and the verdict."""
    options = parser().parse_args()
    prepare_process()
    with scratch(options.keep) as out:
        say(f"{options.joins} joins over real connections")
        joins = trio.run(join, options.joins, _new(out / "joins"), tell)
        say(f"\na day of {options.hours:g} hours, {HEADER}")
        day = Day(out=_new(out / "day"), hours=options.hours, tell=tell)
        hours = day.live()
    settled = [usage for usage in hours if usage.at > min(WARM_UP_H, options.hours / 2)]
    say("")
    for title, looks in (("thousand joins", joins), ("hour", settled)):
        rows = [[name, *map(number3, (found.slope, found.low, found.high))] for name, found in trends(looks).items()]
        say(table([f"a {title}", "slope", "95 % from", "to"], rows) + "\n")
    say(
        f"In the day: {day.num_versions} versions, {day.num_admitted} rollouts admitted, {day.num_joins} nodes that "
        f"left and others that came, {day.num_restarts} restarts of the learner."
    )
    for text in sorted(set(day.troubles)):
        say(f"trouble: {text}")
    around = {
        "versions": day.num_versions,
        "rollouts": day.num_admitted,
        "nodes_gone": day.num_joins,
        "restarts": day.num_restarts,
        "troubles": len(day.troubles),
        "memory_mib_at_end": hours[-1].memory_mib,
        "disk_mib_an_hour": trends(settled)["disk"].slope,
        "memory_mib_an_hour": trends(settled)["memory"].slope,
        "memory_mib_a_thousand_joins": trends(joins)["memory"].slope,
    }
    return conclude("soak", [*bars("", settled), *bars("joins_", joins)], around)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--hours", type=float, default=HOURS, help=f"how long the day is (default {HOURS:g})")
    parser.add_argument("--joins", type=int, default=JOINS, help=f"number of joins (default {JOINS})")
    return parser


def tell(usage: Usage) -> None:
    """Print one line of progress."""
    say(
        f"{usage.at:6.2f}  {usage.memory_mib:7.1f} MiB  {usage.handles:4} handles  {usage.tasks:4} tasks  "
        f"{usage.files:5} files  {usage.disk_mib:7.1f} MiB on the disk"
    )


def trends(looks: Sequence[Usage]) -> dict[str, Trend]:
    """Return the trend of each kind of usage."""
    at = [usage.at for usage in looks]
    return {
        "memory": trend(at, [usage.memory_mib for usage in looks]),
        "handles": trend(at, [usage.handles for usage in looks]),
        "tasks": trend(at, [usage.tasks for usage in looks]),
        "files": trend(at, [usage.files for usage in looks]),
        "disk": trend(at, [usage.disk_mib for usage in looks]),
    }


def bars(prefix: str, looks: Sequence[Usage]) -> list[Bar]:
    """Return the bars of one part. The disk is left out, since a ledger grows by its content (`make bench-ledger`)."""
    found = trends(looks)
    return [
        Bar(name=f"{prefix}memory_mib", value=found["memory"].high, at_most=MIB_AT_MOST),
        *(
            Bar(name=f"{prefix}{name}_grow", value=found[name].low, at_most=0.0)
            for name in ("memory", "handles", "tasks", "files")
        ),
    ]


def number3(value: float) -> str:
    return number(value, 3)


def _new(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


if __name__ == "__main__":
    main(benchmark)
