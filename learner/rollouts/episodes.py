"""Episodes that go on: what was said in them, who makes their next turn, which groups are complete.

A pure core. A group of episodes is opened by a lease of its prompt; every later turn is a lease of its own whose prompt
is the transcript so far, for one episode or for several whose transcripts agree, and may be another peer's. What always
holds: of every episode of an open group its next turn is either in the hands of one lease or waits for one, or the
episode is over; a turn that was lost waits again, and is leased under a new id with new seeds; a group is handed out
once, when its last episode ends, with the completions in the order of its slots; a group is as old as the oldest tokens
in it, and is given up as a whole when those are too old. After a restart the same records, given again in the order of
their turns, lead to the same state. How much is held is bounded by what may be leased or wait
(`learner.scheduling.lease_scheduler`).

A lease that is handed back is taken up as far as it came. Of a turn that was begun and not finished there are several
records, its parts, each signed by who made it; what follows them is leased to another, who reads them as the end of its
prompt and draws with the same seed from their position on (StreamRL's and APRIL's partial rollouts, arXiv 2504.15930
and 2509.18521). So nobody answers for what another made before. Rewards and training see the turn as one.
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
"""Episodes over which their mean number of turns is taken: a few batches, since a policy in training changes it."""


MAX_PARTS = 16
"""Parts of one turn that were handed back: as often was its node lost before it could finish. Each costs a lease, a
round trip and a row in the ledger; a group with a turn of more is given up."""

PARTS = "parts"
"""Why a group is given up of which a turn has more parts than MAX_PARTS, or none of whom may be leased what follows."""


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """What the policy said in one turn, and the reply to it; or a part of that, which is Unfinished. `spans` say how
    many tokens each version made; `experts` are as its record has them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[tuple[int, PolicyVersion], ...]
    reply: Heard
    experts: bytes = b""

    @property
    def is_part(self) -> bool:
        return isinstance(self.reply, Unfinished)


def utterance_of(signed: SignedRecord, reply: Heard) -> Utterance:
    """What an admitted record says, and what came back."""
    return Utterance(
        tokens=signed.tokens,
        logprobs=signed.logprobs,
        spans=tuple((span.end - span.start, span.version) for span in signed.record.spans),
        reply=reply,
        experts=signed.record.experts,
    )


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A turn that nobody makes yet, or what is left of one, and of which episodes. `oldest` made tokens of their
    group."""

    place: EpisodeSlots
    oldest: PolicyVersion
    group: _Open

    @property
    def prompt(self) -> Prompt:
        """What is read before it: the transcript. Put together anew, since most that wait are only looked at."""
        root, episode = self.group.root, self.group.episodes[self.place.slots[0]]
        return Prompt(task=root.lease.task, index=root.prompt_index, tokens=episode.follow(self.group.prompt))

    @property
    def start(self) -> int:
        """Tokens that others made of the turn."""
        return len(self.group.episodes[self.place.slots[0]].begun)

    def seeds(self, place: EpisodeSlots) -> list[int | None]:
        """Of those episodes the seeds that the turn was begun with; None where it was not."""
        return [self.group.episodes[slot].seed for slot in place.slots]

    def share(self, slots: int) -> EpisodeSlots:
        """The place of the first `slots` of its episodes."""
        return EpisodeSlots(root=self.place.root, turn=self.place.turn, slots=self.place.slots[:slots])


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """The group that `root` opened will not be trained on, and why."""

    root: LeaseId
    reason: str
    episodes: int


@dataclass(kw_only=True, slots=True)
class _Episode:
    """`lease` makes the next turn; None: nobody does. Episodes of one `family` in their group said and read
    the same. `seed` is that of a turn that was handed back before it was over."""

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
        """Those that are over, each as one."""
        return [turn for turn in _turns(self.utterances) if not turn.is_part]

    @property
    def parts(self) -> list[Utterance]:
        """Those of the turn that is begun and not over."""
        whole = next((i for i, one in enumerate(reversed(self.utterances)) if not one.is_part), len(self.utterances))
        return self.utterances[len(self.utterances) - whole :]

    @property
    def begun(self) -> tuple[int, ...]:
        """What they say."""
        return tuple(chain.from_iterable(part.tokens for part in self.parts))

    @property
    def said(self) -> Said:
        return tuple(turn.tokens for turn in self.turns)

    @property
    def digests(self) -> tuple[str, ...]:
        """Of what was answered, in every turn; none where no answer has one."""
        found = tuple(one.reply.digest for one in self.utterances if isinstance(one.reply, Answered))
        return found if any(found) else ()

    def follow(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The transcript: what the policy reads before its next turn."""
        parts = [prompt]
        for utterance in self.utterances:
            parts.append(utterance.tokens)
            if isinstance(utterance.reply, Answered):
                parts.append(utterance.reply.tokens)
        return tuple(chain.from_iterable(parts))


