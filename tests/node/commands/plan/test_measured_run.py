"""`volery plan --from` gives the values of the recording, and names every fault in it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from learner.provisioning.estimation.recording import FILE, Began, Joined, Left, Published, Recorded, Stepped
from node.commands.init.command import write_swarm_config
from node.commands.plan.measured_run import read_run
from node.commands.plan.recordings import MAX_LINE_BYTES, find_recording
from tests.support.plan_calls import EXAMPLES, plan, planned, refusal
from tests.support.recorded_runs import BROADCAST_S, GENERATION_S, PEERS, STEP_S, TRAIN_S, WAIT_S, run, write


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write(tmp_path / FILE, run())


def test_the_times_of_the_run_are_the_plan_s(recording: Path) -> None:
    found = planned("--from", recording)
    terms = found["terms"]
    assert (terms["train_s"], terms["broadcast_s"], terms["generation_s"]) == pytest.approx(
        (TRAIN_S, BROADCAST_S, GENERATION_S)
    )
    assert (terms["rollouts"], found["staleness"], found["currency"]) == (32, 2, "EUR")
    assert {row["name"]: row["price"] for row in found["pool"]} == {"box a aaaaaa": 0.5, "box b bbbbbb": 0.0}
    for row in found["pool"]:
        assert row["rate"] == pytest.approx(16 / GENERATION_S, rel=0.1)


def test_predicted_and_measured_stand_side_by_side(recording: Path) -> None:
    measured = planned("--from", recording)["measured"]
    assert measured["bubble"] == measured["late_bubble"] == pytest.approx(WAIT_S / STEP_S)
    assert measured["late_steps"] == 32
    assert (measured["steps"], measured["steps_left_out"]) == (37, 3)
    assert measured["lag"] == pytest.approx(1.25)
    assert measured["lags"] == {"1": 37 * 24, "2": 37 * 8}
    assert measured["stale_share"] == pytest.approx(1 / 33)
    assert measured["predicted_bubble"] == pytest.approx(0, abs=1e-6)
    assert 1 <= measured["predicted_lag"] <= 2
    text = plan("--from", recording).out
    assert "16.7% measured, 16.7% over the last 32, 0.0% predicted for these" in text
    assert "1: 75.0%, 2: 25.0%" in text
    assert max(map(len, text.splitlines())) <= 100


def test_intervals_come_with_the_estimates(recording: Path) -> None:
    measured = planned("--from", recording)["measured"]
    train = measured["train_s"]
    assert train["low"] <= train["value"] <= train["high"]
    assert train["count"] >= 8
    assert [peer["name"] for peer in measured["peers"]] == ["box a aaaaaa", "box b bbbbbb"]


def test_a_pool_beside_a_run_takes_the_times_and_leaves_the_peers(recording: Path) -> None:
    pool = recording.parent / "pool.csv"
    pool.write_text("name,price,rate,count\nnew,0.2,1.5,5\n")
    found = planned(pool, "--from", recording)
    assert [row["name"] for row in found["pool"]] == ["new"]
    assert found["terms"]["broadcast_s"] == pytest.approx(BROADCAST_S)
    assert len(found["measured"]["peers"]) == 2


def test_what_if_versions_took_longer_is_asked_of_the_same_peers(recording: Path) -> None:
    found = planned("--from", recording, "--broadcast-s", 9, "--generation-s", 1)
    assert {(row["broadcast_s"], row["generation_s"]) for row in found["pool"]} == {(9, 1)}


def test_every_way_to_name_a_run_leads_to_its_recording(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path / "swarm", name="s", port=4001)
    state = write(tmp_path / "swarm" / "state" / FILE, run()).parent
    for target in (state / FILE, state, tmp_path / "swarm", config):
        assert find_recording(target)[0].resolve() == (state / FILE).resolve()
    assert planned("--from", config)["measured"]["runs"] == 1


def test_the_learner_s_price_is_its_configuration_s(tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, name="s", port=4001)
    write(tmp_path / "state" / FILE, run())
    text = config.read_text()
    config.write_text(text.partition("[price]")[0] + "[price]\nper_hour = 3.06\n")
    assert planned("--from", config)["terms"]["learner_price"] == 3.06
    assert planned("--from", config, "--learner-price", 1)["terms"]["learner_price"] == 1


def test_a_restart_is_counted_and_its_first_steps_left_out(tmp_path: Path) -> None:
    again = run()
    path = write(tmp_path / FILE, [*run(), *again])
    measured = read_run(path).measured
    assert (measured.runs, measured.left_out) == (2, 6)
    assert measured.seconds == pytest.approx(2 * 40 * STEP_S + 1)


def test_a_run_of_a_few_steps_counts_them_all(tmp_path: Path) -> None:
    measured = read_run(write(tmp_path / FILE, run(4))).measured
    assert (measured.steady.count, measured.left_out) == (4, 0)


def test_what_the_run_did_not_show_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, run(deliveries=False))
    assert "no peer" in refusal("--from", path)
    found = planned(EXAMPLES / "pool.csv", "--from", path, "--generation-s", 20, "--rollouts", 64, "--train-s", 60)
    assert found["measured"]["predicted_bubble"] is None
    assert found["measured"]["generation_s"] is None
    assert found["measured"]["silent"] == 2


def alone(steps: int, *, gone_at: int) -> list[Recorded]:
    """The peers leave when step `gone_at` is over, and the learner goes on with what is in its buffer."""
    events = run(steps, leave=False, deliveries=True)
    end = next(n for n, event in enumerate(events) if isinstance(event, Stepped) and event.step == gone_at) + 1
    left = [Left(at_s=events[end - 1].at_s, peer=peer) for peer in PEERS]
    rest = [event for event in events[end:] if isinstance(event, Published | Stepped)]
    return [*events[:end], *left, *rest]


def test_a_run_that_went_on_when_its_last_peer_left_is_read_up_to_then(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, alone(40, gone_at=37))
    found = planned("--from", path)
    assert sorted(row["name"] for row in found["pool"]) == ["box a aaaaaa", "box b bbbbbb"]
    measured = found["measured"]
    assert (measured["last_step"], measured["steps_alone"], measured["steps"]) == (37, 3, 34)
    text = " ".join(plan("--from", path).out.split())
    assert "Peers that were connected at step 37" in text
    assert "3 after them left out, when no peer was here" in text


def test_a_run_that_never_had_a_peer_is_read_to_its_end(tmp_path: Path) -> None:
    """One that trains on logs alone, for example."""
    events = [event for event in run() if isinstance(event, Began | Published | Stepped)]
    measured = read_run(write(tmp_path / FILE, events)).measured
    assert (measured.step, measured.alone) == (40, 0)
    assert "Name a pool" in refusal("--from", tmp_path / FILE)


def test_peers_of_an_earlier_start_are_not_here_any_more(tmp_path: Path) -> None:
    """The learner is started again, trains on what was left, and nobody comes back."""
    again = [event for event in run(4) if isinstance(event, Began | Published | Stepped)]
    measured = read_run(write(tmp_path / FILE, [*run(leave=False), *again])).measured
    assert (measured.step, measured.alone, measured.runs) == (40, 4, 1)


def test_a_kill_in_the_middle_of_a_line_loses_that_line_alone(recording: Path) -> None:
    before = planned("--from", recording)["measured"]["steps"]
    recording.write_bytes(recording.read_bytes() + b'{"event":"stepped","at_s":99')
    assert planned("--from", recording)["measured"]["steps"] == before


def test_a_damaged_line_is_named(recording: Path) -> None:
    lines = recording.read_bytes().splitlines(keepends=True)
    for wrong in (b"{}\n", b'{"event":"stepped"}\n', b"\xff\xfe\n", b'{"event":"left","at_s":0.5,"peer":"x"}\n'):
        recording.write_bytes(b"".join([*lines[:50], wrong, *lines[50:]]))
        picture = recording.parent / "plan.png"
        said = refusal("--from", recording, "--picture", picture)
        assert f"{FILE}, line 51" in said
        assert not picture.exists()


@pytest.mark.parametrize("events", [[], run()[:1], run()[:6]])
def test_a_run_that_has_not_begun_is_no_source_of_plans(tmp_path: Path, events: list[Began | Joined | Stepped]) -> None:
    assert "no training step yet" in refusal("--from", write(tmp_path / FILE, events))


def test_what_is_no_recording(tmp_path: Path) -> None:
    assert "no such file" in refusal("--from", tmp_path / "none")
    assert f"holds no {FILE}" in refusal("--from", tmp_path)
    config = write_swarm_config(tmp_path / "swarm", name="s", port=4001)
    assert "run the swarm" in refusal("--from", config)
    (tmp_path / FILE).write_bytes(b"a" * (MAX_LINE_BYTES + 1))
    assert "line 1 is longer than" in refusal("--from", tmp_path / FILE)


def test_estimates_that_are_open_are_said_to_be(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, run(2))
    assert read_run(path).measured.train_s is not None
    assert math.isinf(read_run(path).measured.train_s.high)  # type: ignore[union-attr]
    assert "open" in plan("--from", path).out
    assert planned("--from", path)["measured"]["train_s"]["high"] is None


def test_a_window_beyond_those_of_a_plan_asks_for_another(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, [replace_window(event) for event in run()])
    assert "S = 500 is above the widest window of a plan. Use --staleness" in refusal("--from", path)
    assert plan("--from", path, "--staleness", 3).code in (0, 1)


def replace_window(event: Recorded) -> Recorded:
    return msgspec.structs.replace(event, staleness=500) if isinstance(event, Began) else event
