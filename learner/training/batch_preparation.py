"""Prepare a batch for its updates: compute advantages, and the results of a first pass without gradients.

Invariants:

- Everything here is fixed before the first update, under the weights at the step's start, so it does not depend on how
  the batch is cut afterwards.
- Only what the recipe asks for is computed.
- Sequences that teach nothing are not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.trainer_api.advantages import compared
from learner.trainer_api.presets import Recipe
from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.sequences import OFFLINE, BadBatch, Flags, Floats, Prepared, Ragged, Rollouts
from learner.training.objective.objective_inputs import TEACHER_LIMIT
from learner.training.reference_policy import Reference

Columns = dict[str, NDArray[Any]]
Score = Callable[[Ragged, Flags], Mapping[str, Floats]]
"""A function that scores the marked sequences, [B], under the weights in force. It returns `logprobs` and, with a
critic, `values`, [T] for all targets; 0 for sequences that are not marked."""

WHITENING_FLOOR = 1e-8
"""Added to a variance before dividing, as TRL does."""


def prepare(
    batch: Rollouts, recipe: Recipe, h: Hyperparameters, score: Score, reference: Reference | None
) -> tuple[Prepared, dict[str, float]]:
    """Return the batch with all that `recipe` needs, and metrics that were found on the way. Raises BadBatch."""
    if recipe.advantage == "preference" and not batch.trained.all():
        raise BadBatch("array 'trained' leaves sequences out, but both completions of a pair teach a preference")
    if recipe.needs_teacher and batch.teacher is None:
        raise BadBatch("array 'teacher_logprobs' is missing, but the objective learns from a teacher")
    sequences, told = batch.sequences, dict[str, float]()
    offline = _repeated(batch, batch.origins == OFFLINE)
    columns: Columns = {"behaviour": batch.behaviour, "lags": batch.lags, "offline": offline}
    if recipe.needs_teacher and batch.teacher is not None:
        columns["teacher"] = batch.teacher
        columns["teacher_mean"] = _teacher_mean(batch, batch.teacher)
    relative, keep = None, batch.trained
    if recipe.advantage not in ("gae", "preference"):
        relative = columns["advantages"] = _repeated(batch, _relative(batch, recipe))
        if not recipe.teaches_always:
            keep = _prepared(batch, columns).teaches
    if (recipe.needs_proximal or recipe.needs_critic) and keep.any():
        now = score(sequences, keep)
        columns["proximal"] = now["logprobs"]
        if recipe.needs_critic:
            columns["old_values"] = now["values"]
    if recipe.needs_reference and keep.any():
        assert reference is not None
        with reference.in_force():
            columns["reference"] = score(sequences, keep)["logprobs"]
    if recipe.advantage == "gae":
        values = columns.setdefault("old_values", np.zeros_like(batch.behaviour))
        relative, columns["returns"] = gae(batch, values, h.gae_gamma, h.gae_lambda)
        heard = _repeated(batch, batch.trained)
        told = {"explained_variance": explained_variance(values[heard], columns["returns"][heard])}
    elif recipe.advantage == "preference":
        per_sequence, told = preference(batch, columns["proximal"] - columns["reference"], h.dpo_beta)
        relative = _repeated(batch, per_sequence)
    assert relative is not None
    columns["advantages"] = relative
    return _prepared(batch, columns), told


def _prepared(batch: Rollouts, columns: Columns) -> Prepared:
    return Prepared(sequences=batch.sequences, trained=batch.trained, groups=batch.groups, columns=columns)


def _relative(batch: Rollouts, recipe: Recipe) -> Floats:
    """Return advantages [B], compared among all rewards of a group; 0 for sequences that are not trained on."""
    found = compared(batch.rewards, batch.groups, recipe.advantage, batch.parts, batch.part_weights)
    return np.where(batch.trained, found, np.float32(0))


def _repeated(batch: Rollouts, per_sequence: NDArray[Any]) -> NDArray[Any]:
    """Return [T] from [B]: for each target the value of its sequence."""
    return np.repeat(per_sequence, batch.sequences.target_counts)


def _teacher_mean(batch: Rollouts, teacher: Floats) -> Floats:
    """Return the mean of log pi_T - log mu over all targets that are trained on, the same value [T] times. It is a
    baseline, which only reduces variance (Williams 1992). It uses mu, so that it is known before the first update. A
    claim moves it by at most TEACHER_LIMIT divided by the number of tokens."""
    lead = np.clip(teacher - batch.behaviour, -TEACHER_LIMIT, TEACHER_LIMIT)
    heard = _repeated(batch, batch.trained)
    mean = lead[heard].mean() if heard.any() else 0.0
    return np.full_like(teacher, mean)


def with_advantage(batch: Rollouts, recipe: Recipe) -> float:
    """Return the fraction of the sequences about which the rewards say anything, 0 to 1: their advantage is not 0, and
    they are trained on. `batch` is one that `prepare` took. With a teacher all sequences that are trained on count.

    A critic's advantages are never 0, because it is always a little off. With a critic all sequences that are trained
    on count, unless the whole batch has one reward.
    """
    if recipe.needs_teacher:
        return float(batch.trained.mean())
    match recipe.advantage:
        case "gae":
            return float(batch.trained.mean() * (batch.rewards.min() < batch.rewards.max()))
        case "preference":  # groups are pairs: `preference` has checked that
            return float((batch.rewards[0::2] != batch.rewards[1::2]).mean())
        case _:
            return float((_relative(batch, recipe) != 0).mean())


def gae(batch: Rollouts, values: Floats, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Return whitened advantages and returns, float32 [T] each: generalised advantage estimation (arXiv 1506.02438,
    equation 16) over the generated tokens of each sequence, whose reward comes with the last token.

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        R_t = A_t + V_t

    Advantages are whitened over all tokens of the batch that are trained on, as PPO's implementations do. For other
    tokens advantage and return are 0. Tokens of the environment are no steps.
    """
    counts = batch.sequences.target_counts
    longest = int(counts.max())
    # A row for each sequence, with its last token at the right end, so that all sequences go backwards together.
    here = np.arange(longest) >= longest - counts[:, None]  # (B, longest)
    told = np.zeros(here.shape)
    told[here] = values
    found = np.zeros(here.shape)
    after = np.zeros(len(counts))
    value_after = np.zeros(len(counts))
    for column in reversed(range(longest)):
        reward = batch.rewards if column == longest - 1 else 0.0
        delta = reward + gamma * value_after - told[:, column]
        after = np.where(here[:, column], delta + gamma * lam * after, 0.0)
        found[:, column] = after
        value_after = told[:, column]
    plain, heard = found[here], _repeated(batch, batch.trained)
    white, returns = np.zeros_like(plain), np.where(heard, plain + values, 0.0)
    if heard.any():
        known = plain[heard]
        white[heard] = (known - known.mean()) / np.sqrt(known.var() + WHITENING_FLOOR)
    return white.astype(np.float32), returns.astype(np.float32)


