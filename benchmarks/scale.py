"""Claim "scale": a version reaches a thousand peers almost as fast as ten, and the source sends no more.

The benchmark runs the same cores as nodes (`chunk_picker`, `super_seeding` and `upload_queue` of `swarm/transfer`,
`swarm/work/neighbour_graph.py`) in virtual time (`benchmarks/swarms/chunk_simulation.py`), with 10, 100 and 1000 peers.
A source behind 50/50 Mbit/s publishes a model of SIZE_MIB, in the chunks that `protocol/versions/chunking.py` cuts it
into. Peers have the home links of LINES, busy routers and latencies of LATENCY_S. A share JOINING of them arrives
during the broadcast; a share LEAVING departs, half of these without notice.

Bars:

- last_over_bound_1000: the time when the last of a thousand staying peers is done, over the bound of any schedule.
- control_pct: bytes of all messages other than chunks; the worst of the sizes.
- source_copies_1000_over_10: what the source sends to a thousand peers, its messages included, over what it sends to
  ten.
- homes_over_bound and homes_mixed_over_bound: for a hundred peers that stay behind home routers, the time over the
  bound of the pairs that can connect. In the first mix every router can be punched; in the second some pairs cannot
  connect (`benchmarks/swarms/homes.py`).

Invariants:

- A seed gives the same figures on every machine, since only the simulated clock is read.
- The mix of links is the same at every size.
- Figures are medians over the seeds. A run in which a staying peer is never done counts as one that never ended.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median as middle
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, scratch, table
from benchmarks.swarms.chunk_simulation import Peer, Scenario, Simulation, bound_s
from benchmarks.swarms.homes import MIXES, HomesRun, simulate_homes
from benchmarks.swarms.virtual_links import Link, Router
from node.reports.plots.png import BLUE, FAINT, GREEN, INK, ORANGE, draw_png
from protocol.core.limits import MIB
from protocol.versions.chunking import chunk_size_for
from swarm.work.neighbour_graph import open_neighbourhoods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPS = 3
SIZES = (10, 100, 1000)

SIZE_MIB = 942
"""The weights of 0.49 billion parameters in bf16 (Qwen2.5-0.5B): 1884 chunks of 512 KiB. A larger model comes nearer to
the bound: filling the swarm, and the tail, take a fixed number of chunks each, whatever the size."""

SOURCE = Link(up=50, down=50, latency_s=0.01)

LINES = (
    (10, 50, 4),  # VDSL
    (25, 250, 4),  # cable
    (40, 100, 4),  # VDSL with vectoring
    (50, 500, 3),  # newer cable
    (100, 100, 3),  # fibre, symmetric
    (300, 300, 2),
)
"""(Mbit/s up, Mbit/s down, how many of twenty). On average a peer could send 67 Mbit/s; 50 are needed."""

LATENCY_S = (0.003, 0.02)
"""Seconds one way to the middle of the network: round trips of 12 to 80 ms between two homes."""

ROUTER = Router(queue_bytes=100_000, queue_s=0.05)
"""Busy links have full queues, in which messages wait."""

JOINING, LEAVING = 0.1, 0.1
"""Shares of the peers. A tenth each within a few minutes is far more than volunteers with their own machines do."""

LAST_OVER_BOUND_AT_MOST, CONTROL_PCT_AT_MOST, COPIES_AT_MOST = 1.10, 1.0, 1.25
"""Nearly flat: a source that serves until the end sends a quarter more when the last peer is done a quarter later."""

HOMES_OVER_BOUND_AT_MOST = {"homes": 1.10, "homes_mixed": 1.25}
"""The first as for a thousand; the second as eight peers behind mixed routers need, where open peers set the bound."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The outcome of one simulation. `done_s`: times of the peers that stayed, ascending; `all_done`: all have one.

    `copies` is what the source sent, messages included, in sizes of the version. Percentages are of the delivered
    bytes, except `source_control_pct`, which is of the version. `took_s` is processor time.
    """

    num_peers: int
    bound_s: float
    done_s: tuple[float, ...]
    all_done: bool
    copies: float
    control_pct: float
    source_control_pct: float
    duplicates_pct: float
    took_s: float

    @property
    def last_over_bound(self) -> float | None:
        return self.done_s[-1] / self.bound_s if self.all_done else None

    @property
    def typical_over_bound(self) -> float:
        return middle(self.done_s) / self.bound_s


def benchmark() -> int:
    """Simulate every size with every seed, print the table and the verdict, draw the picture."""
    options = parser().parse_args()
    runs: list[Run] = []
    for num_peers in options.peers or SIZES:
        for seed in range(options.seed, options.seed + options.reps):
            runs.append(simulate(scenario(num_peers, seed, options.mib)))
            tell(runs[-1], seed)
    homes = {} if options.peers else {name: simulate_mix(name, options) for name in MIXES}
    with scratch(options.keep) as out:
        path = options.picture or out / "scale.png"
        draw(runs, path)
        if options.keep or options.picture:
            say(f"picture: {path}")
    return report(runs, homes, options)


def parser() -> ArgumentParser:
    """Return the parser of the options."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--peers", type=int, action="append", metavar="N", help=f"only this many peers; else {SIZES}")
    parser.add_argument("--mib", type=int, default=SIZE_MIB, metavar="N", help=f"size of the version ({SIZE_MIB})")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it here; else in the directory of --keep")
    return parser


