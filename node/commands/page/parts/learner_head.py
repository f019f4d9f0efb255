"""Make the top of a learner's page, which changes with every event: state, progress, score, time, notices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from node.commands.page.live_run import LiveRun, State
from node.reports.html.charts.markup import Child, Fragment, num, strangers, tag
from node.reports.html.components import section
from node.reports.model.report import SwarmReport
from node.reports.model.time_words import parts
from node.runtime import formatting as words
from node.ui.live_view import Notice

HELD_BACK = " New versions are held back, so training goes on for a few steps only."
"""What is said while the operator lets no version out: the nodes' rollouts become too old."""

READING = "Reading the ledger..."
"""What stands for a part until the first report is read, which takes seconds if the run is long."""

NOTICES_SHOWN = 8
OLDER_SHOWN = 40
"""Notices that are listed, and older ones that can be opened."""

SPARK = (220, 44)
"""Size of the line of rewards, in pixels."""


def badge(state: State) -> Fragment:
    """Return the run's state in a word."""
    return tag("strong", state.value, class_=f"badge {state.name.lower()}")


def head(live: LiveRun, report: SwarmReport | None) -> Fragment:
    """Return the head of the page."""
    view = live.view
    return tag(
        "header",
        tag("h1", strangers(view.title or "Swarm"), " ", badge(live.state)),
        tag("p", progress(live)),
        tag("div", _score(live, report), _time(report), class_="hero"),
        id="head",
    )


def progress(live: LiveRun) -> str:
    """Return how far the run is, and how long it still takes, in a sentence."""
    view = live.view
    if live.state is State.STARTING:
        return f"{view.activity.capitalize()}."
    of = f" of {view.steps:,}" if view.steps else ""
    said = [f"Step {view.step:,}{of}"]
    if view.steps and view.step >= view.steps:
        return f"{said[0]}: the run has taken its last step."
    if (left := view.left_s) is not None:
        said.append(f"about {words.duration(left)} left")
    if (step_s := view.pace.step_s) is not None:
        said.append(f"{words.seconds(step_s)} a step")
    said.append(f"version {view.newest or words.NOTHING} is published")
    return f"{', '.join(said)}.{'' if view.publishes else HELD_BACK}"


def _score(live: LiveRun, report: SwarmReport | None) -> Fragment:
    """Return the run's main figure: the held-out score if there is one, otherwise the training reward."""
    scores = () if report is None else report.surviving_evaluations
    view = live.view
    greedy = view.greedy if view.greedy is not None else scores[-1].greedy if scores else None
    if greedy is not None:
        more = "" if report is None else "the first evaluation"
        if len(scores) > 1:
            more = f"{greedy - scores[0].greedy:+.3f} since the start"
        return _figure("Held-out score, greedy", f"{greedy:.3f}", more, view.rewards)
    if view.rewards:
        return _figure("Mean training reward", f"{view.rewards[-1]:.3f}", "of the last step", view.rewards)
    return _figure("Held-out score, greedy", words.NOTHING, READING if report is None else "not evaluated yet", ())


def _figure(name: str, value: str, more: str, rewards: Sequence[float]) -> Fragment:
    line: list[Fragment] = []
    if len(rewards) > 1:
        said = f"training reward of the last {len(rewards)} steps, {min(rewards):.2f} to {max(rewards):.2f}"
        line = [spark(rewards), tag("p", said, class_="soft")]
    told = tag("dl", tag("dt", name), tag("dd", tag("b", value), " ", tag("span", more, class_="soft")))
    return tag("div", told, line, class_="lead")


def spark(values: Sequence[float]) -> Fragment:
    """Return a small line of the values, from the lowest to the highest."""
    width, height = SPARK
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    across = width / (len(values) - 1)
    points = " ".join(
        f"{num(place * across)},{num(2 + (height - 4) * (1 - (value - low) / span))}"
        for place, value in enumerate(values)
    )
    said = f"Training reward of the last {len(values)} steps, from {values[0]:.3f} to {values[-1]:.3f}"
    return tag(
        "svg",
        tag("title", said),
        Fragment(f'<polyline points="{points}" class="line blue"></polyline>'),
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=said,
        preserveAspectRatio="none",
        class_="spark",
    )


def _time(report: SwarmReport | None) -> Child:
    """Return the learner's time by kind, as a bar with its figures."""
    if report is None or not report.learner_time.wall_s:
        return None
    shares = list(parts(report.learner_time))
    at, segments = 0.0, []
    for key, _, share in shares:
        segments.append(tag("rect", x=100 * at, y=0.0, width=100 * share, height=10.0, class_=key))
        at += share
    said = ", ".join(f"{name} {words.share(share)}" for _, name, share in shares)
    drawing = tag(
        "svg", segments, viewBox="0 0 100 10", preserveAspectRatio="none", role="img", aria_label=f"Time: {said}"
    )
    legend = [
        tag("li", tag("span", class_=f"key {key}"), f"{name} {words.share(share)}") for key, name, share in shares
    ]
    return tag("div", tag("p", "The learner's time", class_="soft"), drawing, tag("ul", legend), class_="time")


def notices(live: LiveRun) -> Fragment:
    """Return the newest notices, the newest first, with their times."""
    rows = [_notice(live, n) for n in reversed(live.view.notices)][: NOTICES_SHOWN + OLDER_SHOWN]
    if not rows:
        return section("notices", "Notices", tag("p", "Nothing has happened yet."))
    newest, older = rows[:NOTICES_SHOWN], rows[NOTICES_SHOWN:]
    more = tag("details", tag("summary", "Older notices"), tag("ol", older)) if older else None
    return section("notices", "Notices", tag("ol", newest), more)


def _notice(live: LiveRun, notice: Notice) -> Fragment:
    at_s = live.clock_of(notice.at_s)
    told = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    return tag("li", tag("time", words.moment(round(1000 * at_s)), datetime=told), " ", tag("span", notice.text))
