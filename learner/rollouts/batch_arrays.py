"""A batch as arrays, as `learner.training.batches.sequences.rollout_batch` reads them: what the swarm made, what is
logged, or both.

What always holds: the order of groups, and of sequences in a group, is kept; a sequence from a log carries origin 1 and
lag 0. Behaviour logprobs that a log does not tell are those of the policy that trains (`missing`, `completed`), so its
ratio is 1 there and no correction speaks of what is not known. No torch: the node makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.curriculum.offline_stream import LoggedGroup
from learner.rollouts.buffer import Batch, Completion, Group
from protocol.core.ids import PolicyVersion
from protocol.core.pipe import Arrays

OFFLINE = 1
"""In the array `origins`, see `learner.training.batches.packing`."""


def batch_arrays(batch: Batch, head: PolicyVersion) -> Arrays:
    """The trainer's arrays for the step after `head`, as `learner.training.batches.sequences.rollout_batch` reads
    them.
    """
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


def offline_arrays(groups: Sequence[LoggedGroup]) -> Arrays:
    """The trainer's arrays for these groups, as `learner.training.batches.sequences.rollout_batch` reads them, but for
    behaviour logprobs that are not known, which are NaN.
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
    }


def missing(arrays: Arrays) -> Arrays | None:
    """What the trainer's `logprobs` is to be asked about; None when every behaviour logprob is known."""
    if not np.isnan(arrays["behaviour_logprobs"]).any():
        return None
    return {name: arrays[name] for name in ("tokens", "lengths", "mask")}


def completed(arrays: Arrays, logprobs: np.ndarray[Any, Any]) -> Arrays:
    """The same with `logprobs` float32 [C] where behaviour logprobs are not known."""
    known = arrays["behaviour_logprobs"]
    return {**arrays, "behaviour_logprobs": np.where(np.isnan(known), logprobs, known).astype(np.float32)}


OF_TOKENS, OF_TARGETS = ("tokens", "mask"), ("behaviour_logprobs", "lags")
"""Arrays with a value for each token, and for each token that a policy generated; `group_sizes` has one for each group,
the others for each sequence."""


def mixed(*parts: Arrays) -> Arrays:
    """One batch of several: each keeps the order of its groups, and they are spread evenly over the whole, so that a
    batch that is cut for several updates has some of each in every part.
    """
    if len(parts) == 1:
        return parts[0]
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


def of_swarm(values: np.ndarray[Any, Any] | None, batch: Arrays) -> list[float] | None:
    """Of `values`, one for each sequence of the batch that was sent, those that the swarm made, in the order in which
    they were before they were `mixed`; None if the trainer did not reply such an array."""
    if values is None or values.shape != batch["origins"].shape:
        return None
    return [float(value) for value in values[batch["origins"] != OFFLINE]]


def _flat(rows: Sequence[Sequence[float]], dtype: Any) -> np.ndarray[Any, Any]:
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
