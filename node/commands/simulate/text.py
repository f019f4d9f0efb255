"""Show simulations in words and tables that fit 100 columns, for a terminal and for a file.

Pure: it turns stories into a string. The order is: the measurements, if a run is replayed; what was asked for; the
comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import Box
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from learner.provisioning.estimation.recording import Planned
from learner.provisioning.estimation.step_stats import Steps
from node.commands.plan.pool import KIND_CHARS, KINDS_LISTED
from node.commands.simulate.json_export import mode_of
from node.commands.simulate.recorded_swarm import Replay
from node.commands.simulate.result import Story
from node.commands.simulate.scenario import AS_IT_IS
from node.reports.model.time_words import trains
from node.reports.text.tables import DASHES, FILE_WIDTH, drawn, pairs, table, titled
from node.runtime import formatting as words

LAGS_LISTED = 12
PLANS_LISTED = 16
"""Changes of the plan that are shown, the last ones. The recording and the JSON have all of them."""

NAME_CHARS = 22
REASON_CHARS = 300

FEW_STEPS = 10
"""Steps below which a bubble is not reliable."""


def as_text(
    stories: Sequence[Story],
    *,
    currency: str,
    replay: Replay | None = None,
    width: int = FILE_WIDTH,
    box: Box = DASHES,
    color: bool = False,
) -> str:
    """Return the whole text."""
    return drawn(_parts(stories, currency, replay, box, width), max(width, FILE_WIDTH), color=color)


def _parts(
    stories: Sequence[Story], currency: str, replay: Replay | None, box: Box, width: int
) -> Iterator[RenderableType]:
    asked = stories[-1]
    if replay is not None:
        as_it_is = next(story for story in stories if story.asked == AS_IT_IS)
        yield titled(f"Replayed: {replay.source}", _side_by_side(replay, as_it_is, box))
    yield titled(f"Simulated: {asked.asked.name}", Constrain(pairs(_story(asked, currency)), width - 1))
    yield titled("Machines", _machines(asked, currency, box))
    if asked.plans:
        yield titled("Plans: active machines and their cost", _plans(asked, currency, box))
    if len(stories) > 1:
        yield titled("Comparison", _compared(stories, currency, box))


def _side_by_side(replay: Replay, simulated: Story, box: Box) -> RenderableType:
    """Return a table of what was measured beside what is simulated for the same swarm."""
    both = (replay.steps, simulated.steps)
    rows = [
        ["training steps", *(f"{steps.count:,}" for steps in both)],
        ["the learner trains", *(words.share(steps.time.utilisation) for steps in both)],
        ["bubble", *(words.share(steps.time.bubble) for steps in both)],
        ["seconds a step", *map(_step_s, both)],
        ["mean lag", *(f"{steps.lag:.2f}" for steps in both)],
        ["stale, of admitted", *(words.share(steps.stale_share) for steps in both)],
    ]
    for lag in sorted({*replay.steps.lags, *simulated.steps.lags})[:LAGS_LISTED]:
        told = (words.share(shares.get(lag, 0)) if shares else words.NOTHING for shares in (one.shares for one in both))
        rows.append([f"lag {lag}", *told])
    peers = "1 peer" if replay.silent == 1 else f"{replay.silent} peers"
    left = f"{peers} left out, for want of a delivery or a reported speed"
    shown = table(["", "measured", "simulated"], rows, box)
    return Group(shown, Text(left, style="dim")) if replay.silent else shown


def _step_s(steps: Steps) -> str:
    return words.NOTHING if steps.step_s is None else words.whole_figure(steps.step_s)


def _story(story: Story, currency: str) -> Iterator[tuple[str, str]]:
    learning, outcome, steps = story.scene.learning, story.outcome, story.steps
    window = (
        f"staleness window S = {learning.staleness}, a version every kappa = {story.kappa} training steps of "
        f"R = {learning.rollouts:,} rollouts"
    )
    yield (
        "run",
        f"{words.duration(outcome.ended_s)} with {len(story.scene.machines):,} machines, {mode_of(story)}: {window}",
    )
    first = "the first is" if story.left_out == 1 else f"the first {story.left_out} are"
    left_out = f"; {first} not counted in learner and lag" if story.left_out else ""
    yield "steps", f"{story.num_steps:,}{left_out}"
    if steps.wait_s is None:
        yield "learner", "no training step: the machines are too few or too slow, or the simulated time is too short"
    else:
        yield (
            "learner",
            (
                f"{trains(steps.time)}, waits {words.share(steps.bubble)} (bubble): "
                f"{words.seconds(steps.wait_s)} in a step of {_step_s(steps)} s"
            ),
        )
        yield "lag", f"{steps.lag:.2f} training steps on average; by lag: {words.histogram(steps.shares, LAGS_LISTED)}"
    if 0 < steps.count < FEW_STEPS:
        yield "few steps", "these are too few for reliable numbers; use --steps, or more --hours"
    yield (
        "rollouts",
        (
            f"{outcome.completed:,} generated, {outcome.stale:,} of them stale ({words.share(outcome.stale_share)}); "
            f"{outcome.lost:,} more were lost with their machines, {outcome.recalled:,} recalled as too late"
        ),
    )
    step = "" if story.cost_per_step is None else f", {words.money(story.cost_per_step, currency)} a training step"
    learner = f", including {words.money(learning.price, '')} for the learner" if learning.price else ""
    yield "cost", f"{words.per_hour(story.cost_per_hour, currency)} on average{step}{learner}"
    yield "at the end", f"{words.counted(story.on, 'machine')} active, {words.per_hour(story.price, currency)}{learner}"


def _machines(story: Story, currency: str, box: Box) -> RenderableType:
    hours, kinds = story.hours, sorted(story.kinds, key=lambda kind: -kind.made)[:KINDS_LISTED]
    rows = [
        [words.plain_name(kind.name, KIND_CHARS), str(kind.count), f"{kind.on:.1f}", words.money(kind.paid, ""),
         words.money(kind.paid / hours if hours else 0.0, ""),
         words.money(kind.paid / story.num_steps, "") if story.num_steps else words.NOTHING, f"{kind.made:,}",
         words.money(1000 * kind.paid / kind.made, "") if kind.made else words.NOTHING]
        for kind in kinds
    ]  # fmt: skip
    headings = ["machine", "count", "active on\naverage", f"{currency}\npaid", f"{currency}\nan hour",
                f"{currency}\na step", "rollouts\nadmitted", f"{currency} per\n1000 rollouts"]  # fmt: skip
    left = len(story.kinds) - len(kinds)
    shown = table(headings, rows, box)
    return Group(shown, Text(f"{left} more kinds are left out", style="dim")) if left else shown


def _plans(story: Story, currency: str, box: Box) -> RenderableType:
    rows = [
        [
            f"{plan.at_s:,.0f}",
            str(plan.kappa),
            str(len(plan.active)),
            words.money(plan.price, ""),
            _reason(plan, before),
        ]
        for before, plan in list(zip((None, *story.plans), story.plans, strict=False))[-PLANS_LISTED:]
    ]
    shown = table(["at\ns", "kappa", "active", f"{currency}\nan hour", "why"], rows, box, wrap_last=True)
    left = len(story.plans) - len(rows)
    return Group(Text(f"{left} earlier ones are left out", style="dim"), shown) if left else shown


def _reason(plan: Planned, before: Planned | None) -> str:
    if not plan.reasons:
        if before is None:
            return "at the start"
        measured = f"kappa = {plan.kappa} is the first value from measurements"
        return "an active machine left" if before.kappa == plan.kappa else measured
    more = f" (and {len(plan.reasons) - 1} more)" if len(plan.reasons) > 1 else ""
    return words.plain_name(plan.reasons[0], REASON_CHARS) + more


def _compared(stories: Sequence[Story], currency: str, box: Box) -> RenderableType:
    rows = [
        [words.plain_name(story.asked.name, NAME_CHARS), str(story.scene.learning.staleness), str(story.kappa),
         f"{story.num_steps:,}", words.share(story.steps.time.utilisation),
         _step_s(story.steps), f"{story.steps.lag:.2f}", words.share(story.outcome.stale_share), f"{story.on}",
         words.money(story.cost_per_hour, ""),
         words.money(story.cost_per_step, "") if story.cost_per_step is not None else words.NOTHING]
        for story in stories
    ]  # fmt: skip
    headings = ["", "S", "kappa", "steps", "learner\ntrains", "s\na step", "lag", "stale", "active at\nthe end",
                f"{currency}\nan hour", f"{currency}\na step"]  # fmt: skip
    return table(headings, rows, box)
