"""A batch as the trainer is given it, and what came of its step as the ledger and the events are told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.alarms import known
from learner.buffer import Batch, Completion, Group
from learner.curriculum.offline import LoggedGroup
from learner.ledger_rows import StepRow
from protocol.ids import PolicyVersion
from protocol.pipe import Arrays

TOLD_FIGURES = ("entropy", "mismatch_kl", "ess", "clip_share", "grad_norm")
"""Figures of the trainer's that a step's event has; all of them are in the ledger and among the metrics."""

LAGS_TOLD = 6
"""Lags whose KL a step's event tells, spread over those there were: what fits beside a word at 80 columns."""


def batch_arrays(batch: Batch, head: PolicyVersion) -> Arrays:
    """The trainer's arrays for the step after `head`, as `learner.packing.rollout_batch` reads them."""
    sequences = [(group, completion) for group in batch.groups for completion in group.completions]
    return {
        "tokens": _flat([(*group.prompt, *completion.tokens) for group, completion in sequences], np.int32),
        "lengths": np.array([len(group.prompt) + len(one.tokens) for group, one in sequences], np.int32),
        "mask": np.concatenate([_mask(group, completion) for group, completion in sequences]),
        "behaviour_logprobs": _flat([completion.logprobs for _, completion in sequences], np.float32),
        "lags": np.concatenate([_lags(completion, head) for _, completion in sequences]),
        "rewards": np.array([completion.reward for _, completion in sequences], np.float32),
        "group_sizes": np.array([len(group.completions) for group in batch.groups], np.int32),
        "origins": np.zeros(len(sequences), np.uint8),
    }


def _flat(rows: Sequence[Sequence[float]], dtype: type[np.int32 | np.float32]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(row, dtype) for row in rows])


def _mask(group: Group, completion: Completion) -> np.ndarray[Any, Any]:
    """1 for each token that the policy generated, of the prompt and all that follows."""
    prompt, end = len(group.prompt), len(completion.tokens)
    mask = np.zeros(prompt + end, np.uint8)
    for start, stop in completion.generated or ((0, end),):
        mask[prompt + start : prompt + stop] = 1
    return mask


def _lags(completion: Completion, head: PolicyVersion) -> np.ndarray[Any, Any]:
    """Training steps between the version that made each generated token and `head`."""
    counts = [count for count, _ in completion.spans]
    return np.repeat(np.array([head.version - made.version for _, made in completion.spans], np.int32), counts)


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
