"""Keep admitted groups until they are trained on, in the order of their versions.

A pure core. The check of the lag when a batch is taken is the guarantee; the check on admission only saves work. With
`informative_only`, a group with equal rewards is dropped at once and makes room for another (dynamic sampling, DAPO,
arXiv 2503.14476, section 3.2). `learner.rollouts.open_leases` bounds how much waits or is held, by bounding leases.

Invariants:

- A batch never holds a group whose lag at that moment exceeds the staleness window S.
- Groups leave in the order of their oldest version, then of arrival, so that none becomes stale behind fresher ones.
- A group is in one batch at most.
- A group that is held for its audit or for a teacher's scores is in no batch. It becomes stale as the others do.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from learner.rollouts.reward_parts import Parts, decisive
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.versions.staleness import Admissibility, Chain, judge, lag_of


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One admitted rollout, as training needs it.

    `tokens` is everything after the prompt. The policy generated the ranges [start, end) in `generated`, or all tokens
    if that is empty; the others came from the environment. `logprobs` and `teacher` (empty without a teacher) have one
    value for each generated token, in order. `spans` say how many of these tokens each version made. `experts` are
    those of the generated tokens as records have them (`protocol.experts`), empty if not asked for. `reward` is the
    whole episode's, as its task gave it, and `parts` its named rewards; if `void`, nobody could compute it. `cut_off`:
    the last turn had no tokens left, or the limits of an episode ended it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float
    spans: tuple[tuple[int, PolicyVersion], ...]
    generated: tuple[tuple[int, int], ...] = ()
    void: bool = False
    cut_off: bool = False
    parts: Parts = ()
    experts: bytes = b""
    teacher: tuple[float, ...] = ()

    @property
    def turns(self) -> int:
        """Number of turns of the policy."""
        return max(1, len(self.generated))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The admitted completions (whole episodes) of one prompt. `lease` and `peer` are those of their first turns.
    `behaviour`: all versions that made any of their tokens. `expected`: the mean reward known for the problem before;
    None if nothing was known, or a restart has forgotten it. `leased_ms`: when its first turns were leased. `came_ms`:
    when it was complete. Both are None if unknown."""

    lease: LeaseId
    peer: PeerId
    prompt_index: int
    prompt: tuple[int, ...]
    completions: tuple[Completion, ...]
    behaviour: frozenset[PolicyVersion]
    expected: float | None = None
    leased_ms: int | None = field(default=None, compare=False)
    came_ms: int | None = field(default=None, compare=False)

    @property
    def is_scored(self) -> bool:
        """Whether a teacher has scored all completions."""
        return all(one.teacher for one in self.completions)

    @property
    def num_tokens(self) -> int:
        """Tokens of its sequences; the prompt counts once for each."""
        return sum(len(self.prompt) + len(one.tokens) for one in self.completions)


