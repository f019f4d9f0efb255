"""Plot what was learned: evaluations and the mean training reward over time. Pure.

Invariant: both are in one plot if both are shares, from 0 to 1; other rewards have a plot of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from node.reports.charts.plot import Line, Look, Mark, Plot, bands, line, restarts, step_points
from node.reports.charts.scale import smoothed, thinned
from node.reports.model.report import SwarmReport
from node.runtime import formatting as words


def lead(report: SwarmReport) -> Plot:
    """Return the plot of evaluations and the mean training reward, both if both are shares."""
    return Plot(
        key="learned",
        title="Reward and evaluation",
        unit="0 to 1" if _all_shares(report) else "reward",
        said=_learned(report),
        wall=report.wall_s,
        lines=(*(_reward_lines(report) if together(report) else ()), *_evaluation_lines(report)),
        marks=(*restarts(report), *_versions(report)),
        bands=bands(report),
        band="an alarm was active",
        low=0.0 if _all_shares(report) else None,
        high=1.0 if _all_shares(report) else None,
    )


def _versions(report: SwarmReport) -> Iterator[Mark]:
    """Yield published versions. After a restart, the number of the learner's start precedes theirs."""
    again = len(report.incarnations) > 1
    for one in report.versions:
        yield Mark(at=one.at_s, number=str(one.version) if again else str(one.version.version))


def reward(report: SwarmReport) -> Plot:
    """Return the plot of the mean training reward alone, for rewards that are not beside the evaluations."""
    return Plot(
        key="reward",
        title="Mean training reward",
        unit="reward",
        said=_reward_sentence(report).strip(),
        lines=_reward_lines(report),
        low=None,
    )


def _all_shares(report: SwarmReport) -> bool:
    return are_shares(evaluated(report)) and (not together(report) or are_shares(_rewards(report)))


def together(report: SwarmReport) -> bool:
    """Return whether reward and evaluation have one axis: both are shares, or there are no evaluations."""
    scores = evaluated(report)
    return not scores or (are_shares(scores) and are_shares(_rewards(report)))


def are_shares(values: Sequence[float]) -> bool:
    return all(0 <= value <= 1 for value in values)


def evaluated(report: SwarmReport) -> list[float]:
    return [value for score in report.surviving_evaluations for value in (score.greedy, score.sampled)]


def _rewards(report: SwarmReport) -> list[float]:
    return [step.reward for step in report.steps if math.isfinite(step.reward)]


def _learned(report: SwarmReport) -> str:
    scores = report.surviving_evaluations
    if not scores:
        return "No version was evaluated." + (_reward_sentence(report) if report.steps else "")
    first, last = scores[0], scores[-1]
    prompts = words.counted(last.prompts, "held-out prompt")
    said = (
        f"On {prompts}: greedy from {first.greedy:.3f} to {last.greedy:.3f}, sampled from"
        f" {first.sampled:.3f} to {last.sampled:.3f}, in {len(scores):,} evaluations."
        if len(scores) > 1
        else f"On {prompts}: greedy {last.greedy:.3f}, sampled {last.sampled:.3f}, in one evaluation."
    )
    return said + (_reward_sentence(report) if together(report) else "") + " Ticks above: published versions."


def _reward_sentence(report: SwarmReport) -> str:
    curve = smoothed(step_points(report.steps, lambda step: step.reward))
    if not curve:
        return ""
    return f" Mean training reward from {curve[0][1]:.3f} to {curve[-1][1]:.3f}."


def _evaluation_lines(report: SwarmReport) -> Iterator[Line]:
    scores = report.surviving_evaluations
    if not scores:
        return
    yield line("greedy", [(s.at_s, s.greedy) for s in scores], Look.BLUE, markers=True)
    yield line("sampled", [(s.at_s, s.sampled) for s in scores], Look.ORANGE, markers=True)
    most = max(set.intersection(*(set(score.pass_at) for score in scores)), default=1)
    if most > 1:
        yield line(f"pass@{most}", [(s.at_s, s.pass_at[most]) for s in scores], Look.GREEN, markers=True)


def _reward_lines(report: SwarmReport) -> tuple[Line, ...]:
    """Return the mean over several steps, and thinly behind it the reward of each step."""
    points = step_points(report.steps, lambda step: step.reward)
    return (
        Line(name="reward of a step", points=thinned(points), look=Look.GREY, quiet=True),
        Line(name="training reward", points=thinned(smoothed(points)), look=Look.GREY),
    )
