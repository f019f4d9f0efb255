"""How runs become bars, and the arithmetic below: bounds, costs, samples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import ROOT, BenchmarkError
from benchmarks.live.idle import FEWEST_MET_PCT, Idle
from benchmarks.network import requirements
from benchmarks.network.bound import all_peers_bound_s, met_peers_bound_s, peer_bound_s
from benchmarks.network.conductor import UNPUNCHED, Ran
from benchmarks.network.payload import FILE_NAME, write_payload
from benchmarks.network.profiles import own_by_function, own_by_module, read_samples, within_module
from benchmarks.network.program_end import Report
from benchmarks.network.scenarios import MIB, SCENARIOS
from benchmarks.relay import OURS, SLOWER, THEIRS, Cell, bars, idle_bars, prepare, systems_in
from protocol.versions.safetensors_header import read_table

# Bounds


def test_the_source_sends_every_bit_once() -> None:
    assert all_peers_bound_s(64 * MIB, 50, [50] * 8, [50] * 8) == pytest.approx(64 * MIB * 8 / 50e6)


def test_the_slowest_receiver_takes_everything_in() -> None:
    assert all_peers_bound_s(MIB, 50, [100, 100], [100, 10]) == pytest.approx(MIB * 8 / 10e6)


def test_peers_that_upload_nothing_leave_all_of_it_to_the_source() -> None:
    assert all_peers_bound_s(MIB, 50, [0, 0, 0], [100] * 3) == pytest.approx(3 * MIB * 8 / 50e6)


def test_a_peer_is_bound_by_the_sources_uplink_or_its_own_downlink() -> None:
    assert peer_bound_s(MIB, 50, 100) == pytest.approx(MIB * 8 / 50e6)
    assert peer_bound_s(MIB, 50, 10) == pytest.approx(MIB * 8 / 10e6)


def everybody(one: str, other: str) -> bool:
    return True


def bound_of(ups: dict[str, list[float]], *, down: float = 50, pairs: str = "") -> float:
    """In seconds, of a MiB at 50 Mbit/s of the source, where those of `pairs` can meet ("ab bb")."""
    allowed = {frozenset(pair) for pair in pairs.split()}
    return met_peers_bound_s(MIB, 50, ups, down, lambda one, other: frozenset([one, other]) in allowed)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=8), st.floats(1, 200), st.floats(1, 200), st.integers(0, 8))
def test_where_all_can_meet_it_is_the_bound_of_all(ups: list[float], source_up: float, down: float, cut: int) -> None:
    groups = {"a": ups[:cut], "b": ups[cut:]}
    found = met_peers_bound_s(MIB, source_up, groups, down, everybody)
    assert found == pytest.approx(all_peers_bound_s(MIB, source_up, ups, [down] * len(ups)))


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.floats(1, 200), max_size=4), min_size=1),
    st.sets(st.sampled_from(["aa", "ab", "ac", "bb", "bc", "cc"])),
    st.sampled_from(["aa", "ab", "ac", "bb", "bc", "cc"]),
)
def test_who_can_meet_more_is_never_bound_more(ups: dict[str, list[float]], pairs: set[str], more: str) -> None:
    fewer, one_more = bound_of(ups, pairs=" ".join(pairs)), bound_of(ups, pairs=" ".join({*pairs, more}))
    assert bound_of(ups, pairs="aa ab ac bb bc cc") <= one_more <= fewer


def test_where_nobody_meets_the_source_sends_a_copy_to_each() -> None:
    assert bound_of({"a": [50.0] * 8}) == pytest.approx(8 * MIB * 8 / 50e6)


def test_peers_that_meet_few_are_bound_by_what_these_can_send() -> None:
    """Twenty that meet only the one in the open: 20 files, from 50 Mbit/s of the source and 10 of that one."""
    ups = {"open": [10.0], "hard": [100.0] * 20}
    found = met_peers_bound_s(MIB, 50, ups, 100, lambda one, other: "open" in (one, other))
    assert found == pytest.approx(20 * MIB * 8 / 60e6)


@pytest.mark.parametrize("name", ["nat8", "nat8mix"])
def test_behind_routers_one_copy_of_the_source_is_the_bound(name: str) -> None:
    assert SCENARIOS[name].bound_s == pytest.approx(64 * MIB * 8 / 50e6)


def test_whom_a_peer_can_meet_follows_from_the_routers_of_both() -> None:
    mix = SCENARIOS["nat8mix"]
    assert mix.partners("p1") == ["p2", "p3", "p4", "p5", "p6", "p7", "p8"]
    assert mix.partners("p3") == ["p1", "p2", "p4", "p5", "p6"]
    assert mix.partners("p8") == ["p1", "p2"]
    assert mix.partners("s") == []
    assert mix.num_bulk_pairs == 1 + 2 * 6 + 6
    assert mix.partners("p3", punches=False) == mix.partners("p8", punches=False) == ["p1", "p2"]
    assert SCENARIOS["nat8"].partners("p1", punches=False) == SCENARIOS["n8"].partners("p1") == []


def test_slower_links_move_the_bound_as_much() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.scaled(0.5).bound_s == pytest.approx(2 * scenario.bound_s)
        assert scenario.mean_peer_bound_s <= scenario.bound_s


# What is sent


@pytest.mark.parametrize("size", [MIB, 9 * MIB])
def test_the_payload_is_a_model_of_exactly_its_size(tmp_path: Path, size: int) -> None:
    raw = write_payload(tmp_path, size, seed=1).read_bytes()
    assert len(raw) == size
    read_table(FILE_NAME, size, lambda offset, length: raw[offset : offset + length])
    assert raw == write_payload(tmp_path, size, seed=1).read_bytes()
    assert raw != write_payload(tmp_path, size, seed=2).read_bytes()


# Runs and bars


def ran(
    name: str, over_bound: float, *, duplicates: int = 0, share: float = 0.5, others: float = 0.1, scale: float = 1.0
) -> Ran:
    """A run in which the last peer took so many bounds, the rest one; the nodes and others had shares of the cores."""
    scenario = SCENARIOS[name].scaled(scale)
    available_s = over_bound * scenario.bound_s * (os.cpu_count() or 1)
    cpu_s = share * available_s
    received = [scenario.size_bytes] * len(scenario.peers)
    received[0] += duplicates
    source = Report(file=Path("sent"), up={}, down={}, user_s=0.75 * cpu_s, system_s=0.25 * cpu_s)
    peers = [Report(file=Path("got"), up={}, down={"s": size}, user_s=0.0, system_s=0.0) for size in received]
    return Ran(
        scenario=scenario,
        seconds=(over_bound * scenario.bound_s, *[scenario.bound_s] * (len(peers) - 1)),
        reports=(source, *peers),
        machine_cpu_s=cpu_s + others * available_s,
    )


def cell(
    name: str, system: str, *over_bound: float | None, share: float = 0.5, others: float = 0.1, scale: float = 1.0
) -> Cell:
    runs = [
        None if ratio is None else ran(name, ratio, share=share, others=others, scale=scale) for ratio in over_bound
    ]
    return Cell(scenario=SCENARIOS[name].scaled(scale), factor=scale, system=system, runs=tuple(runs))


def values(*cells: Cell) -> dict[str, float | None]:
    return {bar.name: bar.value for bar in bars(cells)}


def test_a_ratio_is_the_median_over_the_bound() -> None:
    assert values(cell("n4", OURS, 1.3, 1.1, 1.0))["n4"] == pytest.approx(1.1)


def test_a_failed_run_never_ended() -> None:
    assert values(cell("n4", OURS, 1.0, 1.1, None))["n4"] == pytest.approx(1.1)
    missed = bars([cell("n4", OURS, 1.0, None, None)])
    assert [bar.met for bar in missed if bar.name == "n4"] == [False]


def test_bytes_beyond_the_payload_are_duplicates() -> None:
    run = ran("n4", 1.0, duplicates=4 * 64 * MIB // 100)
    assert run.duplicates_pct == pytest.approx(1.0)


def test_the_processors_time_is_that_of_all_nodes_for_each_gib_delivered() -> None:
    run = ran("n4", 1.0, share=0.5)
    assert run.node_cpu_s / run.cpu_s_per_gib == pytest.approx(4 * 64 / 1024)


def test_shares_are_of_all_cores_until_the_last_is_done() -> None:
    run = ran("n4", 2.0, share=0.5, others=0.2)
    assert (run.nodes_share, run.others_share) == (pytest.approx(0.5), pytest.approx(0.2))


def home_ran(name: str, *, met: float = 1.0, circuit_bytes: int = 0, copies: float = 1.0) -> Ran:
    """A run behind routers at its bound: which part of the pairs met, what circuits carried, and the source sent."""
    scenario = SCENARIOS[name]
    size, peers = scenario.size_bytes, [peer.name for peer in scenario.peers]
    source = Report(
        file=Path("sent"), up={"p1": round(copies * size)}, down={}, user_s=1, system_s=0, circuit_bytes=circuit_bytes
    )
    reports = [
        Report(
            file=Path("got"),
            up={},
            down={"s": size},
            user_s=0,
            system_s=0,
            met=scenario.partners(peer)[: round(met * len(scenario.partners(peer)))],
        )
        for peer in peers
    ]
    seconds = (scenario.bound_s,) * len(peers)
    return Ran(scenario=scenario, seconds=seconds, reports=(source, *reports), machine_cpu_s=1)


def test_behind_routers_it_is_told_who_met_and_what_circuits_and_the_source_carried() -> None:
    run = home_ran("nat8", circuit_bytes=512 * 1024, copies=1.25)
    assert (run.met_pct, run.source_copies) == (100, 1.25)
    assert run.circuits_pct == pytest.approx(100 * 0.5 / 512.5)
    assert home_ran("nat8mix", met=0.0).met_pct == 0
    assert ran("n4", 1.0).met_pct == 100


def test_the_worst_of_the_routers_is_judged_by_what_circuits_carried() -> None:
    cells = [
        Cell(scenario=SCENARIOS[name], factor=1.0, system=OURS, runs=(home_ran(name, circuit_bytes=size),))
        for name, size in (("nat8", MIB), ("nat8mix", 2 * MIB))
    ]
    assert values(*cells)["circuits_pct"] == pytest.approx(100 * 2 / 514)
    assert {bar.name for bar in bars(cells) if not bar.met} == {"circuits_pct"}
    assert "circuits_pct" not in values(cell("n4", OURS, 1.0))


def test_each_scenario_has_the_systems_that_run_there() -> None:
    systems = [OURS, THEIRS, UNPUNCHED]
    assert systems_in(SCENARIOS["n8"], systems) == [OURS, THEIRS]
    assert systems_in(SCENARIOS["nat8"], systems) == [OURS, UNPUNCHED]


def test_an_idle_node_is_judged_by_the_worst_where_nearly_all_have_met() -> None:
    idle = Idle(bytes_per_s={"a": 500.0, "b": 900.0}, num_connections={"a": 2, "b": 2})
    (bar,) = idle_bars(idle)
    assert (bar.value, bar.met) == (900.0, True)
    few = Idle(bytes_per_s={"a": 500.0, "b": 900.0}, num_connections={"a": 1, "b": 2})
    assert few.met_pct < FEWEST_MET_PCT
    (bar,) = idle_bars(few)
    assert (bar.value, bar.met, bar.why) == (None, False, "only 75 % of its pairs had met")
    assert idle_bars(None) == []


def test_where_the_processor_was_the_limit_slower_links_are_judged() -> None:
    fast = cell("n8", OURS, 1.5, share=0.65)
    assert fast.processor_limited
    assert not cell("n8", OURS, 1.5, share=0.55).processor_limited
    assert not cell("n8", OURS, 1.5, share=0.2, others=0.8).processor_limited
    slow = cell("n8", OURS, 1.05, scale=SLOWER)
    found = values(fast, cell("n8", THEIRS, 1.5), slow, cell("n8", THEIRS, 2.1, scale=SLOWER))
    assert found["n8"] == pytest.approx(1.05)
    assert found["vs_libtorrent"] == pytest.approx(0.5)
    assert found["cpu_s_per_gib"] == pytest.approx(fast.cpu_s_per_gib)


def test_the_worst_contest_counts_and_none_that_a_downlink_decides() -> None:
    found = values(
        cell("n4", OURS, 1.0), cell("n4", THEIRS, 2.0), cell("up8", OURS, 1.2), cell("up8", THEIRS, 1.5),
        cell("mix4", OURS, 1.0), cell("mix4", THEIRS, 1.0),
    )  # fmt: skip
    assert found["vs_libtorrent"] == pytest.approx(0.8)


def test_mix4_is_judged_by_its_mean_peer_in_seconds() -> None:
    bound_s = SCENARIOS["mix4"].bound_s
    assert values(cell("mix4", OURS, 1.4))["mix4_mean_s"] == pytest.approx((3 + 1.4) / 4 * bound_s)


def test_only_what_was_measured_is_judged() -> None:
    assert set(values(cell("up8", OURS, 1.0))) == {"up8", "duplicates_pct"}
    assert values(cell("up8", THEIRS, 1.0)) == {}


@pytest.mark.parametrize(("platform", "user", "words"), [("darwin", 0, "Linux"), ("linux", 1000, "root")])
def test_elsewhere_one_sentence_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, platform: str, user: int, words: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(BenchmarkError, match=words):
        prepare([SCENARIOS["n4"]], [OURS, THEIRS])


def test_root_without_the_rights_of_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "_capabilities", lambda: 1 << 12)
    assert "CAP_SYS_ADMIN, which root lacks" in requirements.obstacle()


# Samples

SAMPLES = {
    "s": ["<module> (/x/lib/python3.11/site-packages/trio/_core/_run.py);get (/r/swarm/store/store.py) 3"],
    "p1": [
        "<module> (/x/lib/python3.11/site-packages/trio/_core/_run.py) 2",
        "<module> (/x/lib/python3.11/site-packages/trio/_core/_run.py);get (/r/swarm/store/store.py) 5",
    ],
}


def test_samples_of_all_nodes_are_added_up_by_where_they_were_taken(tmp_path: Path) -> None:
    for name, lines in SAMPLES.items():
        (tmp_path / f"{name}.samples").write_text("\n".join(lines) + "\n", encoding="utf-8")
    stacks = read_samples(tmp_path)
    trio_file, store_file = "trio/_core/_run.py", "/r/swarm/store/store.py"
    assert own_by_function(stacks) == Counter({f"{store_file}: get": 8, f"{trio_file}: <module>": 2})
    assert own_by_module(stacks) == Counter({store_file: 8, trio_file: 2})
    assert within_module(stacks) == Counter({trio_file: 10, store_file: 8})


PROGRAM = """
import hashlib, sys, time
from pathlib import Path
import trio
from benchmarks.network.sampler import Sampler

def burn():
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass

async def main():
    sampler = Sampler(Path(sys.argv[1]))
    sampler.start()
    burn()
    used = time.process_time_ns()
    sampler.clear()
    burn()
    await trio.to_thread.run_sync(hashlib.sha256, bytes(10_000_000))
    sampler.stop()
    print(time.process_time_ns() - used)

trio.run(main)
"""


def test_a_program_knows_where_its_time_went(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s.samples")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    stacks = read_samples(tmp_path)
    own = own_by_function(stacks)
    assert own["<string>: burn"] >= 50_000
    assert own["C: <built-in method _hashlib.openssl_sha256>"] > 0
    assert 0.8 * int(done.stdout) <= 1000 * stacks.total() <= int(done.stdout)


def test_modules_of_ours_are_named_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "s.samples").write_text(f"get ({ROOT}/swarm/transport/framing.py) 1\n", encoding="utf-8")
    assert own_by_module(read_samples(tmp_path)) == Counter({"swarm/transport/framing.py": 1})
