"""Write a batch as arrays for `learner.training.batches.sequences.rollout_batch`: from the swarm, from logs, or both.

No torch: the node makes them. Where a log has no behaviour log probabilities, those of the policy in training are used
(`missing`, `completed`). The ratio is then 1, and no correction acts on unknown values.

Invariants:

- The order of groups, and of sequences in a group, is kept.
- A sequence from a log has origin 1 and lag 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from learner.curriculum.offline_stream import LoggedGroup
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.overlong import Overlong
from learner.rollouts.reward_parts import Parts, names_of
from learner.rollouts.router_replay import expert_arrays, with_the_same_experts
from protocol.core.ids import PolicyVersion
from protocol.core.pipe import Arrays
from protocol.experts import Routing

OFFLINE = 1
"""Value in the array `origins` for a sequence from a log (`learner.training.batches.packing`)."""


def batch_arrays(batch: Batch, head: PolicyVersion, overlong: Overlong, routing: Routing | None = None) -> Arrays:
    """Return the arrays of the training step after `head`, for `learner.training.batches.sequences.rollout_batch`.

    Args:
        batch: groups of the swarm.
        head: version of the weights that the step begins with.
        overlong: how to treat completions that were cut off.
        routing: the policy's routing, if experts are replayed.
    """
    sequences = [(group, completion) for group in batch.groups for completion in group.completions]
    named = [parts for group in batch.groups for parts in group_parts(group, overlong)]
    rewards = [overlong.reward(completion) for _, completion in sequences]
    return {
        "tokens": _flat([(*group.prompt, *completion.tokens) for group, completion in sequences], np.int32),
        "lengths": np.array([len(group.prompt) + len(one.tokens) for group, one in sequences], np.int32),
        "mask": np.concatenate([_mask(group, completion) for group, completion in sequences]),
        "behaviour_logprobs": _flat([completion.logprobs for _, completion in sequences], np.float32),
        "lags": np.concatenate([_lags(completion, head) for _, completion in sequences]),
        "rewards": np.array(rewards, np.float32),
        "group_sizes": np.array([len(group.completions) for group in batch.groups], np.int32),
        "origins": np.zeros(len(sequences), np.uint8),
        "trained": np.array([overlong.is_trained(completion) for _, completion in sequences], np.uint8),
        **part_arrays(rewards, named),
        **expert_arrays(batch, routing),
        **_teacher_arrays([completion for _, completion in sequences]),
    }


def _teacher_arrays(completions: Sequence[Completion]) -> Arrays:
    """Return the array `teacher_logprobs` if a teacher has scored all completions, else no array."""
    if not all(one.teacher for one in completions):
        return {}
    return {"teacher_logprobs": _flat([one.teacher for one in completions], np.float32)}


def group_parts(group: Group, overlong: Overlong) -> list[Parts]:
    """Return the named rewards of each completion of a group, as they will be compared. A completion that could not be
    judged and counts as its `reward` has no named rewards. If others in the group have some, it gets that value for
    each of them; otherwise `gdpo` would not see that it is worse.
    """
    names = next((one.parts for one in group.completions if one.parts), ())
    found = []
    for one in group.completions:
        several = one.parts or tuple(replace(part, value=one.reward) for part in names)
        found.append(overlong.parts(replace(one, parts=several)))
    return found


def part_arrays(rewards: Sequence[float], parts: Sequence[Parts]) -> Arrays:
    """Return the arrays `parts` and `part_weights`, [B, K], with a column for each named reward. NaN: the sequence does
    not have this reward, or it is unknown. Column 0 has the reward of sequences whose task gives one reward. If all
    sequences are such, return no arrays.
    """
    if not (names := names_of(parts)):
        return {}
    column = {name: place for place, name in enumerate(names, start=1)}
    values = np.full((len(parts), len(names) + 1), np.nan, np.float32)
    weights = np.zeros_like(values)
    for row, (reward, several) in enumerate(zip(rewards, parts, strict=True)):
        if not several:
            values[row, 0], weights[row, 0] = reward, 1.0
        for part in several:
            values[row, column[part.name]], weights[row, column[part.name]] = part.value, part.weight
    return {"parts": values, "part_weights": weights}


def offline_arrays(groups: Sequence[LoggedGroup]) -> Arrays:
    """Return the arrays of these logged groups, for `learner.training.batches.sequences.rollout_batch`. Unknown
    behaviour log probabilities are NaN.
    """
    sequences = [(group.prompt, one) for group in groups for one in group.completions]
    unknown = float("nan")
    return {
        "tokens": _flat([part for prompt, one in sequences for part in (prompt, one.tokens)], np.int32),
        "lengths": np.array([len(prompt) + len(one.tokens) for prompt, one in sequences], np.int32),
        "mask": _flat([[0] * len(prompt) + [1] * len(one.tokens) for prompt, one in sequences], np.uint8),
        "behaviour_logprobs": _flat([one.logprobs or [unknown] * len(one.tokens) for _, one in sequences], np.float32),
        "lags": np.zeros(sum(len(one.tokens) for _, one in sequences), np.int32),
        "rewards": np.array([one.reward for _, one in sequences], np.float32),
        "group_sizes": np.array([len(group.completions) for group in groups], np.int32),
        "origins": np.full(len(sequences), OFFLINE, np.uint8),
        "trained": np.ones(len(sequences), np.uint8),
    }


def missing(arrays: Arrays) -> Arrays | None:
    """Return the arrays of a `logprobs` request to the trainer; None if all behaviour log probabilities are known."""
    if not np.isnan(arrays["behaviour_logprobs"]).any():
        return None
    return {name: arrays[name] for name in ("tokens", "lengths", "mask")}


def completed(arrays: Arrays, logprobs: np.ndarray[Any, Any]) -> Arrays:
    """Return `arrays` with `logprobs`, float32 [C], in place of unknown behaviour log probabilities."""
    known = arrays["behaviour_logprobs"]
    return {**arrays, "behaviour_logprobs": np.where(np.isnan(known), logprobs, known).astype(np.float32)}


OF_TOKENS = ("tokens", "mask")
OF_TARGETS = ("behaviour_logprobs", "lags", "experts", "routed", "teacher_logprobs")
"""Arrays with a value for each token, and those with a value for each token that a policy generated. `group_sizes` has
a value for each group, all other arrays for each sequence."""


def mixed(*parts: Arrays) -> Arrays:
    """Return one batch made of several. Each keeps the order of its groups, and they are spread evenly over the whole.
    So if the batch is cut for several updates, every part has some of each.
    """
    if len(parts) == 1:
        return parts[0]
    parts = tuple(with_the_same_experts(_with_the_same_parts(parts)))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    places = [(np.arange(len(part["group_sizes"])) + 0.5) / len(part["group_sizes"]) for part in parts]
    order = np.argsort(np.concatenate(places), kind="stable")
    sequences = np.cumsum(whole["group_sizes"])[:-1]
    ends = np.cumsum(whole["lengths"])
    tokens = ends[sequences - 1]
    targets = np.concatenate([[0], np.cumsum(whole["mask"], dtype=np.int64)])[tokens]
    cuts = {**dict.fromkeys(OF_TOKENS, tokens), **dict.fromkeys(OF_TARGETS, targets)}
    found = {
        name: np.concatenate([np.split(array, cuts.get(name, sequences))[place] for place in order])
        for name, array in whole.items()
        if name != "group_sizes"
    }
    return {**found, "group_sizes": whole["group_sizes"][order]}


def _with_the_same_parts(batches: Sequence[Arrays]) -> tuple[Arrays, ...]:
    """Return the batches with equally many columns of named rewards, if any has some; logs fill only column 0."""
    width = max((batch["parts"].shape[1] for batch in batches if "parts" in batch), default=0)
    return tuple({**batch, **_widened(batch, width)} for batch in batches) if width else tuple(batches)


def _widened(batch: Arrays, width: int) -> Arrays:
    values = batch.get("parts", batch["rewards"][:, None])
    weights = batch.get("part_weights", np.ones_like(values))
    beyond = ((0, 0), (0, width - values.shape[1]))
    return {"parts": np.pad(values, beyond, constant_values=np.nan), "part_weights": np.pad(weights, beyond)}


def of_swarm(values: np.ndarray[Any, Any] | None, batch: Arrays) -> list[float] | None:
    """Return the `values` of the sequences that the swarm made, in their order before `mixed`. `values` has one number
    for each sequence of the `batch` sent. None if the trainer did not reply with such an array."""
    if values is None or values.shape != batch["origins"].shape:
        return None
    return [float(value) for value in values[batch["origins"] != OFFLINE]]


def _flat(rows: Sequence[Sequence[float]], dtype: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(row, dtype) for row in rows])


def _mask(group: Group, completion: Completion) -> np.ndarray[Any, Any]:
    """Return 1 for each token that the policy generated, else 0, over the prompt and all that follows."""
    prompt, end = len(group.prompt), len(completion.tokens)
    mask = np.zeros(prompt + end, np.uint8)
    for start, stop in completion.generated or ((0, end),):
        mask[prompt + start : prompt + stop] = 1
    return mask


def _lags(completion: Completion, head: PolicyVersion) -> np.ndarray[Any, Any]:
    """Return, for each generated token, the training steps between the version that made it and `head`."""
    counts = [count for count, _ in completion.spans]
    return np.repeat(np.array([head.version - made.version for _, made in completion.spans], np.int32), counts)
