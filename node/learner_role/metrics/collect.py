"""Turn the learner's events and training steps into values on the board.

Pure, except for the board that it writes to. Events that are not named here measure nothing. Figures in the trainer's
replies are measured under their own names, if they are declared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from learner.ledger.reach import WAYS
from learner.ledger.rows import StepRow
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.learner_time import LearnerTime
from learner.rollouts.buffer import VOID, Batch
from node.learner_role.metrics.board import Board
from node.learner_role.metrics.catalogue import METRICS, Kind
from node.learner_role.shared.run_state import RunState
from node.runtime.events import Fields
from node.runtime.loop_delay import LoopFigures
from protocol.core.ids import short
from protocol.reach import ReachKind

BY_LAG = ("tokens", "ratio", "kl", "clip_share", "entropy", "ess", "weight_ess", "reward")
"""Figures of one lag in a step's row. The metric of each has the same name with `_at_lag` at the end."""

ONCE = ""
"""In place of a field's name: count the event itself."""

BY_EVENT: Mapping[str, Mapping[str, str]] = {
    "audit_impossible": {"audits_impossible": ONCE},
    "audited": {"audits": ONCE, "audited_tokens": "tokens"},
    "audits_made": {"audit_seconds": "seconds", "audits_waiting": "waiting"},
    "batch_dropped": {"batches_dropped": ONCE},
    "checkpoint_failed": {"checkpoints_failed": ONCE},
    "checkpoint_saved": {"checkpoint_bytes": "bytes", "checkpoint_seconds": "seconds"},
    "child_died": {"child_deaths": ONCE},
    "curriculum": {
        "pass_rate": "rate",
        "passes": "passes",
        "problems_all_right": "all_right",
        "problems_all_wrong": "all_wrong",
        "problems_known": "known",
    },
    "evaluated": {"greedy": "greedy", "sampled": "sampled"},
    "evaluated_task": {"greedy_of_task": "greedy", "sampled_of_task": "sampled"},
    "evaluated_reward": {"greedy_of_name": "greedy", "sampled_of_name": "sampled"},
    "evaluation_failed": {"evaluations_failed": ONCE},
    "evaluation_skipped": {"evaluations_skipped": ONCE},
    "heartbeat": {"peer_bytes_up": "bytes_up", "peer_bytes_down": "bytes_down"},
    "lease_handed_back": {"tokens_handed_back": "tokens"},
    "leases_recalled": {"leases_recalled": "leases"},
    "leases_returned": {"leases_returned": "leases"},
    "loop_held": {"loop_held": ONCE},
    "over_budget": {"over_budget": "times"},
    "peer_banned": {"peers_banned": ONCE},
    "peer_fault": {"peer_faults": ONCE, "peer_faults_unsaid": "unsaid"},
    "peer_joined": {"peers_joined": ONCE},
    "peer_left": {"peers_left": ONCE},
    "relays_credited": {"relayed_bytes": "bytes"},
    "reward_failed": {"rewards_failed": ONCE},
    "traffic": {"learner_bytes_up": "bytes_up", "learner_bytes_carried": "bytes_carried"},
    "trainer_restarted": {"trainer_restarts": ONCE},
    "version_published": {
        "versions_published": ONCE,
        "version_bytes": "total_bytes",
        "version_new_bytes": "new_bytes",
        "version_patch_bytes": "patch_bytes",
        "publish_seconds": "seconds",
    },
}
"""By event: the metrics that it measures, and the field of each. Their labels are fields of the event, too."""

BY_NAME: Mapping[tuple[str, str], str] = {
    ("evaluated", "pass"): "pass_at",
    ("evaluated_task", "pass"): "pass_at_of_task",
    ("curriculum", "rate"): "pass_rate_of_level",
}
"""The metric of fields such as `pass_1` or `rate_1` of an event. The rest of the name is the metric's last label."""

OF_OVERLONG = ("cut_off", "overlong_penalty")
"""Figures of a step's row about completions that were cut off."""

NOT_THE_TRAINERS = (
    *("step", "incarnation", "reward", "reward_error", "difficulty", "turns", "utilisation", "bubble"),
    *OF_OVERLONG,
)
"""Gauges without labels that a trainer's reply cannot set."""


def follow_event(board: Board, event: str, fields: Fields) -> None:
    """Measure an event of the learner."""
    labels = {**fields, "peer": short(fields.get("peer", ""))}
    match event, fields:
        case "delivery_judged", {"admitted": admitted, "refused": refused}:
            if admitted:
                board.add("rollouts_admitted", admitted, peer=labels["peer"])
                board.add("tokens_admitted", fields["tokens"], peer=labels["peer"])
            if refused:
                board.add("rollouts_refused", refused, rule=fields["reason"])
            if fields.get("dropped") == VOID:
                board.add("groups_void")
        case "audited", {"passed": passed}:
            labels["found"] = "passed" if passed else "failed"
    for metric, name in BY_EVENT.get(event, {}).items():
        if name == ONCE or name in fields:
            _measure(board, metric, 1 if name == ONCE else fields[name], labels)
    for name, value in fields.items():
        kind, _, label = name.partition("_")
        if label and (event, kind) in BY_NAME:
            metric = BY_NAME[event, kind]
            _measure(board, metric, value, {**labels, METRICS[metric].labels[-1]: label})


