"""Every view of one run shows the same shares of the learner's time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from trio.testing import MockClock

from learner.ledger.queries.reader import read_ledger
from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind, summed
from learner.provisioning.estimation.recording import Began, Recorded, Stepped, encode_line
from learner.provisioning.estimation.step_stats import time_of_run
from node.commands.plan.measured_run import read_run
from node.commands.plan.measured_run_text import judged
from node.commands.simulate.recorded_swarm import read_replay
from node.learner_role.metrics.board import Series
from node.reports import as_html, as_json, as_text, swarm_report
from node.reports.model.report import Role, SwarmReport
from node.reports.model.time_words import OLDER, as_values, kinds, parts, trained
from node.reports.plots.run_plot import _subtitle
from node.reports.summary import summary
from node.runtime import formatting as words
from node.ui.facts import SHADES, learner_time
from node.ui.live_view import ViewState
from node.ui.view_updates import apply
from tests.support import recorded_runs
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, open_learner
from tests.support.ledgers import ALPHA, open_story, peer_row

STEPS = 6
TOOK = {"step": 0.05, "export": 0.02, "save": 0.01, "load": 0.2}
"""Seconds that pass before each request to the trainer begins, and again until it is over."""


async def a_run(root: Path, clock: MockClock) -> Learner:
    """Return a learner that took STEPS steps by a clock that only the test moves."""
    trainer = FakeTrainer(script=lambda op, moment: clock.jump(TOOK.get(op, 0.0)))
    async with open_learner(root, Settings(steps=STEPS), trainer=trainer) as learner:
        await learner.train(FakePeer())
    return learner


def report_of(learner: Learner) -> SwarmReport:
    return swarm_report(learner.root / "ledger.sqlite", staleness=1)


async def test_every_second_is_of_one_kind(tmp_path: Path, mock_clock: MockClock) -> None:
    learner = await a_run(tmp_path, mock_clock)
    time, calls = report_of(learner).learner_time, Counter(learner.trainer.calls)
    # The trainer itself reports half a second for a step, which is more than the clock's time; the clock counts.
    assert time.of(TimeKind.TRAINING) == pytest.approx(2 * STEPS * TOOK["step"])
    assert time.of(TimeKind.PUBLICATION) == pytest.approx(2 * (calls["export"] - 1) * TOOK["export"])
    assert time.of(TimeKind.CHECKPOINT) == pytest.approx(2 * calls["save"] * TOOK["save"])
    assert time.of(TimeKind.STARTING) == pytest.approx(2 * (TOOK["load"] + TOOK["export"]))
    assert time.wall_s == pytest.approx(2 * sum(calls[op] * took for op, took in TOOK.items())), (
        "the sum of the kinds must be all time that the clock moved"
    )
    assert time.utilisation == time.of(TimeKind.TRAINING) / time.wall_s


async def test_all_that_show_it_agree(tmp_path: Path, mock_clock: MockClock) -> None:
    learner = await a_run(tmp_path, mock_clock)
    report = report_of(learner)
    time = report.learner_time
    values, share = as_values(time), words.share(time.utilisation)
    assert time.utilisation

    # Programs.
    totals = json.loads(as_json(report))["totals"]
    short = summary(report, staleness_bound=1, peak_pss_mib=None, seeds={})
    for told in (totals, short):
        assert told["learner_time"] == values
        assert (told["learner_utilisation"], told["bubble"]) == (values["utilisation"], values["bubble"])
    assert as_values(time_of_run(learner.recorded())) == pytest.approx(values, abs=1e-5), "the recording"
    board = learner.watch.board.values()
    assert board[Series("utilisation", ())] == pytest.approx(time.utilisation)
    assert board[Series("bubble", ())] == pytest.approx(time.bubble)
    for kind, seconds in time.seconds.items():
        assert board[Series("learner_seconds", (kind.value,))] == pytest.approx(seconds, abs=1e-5)

    # People.
    text = " ".join(as_text(report).split())
    assert f"{trained(time)}" in text
    assert kinds(time) in text
    page = as_html(report)
    assert f"{words.share(time.bubble)}" in page
    assert page.count(share) >= 4, "tile, plot, story and table must show the share"
    assert f"learner training {share} of its time" in _subtitle(report)

    # The live view was updated with the last step; the time after it is in no step.
    state = ViewState(role=Role.LEARNER)
    for event, fields in learner.log:
        apply(state, event, fields)
    with read_ledger(learner.root / "ledger.sqlite") as ledger:
        with_steps = summed(row.time for row in ledger.training.learner_time() if row.step <= STEPS)
    assert state.utilisation == pytest.approx(with_steps.utilisation, abs=1e-4)
    assert state.blocked == pytest.approx(with_steps.blocked, abs=1e-4)
    assert state.waiting == pytest.approx(with_steps.share(TimeKind.WAITING), abs=1e-4)
    assert learner_time(state, 80).plain.endswith(
        ", ".join(
            f"{mark} {name} {words.share(share)}"
            for mark, (_, name, share) in zip(SHADES, parts(with_steps), strict=True)
        )
    )


def told_run(path: Path) -> list[Recorded]:
    """Return the recording of an even clock, by a program that reports the kinds of time."""
    times = {"training": 6.0, "waiting": recorded_runs.WAIT_S, "publication": 3.0, "batch": 1.0}
    events: list[Recorded] = []
    for event in recorded_runs.run():
        match event:
            case Began():
                event = Began(**{name: getattr(event, name) for name in event.__struct_fields__} | {"format": 2})
            case Stepped():
                fields = {name: getattr(event, name) for name in event.__struct_fields__}
                event = Stepped(**fields | {"time": times, "publish_s": 3.0})
        events.append(event)
    path.write_bytes(b"".join(map(encode_line, events)))
    return events


def test_a_plan_and_a_simulation_say_what_was_measured(tmp_path: Path) -> None:
    time = time_of_run(told_run(tmp_path / "recording.jsonl"))
    assert (time.utilisation, time.blocked) == (0.5, 0.25)
    assert time.bubble == pytest.approx(recorded_runs.WAIT_S / recorded_runs.STEP_S)
    measured, replay = read_run(tmp_path).measured, read_replay(tmp_path)
    assert measured.time == replay.time == time
    assert measured.steady.time.utilisation == replay.steps.time.utilisation == pytest.approx(0.5)
    assert dict(judged(measured))["learner"] == trained(time)
    learning = replay.swarm.learning
    assert (learning.train_s, learning.overhead_s, learning.publish_s) == pytest.approx((6.0, 1.0, 3.0))
    assert learning.tells_kinds


def test_an_old_recording_says_what_it_cannot_tell(tmp_path: Path) -> None:
    recorded_runs.write(tmp_path / "recording.jsonl", recorded_runs.run())
    measured, replay = read_run(tmp_path).measured, read_replay(tmp_path)
    assert measured.time == replay.time
    assert (measured.time.utilisation, measured.time.blocked) == (None, None)
    assert measured.time.wall_s == pytest.approx(40 * recorded_runs.STEP_S + 1)
    assert measured.steady.bubble == pytest.approx(recorded_runs.WAIT_S / recorded_runs.STEP_S)
    assert dict(judged(measured))["learner"] == OLDER
    assert not replay.swarm.learning.tells_kinds


def test_an_old_ledger_tells_training_and_waiting_alone(tmp_path: Path) -> None:
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(ALPHA, "atlas"))
    for step in (1, 2):
        story.now_s += 10
        story.train(step, {}, waited_s=4.0, train_s=3.0, tells_time=False)
    story.now_s += 5
    story.ledger.peers.peers_present([], story.now_ms)
    old = swarm_report(story.ledger.path).learner_time
    assert (old.of(TimeKind.TRAINING), old.of(TimeKind.WAITING)) == (6.0, 8.0)
    assert (old.utilisation, old.blocked, old.bubble) == (6.0 / old.wall_s, None, None)
    # A newer program that reports kinds goes on with the run: its times are added, and the earlier ones stay unknown.
    story.told_ms = story.now_ms
    story.now_s += 10
    story.train(3, {}, waited_s=1.0, train_s=5.0)
    both = swarm_report(story.ledger.path).learner_time
    assert both.of(TimeKind.TRAINING) == 11.0
    assert both.of(TimeKind.PUBLICATION) == pytest.approx(9.0)
    assert both.wall_s == swarm_report(story.ledger.path).wall_s
    story.ledger.close()


async def test_a_run_of_several_starts_counts_them_all_and_no_pause(tmp_path: Path, mock_clock: MockClock) -> None:
    first = report_of(await a_run(tmp_path, mock_clock)).learner_time
    mock_clock.jump(3600.0)
    trainer = FakeTrainer(script=lambda op, moment: mock_clock.jump(TOOK.get(op, 0.0)))
    async with open_learner(tmp_path, Settings(steps=STEPS + 2), trainer=trainer) as learner:
        assert as_values(learner.context.time.so_far) == pytest.approx(as_values(first))
        await learner.train(FakePeer())
    both = report_of(learner).learner_time
    assert both.of(TimeKind.TRAINING) == pytest.approx(2 * (STEPS + 2) * TOOK["step"])
    assert both.wall_s < first.wall_s + 60
    assert as_values(time_of_run(learner.recorded())) == pytest.approx(as_values(both), abs=1e-5)


def test_nothing_is_divided_by_nothing() -> None:
    none = LearnerTime()
    assert (none.wall_s, none.utilisation, none.blocked, none.bubble) == (0.0, None, None, None)
    assert kinds(none) == ""
