"""Claim "reach": nodes behind home routers connect at the first try where their routers allow it.

Every pair of the laboratory's kinds of router (`benchmarks/network/routers.py`) is introduced repeatedly by a relay on
the laboratory's open internet, with round trips to the relay of 10 and 80 ms. The same relays introduce two peers of
go-libp2p, in turn with ours, for the pairs that can connect, if it is installed
(`benchmarks/network/go_introduction.py`). Like our nodes here, it assumes that it cannot be dialled, knows its outside
address, and asks no router for a port. Its time ends when the first of the two reports the connection.

Bars:

- `punchable_pct`: the percentage of introductions that connected, among pairs that can connect at all.
- `first_try_pct`: the percentage that connected at the first try of both ends.
- `direct_rtts`: the median time from the introduction to an encrypted, direct connection, in round trips over the
  relay.
- `false_direct`: connections that one end wrongly takes for direct.

Invariants:

- Every router is probed first, with TCP alone; the probe decides whether a pair can connect.
- Each attempt is between nodes that have never been connected.
- A connection counts when both ends got a ping back over it.
- A pair that cannot connect is tried once, to check that neither end reports a connection.

Needs Linux and root.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from typing import Any

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, table
from benchmarks.network.emulation import Node
from benchmarks.network.go_introduction import GoIntroduction, GoPrograms, open_observers
from benchmarks.network.homes import Home, Laboratory, open_homes
from benchmarks.network.introduction import Introduction, IntroductionFailed, open_programs
from benchmarks.network.node_kubo import LIBRARY
from benchmarks.network.requirements import NetworkUnavailable
from benchmarks.network.router_probe import ProbeFailed, check
from benchmarks.network.routers import KINDS, Kind, can_meet

REPS = 10
"""Introductions of each pair and round trip; in half of them the ends swap roles."""

GO_REPS = 2
"""The same for go-libp2p, which needs seven seconds to learn its outside address."""

ROUND_TRIPS_MS = (10.0, 80.0)
"""Milliseconds from a home to the relay and back."""

LEFT_OUT = frozenset({"hairpin"})
"""It differs from `port` only for two nodes of one home."""

LANES = 2
"""Simultaneous introductions, each by its own relay: most of the time is waiting."""

PORTS_A_LANE = 20_000

OBSERVERS = "observers"
"""The public host that tells go-libp2p its outside address."""

PUNCHABLE_PCT_AT_LEAST = 99.0
FIRST_TRY_PCT_AT_LEAST = 97.0
DIRECT_RTTS_AT_MOST = 8.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One introduction, with a round trip to the relay: `one` dialled `other`."""

    one: Kind
    other: Kind
    round_trip_ms: float
    introduction: Introduction | GoIntroduction

    @property
    def is_ours(self) -> bool:
        return isinstance(self.introduction, Introduction)

    @property
    def is_possible(self) -> bool:
        return can_meet(self.one, self.other)

    @property
    def met(self) -> bool:
        return self.introduction.met

    @property
    def at_first_try(self) -> bool:
        """Whether one attempt was enough; also true if one end dialled the other back."""
        return self.met and self.introduction.tries <= 1

    @property
    def round_trips(self) -> float:
        """The time in round trips over the relay: to it, on to the other end, and back."""
        return 1000 * self.introduction.seconds / (2 * self.round_trip_ms)

    @property
    def is_false(self) -> bool:
        """Whether an end wrongly reports a direct connection, or both report one where none is possible."""
        introduction = self.introduction
        told_false = isinstance(introduction, Introduction) and introduction.is_false
        return told_false or (self.met and not self.is_possible)


