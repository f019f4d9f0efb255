"""A recording can be read back whole after any failure; and the estimator gets all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from learner.provisioning.estimation.estimator import fit
from learner.provisioning.estimation.recording import (
    FILE,
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Planned,
    Published,
    Recorded,
    Stepped,
    read_lines,
)
from node.learner_role.scheduling import run_recording as module
from node.learner_role.scheduling.run_recording import RETRY_S, RunRecorder, steady_clock
from tests.support.disks import file_limit

TERMS = Began(at_s=0, swarm="s", mode="async", rollouts=64, group_size=8, staleness=3, kappa=2)


class Bench:
    """A recorder with a clock that a test sets."""

    def __init__(self, directory: Path, at_s: float = 1000.0, terms: Began = TERMS) -> None:
        self.at_s = at_s
        self.path = directory / FILE
        self.troubles: list[str] = []
        self.recorder = RunRecorder(self.path, terms, trouble=self.troubles.append, clock=lambda: self.at_s)

    def record(self, make: Callable[[float], Recorded]) -> None:
        self.recorder.record(make(self.recorder.now_s()))

    def join(self, peer: str) -> None:
        self.record(lambda at_s: Joined(at_s=at_s, peer=peer))

    def leave(self, peer: str) -> None:
        self.record(lambda at_s: Left(at_s=at_s, peer=peer))

    def publish(self, version: int) -> None:
        self.record(lambda at_s: Published(at_s=at_s, version=version))

    def written(self, path: Path | None = None) -> list[Recorded]:
        with (path or self.path).open("rb") as file:
            return list(read_lines(file, FILE))


def kinds(events: list[Recorded]) -> list[str]:
    return [
        f"{type(event).__name__} {event.peer}" if isinstance(event, Joined | Left) else type(event).__name__
        for event in events
    ]


def test_who_came_before_the_run_began_is_told_when_it_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for peer in "abc":
        bench.join(peer)
    bench.leave("b")
    bench.record(lambda at_s: Installed(at_s=at_s, peer="a", version=3))
    assert not bench.path.exists()
    bench.at_s = 1060
    bench.recorder.begin(7)
    bench.publish(7)
    events = bench.written()
    assert kinds(events) == ["Began", "Joined a", "Joined c", "Published"]
    assert [event.at_s for event in events] == [1060] * 4
    assert isinstance(events[0], Began)
    assert events[0].step == 7


def test_a_new_incarnation_begins_with_those_who_are_here(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.join("a")
    bench.recorder.begin(0)
    bench.leave("a")
    bench.join("b")
    bench.recorder.begin(4)
    assert kinds(bench.written()) == ["Began", "Joined a", "Left a", "Joined b", "Began", "Joined b"]
    assert bench.recorder.observatory.present == {"b"}


def test_time_never_falls(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.begin(0)
    bench.at_s = 900
    bench.publish(0)
    assert [event.at_s for event in bench.written()] == [1000, 1000]


def test_a_clock_that_begins_on_the_wall_and_is_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, steady = [1e9], [50.0]
    monkeypatch.setattr(module.time, "time", lambda: wall[0])
    monkeypatch.setattr(module.time, "monotonic", lambda: steady[0])
    clock = steady_clock()
    assert clock() == 1e9
    wall[0], steady[0] = 5.0, 51.5
    assert clock() == 1e9 + 1.5


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.recorder.begin(0)
    first.publish(0)
    first.recorder.close()
    with first.path.open("ab") as file:
        file.write(b'{"event":"publi')  # killed there
    second = Bench(tmp_path, at_s=500)  # the clock on the wall was set back
    second.recorder.begin(0)
    assert kinds(second.written()) == ["Began", "Published", "Began"]


def step(bench: Bench, busy_s: float) -> None:
    bench.record(lambda at_s: Stepped(at_s=at_s, step=1, waited_s=0, busy_s=busy_s, rollouts=64, lags={1: 64}))


def ran(directory: Path, terms: Began = TERMS) -> None:
    """A process that took a step of 9 s, to which a peer came and delivered, and that was killed."""
    bench = Bench(directory, terms=terms)
    bench.recorder.begin(0)
    bench.join("a")
    step(bench, 9.0)
    bench.at_s += 50
    bench.record(lambda at_s: Delivered(at_s=at_s, peer="a", admitted=8, version=0, leased_s=1000, started_s=1000))
    bench.record(lambda at_s: Planned(at_s=at_s, kappa=3, active=["a"], price=0, reasons=[]))


def test_a_restart_remembers_what_was_measured_and_not_who_was_here(tmp_path: Path) -> None:
    ran(tmp_path)
    bench = Bench(tmp_path, at_s=90_000)
    bench.recorder.recall()
    seen = bench.recorder.observatory
    assert (seen.present, seen.plan, seen.kappa) == (frozenset(), None, TERMS.kappa)
    assert seen.train_s is not None
    assert seen.train_s.value == 9.0
    bench.recorder.begin(1)
    bench.join("a")
    [profile] = seen.profiles()
    assert profile.shown_rate is not None
    assert profile.shown_rate.value == pytest.approx(8 / 50)
    assert profile.stops_per_hour(90_000) == pytest.approx(0.2 / (2 + 50 / 3600)), "the pause was no stay of its"


@pytest.mark.parametrize("change", [{"rollouts": 32}, {"group_size": 4}, {"mode": "sequential"}, {"swarm": "t"}])
def test_what_was_measured_under_other_terms_is_not_remembered(tmp_path: Path, change: dict[str, object]) -> None:
    ran(tmp_path, structs.replace(TERMS, **change))
    bench = Bench(tmp_path)
    bench.recorder.recall()
    assert bench.recorder.observatory.train_s is None


def test_another_window_and_period_take_no_longer(tmp_path: Path) -> None:
    ran(tmp_path, structs.replace(TERMS, staleness=5, kappa=1))
    bench = Bench(tmp_path)
    bench.recorder.recall()
    assert bench.recorder.observatory.train_s is not None


def test_a_damaged_recording_is_told_and_measured_again(tmp_path: Path) -> None:
    ran(tmp_path)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"nonsense\n")
    bench = Bench(tmp_path)
    bench.recorder.recall()
    assert bench.recorder.observatory.train_s is None
    [told] = bench.troubles
    assert f"{FILE}, line 6" in told


def test_both_files_are_remembered_and_none_is_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.recall()
    assert bench.recorder.observatory.train_s is None
    ran(tmp_path)
    bench.path.rename(bench.path.with_name(f"{FILE}.1"))
    ran(tmp_path)
    bench.recorder.recall()
    assert bench.recorder.observatory.train_s is not None
    assert bench.recorder.observatory.train_s.count == 2
    assert bench.troubles == []


def test_a_full_disk_is_told_once_and_leaves_a_recording_that_reads(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.recorder.begin(0)
    bench.join("a")
    before = bench.path.read_bytes()
    with file_limit(len(before) + 20):
        for version in range(5):
            bench.publish(version)
            bench.at_s += RETRY_S
        bench.leave("a")
        bench.join("b")
        bench.record(lambda at_s: Planned(at_s=at_s, kappa=3, active=["b"], price=0, reasons=[]))
        assert bench.path.read_bytes() == before
    assert len(bench.troubles) == 1
    bench.publish(98)  # too soon after the last attempt
    bench.at_s += RETRY_S
    bench.publish(99)
    events = bench.written()
    assert kinds(events) == ["Began", "Joined a", "Began", "Joined b", "Planned", "Published"]
    assert len(bench.troubles) == 1
    assert bench.recorder.observatory.present == {"b"}
    with file_limit(bench.path.stat().st_size):
        bench.publish(100)
    assert len(bench.troubles) == 2


def test_a_path_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file")
    bench.recorder.begin(0)
    bench.join("a")
    assert bench.recorder.observatory.present == {"a"}
    assert len(bench.troubles) == 1


def test_without_a_path_only_the_observatory_hears() -> None:
    recorder = RunRecorder(None, TERMS, trouble=lambda text: None, clock=lambda: 5.0)
    recorder.begin(0)
    recorder.record(Joined(at_s=recorder.now_s(), peer="a"))
    recorder.close()
    assert recorder.observatory.present == {"a"}


def test_a_long_run_leaves_two_files_that_each_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORDING_BYTES", 4000)
    bench = Bench(tmp_path)
    bench.recorder.begin(0)
    bench.join("a")
    for step in range(1, 60):
        bench.at_s += 10
        bench.record(
            lambda at_s, step=step: Stepped(  # type: ignore[misc]
                at_s=at_s, step=step, waited_s=0, busy_s=9, rollouts=64, lags={1: 64}
            )
        )
        bench.record(lambda at_s: Delivered(at_s=at_s, peer="a", admitted=8, version=0, leased_s=1, started_s=1))
    bench.recorder.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [FILE, f"{FILE}.1"]
    assert all(one.stat().st_size < 4500 for one in tmp_path.iterdir())
    older, newer = bench.written(tmp_path / f"{FILE}.1"), bench.written()
    assert isinstance(newer[0], Began)
    steps = [event.step for event in [*older, *newer] if isinstance(event, Stepped)]
    assert steps == list(range(60))[-len(steps) :]
    assert newer[0].step in (steps[-1], *(event.step for event in older if isinstance(event, Stepped)))
    assert fit(newer).present == {"a"}
