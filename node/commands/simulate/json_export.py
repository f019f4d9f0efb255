"""Export a simulation as JSON, for programs.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency`, times are in seconds, and shares in [0, 1]. A null means that there is no value.

format, currency, seed, measured, stories (the last one was asked for, the others are for comparison).

A story: name, mode, staleness, kappa (at the end), rollouts, seconds, steps, steps_left_out, utilisation, bubble,
wait_s (in each step), step_s, lag, lags {lag: rollouts}, stale_share, completed, stale, lost, recalled, cost,
cost_per_hour, cost_per_step, price (per hour, of the machines that are active at the end), on, kinds [{name, count, on,
paid, made}], plans [{at_s, kappa, on, price, reasons}]. Utilisation, bubble, waits and lags leave out the first
`steps_left_out` steps. Utilisation is the fraction of the steps' time spent in training; it is null if the recording
does not contain that.

`measured`, null without --from: source, seconds, steps, silent, utilisation, bubble, lag, lags, stale_share, and run
{wall_s, a number for each kind in seconds, utilisation, blocked, bubble}, which is about the whole recording, start and
end included.
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
"""Format 1 called all time training that was not waiting."""


def as_json(stories: Sequence[Story], *, currency: str, seed: int, replay: Replay | None) -> str:
    """Return the stories as indented JSON, with the keys that the docstring above lists."""
    told = {
        "format": FORMAT,
        "currency": currency,
        "seed": seed,
        "measured": None if replay is None else _measured(replay),
        "stories": [_story(story) for story in stories],
    }
    return json.dumps(told, indent=2) + "\n"


def mode_of(story: Story) -> str:
    """Return the mode of a story, in a word."""
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
