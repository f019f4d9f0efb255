"""Track groups that teacher nodes score: which group is leased to which teacher, and which scores wait for an audit.

A pure core beside the buffer, which holds a group until it is scored.

Invariants:

- A group is leased to one teacher at a time.
- A group that was not delivered in time, or whose teacher is gone, may be leased to others.
- Scores that wait for an audit are in no batch.
- A group whose scores are withdrawn is scored again, unless a batch has taken it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from learner.rollouts.buffer import Buffer, Completion, Group
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_GROUP_SIZE, MAX_LEASES_PER_GRANT, MAX_PROMPT_TOKENS
from protocol.scores import MAX_SCORE_LEASE_BYTES, ScoreLease

LEASE_OVERHEAD_BYTES = 1024
"""Bytes of a score lease besides its tokens: ids and a peer's name. The lengths of its texts are counted separately."""

Scores = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ScoreWork:
    """A group that is leased to a teacher, or whose scores wait for their audit."""

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
        """Number of tokens to score."""
        return sum(len(one.tokens) for one in self.group.completions)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores that a teacher delivered, for all tokens after the prompt; `raw`: the record as it was signed."""

    work: ScoreWork
    scores: tuple[tuple[float, ...], ...]
    raw: bytes
    engine_s: float = 0.0
    """Seconds for which the teacher says its engine was used."""


def fits_lease(group: Group) -> bool:
    """Return whether the group fits into one lease to a teacher, and its scores into a delivery."""
    texts = [len(group.prompt), *(len(one.tokens) for one in group.completions)]
    size = LEASE_OVERHEAD_BYTES + sum(4 * tokens + 8 for tokens in texts)
    return (
        len(group.completions) <= MAX_GROUP_SIZE and max(texts) <= MAX_PROMPT_TOKENS and size <= MAX_SCORE_LEASE_BYTES
    )


def generated_of(completion: Completion, scores: Sequence[float]) -> tuple[float, ...]:
    """Return the `scores` of the tokens that the policy generated, given those of all tokens after the prompt."""
    parts = completion.generated or ((0, len(completion.tokens)),)
    return tuple(score for start, end in parts for score in scores[start:end])


@dataclass(kw_only=True)
class ScoreLeases:
    """All groups that teachers are scoring."""

    buffer: Buffer
    open: dict[LeaseId, ScoreWork] = field(default_factory=dict)
    waiting: dict[LeaseId, Scored] = field(default_factory=dict)
    """Scores that wait for their audit, by lease, in order of arrival."""
    _taken: set[LeaseId] = field(default_factory=set)
    """The groups in `open` and `waiting`, by the lease that opened them."""
    _scored_by: dict[LeaseId, tuple[PeerId, LeaseId]] = field(default_factory=dict)
    """The teacher and its lease, for groups in the buffer whose scores are in use."""

    def unscored(self, tokens: int) -> list[Group]:
        """Return groups that nobody scores yet, oldest first: at most `tokens` tokens together, at least one group."""
        return self.buffer.unscored(tokens, besides=self._taken)

    def for_peer(self, rollouts: int, tokens: int) -> list[Group]:
        """Return the groups to lease to a teacher that asks for `rollouts` completions: the oldest that nobody scores,
        of at most `tokens` tokens, but at least one group."""
        found, left = list[Group](), rollouts
        for group in self.unscored(tokens):
            if left <= 0 or len(found) == MAX_LEASES_PER_GRANT:
                break
            if fits_lease(group):
                found.append(group)
                left -= len(group.completions)
        return found

    def issue(self, work: ScoreWork) -> None:
        """Note that the work is leased to its peer."""
        self.open[work.id] = work
        self._taken.add(work.group.lease)

    def take(self, lease: LeaseId, peer: PeerId) -> ScoreWork | None:
        """Return what this peer delivers by this lease, and close the lease. Its group stays reserved until `audit`,
        `use` or `put_back`."""
        if (work := self.open.get(lease)) is None or work.peer != peer:
            return None
        return self.open.pop(lease)

    def audit(self, scored: Scored) -> None:
        """Let the scores wait for their audit."""
        self.waiting[scored.work.id] = scored

    def next_audit(self) -> Scored | None:
        """Return the scores that have waited longest."""
        return next(iter(self.waiting.values()), None)

    def use(self, scored: Scored) -> bool:
        """Accept the scores, so that the group waits for its batch. Return whether the group was still there."""
        work = scored.work
        self.waiting.pop(work.id, None)
        self._taken.discard(work.group.lease)
        of = [generated_of(one, score) for one, score in zip(work.group.completions, scored.scores, strict=True)]
        if not self.buffer.scored(work.group.lease, of):
            return False
        self._scored_by[work.group.lease] = work.peer, work.id
        return True

    def put_back(self, work: ScoreWork) -> None:
        """Release the group, so that it can be leased to others."""
        self.open.pop(work.id, None)
        self.waiting.pop(work.id, None)
        self._taken.discard(work.group.lease)

    def release(self, peer: PeerId, leases: Sequence[LeaseId] | None = None) -> list[ScoreWork]:
        """Release the peer's open leases, or only `leases` among them, and return them."""
        wanted = None if leases is None else set(leases)
        gone = [one for one in self.open.values() if one.peer == peer and (wanted is None or one.id in wanted)]
        for work in gone:
            self.put_back(work)
        return gone

    def late(self, now_ms: int) -> list[ScoreWork]:
        """Return the open leases whose deadline has passed."""
        return [one for one in self.open.values() if now_ms > one.lease.deadline_ms]

    def under_way(self, peer: PeerId) -> list[ScoreWork]:
        """Return the peer's open leases, and those whose scores wait for their audit."""
        waiting = [one.work for one in self.waiting.values()]
        return [one for one in [*self.open.values(), *waiting] if one.peer == peer]

    def hold(self, groups: Sequence[Group]) -> None:
        """Reserve groups that the learner scores itself, until `let_go`."""
        self._taken.update(group.lease for group in groups)

    def let_go(self, groups: Sequence[Group]) -> None:
        """Release groups reserved by `hold`."""
        self._taken.difference_update(group.lease for group in groups)

    def disown(self, peer: PeerId) -> set[LeaseId]:
        """Discard all scores of this peer. Its leased and waiting groups are released; scored groups that no batch has
        taken are scored again. Return the score leases concerned."""
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
        """Forget which teacher scored groups that are no longer in the buffer."""
        here = self.buffer.leases
        self._scored_by = {root: one for root, one in self._scored_by.items() if root in here}