KNOWN_SHARE = 0.5
"""Fraction of a batch's rollouts whose problems must have a known reward. Fewer would say little about the rest."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Groups to train on now, each with its lag, and the groups dropped since the last batch, each with the reason.
    `stale`: rollouts of groups that became stale or were given up. `uninformative`: rollouts of groups with equal
    rewards."""

    groups: tuple[Group, ...]
    lags: Mapping[LeaseId, int]
    dropped: Mapping[LeaseId, str]
    stale: int = 0
    uninformative: int = 0

    @property
    def rollouts(self) -> int:
        return sum(len(group.completions) for group in self.groups)

    @property
    def gathered_s(self) -> float | None:
        """Seconds from the first lease of its groups until the last group was complete, as far as times are known."""
        leased = [group.leased_ms for group in self.groups if group.leased_ms is not None and group.came_ms is not None]
        came = [group.came_ms for group in self.groups if group.came_ms is not None]
        return max(0, max(came) - min(leased)) / 1000 if leased and came else None

    @property
    def difficulty(self) -> float | None:
        """How far the batch's problems are expected to stay below a reward of 1: 1 minus the mean expected reward over
        the rollouts for which it is known. None if those are less than KNOWN_SHARE of all."""
        known = [(len(group.completions), group.expected) for group in self.groups if group.expected is not None]
        rollouts = sum(count for count, _ in known)
        if not known or rollouts < KNOWN_SHARE * self.rollouts:
            return None
        return 1.0 - sum(count * expected for count, expected in known) / rollouts

    @property
    def reward_error(self) -> float | None:
        """Standard error of the mean reward, from the spread of the groups' means. Batches of the same policy differ by
        this much by chance. None with fewer than two groups."""
        if len(self.groups) < 2:
            return None
        means = [fmean(completion.reward for completion in group.completions) for group in self.groups]
        return stdev(means) / math.sqrt(len(means))

    @property
    def rewards_by_lag(self) -> Mapping[int, float]:
        """Mean reward of the rollouts with each lag."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        for group in self.groups:
            found[self.lags[group.lease]] += [completion.reward for completion in group.completions]
        return {lag: sum(rewards) / len(rewards) for lag, rewards in sorted(found.items())}


UNINFORMATIVE = "uninformative"
"""Why a group is dropped whose rewards are all equal: every advantage in it is zero."""

VOID = "void"
"""Why a group is dropped in which a completion's reward is unknown: the others would be compared with a wrong value."""

KEPT_MEMORY = 1 / 32
"""Weight of one group in the moving mean `Buffer.kept`: it averages over about two batches of 16 groups."""

LEAST_KEPT = 0.1
"""Lower bound of `Buffer.kept`: at most ten times the rollouts of a batch are leased, since most would be wasted."""


def is_informative(group: Group, decides: str = "") -> bool:
    """Return whether the rewards of a group differ, so that some completion was better than another. Compares the
    rewards named `decides` if its task has them, else the whole rewards."""
    rewards = [decisive(one.reward, one.parts, decides) for one in group.completions]
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and min(known) < max(known)