# The scenario.


def scenario(num_peers: int, seed: int, size_mib: int = SIZE_MIB) -> Scenario:
    """Return a swarm of this many peers that stay, join or leave, all drawn with `seed`."""
    rng = random.Random(f"scale {num_peers} {seed}")
    lines = [(up, down) for up, down, count in LINES for _ in range(count)]
    rng.shuffle(lines)
    size = size_mib * MIB
    return Scenario(
        source=SOURCE,
        peers=[peer(*lines[index % len(lines)], size, rng) for index in range(num_peers)],
        size_bytes=size,
        chunk_bytes=chunk_size_for(size),
        seed=seed,
        router=ROUTER,
        neighbours=open_neighbourhoods,
    )


def peer(up: float, down: float, size_bytes: int, rng: random.Random) -> Peer:
    """Return a peer with such a link.

    A joining peer arrives early enough that its own downlink does not become the bound of all, which would hide
    everything else. A leaving peer departs at any time until the source can have sent one copy.
    """
    link = Link(up=up, down=down, latency_s=rng.uniform(*LATENCY_S))
    one_copy_s, alone_s = (size_bytes * 8e-6 / rate for rate in (SOURCE.up, down))
    fate = rng.random()
    if fate < JOINING:
        return Peer(link=link, joins_s=rng.uniform(0, 0.9 * max(0.0, one_copy_s - alone_s)))
    if fate < JOINING + LEAVING:
        return Peer(link=link, leaves_s=rng.uniform(0, one_copy_s), vanishes=rng.random() < 0.5)
    return Peer(link=link)


def simulate(scenario: Scenario) -> Run:
    """Run a scenario, and return its outcome."""
    began = time.process_time()
    simulation = Simulation(scenario)
    outcome = simulation.run()
    stayed = [done for done, peer in zip(outcome.done_s, scenario.peers, strict=True) if peer.leaves_s == inf]
    source_control = simulation.source.port.control_bytes
    return Run(
        num_peers=len(scenario.peers),
        bound_s=bound_s(scenario),
        done_s=tuple(sorted(done for done in stayed if done is not None)),
        all_done=None not in stayed,
        copies=(outcome.source_bytes + source_control) / scenario.size_bytes,
        control_pct=100 * outcome.control_bytes / outcome.delivered_bytes,
        source_control_pct=100 * source_control / scenario.size_bytes,
        duplicates_pct=100 * outcome.duplicate_bytes / outcome.delivered_bytes,
        took_s=time.process_time() - began,
    )


def simulate_mix(name: str, options: Namespace) -> list[HomesRun]:
    """Simulate a hundred homes with every seed."""
    found = []
    for seed in range(options.seed, options.seed + options.reps):
        rng = random.Random(f"{name} {seed}")
        lines = [(up, down) for up, down, count in LINES for _ in range(count)]
        rng.shuffle(lines)
        count = sum(MIXES[name].values())
        links = [
            Link(up=up, down=down, latency_s=rng.uniform(*LATENCY_S))
            for up, down in (lines[index % len(lines)] for index in range(count))
        ]
        run = simulate_homes(MIXES[name], links, SOURCE, ROUTER, size_mib=options.mib, seed=seed)
        found.append(run)
        by_kind = ", ".join(f"{meets.value} {done:.3f}" for meets, done in run.done_over_bound.items())
        say(
            f"{name}, seed {seed}: last of each kind over the bound: {by_kind}; {run.copies:.3f} copies from the source"
        )
    return found


# The report.


def tell(run: Run, seed: int) -> None:
    """Print the progress."""
    say(
        f"{run.num_peers} peers, seed {seed}: last after {number(run.last_over_bound, 3)} of the bound, "
        f"{run.copies:.3f} copies from the source, simulated in {run.took_s:.0f} s"
    )


HEADER = [
    "peers", "bound [s]", "last / bound", "spread", "typical / bound", "copies by the source", "its messages [%]",
    "messages [%]", "dup. [%]", "simulated in [s]",
]  # fmt: skip


def row(runs: Sequence[Run]) -> list[str]:
    """Return the line of one size under HEADER."""
    lasts = [run.last_over_bound for run in runs]
    return [
        str(runs[0].num_peers),
        number(typical(runs, lambda run: run.bound_s), 1),
        number(median(lasts), 3),
        "-".join(number(last, 3) for last in (min(lasts, key=_rank), max(lasts, key=_rank))),
        number(typical(runs, lambda run: run.typical_over_bound), 3),
        number(typical(runs, lambda run: run.copies), 3),
        number(typical(runs, lambda run: run.source_control_pct)),
        number(typical(runs, lambda run: run.control_pct)),
        number(typical(runs, lambda run: run.duplicates_pct)),
        number(sum(run.took_s for run in runs), 0),
    ]


