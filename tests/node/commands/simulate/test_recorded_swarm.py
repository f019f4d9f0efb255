"""A simulation's recording is like any other: it can be read back, planned from, and replayed with the same result.

TOLERANCE is a fraction of the simulated values. A rate is a sum of some thirty batches, each of which varies by a
tenth, and contains the time of the way to the learner. T_bcast contains the batch that a version waits for.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from learner.provisioning.estimation.recording import Began, Delivered, Installed, Joined, Left, Planned, encode_line
from node.commands.plan.measured_run import read_run
from node.commands.plan.recordings import read_events
from node.commands.simulate.command import answer
from node.commands.simulate.recorded_swarm import read_replay
from tests.support import recorded_runs as recorded
from tests.support.simulate_calls import pool, refusal, simulate, simulated

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
    assert [(one["on"], one["price"], one["reasons"]) for one in story["plans"]] == [
        (len(plan.active), plan.price, plan.reasons) for plan in plans
    ]


def test_machines_are_read_off_with_their_absences(recording: Path) -> None:
    swarm = read_replay(recording).swarm
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


def test_outside_its_owners_hours_a_machine_is_away(recording: Path, tmp_path: Path) -> None:
    is_it = [isinstance(event, Joined) and event.name == "cheap #1" for event in read_events(recording)]
    said = [replace(one, until_s=600.0) if it else one for one, it in zip(read_events(recording), is_it, strict=True)]
    again = replace(said[is_it.index(True)], at_s=1800.0, until_s=5000.0)
    said.insert(next(number for number, event in enumerate(said) if event.at_s > 1800), again)
    path = tmp_path / "recording.jsonl"
    path.write_bytes(b"".join(map(encode_line, said)))
    machines = {one.name: one for one in read_replay(path).swarm.machines}
    first, second = machines["cheap #1"].absences
    assert (first.from_s, first.until_s) == (600.0, 1800.0)
    assert (second.from_s, second.until_s) == (5000.0, math.inf)
    assert machines["cheap #3"].absences == ()


def test_what_if_is_told_beside_what_was(recording: Path) -> None:
    text = simulate("--from", recording, "--machines", 0.5, "--steps", 20).out
    assert "measured  simulated" in text
    assert "Simulated: 0.5 x the machines" in text
    found = simulated("--from", recording, "-S", 1, "--compare", "--steps", 20)
    assert [story["name"] for story in found["stories"]] == ["as it is", "S = 1"]
    assert found["stories"][1]["plans"][0]["reasons"], "the plan for S = 1 must give reasons of its own"


def test_another_figure_is_a_what_if_and_leaves_the_run_as_it_was(recording: Path) -> None:
    figures = ("--train-s", 60, "--rollouts", 32, "--broadcast-s", 20, "--generation-s", 32, "--install-s", 4)
    found = simulated("--from", recording, *figures, "--steps", 5)
    as_it_is, other = found["stories"]
    name = "T_train = 60 s, R = 32, T_bcast = 20 s, T_gen = 32 s, installation = 4 s"
    assert (as_it_is["name"], other["name"]) == ("as it is", name)
    assert as_it_is["rollouts"] == 64
    assert 30 <= as_it_is["step_s"] < 60 <= other["step_s"]
    assert other["rollouts"] == 32
    set_up = answer(None, recording, options={"broadcast_s": 20.0, "generation_s": 32.0, "install_s": 4.0, "steps": 1})
    for one in set_up.asked.scene.machines:
        assert (one.broadcast_s, one.install_s, one.batch_rollouts) == (16.0, 4.0, 16)
    assert set_up.asked.scene.learning.broadcast_s == 20.0


def test_what_was_measured_stands_beside_the_run_as_it_is_whatever_it_is_compared_with(recording: Path) -> None:
    compared = simulate("--from", recording, "--compare", "--steps", 20).out
    alone = simulate("--from", recording, "--steps", 20).out
    assert compared[: compared.index("Simulated:")] == alone[: alone.index("Simulated:")]


def test_what_a_recording_does_not_tell_is_asked_for(recording: Path) -> None:
    for option in ("--weights-mb", "--learner-up-mbit"):
        said = refusal("--from", recording, option, 100)
        assert option in said
        assert "--broadcast-s" in said


def test_without_a_plan_nothing_looks_at_prices(tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "recording.jsonl", recorded.run())
    assert "--plan" in refusal("--from", path, "--no-cost")
    assert "all are active" in refusal(pool(tmp_path), "--no-cost", "--no-plan")
    both = simulated("--from", path, "--no-cost", "--plan", "-S", 1, "--compare", "--steps", 3)["stories"]
    assert [story["name"] for story in both[:4]] == ["as it is", "S = 1", "without prices, planned", "planned"]
    assert [bool(story["plans"]) for story in both] == [False, False, True, True, True]
    told = [story["name"] for story in simulated("--from", path, "--compare", "--steps", 3)["stories"]]
    assert told == ["sequential", "synchronous", "without P2P", "0.5 x the machines", "as it is"]


def test_a_recording_is_in_the_currency_of_its_pool(tmp_path: Path) -> None:
    path = pool(tmp_path)
    path.write_text(path.read_text().replace("[swarm]", '[swarm]\ncurrency = "EUR"'))
    record = tmp_path / "recording.jsonl"
    assert simulated(path, "--steps", 6, "--record", record)["currency"] == "EUR"
    assert simulated("--from", record, "--steps", 2)["currency"] == "EUR"


def test_nothing_but_a_simulation_s_recording_is_replaced(recording: Path, tmp_path: Path) -> None:
    real = recorded.write(tmp_path / "recording.jsonl", recorded.run())
    before = real.read_bytes()
    for there in (real, pool(tmp_path)):
        assert "no simulation's recording" in refusal(pool(tmp_path), "--steps", 2, "--record", there)
    assert real.read_bytes() == before
    again = tmp_path / "again.jsonl"
    again.write_bytes(recording.read_bytes())
    assert simulate(pool(tmp_path), "--steps", 2, "--record", again).code == 0
    assert len(again.read_bytes()) < len(recording.read_bytes())


def test_simulated_peers_keep_their_names(recording: Path) -> None:
    fitted = read_run(recording)
    assert fitted.pool is not None
    assert {one.name for one in fitted.pool.machines} < {one.name for one in read_replay(recording).swarm.machines}
    assert "dear #1" in {one.name for one in fitted.pool.machines}


def test_a_real_run_of_two_peers(tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "recording.jsonl", recorded.run())
    replay = read_replay(path)
    assert [one.price for one in replay.swarm.machines] == [0.5, 0.0]
    assert replay.swarm.learning.kappa == 1
    assert not replay.swarm.is_planned
    assert simulated("--from", path)["stories"][0]["steps"] > 30


def test_a_peer_that_became_slower_is_replayed_with_its_mean_rate(tmp_path: Path) -> None:
    """T_train is that of all steps, too. With the rate of the end, peers would be slower than they were all along."""
    events = [
        replace(event, started_s=event.at_s - 2.0)
        if isinstance(event, Delivered) and event.version < 40
        else replace(event, started_s=event.at_s - 6.0)
        if isinstance(event, Delivered)
        else event
        for event in recorded.run(80)
    ]
    swarm = read_replay(recorded.write(tmp_path / "recording.jsonl", events)).swarm
    for one in swarm.machines:
        assert one.rate == pytest.approx(recorded.ADMITTED / 4.0, rel=0.01)


def test_of_several_starts_the_longest_is_replayed(tmp_path: Path) -> None:
    path = recorded.write(tmp_path / "recording.jsonl", [*recorded.run(5), *recorded.run(40), *recorded.run(3)])
    assert read_replay(path).steps.count == 37


def test_who_shows_nothing_is_left_out(tmp_path: Path) -> None:
    events = recorded.run(deliveries=False)
    assert "nothing to simulate" in refusal("--from", recorded.write(tmp_path / "recording.jsonl", events))
    assert "no training step yet" in refusal("--from", recorded.write(tmp_path / "recording.jsonl", events[:4]))


def test_a_damaged_line_is_named_and_nothing_is_written(recording: Path, tmp_path: Path) -> None:
    lines = recording.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "recording.jsonl"
    damaged.write_bytes(b"".join([*lines[:50], b'{"event":"stepped"}\n', *lines[50:]]))
    said = refusal("--from", damaged, "--picture", tmp_path / "timeline.png", "--record", tmp_path / "again.jsonl")
    assert "recording.jsonl, line 51" in said
    assert [one.name for one in tmp_path.iterdir()] == ["recording.jsonl"]


def test_it_begins_as_a_recording_does(recording: Path) -> None:
    events = read_events(recording)
    assert isinstance(events[0], Began)
    assert [event.peer for event in events if isinstance(event, Left)] == ["cheap #2"]


def test_what_no_swarm_is_like_is_refused(tmp_path: Path) -> None:
    events = recorded.run()
    wide = [msgspec.structs.replace(one, group_size=10**8) if isinstance(one, Began) else one for one in events]
    assert "groups of 100,000,000" in refusal("--from", recorded.write(tmp_path / "wide.jsonl", wide))
    (tmp_path / "line").write_text("no line")
    assert "holds no complete line" in refusal("--from", tmp_path / "line")


def test_a_run_that_shows_no_version_on_its_way_asks_for_t_bcast(tmp_path: Path) -> None:
    events = [event for event in recorded.run() if not isinstance(event, Installed)]
    path = recorded.write(tmp_path / "recording.jsonl", events)
    assert "--broadcast-s" in refusal("--from", path)
    assert {one.broadcast_s for one in read_replay(path, broadcast_s=3.0).swarm.machines} == {3.0}
    assert simulated("--from", path, "--broadcast-s", 3, "--steps", 3)["stories"][-1]["steps"] == 3


def test_what_is_too_much_to_simulate_is_refused(tmp_path: Path) -> None:
    many = pool(tmp_path, '\n[[machine]]\nname = "more"\nprice = 0\nrate = 1\ncount = 900\n')
    assert "91,000 machines" in refusal(many, "--machines", 100)
    assert "R = 2,000,000" in refusal(pool(tmp_path), "--rollouts", 2_000_000)
