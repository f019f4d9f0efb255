"""Claim "reach": whoever can meet behind home routers does, at the first try, and nobody is taken for met who is not.

Every pair of the laboratory's kinds of router (`benchmarks/network/routers.py`), introduced again and again by a relay
on the open internet of the laboratory, with round trips to the relay of 10 and 80 ms. Bars: of the introductions of
pairs that can be connected at all, how many were (`punchable_pct`), and how many at the first try of both ends
(`first_try_pct`); from the introduction to an encrypted, direct connection, in round trips over the relay
(`direct_rtts`, the median); connections that one end takes for direct, and that are not (`false_direct`).

What always holds: every router is probed first, with TCP alone, and whether each pair can meet is what was seen then;
each attempt is between nodes that nobody has met; a connection counts when both ends got a ping back over it. A pair
that cannot meet is tried once, to see that it is not said to. Needs Linux and root.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, table
from benchmarks.network.emulation import Node
from benchmarks.network.homes import Home, Laboratory, open_homes
from benchmarks.network.introduction import Introduction, IntroductionFailed, Way, open_programs
from benchmarks.network.requirements import NetworkUnavailable
from benchmarks.network.router_probe import ProbeFailed, check
from benchmarks.network.routers import KINDS, Kind, can_meet

REPS = 10
"""Introductions of each pair and round trip, half of them each way round."""

ROUND_TRIPS_MS = (10.0, 80.0)
"""From a home to the relay and back."""

LEFT_OUT = frozenset({"hairpin"})
"""It differs from `port` for two nodes of one home alone."""

LANES = 2
"""Introductions at a time, each by a relay of its own: most of the time is waiting."""

PORTS_A_LANE = 20_000

PUNCHABLE_PCT_AT_LEAST = 99.0
FIRST_TRY_PCT_AT_LEAST = 97.0
DIRECT_RTTS_AT_MOST = 8.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One introduction: `one` dialled `other`."""

    one: Kind
    other: Kind
    round_trip_ms: float
    introduction: Introduction

    @property
    def is_possible(self) -> bool:
        return can_meet(self.one, self.other)

    @property
    def met(self) -> bool:
        return self.introduction.way is not Way.NOTHING

    @property
    def at_first_try(self) -> bool:
        """Without a second knock: also where one dialled the other back."""
        return self.met and max(report.tries for report in self.introduction.reports) <= 1

    @property
    def round_trips(self) -> float:
        """Over the relay: to it and on to the other end, and back."""
        return 1000 * self.introduction.seconds / (2 * self.round_trip_ms)


def claim() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--kinds", metavar="KIND,KIND", help="only these routers")
    options = parser.parse_args()
    kinds = [KINDS[name] for name in (options.kinds.split(",") if options.kinds else KINDS) if name not in LEFT_OUT]
    try:
        found = [one for round_trip_ms in ROUND_TRIPS_MS for one in run(kinds, round_trip_ms, options.reps)]
    except (NetworkUnavailable, ProbeFailed, IntroductionFailed) as error:
        raise BenchmarkError(str(error)) from error
    tell(found)
    possible = [one for one in found if one.is_possible]
    met = [one for one in possible if one.met]
    bars = [
        Bar(name="punchable_pct", value=100 * len(met) / len(possible), at_least=PUNCHABLE_PCT_AT_LEAST),
        Bar(
            name="first_try_pct",
            value=100 * sum(one.at_first_try for one in possible) / len(possible),
            at_least=FIRST_TRY_PCT_AT_LEAST,
        ),
        Bar(
            name="direct_rtts",
            value=_median_round_trips(possible),
            at_most=DIRECT_RTTS_AT_MOST,
            why="" if met else "nobody met",
        ),
        Bar(name="false_direct", value=sum(is_false(one) for one in found), at_most=0),
    ]
    return conclude("reach", bars, {"attempts": len(found), "possible": len(possible), "pairs": pairs_of(found)})


def is_false(one: Attempt) -> bool:
    """Whether an end says that it is connected directly, and it is not; or both do, where no way leads."""
    return one.introduction.is_false or (one.met and not one.is_possible)


def run(kinds: Sequence[Kind], round_trip_ms: float, reps: int) -> list[Attempt]:
    """All introductions at one round trip."""
    delay_ms = round_trip_ms / 4  # into the switch and out of it, at both ends
    homes = [Home(name=f"{kind.name}{side}", kind=kind, delay_ms=delay_ms) for kind in kinds for side in "ab"]
    relays = [Node(name=f"relay{lane}", delay_ms=delay_ms) for lane in range(LANES)]
    waiting: queue.Queue[tuple[Kind, Kind]] = queue.Queue()
    for one, other in combinations_with_replacement(kinds, 2):
        for repetition in range(reps if can_meet(one, other) else 1):
            waiting.put((one, other) if repetition % 2 == 0 else (other, one))
    found: list[Attempt] = []
    failed: list[Exception] = []
    with open_homes(homes, relays) as lab:
        check(lab)
        lanes = [
            threading.Thread(target=_work, args=(lab, lane, waiting, round_trip_ms, found, failed))
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
    waiting: queue.Queue[tuple[Kind, Kind]],
    round_trip_ms: float,
    found: list[Attempt],
    failed: list[Exception],
) -> None:
    """Introduce until nothing is left, or an introduction could not be made."""
    try:
        with open_programs(lab, f"relay{lane}", first_port=4001 + PORTS_A_LANE * lane) as programs:
            while not failed:
                try:
                    one, other = waiting.get_nowait()
                except queue.Empty:
                    return
                introduction = programs.introduce(f"{one.name}a", f"{other.name}b")
                found.append(Attempt(one=one, other=other, round_trip_ms=round_trip_ms, introduction=introduction))
    except IntroductionFailed as error:
        failed.append(error)


def pairs_of(found: Sequence[Attempt]) -> list[dict[str, Any]]:
    """By pair and round trip: how many met, at the first try, and in how many round trips."""
    by_pair: dict[tuple[float, str, str], list[Attempt]] = {}
    for one in found:
        first, second = sorted([one.one.name, one.other.name])
        by_pair.setdefault((one.round_trip_ms, first, second), []).append(one)
    return [
        {
            "round_trip_ms": round_trip_ms,
            "pair": f"{first}-{second}",
            "possible": some[0].is_possible,
            "attempts": len(some),
            "met": sum(one.met for one in some),
            "at_first_try": sum(one.at_first_try for one in some),
            "round_trips": median([one.round_trips for one in some if one.met])
            if any(one.met for one in some)
            else None,
        }
        for (round_trip_ms, first, second), some in sorted(by_pair.items())
    ]


def _median_round_trips(some: Sequence[Attempt]) -> float | None:
    """Of those that met; None where nobody did."""
    met = [one.round_trips for one in some if one.met]
    return median(met) if met else None


def tell(found: Sequence[Attempt]) -> None:
    """A row for each pair and round trip."""
    rows = [
        [
            number(pair["round_trip_ms"], 0),
            pair["pair"],
            "yes" if pair["possible"] else "no",
            f"{pair['met']} of {pair['attempts']}",
            pair["at_first_try"],
            "-" if pair["round_trips"] is None else number(pair["round_trips"], 1),
        ]
        for pair in pairs_of(found)
    ]
    say(table(["round trip, ms", "pair", "can meet", "met", "at the first try", "round trips"], rows))


if __name__ == "__main__":
    main(claim)
