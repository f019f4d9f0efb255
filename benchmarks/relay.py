"""Claim "relay": a new version reaches every peer in little more time than the learner needs to send one copy.

A source and its peers run in a network namespace each, with links of their own (`benchmarks/network/`). Our nodes, with
the real transport, store and distribution (encrypted, verified, written to disk and synced), take turns with libtorrent
on the same links and bytes. Bars:

- the last peer's time over the lower bound, by scenario;
- the mean peer's seconds in mix4;
- bytes received beyond the payload;
- processor seconds of all nodes for each GiB delivered, and the same over libtorrent's (the worse of n4 and n8, at full
  rates);
- our time over libtorrent's where no downlink is the bound.

Scenario large has one peer and no link: a version of 3 GiB is sent as fast as the machine can, in turn with a bare copy
(TCP, SHA-256, a file, nothing encrypted, nothing synced). Bars: processor seconds of both ends for each GiB, and bytes
a second over those of the bare copy.

In nat8 and nat8mix, peers sit behind home routers (`benchmarks/network/homes.py`), know only the source, and are
introduced to each other. The bound is that of the pairs that can connect. Our nodes take turns with our nodes that do
not say how they can be reached (`unpunched`): these connect only to peers in the open, and where there are none each
peer fetches from the source. Bars there: the share of all bytes that relays carry so that peers can connect
(`circuits_pct`), and what a node of a complete idle swarm sends and receives (`idle_bytes_per_s`, see
`benchmarks/live/idle.py`).

Needs Linux and root.

Invariants:

- Times are medians, and count only after every received file was compared byte for byte.
- A run that failed counts as one that never ended.
- Every router is probed before each run. If one does not behave as its kind, the benchmark ends.
- Processes on one machine share its cores. Where these and not the links were the limit, the scenario runs again with
  slower links, and is judged there.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Bar,
    BenchmarkError,
    arguments,
    conclude,
    main,
    median,
    number,
    say,
    scratch,
    table,
)
from benchmarks.live.idle import FEWEST_MET_PCT, Idle, measure_idle
from benchmarks.network.conductor import PROGRAMS, RAW, UNPUNCHED, Ran, RunFailed, programs_in, run_once
from benchmarks.network.homes import CONGESTION
from benchmarks.network.ports import ProbeFailed
from benchmarks.network.profiles import (
    own_by_function,
    own_by_module,
    read_samples,
    within_module,
)
from benchmarks.network.requirements import NetworkUnavailable, require_network
from benchmarks.network.scenarios import LARGE, MIB, SCENARIOS, Scenario

OURS, THEIRS = "volery", "libtorrent"
REPS = 3
MEASURED = ("n4", "n8", "n8rtt30", "up8", "mix4", "nat8", "nat8mix", LARGE)
IDLE = "idle"
"""Option name of the swarm that has nothing to do."""

RATIO_AT_MOST = {"n4": 1.08, "n8": 1.08, "n8rtt30": 1.12, "up8": 1.12, "nat8": 1.15, "nat8mix": 1.30}
MIX4_MEAN_S_AT_MOST = 13.6
DUPLICATES_PCT_AT_MOST = 1.0
CPU_S_PER_GIB_AT_MOST = 20.0
CPU_VS_LIBTORRENT_AT_MOST = 1.3
CPU_S_PER_GIB_LARGE_AT_MOST, LARGE_OF_RAW_AT_LEAST = 4.5, 0.5
VS_LIBTORRENT_AT_MOST = 0.85
CIRCUITS_PCT_AT_MOST = 0.1
IDLE_BYTES_PER_S_AT_MOST = 1024
"""Bytes sent and received, as a router counts them: headers of Ethernet, IP and TCP included."""

CORES_BUSY, NODES_BUSY = 0.7, 0.3
"""Used shares of the cores, in total and by the nodes, above which the processor was the limit. When two cores are that
busy, a process waits for a core as long as it then uses it (M/M/2: part^2 / (1 - part^2)), and links are idle
meanwhile. If the nodes used little, other processes filled the rest; nine processes get more than 0.3 if they want it.
"""

SLOWER = 0.4
"""Factor of the rates in the second run: 50 becomes 20 Mbit/s, and a core has two and a half times as long for a
byte."""

PROFILE_LINES = 25


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All runs of one system in one scenario, its rates times `factor`; None is a run that failed."""

    scenario: Scenario
    factor: float
    system: str
    runs: tuple[Ran | None, ...]

    @property
    def last_s(self) -> float | None:
        return self._median(lambda run: run.last_s)

    @property
    def mean_s(self) -> float | None:
        return self._median(lambda run: run.mean_s)

    @property
    def over_bound(self) -> float | None:
        return None if self.last_s is None else self.last_s / self.scenario.bound_s

    @property
    def duplicates_pct(self) -> float | None:
        return self._median(lambda run: run.duplicates_pct)

    @property
    def cpu_s_per_gib(self) -> float | None:
        return self._median(lambda run: run.cpu_s_per_gib)

    @property
    def source_copies(self) -> float | None:
        return self._median(lambda run: run.source_copies)

    @property
    def met_pct(self) -> float | None:
        return self._median(lambda run: run.met_pct)

    @property
    def circuits_pct(self) -> float | None:
        return self._median(lambda run: run.circuits_pct)

    @property
    def system_part(self) -> float | None:
        """The kernel's part of the nodes' processor time."""
        return self._median(lambda run: run.system_cpu_s / run.node_cpu_s)

    @property
    def nodes_share(self) -> float | None:
        return self._median(lambda run: run.nodes_share)

    @property
    def others_share(self) -> float | None:
        return self._median(lambda run: run.others_share)

    def _median(self, figure: Callable[[Ran], float]) -> float | None:
        return median([None if run is None else figure(run) for run in self.runs])

    @property
    def spread(self) -> str:
        times = sorted(run.last_s for run in self.runs if run is not None)
        return f"{times[0]:.1f}-{times[-1]:.1f}" if times else "-"

    @property
    def processor_limited(self) -> bool:
        """Whether the cores, and not the links, may have set the time."""
        nodes, others = self.nodes_share, self.others_share
        return nodes is not None and others is not None and nodes > NODES_BUSY and nodes + others > CORES_BUSY


