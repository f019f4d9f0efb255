"""A report's figures of the objective: recent ones, by lag, and the alarms of a running learner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from learner.monitoring.alarms import alarms
from learner.monitoring.thresholds import Alarm
from node.reports import as_json, as_text, swarm_report
from node.reports.model.objective_figures import RECENT, by_lag, recent, spells
from node.reports.model.report import SwarmReport
from node.reports.plots.run_plot import _draw
from protocol.core.ids import PolicyVersion
from protocol.work import Rule
from tests.learner.monitoring.test_alarms import healthy
from tests.support.ledgers import ALPHA, Story, open_story, peer_row

Row = dict[str, Any]

ENTROPY = "Entropy of the policy (nats per token)"


def told(directory: Path, rows: list[Row], after: Callable[[Story], object] = lambda story: None) -> SwarmReport:
    """The report of a run whose steps have these figures."""
    story = open_story(directory / "ledger.sqlite")
    story.join(peer_row(ALPHA, "atlas"))
    for row in rows:
        lease = story.lease(ALPHA)
        story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, row["step"] - 1))
        metrics = {name: value for name, value in row.items() if name not in ("step", "reward")}
        story.train(row["step"], {lease: 0}, reward=row["reward"], metrics={"trained_tokens": 40, **metrics})
        story.now_s += 4
    after(story)
    story.ledger.close()
    return swarm_report(directory / "ledger.sqlite", staleness=3)


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    """A run that was clipped for twenty steps, and well before and after."""
    rows = healthy(100)
    for row in rows[50:70]:
        row["clip_share"] = 0.9
    return told(tmp_path_factory.mktemp("clipped"), rows)


def test_alarms_are_those_of_the_running_learner(clipped: SwarmReport) -> None:
    rows = healthy(100)
    for row in rows[50:70]:
        row["clip_share"] = 0.9
    assert list(clipped.alarms) == alarms(rows)
    [spell] = spells(clipped.alarms)
    assert spell.alarm == "clipped"
    assert spell.began < 60
    assert spell.ended is not None


def test_a_batch_that_diverged_and_a_score_that_fell_raise_theirs(tmp_path: Path) -> None:
    def after(story: Story) -> None:
        story.ledger.training.batch_dropped(21, {story.lease(ALPHA): "diverged"})
        for step, score in ((21, 0.9), (22, 0.9), (23, 0.4), (24, None)):
            if score is not None:
                story.evaluate(PolicyVersion(1, step - 1), score, score)
            story.train(step, {}, reward=0.55, metrics={"trained_tokens": 40})
            story.now_s += 4

    changes = told(tmp_path, healthy(20), after).alarms
    assert [(change.alarm, change.step) for change in changes] == [
        (Alarm.BATCHES_DROPPED, 21),
        (Alarm.HIDDEN_FALL, 24),  # said with the second step that shows it
    ]


def test_figures_are_means_by_tokens(clipped: SwarmReport) -> None:
    steps = clipped.steps[-RECENT:]
    figures = recent(clipped.steps)
    assert figures["entropy"] == pytest.approx(sum(step.metrics["entropy"] for step in steps) / len(steps))
    assert "mean_ratio" not in figures
    rows = by_lag(clipped.steps)
    assert list(rows) == ["0", "1", "3"]
    assert rows["3"] == pytest.approx({"tokens": 100.0 * RECENT, "kl": 0.0062, "reward": 0.5})


def test_lags_stand_in_order_and_logs_last(tmp_path: Path) -> None:
    lags = {"10": 1.0, "offline": 2.0, "2": 3.0}
    row = {"step": 1, "reward": 0.5, "by_lag": {lag: {"tokens": 10, "kl": kl} for lag, kl in lags.items()}}
    assert list(by_lag(told(tmp_path, [row]).steps)) == ["2", "10", "offline"]


def test_the_page_tells_them(clipped: SwarmReport) -> None:
    page = as_text(clipped)
    assert "objective" in page
    assert "KL to the rollouts 0.004" in page
    assert "Trained tokens by lag, last 32 steps" in page
    assert "1 raised, 0 of them active" in page
    assert page.index("Alarms") < page.index("peer  ")
    assert "A bound acts on" in page
    assert max(map(len, page.splitlines())) <= 100


def test_the_form_for_programs_has_them(clipped: SwarmReport) -> None:
    form = json.loads(as_json(clipped))
    assert [one["alarm"] for one in form["alarms"]] == ["clipped"]
    assert form["objective"]["by_lag"]["0"]["kl"] == pytest.approx(0.0002)
    assert form["steps"][0]["metrics"]["by_lag"]["1"]["tokens"] == 100


def test_figures_that_are_not_numbers_are_null(tmp_path: Path) -> None:
    report = told(
        tmp_path, [{"step": 1, "reward": 0.5, "max_ratio": float("inf"), "by_lag": {"0": {"kl": float("nan")}}}]
    )
    [step] = json.loads(as_json(report), parse_constant=lambda name: pytest.fail(name))["steps"]
    assert (step["metrics"]["max_ratio"], step["metrics"]["by_lag"]["0"]["kl"]) == (None, None)


def test_a_run_without_figures_says_nothing_of_them(tmp_path: Path) -> None:
    report = told(tmp_path, [{"step": 1, "reward": 0.5}])
    page = as_text(report)
    assert "Trained tokens by lag" not in page
    assert "KL to the rollouts" not in page
    assert "none raised" in page


def test_the_picture_has_a_strip_of_them(clipped: SwarmReport, tmp_path: Path) -> None:
    figure = Figure()
    _draw(figure, clipped)
    [strip] = [axes for axes in figure.axes if axes.get_title(loc="left") == ENTROPY]
    assert list(strip.lines[0].get_ydata()) == [step.metrics["entropy"] for step in clipped.steps]
    assert [text.get_text() for text in strip.texts] == ["clipped"]
    bare = Figure()
    _draw(bare, told(tmp_path, [{"step": 1, "reward": 0.5}]))
    assert [axes for axes in bare.axes if axes.get_title(loc="left") == ENTROPY] == []
