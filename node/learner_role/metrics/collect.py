"""From what happens to what is measured: events of the learner, and its training steps, become values on the board.

Pure but for the board that it writes to. Like `node.ui.view_updates` it is one `match`: events that are not named here
measure nothing. Figures that the trainer replies go through by their own names, as far as they are declared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from learner.ledger.rows import StepRow
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.rollouts.buffer import Batch
from node.learner_role.metrics.board import Board
from node.learner_role.metrics.catalogue import METRICS, Kind
from node.learner_role.scheduling.run_state import RunState
from node.runtime.events import Field
from node.runtime.loop_delay import LoopFigures
from protocol.core.ids import short

BY_LAG: Mapping[str, str] = {
    "tokens": "tokens_at_lag",
    "ratio": "ratio_at_lag",
    "kl": "kl_at_lag",
    "clip_share": "clip_share_at_lag",
    "entropy": "entropy_at_lag",
    "ess": "ess_at_lag",
    "weight_ess": "weight_ess_at_lag",
    "reward": "reward_at_lag",
}
"""Figures of one lag, as a step's row has them, and the metric that each one is."""

OF_A_TASK: Mapping[str, str] = {
    "rate": "pass_rate",
    "known": "problems_known",
    "all_right": "problems_all_right",
    "all_wrong": "problems_all_wrong",
    "passes": "passes",
}
"""Figures of a task's curriculum, and the metric that each one is."""

NOT_THE_TRAINERS = ("step", "incarnation", "reward", "reward_error", "difficulty", "turns")
"""Gauges without labels that a trainer's reply cannot set."""


def follow_event(board: Board, event: str, fields: Mapping[str, Field]) -> None:
    """Measure what an event of the learner says."""
    match event:
        case "delivery_judged":
            _judged(board, fields)
        case "peer_joined":
            board.add("peers_joined")
        case "peer_left":
            board.add("peers_left")
        case "peer_fault":
            board.add("peer_faults", fault=fields.get("fault"))
            board.add("peer_faults_unsaid", _number(fields, "unsaid"))
        case "over_budget":
            board.add("over_budget", _number(fields, "times"), budget=fields.get("budget"))
        case "heartbeat":
            board.set("peer_bytes_up", _number(fields, "bytes_up"), peer=_peer(fields))
            board.set("peer_bytes_down", _number(fields, "bytes_down"), peer=_peer(fields))
        case "traffic":
            board.set("learner_bytes_up", _number(fields, "bytes_up"))
        case "leases_returned":
            board.add("leases_returned", _number(fields, "leases"), peer=_peer(fields))
        case "audited":
            board.add("audits", found="passed" if fields.get("passed") else "failed")
            board.add("audited_tokens", _number(fields, "tokens"))
        case "audits_made":
            board.observe("audit_seconds", _number(fields, "seconds"))
            board.set("audits_waiting", _number(fields, "waiting"))
        case "audit_impossible":
            board.add("audits_impossible")
        case "peer_banned":
            board.add("peers_banned")
        case "leases_recalled":
            board.add("leases_recalled", _number(fields, "leases"))
        case "relays_credited":
            board.add("relayed_bytes", _number(fields, "bytes"))
        case "version_published":
            board.add("versions_published")
            board.set("version_bytes", _number(fields, "total_bytes"))
            board.set("version_new_bytes", _number(fields, "new_bytes"))
            board.set("version_patch_bytes", _number(fields, "patch_bytes"))
            board.observe("publish_seconds", _number(fields, "seconds"))
        case "evaluated":
            for which in ("greedy", "sampled"):
                board.set(which, _number(fields, which))
            for k, value in _passes(fields):
                board.set("pass_at", value, k=k)
        case "evaluated_task":
            task = fields.get("task")
            for which in ("greedy", "sampled"):
                board.set(f"{which}_of_task", _number(fields, which), task=task)
            for k, value in _passes(fields):
                board.set("pass_at_of_task", value, task=task, k=k)
        case "reward_failed":
            board.add("rewards_failed", how=fields.get("how"))
        case "curriculum":
            _curriculum(board, fields)
        case "evaluation_skipped":
            board.add("evaluations_skipped")
        case "evaluation_failed":
            board.add("evaluations_failed")
        case "checkpoint_saved":
            board.set("checkpoint_bytes", _number(fields, "bytes"))
            board.observe("checkpoint_seconds", _number(fields, "seconds"))
        case "checkpoint_failed":
            board.add("checkpoints_failed")
        case "batch_dropped":
            board.add("batches_dropped")
        case "trainer_restarted":
            board.add("trainer_restarts")
        case "loop_held":
            board.add("loop_held", task=fields.get("task"))
        case "child_died":
            board.add("child_deaths", child=fields.get("child"))