@dataclass(frozen=True, kw_only=True)
class Task:
    """An introduction to make."""

    one: Kind
    other: Kind
    is_ours: bool


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of introductions of pairs that can connect; None where there were none, or none connected."""

    met_pct: float | None
    first_try_pct: float | None
    round_trips: float | None

    @classmethod
    def of(cls, some: Sequence[Attempt]) -> Summary:
        return cls(
            met_pct=_percent(one.met for one in some),
            first_try_pct=_percent(one.at_first_try for one in some),
            round_trips=_median_round_trips(some),
        )


def claim() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--kinds", metavar="KIND,KIND", help="only these routers")
    parser.add_argument("--go-reps", type=int, default=GO_REPS, metavar="N", help=f"of go-libp2p, {GO_REPS} by default")
    options = parser.parse_args()
    kinds = [KINDS[name] for name in (options.kinds.split(",") if options.kinds else KINDS) if name not in LEFT_OUT]
    go_reps = options.go_reps if LIBRARY.is_file() else 0
    if go_reps < options.go_reps:
        say("go-libp2p is not installed and is left out; `sh tools/partners.sh .venv` installs it.")
    try:
        found = [one for round_trip_ms in ROUND_TRIPS_MS for one in run(kinds, round_trip_ms, options.reps, go_reps)]
    except (NetworkUnavailable, ProbeFailed, IntroductionFailed) as error:
        raise BenchmarkError(str(error)) from error
    tell(found)
    ours = Summary.of([one for one in found if one.is_possible and one.is_ours])
    theirs = Summary.of([one for one in found if not one.is_ours])
    bars = [
        Bar(name="punchable_pct", value=ours.met_pct, at_least=PUNCHABLE_PCT_AT_LEAST),
        Bar(name="first_try_pct", value=ours.first_try_pct, at_least=FIRST_TRY_PCT_AT_LEAST),
        Bar(
            name="direct_rtts",
            value=ours.round_trips,
            at_most=DIRECT_RTTS_AT_MOST,
            why="" if ours.round_trips is not None else "no pair connected",
        ),
        Bar(name="false_direct", value=sum(one.is_false for one in found), at_most=0),
    ]
    facts = {
        "attempts": sum(one.is_ours for one in found),
        "possible": sum(one.is_ours and one.is_possible for one in found),
        "go_libp2p": {"attempts": sum(not one.is_ours for one in found), **asdict(theirs)},
        "pairs": pairs_of(found),
    }
    return conclude("reach", bars, facts)


def run(kinds: Sequence[Kind], round_trip_ms: float, reps: int, go_reps: int) -> list[Attempt]:
    """Run all introductions at one round trip, and return the attempts."""
    delay_ms = round_trip_ms / 4  # into the switch and out of it, at both ends
    homes = [Home(name=f"{kind.name}{side}", kind=kind, delay_ms=delay_ms) for kind in kinds for side in "ab"]
    relays = [Node(name=f"relay{lane}", delay_ms=delay_ms) for lane in range(LANES)]
    waiting: queue.Queue[Task] = queue.Queue()
    for one, other in combinations_with_replacement(kinds, 2):
        possible = can_meet(one, other)
        for is_ours, times in ((True, reps if possible else 1), (False, go_reps if possible else 0)):
            for repetition in range(times):
                ends = (one, other) if repetition % 2 == 0 else (other, one)
                waiting.put(Task(one=ends[0], other=ends[1], is_ours=is_ours))
    found: list[Attempt] = []
    failed: list[Exception] = []
    with open_homes(homes, [*relays, Node(name=OBSERVERS)]) as lab, open_observers(lab, OBSERVERS) as observers:
        check(lab)
        lanes = [
            threading.Thread(target=_work, args=(lab, lane, observers, waiting, round_trip_ms, found, failed))
            for lane in range(LANES)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    if failed:
        raise failed[0]
    return found


def _work(
    lab: Laboratory,
    lane: int,
    observers: Sequence[Sequence[str]],
    waiting: queue.Queue[Task],
    round_trip_ms: float,
    found: list[Attempt],
    failed: list[Exception],
) -> None:
    """Make introductions until none is left or one fails."""
    try:
        with open_programs(lab, f"relay{lane}", first_port=4001 + PORTS_A_LANE * lane) as programs:
            go_programs = GoPrograms(programs, observers)
            while not failed:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                introduce = programs.introduce if task.is_ours else go_programs.introduce
                found.append(
                    Attempt(
                        one=task.one,
                        other=task.other,
                        round_trip_ms=round_trip_ms,
                        introduction=introduce(f"{task.one.name}a", f"{task.other.name}b"),
                    )
                )
    except IntroductionFailed as error:
        failed.append(error)


def pairs_of(found: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return, by pair and round trip, how many connected, at the first try, and in how many round trips."""
    by_pair: dict[tuple[float, str, str], list[Attempt]] = {}
    for one in found:
        first, second = sorted([one.one.name, one.other.name])
        by_pair.setdefault((one.round_trip_ms, first, second), []).append(one)
    return [
        {"round_trip_ms": round_trip_ms, "pair": f"{first}-{second}", "possible": some[0].is_possible}
        | _counts([one for one in some if one.is_ours])
        | {f"go_{name}": count for name, count in _counts([one for one in some if not one.is_ours]).items()}
        for (round_trip_ms, first, second), some in sorted(by_pair.items())
    ]


def _counts(some: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "attempts": len(some),
        "met": sum(one.met for one in some),
        "at_first_try": sum(one.at_first_try for one in some),
        "round_trips": _median_round_trips(some),
    }


def _percent(some: Iterable[bool]) -> float | None:
    """Return the percentage of true values; None without any values."""
    all_of_them = list(some)
    return 100 * sum(all_of_them) / len(all_of_them) if all_of_them else None


def _median_round_trips(some: Sequence[Attempt]) -> float | None:
    """Return the median over the attempts that connected; None if none did."""
    met = [one.round_trips for one in some if one.met]
    return median(met) if met else None


def tell(found: Sequence[Attempt]) -> None:
    """Print a row for each pair and round trip."""
    rows = [
        [
            number(pair["round_trip_ms"], 0),
            pair["pair"],
            "yes" if pair["possible"] else "no",
            *_told(pair),
            *_told(pair, "go_"),
        ]
        for pair in pairs_of(found)
    ]
    names = ["met", "at the first try", "round trips"]
    heads = ["round trip, ms", "pair", "can meet", *names, *(f"go-libp2p: {name}" for name in names)]
    say(table(heads, rows))


def _told(pair: dict[str, Any], whose: str = "") -> list[str]:
    """Return the cells of one side."""
    attempts, round_trips = pair[f"{whose}attempts"], pair[f"{whose}round_trips"]
    if not attempts:
        return ["-", "-", "-"]
    return [
        f"{pair[f'{whose}met']} of {attempts}",
        str(pair[f"{whose}at_first_try"]),
        "-" if round_trips is None else number(round_trips, 1),
    ]


if __name__ == "__main__":
    main(claim)