@dataclass(kw_only=True, slots=True, eq=False)
class _Open:
    """A group with an episode that is not over. `number` is its place in the order of arrival; `families` those that
    came of what was said next in a family, and read in answer."""

    root: GrantedLease
    episodes: list[_Episode]
    number: int
    oldest: PolicyVersion
    families: dict[tuple[int, tuple[int, ...], Heard], int] = field(default_factory=dict)

    @property
    def prompt(self) -> tuple[int, ...]:
        return unpack_tokens(self.root.lease.prompt)

    def hear(self, slot: int, utterance: Utterance) -> None:
        """That was said next in an episode."""
        episode = self.episodes[slot]
        episode.utterances.append(utterance)
        episode.lease = episode.seed = None
        heard = (episode.family, utterance.tokens, utterance.reply)
        episode.family = self.families.setdefault(heard, len(self.families) + 1)
        self.oldest = min(self.oldest, _oldest(utterance))

    @property
    def is_in_vain(self) -> bool:
        """Whether a turn of it may not be leased any more: it has too many parts, or its transcript is too long."""
        begun = [episode for episode in self.episodes if episode.waits and episode.parts]
        return any(len(one.parts) > MAX_PARTS for one in begun) or any(
            len(one.follow(self.prompt)) > MAX_PROMPT_TOKENS for one in begun
        )

    def waiting(self) -> Iterator[Waiting]:
        """Its turns that wait, those of equal transcripts together."""
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
    """See the module's paragraph. `mean_turns` is that of the episodes that ended of late, 1 before any did."""

    by_version: Counter[int] = field(default_factory=Counter)
    """Episodes of open groups, by the training step of the oldest version in their group."""
    mean_turns: float = 1.0
    stuck: int = 0
    """Episodes of those groups of which a turn waits for a lease."""
    _open: dict[LeaseId, _Open] = field(default_factory=dict)
    _waiting: dict[LeaseId, _Open] = field(default_factory=dict)
    _arrivals: int = 0
    _turns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __len__(self) -> int:
        """Episodes of open groups, over or not: each takes the room that it took while its first turn was leased."""
        return self.by_version.total() if self._open else 0

    # Events

    def admitted(self, granted: GrantedLease, utterances: Sequence[Utterance]) -> Group | None:
        """All records of a lease were admitted, in the order of its seeds; the group that is complete with them.

        What continues a group that was given up, or is complete, changes nothing.
        """
        return self.handed_back(granted, dict(enumerate(utterances)))

    def handed_back(self, granted: GrantedLease, heard: Mapping[int, Utterance]) -> Group | None:
        """As `admitted`, of the records that were made of a lease, one or more, by their index; of the others, and of
        those that are parts, the lease's seeds wait for another.
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
        """The lease makes the turn of its place from now on; False if that is over, or in the hands of another."""
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
        """The lease brings nothing: what it was to continue waits again."""
        place = granted.place
        if place is None or (group := self._open.get(place.root)) is None:
            return
        self._forget(group)
        for slot in place.slots:
            if group.episodes[slot].lease == granted.id:
                group.episodes[slot].lease = None
        self._note(group)

    def give_up(self, chain: Chain, window: int) -> list[GivenUp]:
        """Forget the groups that may not be trained on at the head of `chain`, or that nobody may be leased what is
        left of, and say which."""
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
        """Forget the groups of which what is left of a turn waits, since nobody is here who goes on with it; say
        which."""
        begun = [one.place.root for one in self.waiting() if one.start]
        return [self._end(root, PARTS) for root in dict.fromkeys(begun)]

    def _end(self, root: LeaseId, reason: str) -> GivenUp:
        group = self._open.pop(root)
        self._forget(group)
        return GivenUp(root=root, reason=reason, episodes=len(group.episodes))

    # Questions

    @property
    def waits(self) -> bool:
        """Whether a turn waits for a lease."""
        return bool(self._waiting)

    def is_open(self, root: LeaseId) -> bool:
        """Whether the group that this lease opened goes on."""
        return root in self._open

    def waiting(self) -> Iterator[Waiting]:
        """The turns that wait for a lease, those of the oldest groups first."""
        for group in sorted(self._waiting.values(), key=lambda group: (group.oldest, group.number)):
            yield from group.waiting()

    def said(self, granted: GrantedLease) -> Said | None:
        """What was said in the episodes that the lease continues; None when nobody waits for it any more."""
        if granted.place is None:
            return ()
        episode = self._continued(granted.place)
        return None if episode is None else episode.said

    def begun(self, granted: GrantedLease) -> tuple[int, ...]:
        """What others made of the turn that the lease goes on with."""
        episode = None if granted.place is None else self._continued(granted.place)
        return () if episode is None else episode.begun

    def digests(self, granted: GrantedLease) -> tuple[str, ...]:
        """Of what was answered there, in every turn; none where answers have none."""
        episode = None if granted.place is None else self._continued(granted.place)
        return () if episode is None else episode.digests

    def _continued(self, place: EpisodeSlots) -> _Episode | None:
        if (group := self._open.get(place.root)) is None:
            return None
        episode = group.episodes[place.slots[0]]
        return episode if len(episode.utterances) == place.turn and not episode.is_over else None

    # The books

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
    """The same with one span where several after each other are of one version."""
    by_version = groupby(spans, key=lambda span: span[1])
    return tuple((sum(count for count, _ in several), version) for version, several in by_version)


def _turns(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Each turn as one, whoever made which part of it; the last may be unfinished."""
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
    """All that follows the prompt, as training wants it. An answer is read, and not learnt."""
    utterances = _turns(utterances)
    last = utterances[-1]
    assert isinstance(last.reply, Ended)
    if len(utterances) == 1:  # as it came: a task of one turn is none the slower for those of several
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
