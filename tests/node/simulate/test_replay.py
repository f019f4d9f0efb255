"""A recording of a simulation is one like any other: it reads back, it is planned from, and replayed it does the same.

TOLERANCE, of what it was simulated with: a rate is a sum of some thirty batches, each of which varies by a tenth, and
contains the way to the learner; T_bcast contains the batch that a version waits for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.provisioning.recording import Began, Left, Planned
from node.plan.fitted import read_run
from node.plan.recordings import read_events
from node.simulate.replay import read_replay
from tests.node.plan import recorded
from tests.node.simulate.calling import pool, refusal, simulate, simulated

TOLERANCE = 0.08
BATCH_S = 16.0


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    path = directory / "recording.jsonl"
    more = '\n[[absence]]\nmachine = "cheap #2"\nfrom_s = 2400\n'
    assert simulate(pool(directory, more), "--hours", 1.5, "--record", path).code == 0
    return path


def test_it_is_planned_from_as_what_it_was_simulated_with(recording: Path) -> None:
    fitted = read_run(recording)
    assert fitted.pool is not None
    assert fitted.measured.train_s is not None
    assert fitted.measured.train_s.value == pytest.approx(30.0, rel=0.001)
    assert (fitted.settings["rollouts"], fitted.settings["staleness"]) == (64, 3)
    assert len(fitted.pool.machines) == 9
    for one in fitted.pool.machines:
        assert one.rate == pytest.approx(0.5, rel=TOLERANCE)
        assert one.price == (0.1 if one.name.startswith("cheap") else 1.0)
        assert one.broadcast_s is not None
        assert 5.0 <= one.broadcast_s <= 6.0 + BATCH_S


def test_replayed_it_does_the_same(recording: Path) -> None:
    found = simulated("--from", recording)
    measured, (story,) = found["measured"], found["stories"]
    assert story["utilisation"] == pytest.approx(measured["utilisation"], abs=0.02)
    assert story["lag"] == pytest.approx(measured["lag"], abs=0.25)
    assert story["stale_share"] == pytest.approx(measured["stale_share"], abs=0.02)
    plans = [event for event in read_events(recording) if isinstance(event, Planned)]
    assert [plan["on"] for plan in story["plans"]] == [len(plan.active) for plan in plans]


def test_machines_are_read_off_with_their_absences(recording: Path) -> None:
    swarm = read_replay(recording, {}).swarm
    machines = {one.name: one for one in swarm.machines}
    assert len(machines) == 10
    (absence,) = machines["cheap #2"].absences
    assert absence.from_s == pytest.approx(2400, abs=1)
    assert [one.absences for name, one in machines.items() if name != "cheap #2"] == [()] * 9
    assert {one.batch_rollouts for one in machines.values()} == {8}
    assert swarm.learning.train_s == pytest.approx(30.0)
    for one in machines.values():
        assert one.rate == pytest.approx(0.5, rel=TOLERANCE)
        assert one.broadcast_s == pytest.approx(6.0, abs=4.0)


def test_what_if_is_told_beside_what_was(recording: Path) -> None:
    text = simulate("--from", recording, "--machines", 0.5, "--steps", 20).out
    assert "measured  simulated" in text
    assert "Simulated: 0.5 x the machines" in text
    found = simulated("--from", recording, "-S", 1, "--compare", "--steps", 20)
    assert [story["name"] for story in found["stories"]] == ["as it is", "S = 1"]
    assert found["stories"][1]["plans"][0]["reasons"], "what was decided for S = 3 does not hold for S = 1"
    other = simulated("--from", recording, "--train-s", 60, "--steps", 5)["stories"][0]
    assert other["step_s"] >= 60


def test_a_real_run_of_two_peers(tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "recording.jsonl", recorded.run())
    replay = read_replay(path, {})
    assert [one.price for one in replay.swarm.machines] == [0.5, 0.0]
    assert replay.swarm.learning.kappa == 1
    assert not replay.swarm.is_planned
    assert simulated("--from", path)["stories"][0]["steps"] > 30


def test_of_several_starts_the_longest_is_replayed(tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "recording.jsonl", [*recorded.run(5), *recorded.run(40), *recorded.run(3)])
    assert read_replay(path, {}).steps.count == 37


def test_who_shows_nothing_is_left_out(tmp_path: Path) -> None:
    events = recorded.run(deliveries=False)
    assert "nobody to simulate" in refusal("--from", recorded.write(tmp_path / "recording.jsonl", events))
    assert "no training step yet" in refusal("--from", recorded.write(tmp_path / "recording.jsonl", events[:4]))


def test_a_damaged_line_is_named_and_nothing_is_written(recording: Path, tmp_path: Path) -> None:
    lines = recording.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "recording.jsonl"
    damaged.write_bytes(b"".join([*lines[:50], b'{"event":"stepped"}\n', *lines[50:]]))
    said = refusal("--from", damaged, "--picture", tmp_path / "timeline.png", "--record", tmp_path / "again.jsonl")
    assert "recording.jsonl, line 51" in said
    assert [one.name for one in tmp_path.iterdir()] == ["recording.jsonl"]
    assert "--broadcast-s is read off the run" in refusal("--from", recording, "--broadcast-s", 3)


def test_it_begins_as_a_recording_does(recording: Path) -> None:
    events = read_events(recording)
    assert isinstance(events[0], Began)
    assert [event.peer for event in events if isinstance(event, Left)] == ["cheap #2"]
