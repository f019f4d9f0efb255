"""Read and hold sequences of different lengths laid end to end, as the node sends them and as a step prepares them.

No torch.

Invariants:

- Arrays that do not describe sequences raise BadBatch with their name, before anything is computed from them.
- A sequence's first token is never a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.training.batches.routes import Routes
from protocol.experts import Routing

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Arrays = Mapping[str, NDArray[Any]]


class BadBatch(ValueError):
    """The arrays of a request do not describe sequences; the message names the array."""

    kind = "bad_request"


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """B sequences laid end to end: `tokens` [M], `lengths` [B], `targets` [M] True where a token is predicted and
    scored.

    A sequence's first token is never a target. There are T targets, numbered in order of appearance. `routes`: the
    experts that engines chose for them, if they are to be replayed.
    """

    tokens: Ints
    lengths: Ints
    targets: Flags
    routes: Routes | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def target_counts(self) -> Ints:
        """Number of targets of each sequence, [B]."""
        return np.add.reduceat(self.targets, starts_of(self.lengths), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """One training batch as it came: B sequences in groups. Its T targets are the tokens that a policy generated.

    - For each target: `behaviour` [T], its log probability under the policy that made it; `lags` [T] int64, how many
      training steps that policy was behind this step's weights.
    - For each sequence: its `rewards` [B]; its `origins` [B] uint8 (`SWARM` or `OFFLINE`); whether its tokens are
      `trained` on, [B]. The reward of a sequence that is not trained on still counts in its group.
    - `groups` [G] are the numbers of sequences of its groups, in order.
    - If tasks give several rewards, `parts` [B, K] has each of them, NaN where a sequence has none, and `part_weights`
      [B, K] their weights.
    - `teacher` [T] is each target's log probability under a teacher, if there is one.
    """

    sequences: Ragged
    behaviour: Floats
    lags: Ints
    rewards: Floats
    origins: NDArray[np.uint8]
    trained: Flags
    groups: Ints
    parts: Floats | None = None
    part_weights: Floats | None = None
    teacher: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch, or a part of one, that is ready for updates. It has its sequences, which of them are `trained` on [B],
    its groups, and `columns`: numbers for each of its T targets, by their names in `objective.Terms`. One of them is
    `advantages` float32, 0 where a sequence is not trained on.
    """

    sequences: Ragged
    trained: Flags
    groups: Ints
    columns: Mapping[str, NDArray[Any]]

    @property
    def trained_tokens(self) -> int:
        """Number of targets of the sequences that are trained on."""
        return int(self.sequences.target_counts[self.trained].sum())

    @property
    def teaches(self) -> Flags:
        """Which sequences have an advantage anywhere, [B]."""
        found: Flags = np.logical_or.reduceat(self.columns["advantages"] != 0, starts_of(self.sequences.target_counts))
        return found


SWARM, OFFLINE = 0, 1
"""Origin of a sequence: a rollout of the swarm, or a log, for whose policy nobody vouches."""


def supervised_batch(
    arrays: Arrays, vocab_size: int, positions: int | None = None, routing: Routing | None = None
) -> Ragged:
    """Read `tokens` int32 [M], `lengths` int32 [B], `mask` uint8 [M] (1: the token is learnt). Raises BadBatch, also
    for a sequence of more than `positions` tokens.

    A model of `routing` that replays allows two more arrays: `experts` uint8 or uint16 [C, layers, top_k] of the C
    tokens that are learnt, and `routed` uint8 [C] (0: the token has no experts, whatever `experts` holds).
    """
    tokens, lengths = _sequences(arrays, vocab_size, positions)
    mask = _array(arrays, "mask", "uint8")
    if mask.shape != tokens.shape or mask.max() > 1:
        raise BadBatch(f"mask must hold a 0 or 1 for each of the {len(tokens)} tokens")
    targets = mask.astype(np.bool_)
    if targets[starts_of(lengths)].any():
        raise BadBatch("mask marks the first token of a sequence, which nothing predicts")
    if not targets.any():
        raise BadBatch("mask marks no token at all, so there is nothing to learn")
    routes = _routes(arrays, int(targets.sum()), routing)
    return Ragged(tokens=tokens, lengths=lengths, targets=targets, routes=routes)


def _routes(arrays: Arrays, tokens: int, routing: Routing | None) -> Routes | None:
    """Return the experts to be replayed; None if there are none. Raises BadBatch."""
    if "experts" not in arrays:
        return None
    if routing is None:
        raise BadBatch("array 'experts' was sent, but nothing is replayed: load the model with router_replay")
    routed = _numbers(arrays, "routed", "uint8", tokens, "generated tokens").astype(np.bool_)
    experts = arrays["experts"]
    shape = (tokens, routing.layers, routing.top_k)
    if experts.dtype not in (np.uint8, np.uint16) or experts.shape != shape:
        raise BadBatch(f"experts must be uint8 or uint16 {shape}; it is {experts.dtype.name} {experts.shape}")
    if int(experts.max(initial=0)) >= routing.experts:
        raise BadBatch(f"experts names an expert that does not exist: each layer of the model has {routing.experts}")
    return Routes(experts=experts, routed=routed)


