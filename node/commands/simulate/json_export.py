"""A simulation for programs: JSON.

The keys are a promise: they are added to, never renamed or removed, and `format` changes when that cannot be kept.
Money is in whole units of `currency`, times in seconds, shares in [0, 1]; null is that there is none.

format, currency, seed, measured, stories: the one that was asked for is the last, before it those it is compared with.

A story: name, mode, staleness, kappa (in the end), rollouts, seconds, steps, steps_left_out, utilisation, bubble,
wait_s (a step), step_s, lag, lags {lag: rollouts}, stale_share, completed, stale, lost, recalled, cost, cost_per_hour,
cost_per_step, price (per hour, of who is on in the end), on, kinds [{name, count, on, paid, made}], plans [{at_s,
kappa, on, price, reasons}]. Utilisation, bubble, waits and lags leave out the first `steps_left_out`.

`measured`, null without --from: source, seconds, steps, silent, utilisation, bubble, lag, lags, stale_share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from learner.provisioning.estimation.recording import Planned
from learner.provisioning.estimation.step_stats import Steps
from node.commands.simulate.options import Mode
from node.commands.simulate.recorded_swarm import Replay
from node.commands.simulate.result import Story

FORMAT = "volery-simulate/1"


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
    return {
        "source": replay.source,
        "seconds": replay.seconds,
        "steps": replay.steps.count,
        "silent": replay.silent,
        **_judged(replay.steps),
    }


def _judged(steps: Steps) -> dict[str, Any]:
    return {
        "utilisation": 1 - steps.bubble if steps.count else None,
        "bubble": steps.bubble if steps.count else None,
        "lag": steps.lag,
        "lags": {str(lag): count for lag, count in steps.lags.items()},
        "stale_share": steps.stale_share,
    }


def _story(story: Story) -> dict[str, Any]:
    outcome, steps = story.outcome, story.steps
    return {
        "name": story.asked.name,
        "mode": mode_of(story),
        "staleness": story.scene.learning.staleness,
        "kappa": story.kappa,
        "rollouts": story.scene.learning.rollouts,
        "seconds": outcome.ended_s,
        "steps": story.num_steps,
        "steps_left_out": story.left_out,
        "wait_s": steps.waited_s / steps.count if steps.count else None,
        "step_s": (steps.waited_s + steps.busy_s) / steps.count if steps.count else None,
        **_judged(steps),
        "completed": outcome.completed,
        "stale": outcome.stale,
        "lost": outcome.lost,
        "recalled": outcome.recalled,
        "cost": outcome.cost,
        "cost_per_hour": story.cost_per_hour,
        "cost_per_step": story.cost_per_step,
        "price": story.price,
        "on": story.on,
        "kinds": [
            {"name": kind.name, "count": kind.count, "on": kind.on, "paid": kind.paid, "made": kind.made}
            for kind in story.kinds
        ],
        "plans": [_plan(plan) for plan in story.plans],
    }


def _plan(plan: Planned) -> dict[str, Any]:
    return {
        "at_s": plan.at_s,
        "kappa": plan.kappa,
        "on": len(plan.active),
        "price": plan.price,
        "reasons": plan.reasons,
    }
