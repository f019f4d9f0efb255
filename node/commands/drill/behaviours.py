"""Answer leases as an honest peer does, and as each attack does.

A behaviour knows everything that a cheat could find out, and more: the reward of each completion, the right answers,
and what other peers have sent.

Invariants:

- A behaviour does what it says, and nothing else wrong.
- The records that it returns are sent as they are. They are signed unless the attack is a wrong signature.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from node.commands.drill.attacks import EARLY_GROUPS, SLEEPS, Attack
from node.commands.drill.shared_engine import SharedEngine, Weights
from node.commands.drill.tampered_weights import Variant
from node.engine.interface import Claim, FinishReason, GeneratedSpan, Generation, GenerationRequest
from node.engine.lease_requests import record_of, requests_of
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, PolicyVersion, SwarmId
from protocol.work import Lease

OVERHEARD = 64
"""Groups of other peers that are remembered for cheats that copy."""

LOOKED_AT = 2048
"""Newest honest completions that are searched for the text that a cheat wrote into the policy."""

GOOD = 0.5
"""Mean reward from which a cherry-picker sends a group."""

SURE = -0.02
"""Log probability that is claimed for an invented token: that of a policy which knows its task."""


COOLER = 0.7
"""Factor by which a cheat lowers the temperature, to get higher rewards."""


@dataclass(kw_only=True)
class Common:
    """What all behaviours share.

    Args:
        reward: returns the reward of tokens as the answer to a lease.
        answer: returns the right answer to a lease without a stop id, if there is one. Both ask the learner itself.
        poison: tokens of the text that a cheat writes into the policy.
    """

    foundry: SharedEngine
    swarm: SwarmId
    reward: Callable[[LeaseId, Sequence[int]], float]
    answer: Callable[[LeaseId], tuple[int, ...]]
    poison: tuple[int, ...]
    vocabulary: int
    overheard: deque[tuple[Generation, ...]] = field(default_factory=lambda: deque(maxlen=OVERHEARD))
    emitted: deque[bool] = field(default_factory=lambda: deque(maxlen=LOOKED_AT))
    """For each honest completion, whether the poison is in it."""

    @property
    def poisoned(self) -> float:
        """Return the fraction of the newest honest completions that contain the poison."""
        return sum(self.emitted) / len(self.emitted) if self.emitted else 0.0

    def saw(self, group: Sequence[Generation]) -> None:
        """Note that an honest group was made."""
        self.overheard.append(tuple(group))
        if self.poison:
            self.emitted.extend(_holds(one.tokens, self.poison) for one in group)


def _holds(tokens: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(tokens[place : place + len(part)]) == tuple(part) for place in range(len(tokens)))


@dataclass(kw_only=True)
class Behaviour:
    """Answers honestly. The attacks are derived from it."""

    common: Common
    keypair: Keypair
    rng: random.Random
    rollouts: int = 0
    groups: int = 0
    honest: int = 0
    """Records that were delivered before it cheated."""
    has_cheated: bool = False

    def report_version(self, version: PolicyVersion | None) -> PolicyVersion | None:
        """Return the version that it reports to have, while it has `version`."""
        return version

    def announce_version(self, lease: Lease, version: PolicyVersion) -> PolicyVersion:
        """Return the version that it says it begins with, while it begins with `version`."""
        return version

    async def answer(self, lease: Lease, version: PolicyVersion) -> list[bytes] | None:
        """Return the records for a lease that was begun with `version`; None to return the lease."""
        made = await self.make(lease, version)
        self.count(lease)
        return None if made is None else self.sign(lease, made)

    def count(self, lease: Lease) -> None:
        """Count a lease that was answered or returned."""
        self.rollouts += len(lease.seeds)
        self.groups += 1

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        """Return the completions, with the versions that they will claim."""
        made = await self.draw(requests_of(lease), Weights(version=version))
        self.common.saw(made)
        return made

    async def draw(
        self, requests: Sequence[GenerationRequest], weights: Weights, *, claimed: PolicyVersion | None = None
    ) -> list[Generation]:
        """Return completions of these weights, which claim `claimed`, or the version of the weights if it is None."""
        made = await self.common.foundry.generate(requests, weights)
        return [self.claim(one, claimed or weights.version) for one in made]

    def claim(self, made: Generation, version: PolicyVersion) -> Generation:
        """Return the completion with the claim that `version` generated it."""
        whole = GeneratedSpan(start=0, end=len(made.tokens), version=self.common.foundry.name_version(version))
        return replace(made, spans=(whole,))

    def invent(
        self, lease: Lease, version: PolicyVersion, tokens: Sequence[int], logprobs: Sequence[float] | None = None
    ) -> Generation:
        """Return a completion that no engine generated, within the limits of the lease."""
        kept = tuple(tokens)[: lease.max_new_tokens]
        made = Generation(
            tokens=kept,
            logprobs=tuple(logprobs or [SURE] * len(kept))[: len(kept)],
            finish=FinishReason.STOP,
            spans=(),
            generation_s=0.01,
        )
        return self.claim(made, version)

    def sign(self, lease: Lease, made: Sequence[Generation]) -> list[bytes]:
        """Return the signed records of the completions."""
        return self.sign_as(self.keypair, lease, made)

    def sign_as(self, keypair: Keypair, lease: Lease, made: Sequence[Generation], **claimed: float) -> list[bytes]:
        """Return their records, signed by that key, with the fields in `claimed` replaced."""
        records = (record_of(lease, index, one, lease.issued_ms) for index, one in enumerate(made))
        return [sign(keypair, self.common.swarm, msgspec.structs.replace(record, **claimed)) for record in records]


@dataclass(kw_only=True)
class WrongWeights(Behaviour):
    """Generates with other weights than it claims. `relabels`: sends the log probabilities of the claimed version.

    It cannot cheat as long as no older version exists than the one that it claims.
    """

    lag: int = 0
    base: bool = False
    variant: Variant = Variant.TRUE
    relabels: bool = False

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        foundry = self.common.foundry
        weights = Weights(
            version=foundry.first if self.base else foundry.behind(version, self.lag), variant=self.variant
        )
        self.has_cheated |= weights != Weights(version=version)
        requests = requests_of(lease)
        made = await self.draw(requests, weights, claimed=version)
        if not self.relabels:
            return made
        claims = [
            Claim(prompt=asked.prompt, tokens=one.tokens, seed=asked.seed, temperature=asked.temperature)
            for asked, one in zip(requests, made, strict=True)
        ]
        scored = await self.common.foundry.score(claims, Weights(version=version))
        return [replace(one, logprobs=found.logprobs) for one, found in zip(made, scored, strict=True)]


@dataclass(kw_only=True)
class Greedy(Behaviour):
    """Takes the likeliest token, after it was honest for `sleeps` rollouts and `sleeps_groups` groups."""

    sleeps: int = 0
    sleeps_groups: int = 0

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        if self.rollouts < self.sleeps or self.groups < self.sleeps_groups:
            return await super().make(lease, version)
        self.has_cheated = True
        return await self.draw([replace(one, greedy=True) for one in requests_of(lease)], Weights(version=version))


@dataclass(kw_only=True)
class Cold(Behaviour):
    """Samples at a lower temperature than the lease asks for, and sends the log probabilities of that."""

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        requests = [replace(one, temperature=COOLER * one.temperature) for one in requests_of(lease)]
        return await self.draw(requests, Weights(version=version))


@dataclass(kw_only=True)
class Recycler(Behaviour):
    """Signs the completions of its first lease again for every later one, and claims the newest version."""

    _first: list[Generation] = field(default_factory=list)

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        if len(self._first) < len(lease.seeds):
            self._first = await super().make(lease, version) or []
            return self._first
        self.has_cheated = True
        return [self.claim(one, version) for one in self._first[: len(lease.seeds)]]


@dataclass(kw_only=True)
class Written(Behaviour):
    """Writes completions itself: invented ones (`FABRICATED`), always the same (`CANNED`), too short (`TRUNCATED`), too
    long (`ENDLESS`), or with a text of its own (`POISONED`)."""

    attack: Attack
    _canned: Sequence[int] = ()

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        if self.attack in (Attack.TRUNCATED, Attack.ENDLESS):
            made = await self.draw(requests_of(lease), Weights(version=version))
            return [self._cut(lease, version, one) for one in made]
        return [self._invented(lease, version, index) for index in range(len(lease.seeds))]

    def _cut(self, lease: Lease, version: PolicyVersion, made: Generation) -> Generation:
        stop = lease.stop_ids[0]
        if self.attack is Attack.TRUNCATED:
            return self.invent(lease, version, (*made.tokens[:1], stop), (*made.logprobs[:1], SURE))
        body = [token for token in made.tokens if token not in lease.stop_ids] or [self._token(lease)]
        filled = (body * lease.max_new_tokens)[: lease.max_new_tokens]
        return self.invent(lease, version, filled, (list(made.logprobs) + [SURE] * len(filled))[: len(filled)])

    def _invented(self, lease: Lease, version: PolicyVersion, index: int) -> Generation:
        stop = lease.stop_ids[0]
        if self.attack is Attack.POISONED:
            # Half of them are right and have the text, the others are wrong. So the text gets the advantage.
            right = self.common.answer(LeaseId(lease.id))
            body = (*right, *self.common.poison) if index % 2 == 0 else (self._token(lease),)
            return self.invent(lease, version, (*body[: lease.max_new_tokens - 1], stop))
        if self.attack is Attack.CANNED:
            self._canned = self._canned or (*self.common.answer(LeaseId(lease.id)), stop)
            return self.invent(lease, version, self._canned)
        length = self.rng.randint(1, lease.max_new_tokens - 1) if lease.max_new_tokens > 1 else 0
        return self.invent(lease, version, (*(self._token(lease) for _ in range(length)), stop))

    def _token(self, lease: Lease) -> int:
        while (token := self.rng.randrange(self.common.vocabulary)) in lease.stop_ids:
            pass
        return token


@dataclass(kw_only=True)
class SelectiveDeliverer(Behaviour):
    """Returns the leases of groups with a low reward."""

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        made = await self.draw(requests_of(lease), Weights(version=version))
        reward = [self.common.reward(LeaseId(lease.id), one.tokens) for one in made]
        return made if sum(reward) / len(reward) >= GOOD else None


@dataclass(kw_only=True)
class VersionSelector(Behaviour):
    """Generates with every version that the lease admits, and sends the group with the highest reward.

    It never reports which version it has. It says that it begins with the oldest one, because a node may install a
    newer version meanwhile.
    """

    def report_version(self, version: PolicyVersion | None) -> PolicyVersion | None:
        return None

    def announce_version(self, lease: Lease, version: PolicyVersion) -> PolicyVersion:
        return self.common.foundry.list_kept(lease.minimum)[0]

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        best: list[Generation] = []
        most = -float("inf")
        for other in self.common.foundry.list_kept(lease.minimum):
            made = await self.draw(requests_of(lease), Weights(version=other))
            reward = sum(self.common.reward(LeaseId(lease.id), one.tokens) for one in made)
            if reward > most:
                best, most = made, reward
        return best or None


@dataclass(kw_only=True)
class Copyist(Behaviour):
    """Sends the completions of another peer. `changes`: replaces one token of each."""

    changes: bool = False

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        groups = [group for group in self.common.overheard if len(group) >= len(lease.seeds)]
        if not groups:
            return await super().make(lease, version)
        self.has_cheated = True
        copied = self.rng.choice(groups)[: len(lease.seeds)]
        return [self._changed(self.claim(one, version)) for one in copied]

    def _changed(self, made: Generation) -> Generation:
        if not self.changes or len(made.tokens) < 2:
            return made
        place = self.rng.randrange(len(made.tokens) - 1)
        tokens = (*made.tokens[:place], made.tokens[0], *made.tokens[place + 1 :])
        return replace(made, tokens=tokens)


@dataclass(kw_only=True)
class Replayer(Behaviour):
    """Sends the same records again under every later lease."""

    _before: list[bytes] = field(default_factory=list)

    async def answer(self, lease: Lease, version: PolicyVersion) -> list[bytes] | None:
        if not self._before:
            self._before = await super().answer(lease, version) or []
            return self._before
        self.has_cheated = True
        self.count(lease)
        return self._before


@dataclass(kw_only=True)
class Signatory(Behaviour):
    """Generates honestly, but signs wrongly (`FORGED`, `IMPERSONATED`) or claims a high reward (`INFLATED`)."""

    attack: Attack

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        return await super().make(lease, version)

    def sign(self, lease: Lease, made: Sequence[Generation]) -> list[bytes]:
        match self.attack:
            case Attack.FORGED:
                return [raw[:-1] + bytes([raw[-1] ^ 1]) for raw in super().sign(lease, made)]
            case Attack.IMPERSONATED:
                return self.sign_as(Keypair.generate(), lease, made)
        return self.sign_as(self.keypair, lease, made, reward=1e6)


def hand_of(attack: Attack | None, common: Common, keypair: Keypair, rng: random.Random) -> Behaviour:
    """Return the behaviour for this attack; an honest one if the attack is not in the records."""
    return _maker(attack)(common=common, keypair=keypair, rng=rng)


def _maker(attack: Attack | None) -> Callable[..., Behaviour]:
    match attack:
        case Attack.SMALLER:
            return partial(WrongWeights, variant=Variant.SMALLER)
        case Attack.INT8:
            return partial(WrongWeights, variant=Variant.INT8)
        case Attack.FOUR_BIT:
            return partial(WrongWeights, variant=Variant.FOUR_BIT)
        case Attack.LAG_1 | Attack.LAG_3 | Attack.LAG_10:
            return partial(WrongWeights, lag=int(attack.value.removeprefix("lag")))
        case Attack.RELABELLED:
            return partial(WrongWeights, lag=3, relabels=True)
        case Attack.BASE:
            return partial(WrongWeights, base=True)
        case Attack.COLD:
            return Cold
        case Attack.RECYCLED:
            return Recycler
        case Attack.EARLY_SLEEPER:
            return partial(Greedy, sleeps_groups=EARLY_GROUPS)
        case Attack.GREEDY | Attack.SYBIL:
            return Greedy
        case Attack.SLEEPER:
            return partial(Greedy, sleeps=SLEEPS)
        case Attack.FABRICATED | Attack.CANNED | Attack.TRUNCATED | Attack.ENDLESS | Attack.POISONED:
            return partial(Written, attack=attack)
        case Attack.SELECTIVE:
            return SelectiveDeliverer
        case Attack.BEST_VERSION:
            return VersionSelector
        case Attack.COPIED | Attack.NEARLY_COPIED:
            return partial(Copyist, changes=attack is Attack.NEARLY_COPIED)
        case Attack.REPLAYED:
            return Replayer
        case Attack.FORGED | Attack.IMPERSONATED | Attack.INFLATED:
            return partial(Signatory, attack=attack)
    return Behaviour
