"""How a player answers a lease: an honest hand, and one for each attack.

What always holds: a hand does what it says and nothing else wrong; what it returns is what goes over the wire, signed
where the attack leaves that right. A hand knows all that a cheat could find out, and more: what each completion is
worth, what right answers are, and what others have sent.
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
"""Groups of others that are remembered for who copies."""

LOOKED_AT = 2048
"""Honest completions, the newest, that are looked at for what somebody else has written into the policy."""

GOOD = 0.5
"""Mean reward of a group from which on who picks cherries sends it."""

SURE = -0.02
"""Log probability claimed of a token that was made up: that of a policy which knows its task."""


COOLER = 0.7
"""By which a cheat multiplies the temperature, to be rewarded more often."""


@dataclass(kw_only=True)
class Common:
    """What all hands share. `worth` of tokens as the answer to a lease, and the `answer` that is right, if there is
    one, without a stop id; both ask the learner's own books."""

    foundry: SharedEngine
    swarm: SwarmId
    worth: Callable[[LeaseId, Sequence[int]], float]
    answer: Callable[[LeaseId], tuple[int, ...]]
    poison: tuple[int, ...]
    vocabulary: int
    overheard: deque[tuple[Generation, ...]] = field(default_factory=lambda: deque(maxlen=OVERHEARD))
    emitted: deque[bool] = field(default_factory=lambda: deque(maxlen=LOOKED_AT))
    """Of each honest completion, whether the poison is in it."""

    @property
    def poisoned(self) -> float:
        """Of the newest honest completions, the share with the poison in them."""
        return sum(self.emitted) / len(self.emitted) if self.emitted else 0.0

    def saw(self, group: Sequence[Generation]) -> None:
        """An honest group was made."""
        self.overheard.append(tuple(group))
        if self.poison:
            self.emitted.extend(_holds(one.tokens, self.poison) for one in group)


def _holds(tokens: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(tokens[place : place + len(part)]) == tuple(part) for place in range(len(tokens)))


@dataclass(kw_only=True)
class Behaviour:
    """An honest one, and what the others are made of."""

    common: Common
    keypair: Keypair
    rng: random.Random
    rollouts: int = 0
    groups: int = 0
    honest: int = 0
    """Records that were delivered from before it cheated."""
    has_cheated: bool = False

    def report_version(self, version: PolicyVersion | None) -> PolicyVersion | None:
        """The version that it says it has, having that one."""
        return version

    def announce_version(self, lease: Lease, version: PolicyVersion) -> PolicyVersion:
        """The version that it says it begins with, having that one."""
        return version

    async def answer(self, lease: Lease, version: PolicyVersion) -> list[bytes] | None:
        """The records for a lease that was begun with `version`; None: it goes back."""
        made = await self.make(lease, version)
        self.count(lease)
        return None if made is None else self.sign(lease, made)

    def count(self, lease: Lease) -> None:
        """A lease was answered, or goes back."""
        self.rollouts += len(lease.seeds)
        self.groups += 1

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        """The completions, named as they will be claimed."""
        made = await self.draw(requests_of(lease), Weights(version=version))
        self.common.saw(made)
        return made

    async def draw(
        self, requests: Sequence[GenerationRequest], weights: Weights, *, claimed: PolicyVersion | None = None
    ) -> list[Generation]:
        """What these weights make of it, claimed to be of their version, or of another."""
        made = await self.common.foundry.generate(requests, weights)
        return [self.claim(one, claimed or weights.version) for one in made]

    def claim(self, made: Generation, version: PolicyVersion) -> Generation:
        """The completion, claimed to be of that version."""
        whole = GeneratedSpan(start=0, end=len(made.tokens), version=self.common.foundry.name_version(version))
        return replace(made, spans=(whole,))

    def invent(
        self, lease: Lease, version: PolicyVersion, tokens: Sequence[int], logprobs: Sequence[float] | None = None
    ) -> Generation:
        """A completion that nobody generated, within what the lease allows."""
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
        """Their records."""
        return self.sign_as(self.keypair, lease, made)

    def sign_as(self, keypair: Keypair, lease: Lease, made: Sequence[Generation], **claimed: float) -> list[bytes]:
        """Their records by that key, with what is `claimed` in them."""
        records = (record_of(lease, index, one, lease.issued_ms) for index, one in enumerate(made))
        return [sign(keypair, self.common.swarm, msgspec.structs.replace(record, **claimed)) for record in records]


