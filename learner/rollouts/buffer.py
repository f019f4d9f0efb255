"""Groups that were admitted and wait to be trained on, in version order.

A pure core. What always holds: a batch never holds a group whose lag at that moment exceeds the window S (this check is
the guarantee; the one at intake only saves work); groups leave in the order of their oldest version, then of arrival,
so that none grows stale behind fresher ones; a group is handed out once. Where only informative groups are wanted, one
whose rewards are all equal never waits: it is dropped, and makes room for another (dynamic sampling, DAPO, arXiv
2503.14476, section 3.2). What is held until it was audited is in no batch, and grows too old as the rest does. How much
waits or is held is bounded by what is leased (`learner.rollouts.open_leases`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev

from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.versions.staleness import Admissibility, Chain, judge, lag_of


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What training needs of one admitted rollout.

    `tokens` is all that follows the prompt. The policy generated those in the ranges [start, end) of `generated`, or
    all of them where that is empty; what lies between came from the environment. Of the generated tokens, in order,
    `logprobs` are one each, and `spans` say how many each version made. `reward` is the whole episode's; of one that is
    `void` nobody could say it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float
    spans: tuple[tuple[int, PolicyVersion], ...]
    generated: tuple[tuple[int, int], ...] = ()
    void: bool = False

    @property
    def turns(self) -> int:
        """How often the policy spoke."""
        return max(1, len(self.generated))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The admitted completions of one prompt, which are whole episodes; `lease` and `peer` are those of their first
    turns. `behaviour` are all versions that produced any of their tokens. `expected` is the mean reward that the
    prompt's problem was known to earn before; None: nothing was known, or a restart has forgotten it."""

    lease: LeaseId
    peer: PeerId
    prompt_index: int
    prompt: tuple[int, ...]
    completions: tuple[Completion, ...]
    behaviour: frozenset[PolicyVersion]
    expected: float | None = None


KNOWN_SHARE = 0.5
"""Of a batch's rollouts that must be of problems of which something is known, or those say little of the others."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Groups to train on now, each with its lag, and those that were dropped since the last, each with the reason:
    `stale` rollouts that had grown too old, `uninformative` ones whose group has one reward."""

    groups: tuple[Group, ...]
    lags: Mapping[LeaseId, int]
    dropped: Mapping[LeaseId, str]
    stale: int = 0
    uninformative: int = 0

    @property
    def rollouts(self) -> int:
        return sum(len(group.completions) for group in self.groups)

    @property
    def difficulty(self) -> float | None:
        """What the batch's problems were expected to miss of a reward of 1, mean over the rollouts of which something
        was known; None where those are less than KNOWN_SHARE of all."""
        known = [(len(group.completions), group.expected) for group in self.groups if group.expected is not None]
        rollouts = sum(count for count, _ in known)
        if not known or rollouts < KNOWN_SHARE * self.rollouts:
            return None
        return 1.0 - sum(count * expected for count, expected in known) / rollouts

    @property
    def reward_error(self) -> float | None:
        """Standard error of the mean reward, as the means of the groups spread: by chance alone, batches of the same
        policy differ by that. None of fewer than two groups."""
        if len(self.groups) < 2:
            return None
        means = [fmean(completion.reward for completion in group.completions) for group in self.groups]
        return stdev(means) / math.sqrt(len(means))

    @property
    def rewards_by_lag(self) -> Mapping[int, float]:
        """Mean reward of the rollouts of each lag."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        for group in self.groups:
            found[self.lags[group.lease]] += [completion.reward for completion in group.completions]
        return {lag: sum(rewards) / len(rewards) for lag, rewards in sorted(found.items())}


UNINFORMATIVE = "uninformative"
"""Why a group is dropped whose rewards are all equal: every advantage in it is zero."""

VOID = "void"
"""Why a group is dropped of which a completion's worth is not known: against it, all others would be judged wrongly."""

KEPT_MEMORY = 1 / 32
"""Weight of one group in `Buffer.kept`: two batches of 16 groups."""

LEAST_KEPT = 0.1
"""However little is kept, no more than ten times what a batch takes is leased for it: most of it would be in vain."""


def is_informative(group: Group) -> bool:
    """Whether its rewards differ, so that some completion was better than another."""
    rewards = [completion.reward for completion in group.completions]
    return min(rewards) < max(rewards)


