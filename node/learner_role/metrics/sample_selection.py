"""Choose the groups of a batch that are kept as samples, and what is kept of them.

Pure.

Invariants:

- The chosen groups depend only on the step: those with the worst and the best mean reward, and evenly spaced ones in
  between. Groups whose rewards are all equal are chosen only if there are no others.
- A sample has what the trainer got: prompt, tokens, versions that generated them, reward, advantage. So showing it
  needs neither the records, whose contents the ledger forgets, nor the task.
- A group takes at most MAX_TOKENS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
import zstandard

from learner.rollouts.batch_arrays import group_parts, part_arrays
from learner.rollouts.buffer import Batch, Completion, Group, is_informative
from learner.rollouts.overlong import Overlong
from learner.trainer_api.advantages import ADVANTAGES, compared
from protocol.core.codec import ready
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

MAX_TOKENS = 1 << 20
"""Most tokens of a group that are kept; further completions are left out. Some 3 MiB before compression."""

MAX_BYTES = 64 << 20
"""Most bytes of a group when it is read: far more than MAX_TOKENS can take."""

LEVEL = 3


class KeptCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """One completion.

    Args:
        tokens: all tokens after the prompt.
        reward: the total reward.
        advantage: None if the objective has none for a single completion.
        spans: how many of the generated tokens each version made, in order.
        generated: the ranges [start, end) of `tokens` that the policy made; empty for all.
        rewards: the named rewards that `reward` consists of: value, None if it is not known, and weight.
    """

    tokens: tuple[int, ...]
    reward: float
    advantage: float | None
    spans: tuple[tuple[int, PolicyVersion], ...]
    generated: tuple[tuple[int, int], ...] = ()
    rewards: dict[str, tuple[float | None, float]] = {}

    @property
    def parts(self) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Yield (whether the policy made them, tokens), in order."""
        at = 0
        for start, end in self.generated or ((0, len(self.tokens)),):
            if start > at:
                yield False, self.tokens[at:start]
            yield True, self.tokens[start:end]
            at = end
        if at < len(self.tokens):
            yield False, self.tokens[at:]


class KeptGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a training step. `lag` is its lag when the batch was formed."""

    lease: LeaseId
    peer: PeerId
    task: str
    prompt_index: int
    lag: int
    prompt: tuple[int, ...]
    completions: tuple[KeptCompletion, ...]
    left_out: int = 0

    @property
    def reward(self) -> float:
        """Return the mean reward of the kept completions."""
        return sum(completion.reward for completion in self.completions) / max(1, len(self.completions))


def kept_of(
    batch: Batch, count: int, advantage: str, task_of: Callable[[int], str], overlong: Overlong
) -> list[KeptGroup]:
    """Return at most `count` groups of `batch`.

    `advantage` names the objective's advantage. `overlong` says how completions that were cut off are trained on.
    """
    completions = [completion for group in batch.groups for completion in group.completions]
    if not completions:  # a step only on logs
        return []
    sizes = [len(group.completions) for group in batch.groups]
    values: list[float | None] = [None] * len(completions)
    if advantage in ADVANTAGES:
        rewards = [overlong.reward(one) for one in completions]
        named = part_arrays(rewards, [parts for group in batch.groups for parts in group_parts(group, overlong)])
        found = compared(rewards, sizes, advantage, named.get("parts"), named.get("part_weights")).tolist()
        values = [value if overlong.is_trained(one) else 0.0 for one, value in zip(completions, found, strict=True)]
    starts = [0, *accumulate(sizes)]
    return [
        _kept(group, values[starts[place] : starts[place + 1]], batch.lags[group.lease], task_of)
        for place in _chosen(batch.groups, count)
        for group in [batch.groups[place]]
    ]


def _chosen(groups: Sequence[Group], count: int) -> list[int]:
    """Return the places of the groups with the worst and the best mean reward, and of evenly spaced ones in between.

    Groups with different rewards come first, as far as there are enough.
    """
    means = [sum(one.reward for one in group.completions) / len(group.completions) for group in groups]
    order = sorted(range(len(groups)), key=lambda place: (means[place], place))
    telling = [place for place in order if is_informative(groups[place])]
    if count <= len(telling):
        return _evenly(telling, count)
    rest = set(order).difference(telling)
    others = _evenly([place for place in order if place in rest], count - len(telling))
    wanted = {*telling, *others}
    return [place for place in order if place in wanted]


def _evenly(places: Sequence[int], count: int) -> list[int]:
    if count >= len(places):
        return list(places)
    if count == 1:
        return [places[len(places) // 2]]
    return [places[round(number * (len(places) - 1) / (count - 1))] for number in range(count)]


def _kept(group: Group, values: Sequence[float | None], lag: int, task_of: Callable[[int], str]) -> KeptGroup:
    completions: list[KeptCompletion] = []
    room = MAX_TOKENS - len(group.prompt)
    for completion, value in zip(group.completions, values, strict=True):
        room -= len(completion.tokens)
        if room >= 0:
            completions.append(_completion(completion, value))
    return KeptGroup(
        lease=group.lease,
        peer=group.peer,
        task=task_of(group.prompt_index),
        prompt_index=group.prompt_index,
        lag=lag,
        prompt=group.prompt,
        completions=tuple(completions),
        left_out=len(group.completions) - len(completions),
    )


def _completion(completion: Completion, value: float | None) -> KeptCompletion:
    return KeptCompletion(
        tokens=completion.tokens,
        reward=completion.reward,
        advantage=value,
        spans=completion.spans,
        generated=completion.generated,
        rewards={part.name: (part.value if part.is_known else None, part.weight) for part in completion.parts},
    )


def pack(group: KeptGroup) -> bytes:
    """Return a group as bytes for the store."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(msgspec.msgpack.encode(group))


def unpack(raw: bytes) -> KeptGroup:
    """Return the group of which `pack` made `raw`. Raises ValueError for other bytes."""
    try:
        return msgspec.msgpack.decode(
            zstandard.ZstdDecompressor().decompress(raw, max_output_size=MAX_BYTES), type=ready(KeptGroup)
        )
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise ValueError(f"not a kept group: {error}") from None
