"""Track open episodes: what was said in them, which lease makes their next turn, which groups are complete.

A pure core. A lease of a prompt opens a group of episodes. Every later turn is a lease of its own, whose prompt is the
transcript so far. It may be for one episode or for several with equal transcripts, and for another peer. The memory
that episodes take is bounded by the number that may be leased or wait (`learner.scheduling.lease_scheduler`).

A returned lease is used as far as it came. A turn that was begun and not finished has several records, its parts, each
signed by the peer that made it. The rest is leased to another peer, which reads the parts as the end of its prompt and
draws with the same seed from their position on (partial rollouts of StreamRL and APRIL, arXiv 2504.15930 and
2509.18521). So no peer answers for tokens of another. Rewards and training see the turn as one.

Invariants:

- Every episode of an open group is over, or its next turn either belongs to one lease or waits for one.
- A lost turn waits again, and is leased under a new id with new seeds.
- A group is returned once, when its last episode ends, with the completions in the order of its slots.
- A group is as old as its oldest tokens, and is given up as a whole when those are too old.
- After a restart the same records, given in the order of their turns, lead to the same state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from learner.rollouts.admission import EpisodeSlots, GrantedLease
from learner.rollouts.buffer import Completion, Group
from learner.rollouts.environment import Answered, Ended, Heard, Said, Unfinished
from learner.rollouts.open_leases import Prompt
from learner.rollouts.router_replay import joined_experts
from protocol.core.codec import unpack_tokens
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.core.limits import MAX_PROMPT_TOKENS
from protocol.versions.staleness import Admissibility, Chain, judge
from protocol.work import SignedRecord

RECENT = 256
"""Episodes over which the mean number of turns is taken: a few batches, because training changes the policy."""


MAX_PARTS = 16
"""Maximum number of parts of one turn that were returned, each because its node left before it could finish. Each costs
a lease, a round trip and a row in the ledger. A group with a turn of more parts is given up."""

PARTS = "parts"
"""Why a group is given up in which a turn has more than MAX_PARTS parts, or the rest of a turn cannot be leased."""


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """The policy's words in one turn, and the reply to it; or a part of a turn, whose reply is Unfinished. `spans` say
    how many tokens each version made; `experts` are as in the record."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[tuple[int, PolicyVersion], ...]
    reply: Heard
    experts: bytes = b""

    @property
    def is_part(self) -> bool:
        return isinstance(self.reply, Unfinished)