def _measure(board: Board, metric: str, value: float, labels: Fields) -> None:
    declared = METRICS[metric]
    named = {name: labels.get(name) for name in declared.labels}
    match declared.kind:
        case Kind.GAUGE:
            board.set(metric, value, **named)
        case Kind.COUNTER:
            board.add(metric, value, **named)
        case Kind.HISTOGRAM:
            board.observe(metric, value, **named)


def follow_step(board: Board, row: StepRow, batch: Batch, task_of: Callable[[int], str]) -> None:
    """Measure a training step. `task_of` returns the task of a prompt's index."""
    board.set("step", row.step)
    board.set("incarnation", row.incarnation)
    board.set("reward", row.reward)
    if (error := batch.reward_error) is not None:
        board.set("reward_error", error)
    if (difficulty := batch.difficulty) is not None:
        board.set("difficulty", difficulty)
    for name in OF_OVERLONG:
        if name in row.metrics:
            board.set(name, row.metrics[name])
    board.observe("waited_seconds", row.waited_s)
    if (gathered_s := batch.gathered_s) is not None:
        board.observe("gathered_seconds", gathered_s)
    board.observe("train_seconds", row.train_s)
    turns = [completion.turns for group in batch.groups for completion in group.completions]
    board.set("turns", sum(turns) / len(turns) if turns else 0.0)
    board.add("rollouts_stale", batch.stale)
    board.add("rollouts_uninformative", batch.uninformative)
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for group in batch.groups:
        board.add("rollouts_trained", len(group.completions), lag=batch.lags[group.lease])
        rewards[task_of(group.prompt_index)] += [completion.reward for completion in group.completions]
        board.observe("completion_tokens", *(len(completion.tokens) for completion in group.completions))
    for task, values in rewards.items():
        board.set("reward_of_task", sum(values) / len(values), task=task)
    for name, value in row.metrics.items():
        if is_trainers(name) and isinstance(value, int | float):
            board.set(name, value)
    for name, value in row.metrics.get("rewards", {}).items():
        board.set("reward_of_name", value, name=name)
    for lag, figures in row.metrics.get("by_lag", {}).items():
        for name in BY_LAG:
            if isinstance(value := figures.get(name), int | float):
                board.set(f"{name}_at_lag", value, lag=lag)


def follow_time(board: Board, passed: LearnerTime, so_far: LearnerTime) -> None:
    """Measure the learner's time by kind: `passed` since the last time, and `so_far` in the whole run."""
    for kind, seconds in passed.seconds.items():
        board.add("learner_seconds", seconds, kind=kind.value)
    if so_far.utilisation is not None:
        board.set("utilisation", so_far.utilisation)
    if so_far.bubble is not None:
        board.set("bubble", so_far.bubble)


def is_trainers(name: str) -> bool:
    """Return whether a figure with that name in the trainer's reply is measured."""
    metric = METRICS.get(name)
    return metric is not None and metric.kind is Kind.GAUGE and not metric.labels and name not in NOT_THE_TRAINERS


def follow_run(board: Board, run: RunState, seen: SwarmEstimator, still_s: float) -> None:
    """Measure the present state: peers, waiting rollouts, durations, and the seconds since the last step."""
    board.set("still_seconds", still_s)
    board.set("peers", len(run.present))
    board.set("peers_active", sum(presence.is_active for presence in run.present.values()))
    board.set("rollouts_buffered", len(run.capacity.buffer))
    board.set("informative", run.capacity.buffer.kept)
    board.set("rollouts_leased", run.capacity.leasing.open_rollouts)
    board.set("episodes_open", len(run.capacity.episodes))
    board.set("leases_fruitless", run.scheduler.fruitless.ends.total())
    for kind, number in run.troubles.count(run.present).items():
        board.set("nodes_troubled", number, kind=kind.value)
    board.set("nobody_can_work", float(run.unable().is_everyone))
    board.set("price_per_hour", seen.active_price)
    reached = run.reaches.figures
    for reach in ReachKind:
        board.set("nodes_reached", reached.kinds.get(reach, 0), kind=reach.value)
    for way in WAYS:
        board.set("pairs_met", reached.ways.get(way, 0), way=way.value)
    board.set("period", run.kappa)
    estimates = {"t_train": seen.train_s, "t_broadcast": seen.broadcast_s, "t_generation": seen.generation_s}
    for name, estimate in estimates.items():
        if estimate is not None:
            board.set(name, estimate.value)


def follow_loop(board: Board, figures: LoopFigures) -> None:
    """Measure how long the event loop delays peers and timers."""
    board.set("loop_delay_p99", figures.p99_s)
    board.set("loop_delay_max", figures.longest_s)
    board.set("loop_step_processor", figures.step_cpu_s)
