"""Groups that were admitted and wait to be trained on, in version order.

A pure core. What always holds: a batch never holds a group whose lag at that moment exceeds the window S (this check is
the guarantee; the one at intake only saves work); groups leave in the order of their oldest version, then of arrival,
so that none grows stale behind fresher ones; a group is handed out once. Where only informative groups are wanted, one
whose rewards are all equal never waits: it is dropped, and makes room for another (dynamic sampling, DAPO, arXiv
2503.14476, section 3.2). What is held until it was audited, or until a teacher has scored it, is in no batch, and grows
too old as the rest does. How much waits or is held is bounded by what is leased (`learner.rollouts.open_leases`).
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
    """What training needs of one admitted rollout.

    `tokens` is all that follows the prompt. The policy generated those in the ranges [start, end) of `generated`, or
    all of them where that is empty; what lies between came from the environment. Of the generated tokens, in order,
    `logprobs` are one each, and `spans` say how many each version made. `reward` is the whole episode's, as its
    task gave it, and `parts` what it is made of; of one that is `void` nobody could say it. `cut_off`: its last turn
    had no tokens left, or the limits of an episode ended it. `experts` are those of the generated tokens, in order, as
    records have them (`protocol.experts`); nothing where they were not asked for. `teacher`: a teacher's log
    probability of each generated token, where one is learnt from.
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
        """How often the policy spoke."""
        return max(1, len(self.generated))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The admitted completions of one prompt, which are whole episodes; `lease` and `peer` are those of their first
    turns. `behaviour` are all versions that produced any of their tokens. `expected` is the mean reward that the
    prompt's problem was known to earn before; None: nothing was known, or a restart has forgotten it. `leased_ms` is
    when its first turns were leased, `came_ms` when it was complete; None where that is not known any more."""

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
        """Whether a teacher has scored all of it."""
        return all(one.teacher for one in self.completions)

    @property
    def num_tokens(self) -> int:
        """Tokens of its sequences, the prompt counted with each."""
        return sum(len(self.prompt) + len(one.tokens) for one in self.completions)


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
    def gathered_s(self) -> float | None:
        """From when the first of its groups was leased until the last was complete, of those of which that is known."""
        leased = [group.leased_ms for group in self.groups if group.leased_ms is not None and group.came_ms is not None]
        came = [group.came_ms for group in self.groups if group.came_ms is not None]
        return max(0, max(came) - min(leased)) / 1000 if leased and came else None

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


def is_informative(group: Group, decides: str = "") -> bool:
    """Whether its rewards differ, so that some completion was better than another: those called `decides` where its
    task has such, else those that completions have in all."""
    rewards = [decisive(one.reward, one.parts, decides) for one in group.completions]
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and min(known) < max(known)


@dataclass(kw_only=True)
class Buffer:
    """See the module's paragraph. `window` is S, in training steps."""

    window: int
    informative_only: bool = False
    decides: str = ""
    """The name of the reward by which a group is informative; "": the sum of all."""
    kept: float = 1.0
    """Of what is admitted, the share that waits to be trained on and is not dropped at once: a moving mean."""
    alike: int = 0
    """Groups dropped at once since the last that was not."""
    by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts waiting, admissible or not, by the training step of their oldest version."""
    by_peer: Counter[PeerId] = field(default_factory=Counter)
    """The same by the peer of their group."""
    needs_scores: bool = False
    """Whether a group is held until a teacher has scored it (`scored`)."""
    held_by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts held until their audit or their scores, by the training step of their oldest version."""
    held_by_peer: Counter[PeerId] = field(default_factory=Counter)
    """The same by the peer of their group."""
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
        """Rollouts waiting, admissible or not."""
        return self.by_version.total()

    @property
    def held(self) -> int:
        """Rollouts held until their audit, or until they are scored."""
        return self.held_by_version.total()

    def add(self, group: Group, *, hold: bool = False) -> bool:
        """Take in one admitted group, or `hold` it until `release`; False when it is dropped at once, since it teaches
        nothing or is void.
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
        """The group that is held under this lease waits for its batch from now on, or for its scores; whether there was
        one."""
        self._unaudited.discard(lease)
        return self._let_go(lease)

    def unscored(self, tokens: int, *, besides: Container[LeaseId] = frozenset()) -> list[Group]:
        """Return groups that wait for a teacher's scores, but for those `besides`, the oldest first: of so many tokens
        together at most, but one at least if there is any."""
        found, taken = list[Group](), 0
        waiting = [one for one in self._held.values() if self._is_unscored(one) and one.lease not in besides]
        for group in sorted(waiting, key=lambda one: min(one.behaviour)):
            taken += group.num_tokens
            if found and taken > tokens:
                break
            found.append(group)
        return found

    def scored(self, lease: LeaseId, scores: Sequence[Sequence[float]]) -> bool:
        """A teacher's log probabilities of the generated tokens of each completion of a group that is held; it waits
        for its audit or its batch from now on. Whether there still was one: it may have grown too old meanwhile.

        Raises ValueError where there are more or fewer than tokens.
        """
        if (group := self._held.get(lease)) is None:
            return False
        if [len(one.logprobs) for one in group.completions] != [len(one) for one in scores]:
            raise ValueError("a teacher scores each generated token of each completion once")
        told = zip(group.completions, scores, strict=True)
        taught = tuple(replace(completion, teacher=tuple(one)) for completion, one in told)
        self._held[lease] = replace(group, completions=taught)
        self._let_go(lease)
        return True

    def unscore(self, leases: Container[LeaseId]) -> list[LeaseId]:
        """The scores of these groups are believed no more: they wait for others, unless a batch has taken them. Return
        those of which that holds."""
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
        """Of all groups that wait or are held, the leases that opened them."""
        return {*self._held, *(group.lease for _, _, group in self._heap)}

    def _let_go(self, lease: LeaseId) -> bool:
        """Let a held group wait for its batch if nothing else holds it; whether there is such a group."""
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
        """The group that is held under this lease is given up."""
        self._unaudited.discard(lease)
        self._count_held(self._held.pop(lease), -1)

    def withdraw(self, unwanted: Callable[[Group], bool], reason: str) -> list[Group]:
        """Give up the groups, waiting or held, of which that is so; return them."""
        gone = [group for group in self._held.values() if unwanted(group)]
        for group in gone:
            self._take_held(group.lease)
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
        self._unaudited.clear()
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
    """So many rollouts more, or less, of the group's; what is at 0 is forgotten."""
    version, rollouts = min(group.behaviour).version, sign * len(group.completions)
    by_version[version] += rollouts
    by_peer[group.peer] += rollouts
    if not by_version[version]:
        del by_version[version]
    if not by_peer[group.peer]:
        del by_peer[group.peer]
