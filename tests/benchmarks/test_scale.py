"""Test the peers of the simulated swarms, and how runs become bars."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.scale import LINES, ROUTER, SOURCE, Run, bars, draw, homes_bars, report, scenario, simulate
from benchmarks.scale import parser as options
from benchmarks.swarms.chunk_simulation import Scenario, bound_s
from benchmarks.swarms.homes import HomesRun, simulate_homes
from benchmarks.swarms.virtual_links import Link
from swarm.work.neighbour_graph import Meets


def lines_of(swarm: Scenario) -> Counter[tuple[float, float]]:
    return Counter((peer.link.up, peer.link.down) for peer in swarm.peers)


def run_of(num_peers: int, last: float | None = 1.05, *, copies: float = 1.0, control_pct: float = 0.5) -> Run:
    return Run(
        num_peers=num_peers,
        bound_s=100.0,
        done_s=(90.0, 100.0 * (last or 1.0)),
        all_done=last is not None,
        copies=copies,
        control_pct=control_pct,
        source_control_pct=0.2,
        duplicates_pct=0.1,
        took_s=3.0,
    )


def values(*runs: Run) -> dict[str, float | None]:
    return {bar.name: bar.value for bar in bars(runs)}


# Who is there


def test_a_seed_names_one_swarm() -> None:
    assert scenario(50, 1) == scenario(50, 1)
    assert scenario(50, 1).peers != scenario(50, 2).peers


@pytest.mark.parametrize("times", [1, 5, 50])
def test_the_mix_of_lines_is_the_same_at_every_size(times: int) -> None:
    assert lines_of(scenario(20 * times, 3)) == {(up, down): times * count for up, down, count in LINES}


@pytest.mark.parametrize("seed", range(5))
def test_nobody_who_joins_makes_the_bound_easier(seed: int) -> None:
    swarm = scenario(200, seed)
    assert any(peer.joins_s > 0 for peer in swarm.peers)
    assert any(peer.leaves_s < inf and peer.vanishes for peer in swarm.peers)
    from_the_start = [replace(peer, joins_s=0.0) for peer in swarm.peers]
    assert bound_s(swarm) == pytest.approx(bound_s(replace(swarm, peers=from_the_start)))


def test_a_simulation_says_the_same_each_time() -> None:
    first, second = (replace(simulate(scenario(6, 1, size_mib=4)), took_s=0.0) for _ in range(2))
    assert first == second
    assert first.all_done
    assert first.last_over_bound is not None
    assert first.last_over_bound >= 1
    assert first.copies >= 1


# Bars


def test_the_last_of_a_thousand_is_judged_by_the_median_of_the_seeds() -> None:
    found = values(run_of(1000, 1.3), run_of(1000, 1.1), run_of(1000, 1.0), run_of(10, 1.4))
    assert found["last_over_bound_1000"] == pytest.approx(1.1)


def test_a_run_in_which_somebody_is_never_done_never_ended() -> None:
    assert values(run_of(1000, 1.0), run_of(1000, 1.1), run_of(1000, None))["last_over_bound_1000"] == 1.1
    missed = bars([run_of(1000, 1.0), run_of(1000, None), run_of(1000, None)])
    assert [bar.met for bar in missed if bar.name == "last_over_bound_1000"] == [False]


def test_of_the_messages_the_worst_size_counts() -> None:
    assert values(run_of(10, control_pct=1.2), run_of(1000, control_pct=0.4))["control_pct"] == pytest.approx(1.2)


def test_flat_is_what_the_source_sends_to_many_over_what_it_sends_to_few() -> None:
    found = values(run_of(10, copies=1.1), run_of(1000, copies=1.32))
    assert found["source_copies_1000_over_10"] == pytest.approx(1.2)


def test_only_what_was_simulated_is_judged() -> None:
    assert set(values(run_of(40))) == {"control_pct"}


def test_homes_are_judged_by_the_median_of_whoever_was_last() -> None:
    def homes_of(most: float, hard: float) -> HomesRun:
        return HomesRun(bound_s=1.0, done_over_bound={Meets.MOST: most, Meets.OPEN_ONES: hard}, copies=1.0)

    homes = {"homes_mixed": [homes_of(1.0, 1.2), homes_of(1.3, 1.1), homes_of(1.0, 1.0)]}
    (bar,) = homes_bars(homes)
    assert (bar.name, bar.value, bar.met) == ("homes_mixed_over_bound", 1.2, True)


def test_a_few_homes_are_simulated_like_any_swarm() -> None:
    mix = {Meets.ALL: 1, Meets.MOST: 2, Meets.OPEN_ONES: 1}
    links = [Link(up=50.0, down=50.0, latency_s=0.001)] * 4
    run = simulate_homes(mix, links, SOURCE, ROUTER, size_mib=8, seed=1)
    assert run.done_over_bound.keys() == mix.keys()
    assert 1.0 < run.last_over_bound < 3.0
    assert run == simulate_homes(mix, links, SOURCE, ROUTER, size_mib=8, seed=1)


def test_every_size_has_a_line_and_what_never_ended_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of(1000, None), run_of(10), run_of(40)]
    assert report(runs, {}, options().parse_args([])) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in lines] == ["peers", "-----", "10", "40", "1000"]
    assert lines[-1].split("|")[3].strip() == "-"


def test_the_picture_is_drawn_also_of_what_never_ended(tmp_path: Path) -> None:
    draw([run_of(10), run_of(1000, None)], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