def rollout_batch(
    arrays: Arrays, vocab_size: int, positions: int | None = None, routing: Routing | None = None
) -> Rollouts:
    """Read one training batch of B sequences in G groups; a policy generated C of its M tokens. Raises BadBatch, also
    for a sequence of more than `positions` tokens.

    Arrays:

    - `tokens` int32 [M], `lengths` int32 [B]
    - `mask` uint8 [M]: 1 for a generated token, which is trained on. Each sequence begins with at least one 0 and holds
      at least one 1.
    - `behaviour_logprobs` float32 [C], `lags` int32 [C]
    - `rewards` float32 [B], `group_sizes` int32 [G]
    - `origins` uint8 [B]: 0 for a rollout of the swarm, 1 for one from a log
    - `trained` uint8 [B], optional: 0 if no token of the sequence is trained on, though its reward counts; default 1
    - `parts` and `part_weights` float32 [B, K], optional: rewards with names, NaN where a sequence has none
    - `experts` and `routed`, optional, as for `supervised_batch`
    - `teacher_logprobs` float32 [C], optional: a teacher's, at the temperature of the sampling
    """
    sequences = supervised_batch(arrays, vocab_size, positions, routing)
    if not sequences.target_counts.all():
        raise BadBatch("mask marks no token of some sequence, so its reward belongs to nothing")
    count, tokens = len(sequences), int(sequences.targets.sum())
    behaviour = _numbers(arrays, "behaviour_logprobs", "float32", tokens, "generated tokens")
    lags = _numbers(arrays, "lags", "int32", tokens, "generated tokens").astype(np.int64)
    rewards = _numbers(arrays, "rewards", "float32", count, "sequences")
    origins = _numbers(arrays, "origins", "uint8", count, "sequences")
    trained = (
        _numbers(arrays, "trained", "uint8", count, "sequences") if "trained" in arrays else np.ones(count, np.uint8)
    )
    groups = _array(arrays, "group_sizes", "int32").astype(np.int64)
    if groups.min() < 1 or int(groups.sum()) != count:
        raise BadBatch(f"group_sizes must each be at least 1 and sum to the {count} sequences")
    if behaviour.max() > LOGPROB_SLACK:
        raise BadBatch("behaviour_logprobs holds a value above 0, which is no log probability")
    if lags.min() < 0:
        raise BadBatch("lags holds a negative value: a token cannot come from weights that did not exist yet")
    if origins.max() > OFFLINE:
        raise BadBatch(f"origins must hold {SWARM} (a rollout of the swarm) or {OFFLINE} (from a log)")
    if trained.max() > 1:
        raise BadBatch("trained must hold a 0 or 1 for each sequence")
    teacher = None
    if "teacher_logprobs" in arrays:
        teacher = _numbers(arrays, "teacher_logprobs", "float32", tokens, "generated tokens")
        if teacher.max() > LOGPROB_SLACK:
            raise BadBatch("teacher_logprobs holds a value above 0, which is no log probability")
    parts, part_weights = _parts(arrays, count)
    return Rollouts(
        sequences=sequences,
        behaviour=behaviour,
        lags=lags,
        rewards=rewards,
        origins=origins,
        trained=trained.astype(np.bool_),
        groups=groups,
        parts=parts,
        part_weights=part_weights,
        teacher=teacher,
    )


def _parts(arrays: Arrays, count: int) -> tuple[Floats | None, Floats | None]:
    """Return the named rewards and their weights, if there are any. Raises BadBatch."""
    if "parts" not in arrays:
        return None, None
    for name in ("parts", "part_weights"):
        array = arrays.get(name)
        if array is None or array.dtype != np.float32 or array.ndim != 2 or array.shape[0] != count or not array.size:
            found = "missing" if array is None else f"{array.dtype.name} {array.shape}"
            raise BadBatch(f"array {name!r} must be float32 with a row for each of {count} sequences; it is {found}")
    parts, weights = arrays["parts"], arrays["part_weights"]
    if parts.shape != weights.shape or np.isinf(parts).any() or not np.isfinite(weights).all():
        raise BadBatch("parts and part_weights must have the same shape and hold no infinite value")
    return parts, weights


def _numbers(arrays: Arrays, name: str, dtype: str, count: int, of_what: str) -> NDArray[Any]:
    """Return the array `name` of one finite value for each of `count` things. Raises BadBatch."""
    values = _array(arrays, name, dtype)
    if len(values) != count:
        raise BadBatch(f"{name} has {len(values)} values for {count} {of_what}")
    if not np.isfinite(values).all():
        raise BadBatch(f"{name} holds a value that is not finite")
    return values


LOGPROB_SLACK = 1e-3
"""The log probability of a certain token may round to just above zero; a larger value is no log probability."""


def _array(arrays: Arrays, name: str, dtype: str) -> NDArray[Any]:
    if name not in arrays:
        raise BadBatch(f"array {name!r} is missing")
    array = arrays[name]
    if array.dtype.name != dtype or array.ndim != 1 or array.size == 0:
        raise BadBatch(
            f"array {name!r} must be {dtype}, one-dimensional and not empty; it is {array.dtype.name} {array.shape}"
        )
    return array


def _sequences(arrays: Arrays, vocab_size: int, positions: int | None) -> tuple[Ints, Ints]:
    tokens = _array(arrays, "tokens", "int32").astype(np.int64)
    lengths = _array(arrays, "lengths", "int32").astype(np.int64)
    if lengths.min() < SHORTEST or int(lengths.sum()) != len(tokens):
        raise BadBatch(f"lengths must each be at least {SHORTEST} and sum to the {len(tokens)} values of tokens")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise BadBatch(f"tokens holds an id outside the model's vocabulary of {vocab_size}")
    if positions is not None and lengths.max() > positions:
        raise BadBatch(f"a sequence has {lengths.max()} tokens, but the model takes at most {positions}")
    return tokens, lengths


SHORTEST = 2
"""Fewest tokens of a sequence: one token, and one that it predicts."""


def starts_of(lengths: Ints) -> Ints:
    """Return the exclusive prefix sum, [B]."""
    return np.cumsum(lengths) - lengths