def benchmark() -> int:
    """Run everything that the options ask for, print the table and the verdict."""
    options = parser().parse_args()
    names = options.scenario or (["n8"] if options.profile else [*MEASURED, IDLE])
    scenarios = [SCENARIOS[name] for name in names if name != IDLE]
    if options.mib:
        scenarios = [scenario.sized(round(options.mib * MIB)) for scenario in scenarios]
    systems = [OURS] if options.profile else options.system or [*PROGRAMS, UNPUNCHED, RAW]
    prepare(scenarios, systems, with_homes=IDLE in names)
    idle: Idle | None = None
    with scratch(options.keep) as out:
        try:
            if options.profile:
                return profile(scenarios, options, out)
            cells: list[Cell] = []
            for scenario in scenarios:
                cells += measure(scenario, systems_in(scenario, systems), options, out)
            if IDLE in names:
                idle = measure_idle(out / IDLE)
        except (NetworkUnavailable, ProbeFailed) as error:
            raise BenchmarkError(str(error)) from error
    return report(cells, idle)


def systems_in(scenario: Scenario, systems: Sequence[str]) -> list[str]:
    """Return the systems that can run in this scenario."""
    return [system for system in systems if system in programs_in(scenario)]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = arguments(__doc__ or "", reps=REPS)
    choices = [*SCENARIOS, IDLE]
    parser.add_argument("--scenario", action="append", choices=choices, help=f"only this one; else {MEASURED}, {IDLE}")
    choices = [*PROGRAMS, UNPUNCHED, RAW]
    parser.add_argument("--system", action="append", choices=choices, help="only this one; else all")
    parser.add_argument("--scale", type=float, metavar="X", help="all rates times X, and no second run")
    parser.add_argument("--mib", type=float, metavar="N", help="size of the payload; else that of the scenario")
    parser.add_argument(
        "--profile", type=Path, metavar="DIR", help="run ours once (n8, or --scenario), sample every node, keep in DIR"
    )
    return parser


