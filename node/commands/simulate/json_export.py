"""A simulation for programs: JSON.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency`, times in seconds, shares in [0, 1]; null is that there is none.

format, currency, seed, measured, stories: the one that was asked for is the last, before it those it is compared with.

A story: name, mode, staleness, kappa (in the end), rollouts, seconds, steps, steps_left_out, utilisation, bubble,
wait_s (a step), step_s, lag, lags {lag: rollouts}, stale_share, completed, stale, lost, recalled, cost, cost_per_hour,
cost_per_step, price (per hour, of who is on in the end), on, kinds [{name, count, on, paid, made}], plans [{at_s,
kappa, on, price, reasons}]. Utilisation (training over all of the steps' time; null where the recording does not tell
which of it was training), bubble, waits and lags leave out the first `steps_left_out`.

`measured`, null without --from: source, seconds, steps, silent, utilisation, bubble, lag, lags, stale_share, and of the
whole recording, start and end included: run {wall_s, a figure for each kind in seconds, utilisation, blocked, bubble}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from learner.provisioning.estimation.step_stats import Steps
from node.commands.simulate.options import Mode
from node.commands.simulate.recorded_swarm import Replay
from node.commands.simulate.result import Story
from node.reports.machine_formats import named
from node.reports.model.time_words import as_values

FORMAT = "volery-simulate/2"
"""1 called all that was not waiting training."""


def as_json(stories: Sequence[Story], *, currency: str, seed: int, replay: Replay | None) -> str:
    """The stories as indented JSON, keys as in the module's paragraph."""
    told = {
        "format": FORMAT,
        "currency": currency,
        "seed": seed,
        "measured": None if replay is None else _measured(replay),
        "stories": [_story(story) for story in stories],
    }
    return json.dumps(told, indent=2) + "\n"


def mode_of(story: Story) -> str:
    """Its mode, in a word."""
    if story.scene.learning.barrier:
        return Mode.SYNCHRONOUS.value
    return Mode.ASYNC.value if story.scene.learning.staleness else Mode.SEQUENTIAL.value


def _measured(replay: Replay) -> dict[str, Any]:
    found = named(replay, "source seconds silent") | {"steps": replay.steps.count} | _judged(replay.steps)
    return found | {"run": as_values(replay.time)}


def _judged(steps: Steps) -> dict[str, Any]:
    return {
        "utilisation": steps.time.utilisation,
        "bubble": steps.bubble if steps.count else None,
        **named(steps, "lag lags stale_share"),
    }


def _story(story: Story) -> dict[str, Any]:
    return {
        "name": story.asked.name,
        "mode": mode_of(story),
        **named(story.scene.learning, "staleness rollouts"),
        "seconds": story.outcome.ended_s,
        "steps": story.num_steps,
        "steps_left_out": story.left_out,
        **named(story.steps, "wait_s step_s"),
        **_judged(story.steps),
        **named(story.outcome, "completed stale lost recalled cost"),
        **named(story, "kappa cost_per_hour cost_per_step price on"),
        "kinds": [asdict(kind) for kind in story.kinds],
        "plans": [named(plan, "at_s kappa price reasons") | {"on": len(plan.active)} for plan in story.plans],
    }
