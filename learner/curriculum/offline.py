"""Logged groups of completions as a stream beside the swarm's rollouts: off-policy, tagged, never leased.

A pure core. What always holds: each pass gives every group once, in an order of its own; the same stream with the same
`state()` goes on with the very same groups; a sequence from a log carries origin 1 and lag 0 to the trainer. Behaviour
logprobs that a log does not tell are those of the policy that trains (`missing`, `completed`), so its ratio is 1 there
and no correction speaks of what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learner.curriculum.passes import PassCursor
from protocol.pipe import Arrays

OFFLINE = 1
"""In the array `origins`, see `learner.packing`."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One completion: its token ids, at least one, what it was worth, and its logprobs if the log tells them. A log of
    many comes in arrays of 4 bytes a token."""

    tokens: Sequence[int]
    reward: float
    logprobs: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedGroup:
    """The completions of one prompt."""

    prompt: Sequence[int]
    completions: tuple[Logged, ...]


@dataclass(kw_only=True)
class OfflineStream:
    """See the module's paragraph. `rollouts` is how many sequences a batch takes of it at least: whole groups.

    `fingerprint` changes whenever its groups do; `seed` orders the passes.
    """

    groups: Sequence[LoggedGroup]
    rollouts: int
    fingerprint: str
    seed: str
    _cursor: PassCursor = field(init=False)

    def __post_init__(self) -> None:
        self.rewind()

    def draw(self) -> list[LoggedGroup]:
        """The groups of the next batch."""
        drawn: list[LoggedGroup] = []
        while sum(len(group.completions) for group in drawn) < self.rollouts:
            drawn.append(self.groups[self._cursor.next_index() % len(self.groups)])
        return drawn

    def rewind(self) -> None:
        """Go back to the beginning."""
        self._cursor = PassCursor(size=len(self.groups), seed=self.seed)

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {"fingerprint": self.fingerprint, "cursor": self._cursor.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state; one of other logs, or none, is the beginning of these."""
        self.rewind()
        if state is not None and state["fingerprint"] == self.fingerprint:
            self._cursor.restore(state["cursor"])


def offline_arrays(groups: Sequence[LoggedGroup]) -> Arrays:
    """The trainer's arrays for these groups, as `learner.packing.rollout_batch` reads them, but for behaviour logprobs
    that are not known, which are NaN."""
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


def _flat(rows: Sequence[Sequence[float]], dtype: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(row, dtype) for row in rows])