def prepare(scenarios: Sequence[Scenario], systems: Iterable[str], *, with_homes: bool = False) -> None:
    """Raise BenchmarkError unless the machine has everything that the scenarios need."""
    with_homes = with_homes or any(scenario.kinds for scenario in scenarios)
    try:
        require_network(
            delays=any(node.delay_ms for scenario in scenarios for node in scenario.nodes),
            routers=["nft"] if with_homes else [],
        )
    except NetworkUnavailable as error:
        raise BenchmarkError(str(error)) from error
    contests = [scenario for scenario in scenarios if THEIRS in systems_in(scenario, systems)]
    if contests and find_spec("libtorrent") is None:
        raise BenchmarkError(
            f"libtorrent is not installed; it has wheels for CPython up to 3.13. --system {OURS} measures without it."
        )


def measure(scenario: Scenario, systems: Sequence[str], options: argparse.Namespace, out: Path) -> list[Cell]:
    """Run a scenario with all systems, and once more with slower links if the processor limited our nodes."""
    cells = compare(scenario, options.scale or 1.0, systems, options, out)
    ours = next((cell for cell in cells if cell.system == OURS), None)
    if options.scale is None and not scenario.on_loopback and ours is not None and ours.processor_limited:
        say(f"{scenario.name}: the processor was the limit; again, with rates times {SLOWER}")
        slow = [system for system in systems if system != UNPUNCHED]  # takes many times as long, and is no contest
        cells += compare(scenario, SLOWER, slow, options, out)
    return cells


def compare(
    scenario: Scenario, factor: float, systems: Sequence[str], options: argparse.Namespace, out: Path
) -> list[Cell]:
    """Let the systems take turns, so that other load on the machine affects all of them."""
    scaled = scenario.scaled(factor)
    runs: dict[str, list[Ran | None]] = {system: [] for system in systems}
    for rep in range(options.reps):
        for system in systems:
            directory = out / f"{scenario.name}-x{factor:g}-{system}-{rep}"
            runs[system].append(attempt(scaled, system, directory, seed=options.seed + rep))
            tell(scaled, factor, system, runs[system][-1])
    return [Cell(scenario=scaled, factor=factor, system=system, runs=tuple(runs[system])) for system in systems]


def attempt(scenario: Scenario, system: str, directory: Path, *, seed: int, profile: Path | None = None) -> Ran | None:
    """Run once; if it fails, print the reason and return None. Keeps what nodes wrote to their logs."""
    try:
        return run_once(scenario, system, directory, seed=seed, profile=profile)
    except RunFailed as failed:
        say(f"FAILED: {failed}")
        return None
    finally:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def tell(scenario: Scenario, factor: float, system: str, ran: Ran | None) -> None:
    """Print the progress."""
    if ran is not None:
        mb_per_s = scenario.size_bytes / ran.last_s / 1e6
        how_fast = f"{mb_per_s:.0f} MB/s" if scenario.on_loopback else f"{ran.over_bound:.3f} of the bound"
        say(
            f"{scenario.name} x{factor:g} {system}: {ran.last_s:.2f} s, {how_fast}; "
            f"processor {ran.nodes_share:.0%}, others {ran.others_share:.0%}"
        )


HEADER = [
    "scenario", "rates", "system", "last [s]", "bound [s]", "ratio", "spread [s]", "mean [s]", "copies", "dup. [%]",
    "CPU [s/GiB]", "nodes [%]", "others [%]",
]  # fmt: skip
"""Last and mean peer; copies that the source sent; bytes received beyond the payload; processor seconds of all nodes
for each GiB delivered; shares of all cores from GO to the last DONE. The emulation's own work counts as others'.
"""


def row(cell: Cell) -> list[str]:
    """Return a cell's line under HEADER."""
    return [
        cell.scenario.name,
        f"x{cell.factor:g}",
        cell.system,
        number(cell.last_s),
        "-" if cell.scenario.on_loopback else number(cell.scenario.bound_s),
        "-" if cell.scenario.on_loopback else number(cell.over_bound, 3),
        cell.spread,
        number(cell.mean_s),
        number(cell.source_copies),
        number(cell.duplicates_pct),
        number(cell.cpu_s_per_gib, 1),
        percent(cell.nodes_share),
        percent(cell.others_share),
    ]


def percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, 0)


def report(cells: Sequence[Cell], idle: Idle | None = None) -> int:
    """Print every cell and the bars; return the exit code."""
    if cells:
        say("\n" + table(HEADER, [row(cell) for cell in cells]))
    at_full_rates = first_measured(cells, OURS)
    if slow := [name for name, cell in judged(cells, OURS).items() if cell is not at_full_rates[name]]:
        say(f"\nJudged with rates times {SLOWER}, since the processor was the limit above: {', '.join(slow)}.")
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    around = {"tcp_congestion_control": congestion, "at_homes": " or ".join(CONGESTION), **figures(cells)}
    if idle is not None:
        around |= {"idle_bytes_per_s_typical": idle.typical_bytes_per_s, "idle_met_pct": idle.met_pct}
    return conclude("relay", [*bars(cells), *idle_bars(idle)], around)


def judged(cells: Iterable[Cell], system: str) -> dict[str, Cell]:
    """Return the cell by which each scenario's bar is judged: the last one measured."""
    return {cell.scenario.name: cell for cell in cells if cell.system == system}


def first_measured(cells: Sequence[Cell], system: str) -> dict[str, Cell]:
    """Return the cell of each scenario before any with slower links."""
    return judged(reversed(cells), system)


def bars(cells: Sequence[Cell]) -> list[Bar]:
    """Return the bars of the measured cells."""
    ours, theirs = judged(cells, OURS), judged(cells, THEIRS)
    found = [
        Bar(name=name, value=ours[name].over_bound, at_most=at_most)
        for name, at_most in RATIO_AT_MOST.items()
        if name in ours
    ]
    if (mix4 := ours.get("mix4")) is not None:
        seconds = None if mix4.mean_s is None else mix4.mean_s * mix4.factor
        found.append(Bar(name="mix4_mean_s", value=seconds, at_most=MIX4_MEAN_S_AT_MOST))
    homes = [cell for cell in ours.values() if cell.scenario.kinds]
    if homes:
        carried = worst(cell.circuits_pct for cell in homes)
        found.append(Bar(name="circuits_pct", value=carried, at_most=CIRCUITS_PCT_AT_MOST))
    if wasted := [cell.duplicates_pct for cell in cells if cell.system == OURS]:
        found.append(Bar(name="duplicates_pct", value=worst(wasted), at_most=DUPLICATES_PCT_AT_MOST))
    at_full_rates = first_measured(cells, OURS)
    if costs := [at_full_rates[name].cpu_s_per_gib for name in ("n4", "n8") if name in at_full_rates]:
        found.append(Bar(name="cpu_s_per_gib", value=worst(costs), at_most=CPU_S_PER_GIB_AT_MOST))
    theirs_at_full_rates = first_measured(cells, THEIRS)
    if costs := [
        cost_over(at_full_rates[name], theirs_at_full_rates[name])
        for name in ("n4", "n8")
        if name in at_full_rates and name in theirs_at_full_rates
    ]:
        found.append(Bar(name="cpu_vs_libtorrent", value=worst(costs), at_most=CPU_VS_LIBTORRENT_AT_MOST))
    if (large := ours.get(LARGE)) is not None:
        found.append(Bar(name="cpu_s_per_gib_large", value=large.cpu_s_per_gib, at_most=CPU_S_PER_GIB_LARGE_AT_MOST))
        if (raw := judged(cells, RAW).get(LARGE)) is not None:
            found.append(Bar(name="large_of_raw", value=rate_over(large, raw), at_least=LARGE_OF_RAW_AT_LEAST))
    if contests := [versus(ours[name], theirs[name]) for name in RATIO_AT_MOST if name in ours and name in theirs]:
        found.append(Bar(name="vs_libtorrent", value=worst(contests), at_most=VS_LIBTORRENT_AT_MOST))
    return found


