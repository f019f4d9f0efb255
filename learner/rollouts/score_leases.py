"""Groups that teacher nodes have under way: which group is leased to whom, until when, and what waits for its audit.

A pure core beside the buffer, which holds a group until it is scored. What always holds: a group is leased to one
teacher at a time; what was not delivered in time, or whose teacher is gone, is for others again; scores that wait for
an audit are in no batch; a group whose scores are taken back is scored anew, unless a batch has taken it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from learner.rollouts.buffer import Buffer, Completion, Group
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_GROUP_SIZE, MAX_LEASES_PER_GRANT, MAX_PROMPT_TOKENS
from protocol.scores import MAX_SCORE_LEASE_BYTES, ScoreLease

LEASE_OVERHEAD_BYTES = 1024
"""Of a score lease beside its tokens: ids, a peer's name, the lengths of MAX_GROUP_SIZE texts are counted apart."""

Scores = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ScoreWork:
    """One group that is leased to a teacher, or whose scores wait for their audit."""

    peer: PeerId
    group: Group
    lease: ScoreLease
    raw: bytes
    """The lease as it was signed."""

    @property
    def id(self) -> LeaseId:
        return LeaseId(self.lease.id)

    @property
    def num_tokens(self) -> int:
        """Tokens to be scored."""
        return sum(len(one.tokens) for one in self.group.completions)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores that a teacher delivered, of all tokens behind the prompt; `raw`: the record as it was signed."""

    work: ScoreWork
    scores: tuple[tuple[float, ...], ...]
    raw: bytes
    engine_s: float = 0.0
    """For how long the teacher's engine was used, by its own word."""


def fits_lease(group: Group) -> bool:
    """Whether the group can be sent to a teacher, and its scores back."""
    texts = [len(group.prompt), *(len(one.tokens) for one in group.completions)]
    size = LEASE_OVERHEAD_BYTES + sum(4 * tokens + 8 for tokens in texts)
    return (
        len(group.completions) <= MAX_GROUP_SIZE and max(texts) <= MAX_PROMPT_TOKENS and size <= MAX_SCORE_LEASE_BYTES
    )


def generated_of(completion: Completion, scores: Sequence[float]) -> tuple[float, ...]:
    """Of what was said of all tokens behind the prompt, that of those which the policy generated."""
    parts = completion.generated or ((0, len(completion.tokens)),)
    return tuple(score for start, end in parts for score in scores[start:end])


@dataclass(kw_only=True)
class ScoreLeases:
    """See the module's paragraph."""

    buffer: Buffer
    open: dict[LeaseId, ScoreWork] = field(default_factory=dict)
    waiting: dict[LeaseId, Scored] = field(default_factory=dict)
    """Scores that wait for their audit, by lease, in order of arrival."""
    _taken: set[LeaseId] = field(default_factory=set)
    """The groups of both, by the lease that opened them."""
    _scored_by: dict[LeaseId, tuple[PeerId, LeaseId]] = field(default_factory=dict)
    """Of groups in the buffer whose scores are in use, who gave them, by which lease."""

    def unscored(self, tokens: int) -> list[Group]:
        """Groups that nobody scores yet, the oldest first: of so many tokens together at most, but one at least."""
        return self.buffer.unscored(tokens, besides=self._taken)

    def for_peer(self, rollouts: int, tokens: int) -> list[Group]:
        """What a teacher may be leased that asks for so many completions: the oldest groups that nobody scores, of so
        many tokens at most, but one at least."""
        found, left = list[Group](), rollouts
        for group in self.unscored(tokens):
            if left <= 0 or len(found) == MAX_LEASES_PER_GRANT:
                break
            if fits_lease(group):
                found.append(group)
                left -= len(group.completions)
        return found

    def issue(self, work: ScoreWork) -> None:
        """It is the peer's."""
        self.open[work.id] = work
        self._taken.add(work.group.lease)

    def take(self, lease: LeaseId, peer: PeerId) -> ScoreWork | None:
        """What this peer delivers by this lease, which is open no more; its group stays nobody else's until
        `audit`, `use` or `put_back`."""
        if (work := self.open.get(lease)) is None or work.peer != peer:
            return None
        return self.open.pop(lease)

    def audit(self, scored: Scored) -> None:
        """The scores wait for their audit."""
        self.waiting[scored.work.id] = scored

    def next_audit(self) -> Scored | None:
        """The scores that have waited longest."""
        return next(iter(self.waiting.values()), None)

    def use(self, scored: Scored) -> bool:
        """The scores are believed: the group waits for its batch. Whether there still was one."""
        work = scored.work
        self.waiting.pop(work.id, None)
        self._taken.discard(work.group.lease)
        of = [generated_of(one, score) for one, score in zip(work.group.completions, scored.scores, strict=True)]
        if not self.buffer.scored(work.group.lease, of):
            return False
        self._scored_by[work.group.lease] = work.peer, work.id
        return True

    def put_back(self, work: ScoreWork) -> None:
        """The group is for others again."""
        self.open.pop(work.id, None)
        self.waiting.pop(work.id, None)
        self._taken.discard(work.group.lease)

    def release(self, peer: PeerId, leases: Sequence[LeaseId] | None = None) -> list[ScoreWork]:
        """What the peer has under way, or these leases of it, is for others again; return it."""
        wanted = None if leases is None else set(leases)
        gone = [one for one in self.open.values() if one.peer == peer and (wanted is None or one.id in wanted)]
        for work in gone:
            self.put_back(work)
        return gone

    def late(self, now_ms: int) -> list[ScoreWork]:
        """What was not delivered in time."""
        return [one for one in self.open.values() if now_ms > one.lease.deadline_ms]

    def under_way(self, peer: PeerId) -> list[ScoreWork]:
        """What the peer has under way, its scores that wait for their audit among it."""
        waiting = [one.work for one in self.waiting.values()]
        return [one for one in [*self.open.values(), *waiting] if one.peer == peer]

    def hold(self, groups: Sequence[Group]) -> None:
        """The learner scores these itself, until `let_go`."""
        self._taken.update(group.lease for group in groups)

    def let_go(self, groups: Sequence[Group]) -> None:
        """It does no more."""
        self._taken.difference_update(group.lease for group in groups)

    def disown(self, peer: PeerId) -> set[LeaseId]:
        """Nothing that this peer said is learnt from any more: what waits is for others, what no batch has taken is
        scored anew. Return the leases of it."""
        gone = self.release(peer)
        waiting = [one.work for one in self.waiting.values() if one.work.peer == peer]
        for work in waiting:
            self.put_back(work)
        theirs = {root: lease for root, (author, lease) in self._scored_by.items() if author == peer}
        back = self.buffer.unscore(theirs)
        for root in theirs:
            del self._scored_by[root]
        return {work.id for work in gone + waiting} | {theirs[root] for root in back}

    def forget_trained(self) -> None:
        """Forget who scored what a batch has taken, or what is gone."""
        here = self.buffer.leases
        self._scored_by = {root: one for root, one in self._scored_by.items() if root in here}