@dataclass(kw_only=True)
class Buffer:
    """The rollout buffer. `window` is S, in training steps."""

    window: int
    informative_only: bool = False
    decides: str = ""
    """The name of the reward by which a group is informative; "" means the sum of all."""
    kept: float = 1.0
    """Fraction of admitted groups that wait for training and are not dropped at once: a moving mean."""
    alike: int = 0
    """Number of groups dropped at once in a row."""
    by_version: Counter[int] = field(default_factory=Counter)
    """Waiting rollouts, admissible or not, by the training step of their oldest version."""
    by_peer: Counter[PeerId] = field(default_factory=Counter)
    """Waiting rollouts by the peer of their group."""
    needs_scores: bool = False
    """Whether a group is held until a teacher has scored it (`scored`)."""
    held_by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts held for their audit or their scores, by the training step of their oldest version."""
    held_by_peer: Counter[PeerId] = field(default_factory=Counter)
    """Held rollouts by the peer of their group."""
    _held: dict[LeaseId, Group] = field(default_factory=dict)
    _unaudited: set[LeaseId] = field(default_factory=set)
    _heap: list[tuple[PolicyVersion, int, Group]] = field(default_factory=list)
    _arrivals: int = 0
    _judged: Chain | None = None
    _fresh: list[Group] = field(default_factory=list)
    _dropped: dict[LeaseId, str] = field(default_factory=dict)
    _stale: int = 0
    _uninformative: int = 0

    def __len__(self) -> int:
        """Return the number of waiting rollouts, admissible or not."""
        return self.by_version.total()

    @property
    def held(self) -> int:
        """Rollouts held for their audit or their scores."""
        return self.held_by_version.total()

    def add(self, group: Group, *, hold: bool = False) -> bool:
        """Add one admitted group, or `hold` it until `release`. Return False if it was dropped at once, because it
        teaches nothing or is void.
        """
        if any(completion.void for completion in group.completions):
            self.give_up(group.lease, VOID, len(group.completions))
            return False
        is_kept = not self.informative_only or is_informative(group, self.decides)
        self.kept = max(LEAST_KEPT, self.kept + KEPT_MEMORY * (is_kept - self.kept))
        if not is_kept:
            self._dropped[group.lease] = UNINFORMATIVE
            self._uninformative += len(group.completions)
            self.alike += 1
            return False
        self.alike = 0
        if hold or self._is_unscored(group):
            self._held[group.lease] = group
            self._count_held(group, 1)
            if hold:
                self._unaudited.add(group.lease)
        else:
            self._push(group)
        return True

    def release(self, lease: LeaseId) -> bool:
        """End the audit's hold on a group, so that it waits for its batch or for its scores. Return whether the group
        was held."""
        self._unaudited.discard(lease)
        return self._let_go(lease)

    def unscored(self, tokens: int, *, besides: Container[LeaseId] = frozenset()) -> list[Group]:
        """Return groups that wait for a teacher's scores, oldest first, without those in `besides`. Together they have
        at most `tokens` tokens, but the first is returned in any case."""
        found, taken = list[Group](), 0
        waiting = [one for one in self._held.values() if self._is_unscored(one) and one.lease not in besides]
        for group in sorted(waiting, key=lambda one: min(one.behaviour)):
            taken += group.num_tokens
            if found and taken > tokens:
                break
            found.append(group)
        return found

    def scored(self, lease: LeaseId, scores: Sequence[Sequence[float]]) -> bool:
        """Store a teacher's log probabilities of the generated tokens of each completion of a held group, which then
        waits for its audit or its batch. Return False if the group is gone, for example because it became stale.

        Raises ValueError if the number of scores differs from the number of tokens.
        """
        if (group := self._held.get(lease)) is None:
            return False
        if [len(one.logprobs) for one in group.completions] != [len(one) for one in scores]:
            raise ValueError("a teacher must score each generated token of each completion once")
        told = zip(group.completions, scores, strict=True)
        taught = tuple(replace(completion, teacher=tuple(one)) for completion, one in told)
        self._held[lease] = replace(group, completions=taught)
        self._let_go(lease)
        return True

    def unscore(self, leases: Container[LeaseId]) -> list[LeaseId]:
        """Discard the scores of these groups, which wait for others unless a batch has taken them. Return the leases of
        the groups concerned."""
        held = [group for group in self._held.values() if group.lease in leases and not self._is_unscored(group)]
        waiting = self._sift(lambda group: group.lease in leases)
        for group in [*held, *waiting]:
            untold = tuple(replace(completion, teacher=()) for completion in group.completions)
            if group.lease not in self._held:
                self._count_held(group, 1)
            self._held[group.lease] = replace(group, completions=untold)
        return [group.lease for group in [*held, *waiting]]

    @property
    def leases(self) -> set[LeaseId]:
        """The leases that opened the groups which wait or are held."""
        return {*self._held, *(group.lease for _, _, group in self._heap)}

    def _let_go(self, lease: LeaseId) -> bool:
        """Let a held group wait for its batch if nothing else holds it. Return whether there is such a group."""
        if (group := self._held.get(lease)) is None:
            return False
        if lease not in self._unaudited and not self._is_unscored(group):
            del self._held[lease]
            self._count_held(group, -1)
            self._push(group)
        return True

    def _is_unscored(self, group: Group) -> bool:
        return self.needs_scores and not group.is_scored

    def _take_held(self, lease: LeaseId) -> None:
        """Remove a held group."""
        self._unaudited.discard(lease)
        self._count_held(self._held.pop(lease), -1)

    def withdraw(self, unwanted: Callable[[Group], bool], reason: str) -> list[Group]:
        """Remove the `unwanted` groups, waiting or held, and return them."""
        gone = [group for group in self._held.values() if unwanted(group)]
        for group in gone:
            self._take_held(group.lease)
        gone += self._sift(unwanted)
        for group in gone:
            self._dropped[group.lease] = reason
        return gone

    def _sift(self, unwanted: Callable[[Group], bool]) -> list[Group]:
        """Remove the `unwanted` groups from those that wait, and return them."""
        gone = {entry[1]: entry[2] for entry in self._heap if unwanted(entry[2])}
        if gone:
            self._heap = [entry for entry in self._heap if entry[1] not in gone]
            heapq.heapify(self._heap)
        for group in gone.values():
            self._count(group, -1)
        return list(gone.values())

    def _push(self, group: Group) -> None:
        self._arrivals += 1
        self._count(group, 1)
        heapq.heappush(self._heap, (min(group.behaviour), self._arrivals, group))
        self._fresh.append(group)

    def give_up(self, lease: LeaseId, reason: str, rollouts: int) -> None:
        """Report in the next batch that the group of `lease` will never come; its rollouts count as stale."""
        self._dropped[lease] = reason
        self._stale += rollouts

    def clear(self) -> None:
        """Forget everything; the ledger has what is durable."""
        self._heap.clear()
        self._held.clear()
        self._unaudited.clear()
        self.held_by_version.clear()
        self.held_by_peer.clear()
        self._dropped.clear()
        self._stale = self._uninformative = 0
        self._fresh.clear()
        self.by_version.clear()
        self.by_peer.clear()

    def take(self, rollouts: int, chain: Chain) -> Batch | None:
        """Return a batch of at least `rollouts` for the step after `chain.head`, or None if too few are admissible.

        Groups that are stale or orphaned are dropped in both cases, and reported in the next batch.
        """
        self._drop_inadmissible(chain)
        if len(self) < rollouts:
            return None
        groups, count = list[Group](), 0
        while count < rollouts:
            groups.append(heapq.heappop(self._heap)[2])
            self._count(groups[-1], -1)
            count += len(groups[-1].completions)
        dropped, self._dropped = self._dropped, {}
        stale, self._stale = self._stale, 0
        uninformative, self._uninformative = self._uninformative, 0
        lags = {group.lease: lag_of(chain.head, group.behaviour) for group in groups}
        return Batch(groups=tuple(groups), lags=lags, dropped=dropped, stale=stale, uninformative=uninformative)

    def _count(self, group: Group, sign: int) -> None:
        """Count a group that begins (1) or ends (-1) to wait."""
        _add(group, sign, self.by_version, self.by_peer)

    def _count_held(self, group: Group, sign: int) -> None:
        """Count a group that begins (1) or ends (-1) to be held."""
        _add(group, sign, self.held_by_version, self.held_by_peer)

    def _drop_inadmissible(self, chain: Chain) -> None:
        """Judge all waiting groups again when the chain has moved, else only those that came since."""
        for group in list(self._held.values()):
            fate = judge(chain, group.behaviour, self.window)
            if fate in (Admissibility.STALE, Admissibility.ORPHANED):
                self._take_held(group.lease)
                self.give_up(group.lease, fate.value, len(group.completions))
        fresh, self._fresh = self._fresh, []
        if chain == self._judged and all(
            judge(chain, group.behaviour, self.window) is Admissibility.ADMISSIBLE for group in fresh
        ):
            return
        self._judged = chain
        for group in self._sift(lambda one: judge(chain, one.behaviour, self.window) is not Admissibility.ADMISSIBLE):
            self.give_up(group.lease, judge(chain, group.behaviour, self.window).value, len(group.completions))


def _add(group: Group, sign: int, by_version: Counter[int], by_peer: Counter[PeerId]) -> None:
    """Add a group's rollouts to the counts, or subtract them; delete keys at 0."""
    version, rollouts = min(group.behaviour).version, sign * len(group.completions)
    by_version[version] += rollouts
    by_peer[group.peer] += rollouts
    if not by_version[version]:
        del by_version[version]
    if not by_peer[group.peer]:
        del by_peer[group.peer]