def _rank(value: float | None) -> float:
    return inf if value is None else value


def typical(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    """Return the median over the seeds; None counts as more than any number."""
    return median([figure(run) for run in runs])


def by_size(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """Return the runs of each number of peers, fewest first."""
    return {size: [run for run in runs if run.num_peers == size] for size in sorted({run.num_peers for run in runs})}


def bars(runs: Sequence[Run]) -> list[Bar]:
    """Return the bars of the simulated sizes."""
    sizes = by_size(runs)
    few, many = (sizes.get(size) for size in (min(SIZES), max(SIZES)))
    found = []
    if many is not None:
        last = typical(many, lambda run: run.last_over_bound)
        found.append(Bar(name="last_over_bound_1000", value=last, at_most=LAST_OVER_BOUND_AT_MOST))
    control = max(typical(of_size, lambda run: run.control_pct) or 0.0 for of_size in sizes.values())
    found.append(Bar(name="control_pct", value=control, at_most=CONTROL_PCT_AT_MOST))
    if few is not None and many is not None:
        ratio = (typical(many, lambda run: run.copies) or 0.0) / (typical(few, lambda run: run.copies) or inf)
        found.append(Bar(name="source_copies_1000_over_10", value=ratio, at_most=COPIES_AT_MOST))
    return found


def homes_bars(homes: Mapping[str, Sequence[HomesRun]]) -> list[Bar]:
    """Return the bars of the hundred homes."""
    return [
        Bar(
            name=f"{name}_over_bound",
            value=median([run.last_over_bound for run in of_mix]),
            at_most=HOMES_OVER_BOUND_AT_MOST[name],
        )
        for name, of_mix in homes.items()
    ]


def report(runs: Sequence[Run], homes: Mapping[str, Sequence[HomesRun]], options: Namespace) -> int:
    """Print every size and the bars; return the exit code."""
    sizes = by_size(runs)
    say("\n" + table(HEADER, [row(of_size) for of_size in sizes.values()]))
    figures: dict[str, Any] = {"mib": options.mib}
    for size, of_size in sizes.items():
        figures |= {
            f"last_over_bound_{size}": typical(of_size, lambda run: run.last_over_bound),
            f"typical_over_bound_{size}": typical(of_size, lambda run: run.typical_over_bound),
            f"source_copies_{size}": typical(of_size, lambda run: run.copies),
            f"control_pct_{size}": typical(of_size, lambda run: run.control_pct),
        }
    figures |= {f"{name}_source_copies": median([run.copies for run in of_mix]) for name, of_mix in homes.items()}
    return conclude("scale", [*bars(runs), *homes_bars(homes)], figures)


# The picture.

SIZE_IN = (12.0, 5.0)
STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (INK, ":"))


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the picture to `path` as PNG. Raises OSError."""
    draw_png(path, lambda figure: _draw(figure, runs), size_in=SIZE_IN)


def _draw(figure: Figure, runs: Sequence[Run]) -> None:
    growth, times = figure.subplots(1, 2, gridspec_kw={"wspace": 0.2})
    figure.subplots_adjust(left=0.06, right=0.98, top=0.82, bottom=0.14)
    figure.text(0.06, 0.92, "One version to any number of peers", fontsize=16, fontweight="bold", color=INK)
    _draw_growth(growth, runs)
    _draw_times(times, runs)


def _draw_growth(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw each run as a point, and medians as lines."""
    sizes = by_size(runs)
    counts = list(sizes)
    for name, marker, color, figure in (
        ("last peer, over the bound", "o", BLUE, lambda run: run.last_over_bound),
        ("copies sent by the source", "s", ORANGE, lambda run: run.copies),
    ):
        points = [(run.num_peers, figure(run)) for run in runs if figure(run) is not None]
        axes.plot(*zip(*points, strict=True), marker, color=color, markersize=4, alpha=0.5) if points else None
        medians = [_rank(typical(of_size, figure)) for of_size in sizes.values()]
        axes.plot(counts, medians, marker, linestyle="-", color=color, label=name)
    axes.axhline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.set_ylim(0, max(1.4, axes.get_ylim()[1]))
    axes.set_xlabel("peers", fontsize=12, color=INK)
    _finish(axes, "lower right")


def _draw_times(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw the share of the peers that was done by each time, all seeds of a size together."""
    for (size, of_size), (color, style) in zip(by_size(runs).items(), STYLES * len(runs), strict=False):
        done = sorted(moment / run.bound_s for run in of_size for moment in run.done_s)
        shares = [100 * (rank + 1) / len(done) for rank in range(len(done))]
        axes.step(done, shares, where="post", color=color, linestyle=style, linewidth=2, label=f"{size} peers")
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_ylim(0, 101)
    axes.set_xlabel("time, over the bound for the last", fontsize=12, color=INK)
    axes.set_ylabel("peers that have everything (%)", fontsize=12, color=INK)
    _finish(axes, "best")


def _finish(axes: Axes, legend: str) -> None:
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11, colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc=legend, fontsize=11, frameon=True, framealpha=0.95, edgecolor="none")


if __name__ == "__main__":
    main(benchmark)
