"""Which groups of a batch are kept to be looked at, and what of them.

Pure. What always holds: of each step the same few groups are chosen, from the worst mean reward to the best, evenly in
between, and groups whose rewards are all equal only where there are no others; what is kept is what the trainer got
(prompt, tokens, who generated which, reward, advantage), so that looking needs neither the records, whose contents the
ledger forgets, nor the task; a group takes at most MAX_TOKENS.
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
"""Of one group: completions beyond are left out of what is kept. Some 3 MiB, before they are compressed."""

MAX_BYTES = 64 << 20
"""Of one group when it is read: far above what MAX_TOKENS can take."""

LEVEL = 3


class KeptCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """One completion. `tokens` is all that follows the prompt; `generated` the ranges [start, end) of it that the
    policy made, empty for all; `spans` how many of these each version made, in order. `advantage` is None where the
    objective has none of its own for a completion. `rewards` are those with names that `reward` is made of: value,
    None where nobody could say it, and weight.
    """

    tokens: tuple[int, ...]
    reward: float
    advantage: float | None
    spans: tuple[tuple[int, PolicyVersion], ...]
    generated: tuple[tuple[int, int], ...] = ()
    rewards: dict[str, tuple[float | None, float]] = {}

    @property
    def parts(self) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """(whether the policy made them, tokens), in order."""
        at = 0
        for start, end in self.generated or ((0, len(self.tokens)),):
            if start > at:
                yield False, self.tokens[at:start]
            yield True, self.tokens[start:end]
            at = end
        if at < len(self.tokens):
            yield False, self.tokens[at:]


class KeptGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a training step. `lag` is the one that was judged when the batch formed."""

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
        """Mean over what is kept."""
        return sum(completion.reward for completion in self.completions) / max(1, len(self.completions))


def kept_of(
    batch: Batch, count: int, advantage: str, task_of: Callable[[int], str], overlong: Overlong
) -> list[KeptGroup]:
    """At most `count` groups of `batch`; `advantage` names that of the run's objective, and `overlong` says what was
    made of completions that were cut off."""
    completions = [completion for group in batch.groups for completion in group.completions]
    if not completions:  # a step on logs alone
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
    """Places, by mean reward, of the worst, the best, and those evenly between them; of groups that teach something,
    as far as there are enough."""
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
    """A group as it is stored."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(msgspec.msgpack.encode(group))


def unpack(raw: bytes) -> KeptGroup:
    """The group that `pack` made `raw` of. ValueError when it did not."""
    try:
        return msgspec.msgpack.decode(
            zstandard.ZstdDecompressor().decompress(raw, max_output_size=MAX_BYTES), type=ready(KeptGroup)
        )
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise ValueError(f"not a kept group: {error}") from None