def utterance_of(signed: SignedRecord, reply: Heard) -> Utterance:
    """Return the content of an admitted record with the reply to it."""
    return Utterance(
        tokens=signed.tokens,
        logprobs=signed.logprobs,
        spans=tuple((span.end - span.start, span.version) for span in signed.record.spans),
        reply=reply,
        experts=signed.record.experts,
    )


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A turn, or the rest of one, that waits for a lease, and its episodes. `oldest`: the oldest version that made
    tokens of their group."""

    place: EpisodeSlots
    oldest: PolicyVersion
    group: _Open

    @property
    def prompt(self) -> Prompt:
        """The transcript so far. It is computed on each access, because most waiting turns are only looked at."""
        root, episode = self.group.root, self.group.episodes[self.place.slots[0]]
        return Prompt(task=root.lease.task, index=root.prompt_index, tokens=episode.follow(self.group.prompt))

    @property
    def start(self) -> int:
        """Number of tokens of the turn that others made."""
        return len(self.group.episodes[self.place.slots[0]].begun)

    def seeds(self, place: EpisodeSlots) -> list[int | None]:
        """Return the seeds with which the turn was begun in these episodes; None where it was not begun."""
        return [self.group.episodes[slot].seed for slot in place.slots]

    def share(self, slots: int) -> EpisodeSlots:
        """Return the place of the first `slots` of its episodes."""
        return EpisodeSlots(root=self.place.root, turn=self.place.turn, slots=self.place.slots[:slots])


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """The group that `root` opened will not be trained on, for this reason."""

    root: LeaseId
    reason: str
    episodes: int


@dataclass(kw_only=True, slots=True)
class _Episode:
    """One episode. `lease` makes its next turn; None if no lease does. Episodes of one `family` in their group have
    equal transcripts. `seed`: that of an unfinished turn that was returned."""

    utterances: list[Utterance] = field(default_factory=list)
    lease: LeaseId | None = None
    family: int = 0
    seed: int | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.utterances) and isinstance(self.utterances[-1].reply, Ended)

    @property
    def waits(self) -> bool:
        return self.lease is None and not self.is_over

    @property
    def turns(self) -> list[Utterance]:
        """The finished turns, each as one utterance."""
        return [turn for turn in _turns(self.utterances) if not turn.is_part]

    @property
    def parts(self) -> list[Utterance]:
        """The parts of the turn that is begun and not finished."""
        whole = next((i for i, one in enumerate(reversed(self.utterances)) if not one.is_part), len(self.utterances))
        return self.utterances[len(self.utterances) - whole :]

    @property
    def begun(self) -> tuple[int, ...]:
        """The tokens of these parts."""
        return tuple(chain.from_iterable(part.tokens for part in self.parts))

    @property
    def said(self) -> Said:
        return tuple(turn.tokens for turn in self.turns)

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of the replies to every turn; empty if no reply has one."""
        found = tuple(one.reply.digest for one in self.utterances if isinstance(one.reply, Answered))
        return found if any(found) else ()

    def follow(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return the transcript after `prompt`: what the policy reads before its next turn."""
        parts = [prompt]
        for utterance in self.utterances:
            parts.append(utterance.tokens)
            if isinstance(utterance.reply, Answered):
                parts.append(utterance.reply.tokens)
        return tuple(chain.from_iterable(parts))


@dataclass(kw_only=True, slots=True, eq=False)
class _Open:
    """A group with an episode that is not over. `number`: its place in the order of arrival. `families`: the family
    that follows from a family, what was said next, and the reply."""

    root: GrantedLease
    episodes: list[_Episode]
    number: int
    oldest: PolicyVersion
    families: dict[tuple[int, tuple[int, ...], Heard], int] = field(default_factory=dict)

    @property
    def prompt(self) -> tuple[int, ...]:
        return unpack_tokens(self.root.lease.prompt)

    def hear(self, slot: int, utterance: Utterance) -> None:
        """Add what was said next in an episode."""
        episode = self.episodes[slot]
        episode.utterances.append(utterance)
        episode.lease = episode.seed = None
        heard = (episode.family, utterance.tokens, utterance.reply)
        episode.family = self.families.setdefault(heard, len(self.families) + 1)
        self.oldest = min(self.oldest, _oldest(utterance))

    @property
    def is_in_vain(self) -> bool:
        """Whether a turn of it can no longer be leased: it has too many parts, or its transcript is too long."""
        begun = [episode for episode in self.episodes if episode.waits and episode.parts]
        return any(len(one.parts) > MAX_PARTS for one in begun) or any(
            len(one.follow(self.prompt)) > MAX_PROMPT_TOKENS for one in begun
        )

    def waiting(self) -> Iterator[Waiting]:
        """Yield its turns that wait for a lease; equal transcripts come together."""
        alike: dict[int, list[int]] = {}
        for slot, episode in enumerate(self.episodes):
            if episode.waits:
                alike.setdefault(episode.family, []).append(slot)
        for slots in alike.values():
            turn = len(self.episodes[slots[0]].utterances)
            place = EpisodeSlots(root=self.root.id, turn=turn, slots=tuple(slots))
            yield Waiting(place=place, oldest=self.oldest, group=self)

    def close(self) -> Group:
        versions = {version for one in self.episodes for said in one.utterances for _, version in said.spans}
        return Group(
            lease=self.root.id,
            peer=self.root.peer,
            prompt_index=self.root.prompt_index,
            prompt=self.prompt,
            completions=tuple(_completion(episode.utterances) for episode in self.episodes),
            behaviour=frozenset(versions),
            leased_ms=self.root.lease.issued_ms,
        )


@dataclass(kw_only=True)
class Episodes:
    """All open groups. `mean_turns` is that of the episodes that ended recently, 1 before any did."""

    by_version: Counter[int] = field(default_factory=Counter)
    """Episodes of open groups, by the training step of the oldest version in their group."""
    mean_turns: float = 1.0
    stuck: int = 0
    """Episodes of the groups in which a turn waits for a lease."""
    _open: dict[LeaseId, _Open] = field(default_factory=dict)
    _waiting: dict[LeaseId, _Open] = field(default_factory=dict)
    _arrivals: int = 0
    _turns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __len__(self) -> int:
        """Return the episodes of open groups, over or not: each keeps the room that its first lease took."""
        return self.by_version.total() if self._open else 0

    # Events

    def admitted(self, granted: GrantedLease, utterances: Sequence[Utterance]) -> Group | None:
        """Add the records of a lease, all admitted, in the order of its seeds. Return the group if it is now complete.

        Records for a group that was given up, or is complete, change nothing.
        """
        return self.returned(granted, dict(enumerate(utterances)))

    def returned(self, granted: GrantedLease, heard: Mapping[int, Utterance]) -> Group | None:
        """Add one or more records of a returned lease by their index, as `admitted`. The seeds of the other
        completions, and of those that are parts, wait for another lease.
        """
        seeds = granted.lease.seeds
        if granted.place is None:
            self._arrivals += 1
            group = _Open(
                root=granted,
                episodes=[_Episode(seed=seed) for seed in seeds],
                number=self._arrivals,
                oldest=min(map(_oldest, heard.values())),
            )
            for slot, utterance in heard.items():
                group.hear(slot, utterance)
                group.episodes[slot].seed = seeds[slot] if utterance.is_part else None
            if (found := self._finish(group)) is not None:
                return found
            self._open[granted.id] = group
            self._note(group)
            return None
        if (known := self._open.get(granted.place.root)) is None:
            return None
        self._forget(known)
        for index, (slot, seed) in enumerate(zip(granted.place.slots, seeds, strict=True)):
            episode, said = known.episodes[slot], heard.get(index)
            if episode.is_over or len(episode.utterances) != granted.place.turn:
                continue
            if said is not None:
                known.hear(slot, said)
            if said is None or said.is_part:
                episode.lease, episode.seed = None, seed
        if (found := self._finish(known)) is not None:
            del self._open[granted.place.root]
            return found
        self._note(known)
        return None

    def leased(self, granted: GrantedLease) -> bool:
        """Assign the turn at its place to the lease. Return False if that turn is over, or belongs to another lease."""
        place = granted.place
        if place is None or (group := self._open.get(place.root)) is None:
            return True
        episodes = [group.episodes[slot] for slot in place.slots]
        if not all(episode.waits and len(episode.utterances) == place.turn for episode in episodes):
            return False
        self._forget(group)
        for episode in episodes:
            episode.lease = granted.id
        self._note(group)
        return True

    def lost(self, granted: GrantedLease) -> None:
        """Let the turns of a lease that brings nothing wait again."""
        place = granted.place
        if place is None or (group := self._open.get(place.root)) is None:
            return
        self._forget(group)
        for slot in place.slots:
            if group.episodes[slot].lease == granted.id:
                group.episodes[slot].lease = None
        self._note(group)

    def give_up(self, chain: Chain, window: int) -> list[GivenUp]:
        """Give up the groups that may not be trained on at the head of `chain`, or whose rest can no longer be leased.
        Return them."""
        if not self._open:
            return []
        ended = []
        for root, group in list(self._open.items()):
            versions = {version for one in group.episodes for said in one.utterances for _, version in said.spans}
            if (fate := judge(chain, versions, window)) in (Admissibility.STALE, Admissibility.ORPHANED):
                ended.append(self._end(root, fate.value))
            elif group.is_in_vain:
                ended.append(self._end(root, PARTS))
        return ended

    def give_up_begun(self) -> list[GivenUp]:
        """Give up the groups in which the rest of a begun turn waits, because no peer is here that can finish it.
        Return them."""
        begun = [one.place.root for one in self.waiting() if one.start]
        return [self._end(root, PARTS) for root in dict.fromkeys(begun)]

    def _end(self, root: LeaseId, reason: str) -> GivenUp:
        group = self._open.pop(root)
        self._forget(group)
        return GivenUp(root=root, reason=reason, episodes=len(group.episodes))

    # Queries

    @property
    def waits(self) -> bool:
        """Whether any turn waits for a lease."""
        return bool(self._waiting)

    def is_open(self, root: LeaseId) -> bool:
        """Return whether the group that this lease opened is still open."""
        return root in self._open

    def waiting(self) -> Iterator[Waiting]:
        """Yield the turns that wait for a lease, those of the oldest groups first."""
        for group in sorted(self._waiting.values(), key=lambda group: (group.oldest, group.number)):
            yield from group.waiting()

    def said(self, granted: GrantedLease) -> Said | None:
        """Return what was said in the episodes that the lease continues; None if they no longer wait for it."""
        if granted.place is None:
            return ()
        episode = self._continued(granted.place)
        return None if episode is None else episode.said

    def begun(self, granted: GrantedLease) -> tuple[int, ...]:
        """Return the tokens that others made of the turn that the lease finishes."""
        episode = None if granted.place is None else self._continued(granted.place)
        return () if episode is None else episode.begun

    def digests(self, granted: GrantedLease) -> tuple[str, ...]:
        """Return the digests of the replies in these episodes, one for each turn; empty if replies have none."""
        episode = None if granted.place is None else self._continued(granted.place)
        return () if episode is None else episode.digests

    def _continued(self, place: EpisodeSlots) -> _Episode | None:
        if (group := self._open.get(place.root)) is None:
            return None
        episode = group.episodes[place.slots[0]]
        return episode if len(episode.utterances) == place.turn and not episode.is_over else None

    # Counts

    def _finish(self, group: _Open) -> Group | None:
        if not all(episode.is_over for episode in group.episodes):
            return None
        self._turns.extend(len(episode.turns) for episode in group.episodes)
        self.mean_turns = sum(self._turns) / len(self._turns)
        return group.close()

    def _note(self, group: _Open) -> None:
        self.by_version[group.oldest.version] += len(group.episodes)
        if any(episode.waits for episode in group.episodes):
            self._waiting[group.root.id] = group
            self.stuck += len(group.episodes)

    def _forget(self, group: _Open) -> None:
        self.by_version[group.oldest.version] -= len(group.episodes)
        if not self.by_version[group.oldest.version]:
            del self.by_version[group.oldest.version]
        if self._waiting.pop(group.root.id, None) is not None:
            self.stuck -= len(group.episodes)


def _oldest(utterance: Utterance) -> PolicyVersion:
    return min(version for _, version in utterance.spans)


def _joined(spans: Sequence[tuple[int, PolicyVersion]]) -> tuple[tuple[int, PolicyVersion], ...]:
    """Return the spans with consecutive ones of equal version joined."""
    by_version = groupby(spans, key=lambda span: span[1])
    return tuple((sum(count for count, _ in several), version) for version, several in by_version)


def _turns(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return each turn as one utterance, joined from its parts; the last turn may be unfinished."""
    found: list[Utterance] = []
    for one in utterances:
        if found and found[-1].is_part:
            before = found.pop()
            one = Utterance(
                tokens=before.tokens + one.tokens,
                logprobs=before.logprobs + one.logprobs,
                spans=_joined(before.spans + one.spans),
                reply=one.reply,
                experts=joined_experts([before.experts, one.experts]),
            )
        found.append(one)
    return found


def _completion(utterances: Sequence[Utterance]) -> Completion:
    """Return all that follows the prompt, for training. Replies of the environment are read and not trained on."""
    utterances = _turns(utterances)
    last = utterances[-1]
    assert isinstance(last.reply, Ended)
    if len(utterances) == 1:  # a shortcut, so that tasks of one turn are not slower
        return Completion(
            tokens=last.tokens,
            logprobs=last.logprobs,
            reward=last.reply.reward,
            spans=last.spans,
            void=last.reply.void,
            cut_off=last.reply.cut_off,
            parts=last.reply.parts,
            experts=last.experts,
        )
    tokens: list[int] = []
    generated: list[tuple[int, int]] = []
    for utterance in utterances:
        generated.append((len(tokens), len(tokens) + len(utterance.tokens)))
        tokens += utterance.tokens
        if isinstance(utterance.reply, Answered):
            tokens += utterance.reply.tokens
    return Completion(
        tokens=tuple(tokens),
        logprobs=tuple(chain.from_iterable(utterance.logprobs for utterance in utterances)),
        reward=last.reply.reward,
        spans=_joined([span for utterance in utterances for span in utterance.spans]),
        generated=tuple(generated),
        void=last.reply.void,
        cut_off=last.reply.cut_off,
        parts=last.reply.parts,
        experts=joined_experts([utterance.experts for utterance in utterances]),
    )