def _curriculum(board: Board, fields: Mapping[str, Field]) -> None:
    task = fields.get("task")
    for name in fields:
        if name in OF_A_TASK:
            board.set(OF_A_TASK[name], _number(fields, name), task=task)
        elif name.startswith("rate_"):
            level = name.removeprefix("rate_")
            board.set("pass_rate_of_level", _number(fields, name), task=task, level=level)


def _passes(fields: Mapping[str, Field]) -> list[tuple[str, float]]:
    """(k, pass@k) of an evaluation."""
    return [(name.removeprefix("pass_"), _number(fields, name)) for name in fields if name.startswith("pass_")]


def follow_step(board: Board, row: StepRow, batch: Batch, task_of: Callable[[int], str]) -> None:
    """Measure a training step; `task_of` names the task of a prompt's index."""
    board.set("step", row.step)
    board.set("incarnation", row.incarnation)
    board.set("reward", row.reward)
    if (error := batch.reward_error) is not None:
        board.set("reward_error", error)
    if (difficulty := batch.difficulty) is not None:
        board.set("difficulty", difficulty)
    board.observe("waited_seconds", row.waited_s)
    board.observe("train_seconds", row.train_s)
    board.set("bubble", row.waited_s / (row.waited_s + row.train_s) if row.train_s > 0 else 0.0)
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
    for lag, figures in row.metrics.get("by_lag", {}).items():
        _at_lag(board, lag, figures)


def is_trainers(name: str) -> bool:
    """Whether a figure of that name in the trainer's reply is measured."""
    metric = METRICS.get(name)
    return metric is not None and metric.kind is Kind.GAUGE and not metric.labels and name not in NOT_THE_TRAINERS


def follow_run(board: Board, run: RunState, seen: SwarmEstimator, still_s: float) -> None:
    """Measure how things stand: who is here, what waits, what things take, and since when no step was taken."""
    board.set("still_seconds", still_s)
    board.set("peers", len(run.present))
    board.set("peers_active", sum(stay.is_on for stay in run.present.values()))
    board.set("rollouts_buffered", len(run.buffer))
    board.set("informative", run.buffer.kept)
    board.set("rollouts_leased", run.leasing.open_rollouts)
    board.set("episodes_open", len(run.episodes))
    board.set("leases_fruitless", run.fruitless.ends.total())
    for kind, number in run.troubles.count(run.present).items():
        board.set("nodes_troubled", number, kind=kind.value)
    board.set("period", run.kappa)
    estimates = {"t_train": seen.train_s, "t_broadcast": seen.broadcast_s, "t_generation": seen.generation_s}
    for name, estimate in estimates.items():
        if estimate is not None:
            board.set(name, estimate.value)


def follow_loop(board: Board, figures: LoopFigures) -> None:
    """Measure how long the event loop makes peers and timers wait."""
    board.set("loop_delay_p99", figures.p99_s)
    board.set("loop_delay_max", figures.longest_s)
    board.set("loop_step_processor", figures.step_cpu_s)


def _at_lag(board: Board, lag: str, figures: Mapping[str, Any]) -> None:
    for name, metric in BY_LAG.items():
        if isinstance(value := figures.get(name), int | float):
            board.set(metric, value, lag=lag)


def _judged(board: Board, fields: Mapping[str, Field]) -> None:
    if admitted := _number(fields, "admitted"):
        board.add("rollouts_admitted", admitted, peer=_peer(fields))
        board.add("tokens_admitted", _number(fields, "tokens"), peer=_peer(fields))
    if refused := _number(fields, "refused"):
        board.add("rollouts_refused", refused, rule=fields.get("reason"))


def _peer(fields: Mapping[str, Field]) -> str:
    return short(str(fields.get("peer")))


def _number(fields: Mapping[str, Field], key: str) -> float:
    value = fields.get(key)
    return value if isinstance(value, int | float) else 0