@dataclass(kw_only=True)
class Buffer:
    """See the module's paragraph. `window` is S, in training steps."""

    window: int
    informative_only: bool = False
    kept: float = 1.0
    """Of what is admitted, the share that waits to be trained on and is not dropped at once: a moving mean."""
    alike: int = 0
    """Groups dropped at once since the last that was not."""
    by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts waiting, admissible or not, by the training step of their oldest version."""
    by_peer: Counter[PeerId] = field(default_factory=Counter)
    """The same by the peer of their group."""
    held_by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts held until their audit, by the training step of their oldest version."""
    held_by_peer: Counter[PeerId] = field(default_factory=Counter)
    """The same by the peer of their group."""
    _held: dict[LeaseId, Group] = field(default_factory=dict)
    _heap: list[tuple[PolicyVersion, int, Group]] = field(default_factory=list)
    _arrivals: int = 0
    _judged: Chain | None = None
    _fresh: list[Group] = field(default_factory=list)
    _dropped: dict[LeaseId, str] = field(default_factory=dict)
    _stale: int = 0
    _uninformative: int = 0

    def __len__(self) -> int:
        """Rollouts waiting, admissible or not."""
        return self.by_version.total()

    @property
    def held(self) -> int:
        """Rollouts held until their audit."""
        return self.held_by_version.total()

    def add(self, group: Group, *, hold: bool = False) -> bool:
        """Take in one admitted group, or `hold` it until `release`; False when it is dropped at once, since it teaches
        nothing or is void.
        """
        if any(completion.void for completion in group.completions):
            self.give_up(group.lease, VOID, len(group.completions))
            return False
        is_kept = not self.informative_only or is_informative(group)
        self.kept = max(LEAST_KEPT, self.kept + KEPT_MEMORY * (is_kept - self.kept))
        if not is_kept:
            self._dropped[group.lease] = UNINFORMATIVE
            self._uninformative += len(group.completions)
            self.alike += 1
            return False
        self.alike = 0
        if hold:
            self._held[group.lease] = group
            self._count_held(group, 1)
        else:
            self._push(group)
        return True

    def release(self, lease: LeaseId) -> bool:
        """The group that is held under this lease waits for its batch from now on; whether there was one."""
        if (group := self._held.pop(lease, None)) is None:
            return False
        self._count_held(group, -1)
        self._push(group)
        return True

    def withdraw(self, unwanted: Callable[[Group], bool], reason: str) -> list[Group]:
        """Give up the groups, waiting or held, of which that is so; return them."""
        gone = [group for group in self._held.values() if unwanted(group)]
        for group in gone:
            self._count_held(self._held.pop(group.lease), -1)
        gone += self._sift(unwanted)
        for group in gone:
            self._dropped[group.lease] = reason
        return gone

    def _sift(self, unwanted: Callable[[Group], bool]) -> list[Group]:
        """Take out the groups of those that wait of which that is so; return them."""
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
        """The group of `lease` will never come; it is reported in the next batch with what grew too old here."""
        self._dropped[lease] = reason
        self._stale += rollouts

    def clear(self) -> None:
        """Forget everything; what is durable is in the ledger."""
        self._heap.clear()
        self._held.clear()
        self.held_by_version.clear()
        self.held_by_peer.clear()
        self._dropped.clear()
        self._stale = self._uninformative = 0
        self._fresh.clear()
        self.by_version.clear()
        self.by_peer.clear()

    def take(self, rollouts: int, chain: Chain) -> Batch | None:
        """Return a batch of at least `rollouts` for the step after `chain.head`, or None while too few are admissible.

        What is too old is dropped either way, and reported in the next batch.
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
        """It waits from now on (1), or does not any more (-1)."""
        _add(group, sign, self.by_version, self.by_peer)

    def _count_held(self, group: Group, sign: int) -> None:
        """It is held from now on (1), or is not any more (-1)."""
        _add(group, sign, self.held_by_version, self.held_by_peer)

    def _drop_inadmissible(self, chain: Chain) -> None:
        """Judge everything again when the chain has moved, else only what has come since."""
        for group in list(self._held.values()):
            fate = judge(chain, group.behaviour, self.window)
            if fate in (Admissibility.STALE, Admissibility.ORPHANED):
                self._count_held(self._held.pop(group.lease), -1)
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
    """So many rollouts more, or less, of the group's; what is at 0 is forgotten."""
    version, rollouts = min(group.behaviour).version, sign * len(group.completions)
    by_version[version] += rollouts
    by_peer[group.peer] += rollouts
    if not by_version[version]:
        del by_version[version]
    if not by_peer[group.peer]:
        del by_peer[group.peer]