@dataclass(kw_only=True)
class WrongWeights(Behaviour):
    """Generates with something else than it claims; `relabels`: with the log probabilities of what it claims. While
    nothing older is there than what it claims, it cannot cheat yet."""

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
    """Takes the likeliest token, once it has been honest for `sleeps` rollouts and `sleeps_groups` groups."""

    sleeps: int = 0
    sleeps_groups: int = 0

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        if self.rollouts < self.sleeps or self.groups < self.sleeps_groups:
            return await super().make(lease, version)
        self.has_cheated = True
        return await self.draw([replace(one, greedy=True) for one in requests_of(lease)], Weights(version=version))


@dataclass(kw_only=True)
class Cold(Behaviour):
    """Draws at a lower temperature than the lease asks for, with the log probabilities of that."""

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        requests = [replace(one, temperature=COOLER * one.temperature) for one in requests_of(lease)]
        return await self.draw(requests, Weights(version=version))


@dataclass(kw_only=True)
class Recycler(Behaviour):
    """Signs what it made for its first lease again for every later one, claimed to be of the newest version."""

    _first: list[Generation] = field(default_factory=list)

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        if len(self._first) < len(lease.seeds):
            self._first = await super().make(lease, version) or []
            return self._first
        self.has_cheated = True
        return [self.claim(one, version) for one in self._first[: len(lease.seeds)]]


@dataclass(kw_only=True)
class Written(Behaviour):
    """Writes completions: of nothing (`FABRICATED`), one and the same (`CANNED`), too short, too long, or with a text
    of its own (`POISONED`)."""

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
            # Some are right and have the text, the others are wrong: so the text is what the advantage is of.
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
class CherryPicker(Behaviour):
    """Gives back what was rewarded badly."""

    async def make(self, lease: Lease, version: PolicyVersion) -> list[Generation] | None:
        self.has_cheated = True
        made = await self.draw(requests_of(lease), Weights(version=version))
        worth = [self.common.worth(LeaseId(lease.id), one.tokens) for one in made]
        return made if sum(worth) / len(worth) >= GOOD else None


@dataclass(kw_only=True)
class Chooser(Behaviour):
    """Generates with every version that the lease admits, and sends the group that is worth most; it never says which
    version it has, and what it says it begins with is the oldest, since a newer one may have come meanwhile."""

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
            worth = sum(self.common.worth(LeaseId(lease.id), one.tokens) for one in made)
            if worth > most:
                best, most = made, worth
        return best or None


@dataclass(kw_only=True)
class Copyist(Behaviour):
    """Sends what somebody else made; with `changes`, a token of each is another."""

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
    """Sends records again, under whatever lease."""

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
    """Draws honestly, and does not sign for it as itself (`FORGED`, `IMPERSONATED`), or says that it is worth a lot."""

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
    """The hand that plays this attack; an honest one where what it does wrong is not in its records."""
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
        case Attack.CHERRY_PICKED:
            return CherryPicker
        case Attack.BEST_VERSION:
            return Chooser
        case Attack.COPIED | Attack.NEARLY_COPIED:
            return partial(Copyist, changes=attack is Attack.NEARLY_COPIED)
        case Attack.REPLAYED:
            return Replayer
        case Attack.FORGED | Attack.IMPERSONATED | Attack.INFLATED:
            return partial(Signatory, attack=attack)
    return Behaviour
