"""Put samples into words with all that is known about them, and choose those that `volery samples` shows. Pure.

Invariants:

- Completions are ranked by the highest reward, then by the highest advantage, then by their order.
- A completion keeps its number in its group when others are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from node.learner_role.metrics.sample_selection import KeptCompletion, KeptGroup
from protocol.core.ids import PolicyVersion

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a completion: what the policy generated, or what its environment said."""

    is_policys: bool
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class ShownCompletion:
    """One completion. `number`: its place in the group, from 1. `verdict`: the learner's verdict on its record."""

    number: int
    kept: KeptCompletion
    verdict: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class ShownGroup:
    """One group. `number`: its place among the kept groups by mean reward, from 1. `task`: what people call it."""

    number: int
    kept: KeptGroup
    task: str
    peer_name: str
    prompt: Part
    completions: tuple[ShownCompletion, ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Samples of one training step. `rollouts` and `reward` describe its whole batch, and are None if the ledger has no
    such step."""

    version: PolicyVersion
    at_ms: int
    rollouts: int | None
    reward: float | None
    kept: int
    groups: tuple[ShownGroup, ...]


def shown_group(
    group: KeptGroup, number: int, *, decode: Decode, task: str, peer_name: str, verdicts: Mapping[int, str]
) -> ShownGroup:
    """Return a kept group in words. `verdicts` are keyed by the index of a record in its lease."""
    return ShownGroup(
        number=number,
        kept=group,
        task=task,
        peer_name=peer_name,
        prompt=Part(is_policys=False, tokens=group.prompt, text=decode(group.prompt)),
        completions=tuple(
            _completion(completion, place + 1, decode, verdicts.get(place, "admitted"))
            for place, completion in enumerate(group.completions)
        ),
    )


def _completion(kept: KeptCompletion, number: int, decode: Decode, verdict: str) -> ShownCompletion:
    return ShownCompletion(
        number=number,
        kept=kept,
        verdict=verdict,
        parts=tuple(Part(is_policys=own, tokens=tokens, text=decode(tokens)) for own, tokens in kept.parts),
    )


def holding(shown: Shown, text: str) -> Shown:
    """Keep only completions in which `text` occurs, upper or lower case."""
    sought = text.lower()
    groups = [
        replace(one, completions=tuple(c for c in one.completions if any(sought in p.text.lower() for p in c.parts)))
        for one in shown.groups
    ]
    return replace(shown, groups=tuple(one for one in groups if one.completions))


def chosen(shown: Shown, *, group: int = 0, best: int = 0, worst: int = 0) -> Shown:
    """Keep the group with that number, and of its completions only the `best` best and `worst` worst; 0 keeps all."""
    groups = tuple(one for one in shown.groups if group in (0, one.number))
    if not best and not worst:
        return replace(shown, groups=groups)
    ranked = sorted(
        ((one, completion) for one in groups for completion in one.completions),
        key=lambda pair: (-pair[1].kept.reward, -(pair[1].kept.advantage or 0.0), pair[0].number, pair[1].number),
    )
    wanted = {(one.number, completion.number) for one, completion in [*ranked[:best], *ranked[len(ranked) - worst :]]}
    few = [
        replace(one, completions=tuple(c for c in one.completions if (one.number, c.number) in wanted))
        for one in groups
    ]
    return replace(shown, groups=tuple(one for one in few if one.completions))