def explained_variance(values: Floats, returns: Floats) -> float:
    """Return the fraction of the returns' variance that the critic predicted: 1 all, 0 none, below 0 worse than a
    constant. 0 if the returns do not vary.
    """
    total = float(returns.var()) if len(returns) else 0.0
    return 1 - float((returns - values).var()) / total if total > 0 else 0.0


def preference(batch: Rollouts, log_ratio: Floats, beta: float) -> tuple[Floats, dict[str, float]]:
    """Return advantages [B] of DPO's pairs, and its metrics, from log pi / pi_ref of each target, [T].

    The gradient of DPO's loss (arXiv 2305.18290, section 4) is that of -A log pi with

        A = +- beta sigma(-m),    m = beta (log pi(y_w) / pi_ref(y_w) - log pi(y_l) / pi_ref(y_l))

    + for the better completion of a pair and - for the worse, summed over tokens and averaged over pairs. A pair whose
    rewards are equal teaches nothing. Raises BadBatch when a group is no pair.
    """
    if (batch.groups != 2).any():
        size = int(batch.groups[batch.groups != 2][0])
        raise BadBatch(f"group_sizes holds {size}, but preferences are learnt from pairs: two completions a group")
    counts = batch.sequences.target_counts
    sums = np.add.reduceat(log_ratio.astype(np.float64), np.cumsum(counts) - counts)  # [B]
    sign = np.sign(batch.rewards[0::2] - batch.rewards[1::2])  # [pairs]
    margin = beta * sign * (sums[0::2] - sums[1::2])
    weight = beta * np.exp(-np.logaddexp(0.0, margin)) * sign
    found = np.stack([weight, -weight], axis=1).ravel().astype(np.float32)
    decided = sign != 0
    told = {
        "preference_loss": float(np.logaddexp(0.0, -margin[decided]).mean()) if decided.any() else 0.0,
        "preference_accuracy": float((margin[decided] > 0).mean()) if decided.any() else 0.0,
        "preference_margin": float(margin[decided].mean()) if decided.any() else 0.0,
    }
    return found, told
