"""What came of a training step, as the ledger and the events are told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learner.curriculum.offline_stream import LoggedGroup
from learner.ledger.rows import StepRow
from learner.monitoring.alarms import known
from learner.rollouts.buffer import Batch
from protocol.core.ids import PolicyVersion

TOLD_FIGURES = ("entropy", "mismatch_kl", "ess", "clip_share", "grad_norm")
"""Figures of the trainer's that a step's event has; all of them are in the ledger and among the metrics."""

LAGS_TOLD = 6
"""Lags whose KL a step's event tells, spread over those there were: what fits beside a word at 80 columns."""


def step_row(
    batch: Batch,
    logged: Sequence[LoggedGroup],
    head: PolicyVersion,
    began_ms: int,
    waited_s: float,
    reply: Mapping[str, Any],
) -> StepRow:
    """Rollouts, tokens and reward are the swarm's; the reward is that of the logs where they are all."""
    completions = [completion for group in batch.groups for completion in group.completions]
    from_logs = [one.reward for group in logged for one in group.completions]
    rewards = [completion.reward for completion in completions] or from_logs
    metrics = {
        key: float(value) for key, value in reply.items() if isinstance(value, int | float) and key not in ("id", "ok")
    }
    if (difficulty := batch.difficulty) is not None:
        metrics["difficulty"] = difficulty
    if (error := batch.reward_error) is not None:
        metrics["reward_error"] = error
    by_lag = {str(lag): {"reward": reward} for lag, reward in batch.rewards_by_lag.items()}
    if from_logs:
        metrics["offline_sequences"] = len(from_logs)
        by_lag["offline"] = {"reward": sum(from_logs) / len(from_logs)}
    for lag, figures in reply.get("by_lag", {}).items():
        by_lag[lag] = {**by_lag.get(lag, {}), **figures}
    return StepRow(
        step=head.version,
        incarnation=head.incarnation,
        began_ms=began_ms,
        waited_s=waited_s,
        train_s=float(reply["seconds"]),
        rollouts=batch.rollouts,
        tokens=sum(len(completion.logprobs) for completion in completions),
        reward=sum(rewards) / len(rewards),
        metrics={**known(metrics), "by_lag": by_lag},
    )


def told_figures(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Of a step's figures those that its event tells, if they are known."""
    told: dict[str, float | str] = {
        name: float(f"{metrics[name]:.4g}") for name in TOLD_FIGURES if isinstance(metrics.get(name), float)
    }
    kls = {lag: figures["kl"] for lag, figures in metrics["by_lag"].items() if "kl" in figures}
    lags = list(kls)[:: -(-len(kls) // LAGS_TOLD) or 1]
    return told | ({"kl_by_lag": ", ".join(f"{lag}: {kls[lag]:.2g}" for lag in lags)} if kls else {})