def idle_bars(idle: Idle | None) -> list[Bar]:
    """Return the bar of an idle swarm. It has no value if nodes have too few neighbours."""
    if idle is None:
        return []
    why = "" if idle.met_pct >= FEWEST_MET_PCT else f"only {idle.met_pct:.0f} % of its pairs had met"
    value = None if why else idle.most_bytes_per_s
    return [Bar(name="idle_bytes_per_s", value=value, at_most=IDLE_BYTES_PER_S_AT_MOST, why=why)]


def versus(ours: Cell, theirs: Cell) -> float | None:
    """Return our time over theirs; 0 if only theirs never ended."""
    if ours.last_s is None:
        return None
    return 0.0 if theirs.last_s is None else ours.last_s / theirs.last_s


def cost_over(ours: Cell, theirs: Cell) -> float | None:
    """Return the median over the runs of our processor seconds over theirs."""
    return median([mine.cpu_s_per_gib / other.cpu_s_per_gib for mine, other in pairs(ours, theirs)] or [None])


def rate_over(ours: Cell, theirs: Cell) -> float | None:
    """Return the median over the runs of our bytes a second over theirs."""
    return median([other.last_s / mine.last_s for mine, other in pairs(ours, theirs)] or [None])


def pairs(ours: Cell, theirs: Cell) -> list[tuple[Ran, Ran]]:
    """Return pairs of successive runs of one repetition that both succeeded."""
    return [(mine, other) for mine, other in zip(ours.runs, theirs.runs, strict=True) if mine and other]


def worst(values: Iterable[float | None]) -> float | None:
    """Return the largest value; None, which stands for never, if any is None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None


def figures(cells: Iterable[Cell]) -> Mapping[str, Any]:
    """Return the figures beside the bars."""
    found: dict[str, Any] = {}
    for cell in cells:
        name = f"{cell.scenario.name}_{cell.system}" + ("" if cell.factor == 1 else f"_x{cell.factor:g}")
        found[f"{name}_s"] = cell.last_s
        if not cell.scenario.on_loopback:
            found[f"{name}_ratio"] = cell.over_bound
        found[f"{name}_mean_s"] = cell.mean_s
        found[f"{name}_cpu_s_per_gib"] = cell.cpu_s_per_gib
        found[f"{name}_cpu_system_part"] = cell.system_part
        found[f"{name}_nodes_share"] = cell.nodes_share
        found[f"{name}_others_share"] = cell.others_share
        if cell.scenario.kinds:
            found[f"{name}_source_copies"] = cell.source_copies
            found[f"{name}_met_pct"] = cell.met_pct
            found[f"{name}_circuits_pct"] = cell.circuits_pct
    return found


# The profile.


def profile(scenarios: Sequence[Scenario], options: argparse.Namespace, out: Path) -> int:
    """Run ours once in each scenario with sampling, and print the processor time. No bars: sampling costs time."""
    for scenario in scenarios:
        factor = options.scale or 1.0
        samples = options.profile.resolve() / f"{scenario.name}-x{factor:g}"
        samples.mkdir(parents=True, exist_ok=True)
        ran = attempt(scenario.scaled(factor), OURS, out / samples.name, seed=options.seed, profile=samples)
        if ran is None:
            return 1
        tell(scenario, factor, OURS, ran)
        print_profile(ran, samples)
    return 0


def print_profile(ran: Ran, samples: Path) -> None:
    """Print own time by function and by module, and time within each module, as shares of all samples."""
    stacks = read_samples(samples)
    total = stacks.total()
    say(
        f"\n{ran.scenario.name}: {ran.node_cpu_s:.1f} s of processor time, {ran.system_cpu_s:.1f} s in the kernel, "
        f"{ran.cpu_s_per_gib:.1f} s/GiB, with the sampling. All samples ({total / 1e6:.1f} s) are in {samples}."
    )
    for title, counts in (
        ("own time by function", own_by_function(stacks)),
        ("own time by module", own_by_module(stacks)),
        ("time within a module, callees included", within_module(stacks)),
    ):
        shares = [[name, f"{100 * count / total:.1f}"] for name, count in counts.most_common(PROFILE_LINES)]
        say("\n" + table([title, "%"], shares))


if __name__ == "__main__":
    main(benchmark)
