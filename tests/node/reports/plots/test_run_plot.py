"""The picture: the right size, the right points, never crowded, and nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from node.reports import swarm_report
from node.reports.charts.learning_curve import lead
from node.reports.model.report import Plan, SwarmReport
from node.reports.plots.png import MAX_TICK_LINES, MAX_TICK_NUMBERS, draw_png
from node.reports.plots.run_plot import _draw, draw_reward
from node.runtime.formatting import duration
from protocol.core.ids import PolicyVersion
from tests.support.ledgers import ALPHA, BETA, demo_run, open_story
from tests.support.paths import ROOT


def report_of(directory: Path, steps: int = 12, restart_at: int | None = None) -> SwarmReport:
    demo_run(directory / "ledger.sqlite", steps=steps, restart_at=restart_at)
    return swarm_report(directory / "ledger.sqlite", staleness=2)


def drawn(report: SwarmReport) -> Figure:
    figure = Figure()
    _draw(figure, report)
    return figure


def test_a_png_of_1200_by_700(tmp_path: Path) -> None:
    path = tmp_path / "reward.png"
    draw_reward(report_of(tmp_path), path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (1200, 700)
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    for name in ("a.png", "b.png"):
        draw_reward(report, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_accuracy_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    lines = {str(line.get_label()): line for line in drawn(report).axes[0].lines}
    scores = report.surviving_evaluations
    assert list(lines["greedy"].get_xdata()) == [score.at_s for score in scores]
    assert list(lines["greedy"].get_ydata()) == [score.greedy for score in scores]
    assert list(lines["sampled"].get_ydata()) == [score.sampled for score in scores]
    assert "training reward" in lines


def test_pass_at_k_is_drawn_for_the_largest_k_that_says_more_than_one_sample(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert not [line for line in drawn(report).axes[0].lines if "pass@" in str(line.get_label())]
    passes = {1: 0.1, 8: 0.9}
    evaluations = tuple(replace(one, samples=16, pass_at=passes) for one in report.evaluations)
    lines = {str(line.get_label()): line for line in drawn(replace(report, evaluations=evaluations)).axes[0].lines}
    assert set(lines["pass@8"].get_ydata()) == {0.9}
    assert "pass@1" not in lines


def test_many_versions_are_thinned(tmp_path: Path) -> None:
    report = report_of(tmp_path, steps=150)
    main = drawn(report).axes[0]
    verticals = [line for line in main.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2]
    assert len(report.versions) == 151
    assert 10 <= len(verticals) <= MAX_TICK_LINES
    (above,) = main.child_axes
    assert len({*above.get_xticks(minor=True), *above.get_xticks()}) == 151  # every version has its tick
    assert 5 <= len(above.get_xticks()) <= MAX_TICK_NUMBERS + 1


def test_a_restart_is_marked_and_what_it_lost_left_out(tmp_path: Path) -> None:
    report = report_of(tmp_path, steps=16, restart_at=8)
    figure = drawn(report)
    assert any(f"restart, step {report.incarnations[1].base}" == text.get_text() for text in figure.axes[0].texts)
    assert PolicyVersion(1, 8) in [e.version for e in report.evaluations if not e.survives]
    (greedy,) = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("greedy")]
    assert len(greedy.get_xdata()) == len(report.evaluations) - 1


def test_the_title_says_what_the_swarm_did(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    title, below = (text.get_text() for text in drawn(report).texts)
    assert title.startswith("3 rollout peers and a learner: greedy held-out score from 0.42 to ")
    assert title.endswith(f" in {duration(report.wall_s)}"), "as long as the report says that it lasted"
    assert "13 policy versions published, async, staleness window S = 2, " in below
    assert lead(report).said in below, "the sentence of the page"


def test_lags_add_up_to_all_trained_rollouts(tmp_path: Path) -> None:
    side = drawn(report_of(tmp_path)).axes[1]
    assert sum(bar.get_height() for bar in side.patches) == pytest.approx(1.0)


def test_who_was_on_when_is_a_strip_below_if_that_changed(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    plans = [
        Plan(at_s=at_s, kappa=1, active=active, micros_per_hour=0, reasons=())
        for at_s, active in ((1.0, (ALPHA, BETA)), (9.0, (ALPHA,)), (20.0, (ALPHA, BETA)))
    ]
    assert len(drawn(replace(report, plans=tuple(plans[:1]))).axes) == len(drawn(report).axes)
    changed = replace(report, plans=tuple(plans))
    strip = drawn(changed).axes[-1]
    assert [label.get_text() for label in strip.get_yticklabels()] == ["atlas", "borealis"]
    assert changed.planned_spans == {ALPHA: ((1.0, report.wall_s),), BETA: ((1.0, 9.0), (20.0, report.wall_s))}


def test_a_run_without_anything_can_be_drawn(tmp_path: Path) -> None:
    open_story(tmp_path / "ledger.sqlite")
    draw_reward(swarm_report(tmp_path / "ledger.sqlite"), tmp_path / "reward.png")
    assert (tmp_path / "reward.png").exists()


def test_nothing_is_left_behind_when_the_directory_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        draw_reward(report_of(tmp_path), tmp_path / "nowhere" / "reward.png")
    assert not (tmp_path / "nowhere").exists()


def test_matplotlib_is_imported_only_to_draw_and_never_with_pyplot(tmp_path: Path) -> None:
    open_story(tmp_path / "ledger.sqlite").ledger.close()
    program = (
        "import sys; from pathlib import Path; from node.reports import draw_reward, swarm_report\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"draw_reward(swarm_report(Path({str(tmp_path / 'ledger.sqlite')!r})), Path({str(tmp_path / 'r.png')!r}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_name_is_a_formula_or_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A volunteer's name is drawn as it stands: `$\\frac{$` is no formula that nobody can draw."""
    names = ["$\\frac{$", "日本 🚀", "a_{b}"]
    draw_png(tmp_path / "names.png", lambda figure: figure.add_subplot().set_yticks(range(3), names))
    assert (tmp_path / "names.png").read_bytes().startswith(b"\x89PNG")
    assert not list(recwarn)
