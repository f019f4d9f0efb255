"""Episodes of several turns: each slot of a group gets exactly one episode, in any order of events.

A mask covers exactly the policy's own tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.admission import EpisodeSlots, GrantedLease
from learner.rollouts.buffer import Group
from learner.rollouts.environment import Answered, Ended, EpisodeLimits, Reply, Said
from learner.rollouts.episodes import Episodes, Utterance, Waiting
from protocol.core.codec import pack_tokens, unpack_tokens
from protocol.core.ids import LeaseId
from protocol.versions.staleness import Chain
from tests.support.trainer_fixture import granted, lease_id, version

PROMPT = (5, 6, 7)
ANSWER = 60
"""Every answer of the environment begins with it, and the policy never says it."""


def environment(index: int, said: Said, transcript: int) -> Reply:
    """Goes on until a turn begins with an even token; the first tokens of all turns are the return."""
    if said[-1][0] % 2 == 0:
        return Ended(reward=float(sum(turn[0] for turn in said) + index))
    return Answered(tokens=(ANSWER, len(said), said[-1][0]))


def utter(
    before: Said, tokens: tuple[int, ...], *, made_by: str = "1.1", index: int = 7, logprob: float = -0.5
) -> Utterance:
    reply = environment(index, (*before, tokens), 0)
    spans = ((len(tokens), version(made_by)),)
    return Utterance(tokens=tokens, logprobs=(logprob,) * len(tokens), spans=spans, reply=reply)


def lease(number: int, waiting: Waiting, size: int | None = None) -> GrantedLease:
    """Lease `number` of what waits, for the first `size` of its episodes."""
    place = waiting.share(size or len(waiting.place.slots))
    opened = granted(number, size=len(place.slots), prompt=pack_tokens(waiting.prompt.tokens))
    return replace(opened, prompt_index=waiting.prompt.index, place=place)


def go_on(episodes: Episodes, number: int, *tokens: tuple[int, ...], made_by: str = "1.1") -> Group | None:
    """Lease the first turns that wait as lease `number`, and admit that they say `tokens`."""
    waiting = next(episodes.waiting())
    one = lease(number, waiting, len(tokens))
    said = episodes.said(one)
    assert said is not None
    assert episodes.leased(one)
    return episodes.admitted(one, [utter(said, each, made_by=made_by) for each in tokens])


def test_a_group_of_one_turn_is_complete_at_once() -> None:
    episodes = Episodes()
    group = episodes.admitted(granted(1), [utter((), (2, 0)), utter((), (4, 0), made_by="1.2")])
    assert group is not None
    assert (group.lease, group.prompt, group.prompt_index) == (lease_id(1), PROMPT, 7)
    assert [one.reward for one in group.completions] == [9.0, 11.0]
    assert [one.generated for one in group.completions] == [(), ()]
    assert group.behaviour == {version("1.1"), version("1.2")}
    assert (len(episodes), episodes.waits, episodes.mean_turns) == (0, False, 1.0)


def test_a_turn_reads_the_transcript_and_a_group_ends_with_its_last_episode() -> None:
    episodes = Episodes()
    assert episodes.admitted(granted(1), [utter((), (2, 0)), utter((), (3, 9, 0))]) is None
    assert (len(episodes), episodes.stuck, dict(episodes.by_version)) == (2, 2, {1: 2})
    [waiting] = episodes.waiting()
    assert waiting.prompt.tokens == (*PROMPT, 3, 9, 0, ANSWER, 1, 3)
    assert waiting.place == EpisodeSlots(root=lease_id(1), turn=1, slots=(1,))
    group = go_on(episodes, 2, (8, 0), made_by="1.2")
    assert group is not None
    one_turn, two_turns = group.completions
    assert (one_turn.tokens, one_turn.generated) == ((2, 0), ())
    assert two_turns.tokens == (3, 9, 0, ANSWER, 1, 3, 8, 0)
    assert two_turns.generated == ((0, 3), (6, 8))
    assert two_turns.spans == ((3, version("1.1")), (2, version("1.2")))
    assert two_turns.reward == 3 + 8 + 7
    assert (len(episodes), episodes.stuck, episodes.waits, episodes.mean_turns) == (0, 0, False, 1.5)


def test_turns_of_one_version_are_one_span() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1, size=1), [utter((), (3, 0))])
    go_on(episodes, 2, (5, 1, 0))
    go_on(episodes, 3, (7, 0), made_by="1.2")
    group = go_on(episodes, 4, (2, 0), made_by="1.1")
    assert group is not None
    assert group.completions[0].spans == ((5, version("1.1")), (2, version("1.2")), (2, version("1.1")))


def test_siblings_that_said_the_same_go_on_together() -> None:
    episodes = Episodes()
    said = [(3, 0), (5, 0), (3, 0), (3, 0)]
    episodes.admitted(granted(1, size=4), [utter((), tokens) for tokens in said])
    together, alone = episodes.waiting()
    assert (together.place.slots, alone.place.slots) == ((0, 2, 3), (1,))
    assert episodes.leased(lease(2, together, 2))
    assert [waiting.place.slots for waiting in episodes.waiting()] == [(1,), (3,)]
    assert episodes.stuck == 4
    for number, waiting in enumerate(list(episodes.waiting()), start=3):
        assert episodes.leased(lease(number, waiting))
    assert (episodes.stuck, len(episodes)) == (0, 4)


def test_siblings_that_read_something_else_do_not_though_they_said_the_same() -> None:
    episodes = Episodes()
    answers = [Answered(tokens=(ANSWER, number), digest=f"d{number}") for number in (1, 2, 1)]
    episodes.admitted(granted(1, size=3), [replace(utter((), (3, 0)), reply=reply) for reply in answers])
    first, second = episodes.waiting()
    assert (first.place.slots, second.place.slots) == ((0, 2), (1,))
    assert [waiting.prompt.tokens[-1] for waiting in (first, second)] == [1, 2]
    assert [episodes.digests(lease(2, waiting)) for waiting in (first, second)] == [("d1",), ("d2",)]


def test_answers_without_digests_have_none() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1, size=1), [utter((), (3, 0))])
    go_on(episodes, 2, (5, 0))
    [waiting] = episodes.waiting()
    one = lease(3, waiting)
    assert (episodes.said(one), episodes.digests(one), episodes.digests(granted(9))) == (((3, 0), (5, 0)), (), ())


def test_what_is_lost_waits_again_and_nobody_else_can_lose_it() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1), [utter((), (3, 0)), utter((), (5, 0))])
    first = lease(2, next(episodes.waiting()))
    assert episodes.leased(first)
    assert not episodes.leased(replace(first, lease=lease(3, next(episodes.waiting())).lease)), "it is in other hands"
    episodes.lost(first)
    again = lease(4, next(episodes.waiting()))
    assert again.place == first.place
    assert episodes.leased(again)
    episodes.lost(first)  # once more, and late
    assert [waiting.place.slots for waiting in episodes.waiting()] == [(1,)]


def test_the_oldest_groups_go_on_first_and_a_later_turn_may_be_older_than_the_first() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1), [utter((), (3, 0), made_by="1.3"), utter((), (2, 0), made_by="1.3")])
    episodes.admitted(granted(2), [utter((), (3, 0), made_by="1.2"), utter((), (2, 0), made_by="1.4")])
    assert [waiting.place.root for waiting in episodes.waiting()] == [lease_id(2), lease_id(1)]
    assert dict(episodes.by_version) == {3: 2, 2: 2}
    old = lease(3, list(episodes.waiting())[1])
    episodes.leased(old)
    episodes.admitted(old, [utter(((3, 0),), (3, 0), made_by="1.1")])
    assert [waiting.place.root for waiting in episodes.waiting()] == [lease_id(1), lease_id(2)]
    assert dict(episodes.by_version) == {1: 2, 2: 2}


def test_a_group_that_is_too_old_is_given_up_and_its_late_turns_change_nothing() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1), [utter((), (3, 0), made_by="1.1"), utter((), (2, 0), made_by="1.3")])
    episodes.admitted(granted(2), [utter((), (3, 0), made_by="1.2"), utter((), (2, 0), made_by="1.3")])
    late = lease(3, next(episodes.waiting()))
    assert episodes.leased(late)
    chain = Chain(bases=(0,), head=version("1.3"))
    assert episodes.give_up(chain, window=2) == []
    [ended] = episodes.give_up(chain, window=1)
    assert (ended.root, ended.reason, ended.episodes) == (lease_id(1), "stale", 2)
    assert (len(episodes), dict(episodes.by_version)) == (2, {2: 2})
    assert episodes.said(late) is None
    assert episodes.admitted(late, [utter(((3, 0),), (2, 0))]) is None
    episodes.lost(late)
    [orphaned] = episodes.give_up(Chain(bases=(0, 1), head=version("2.3")), window=9)
    assert (orphaned.root, orphaned.reason) == (lease_id(2), "orphaned")
    assert (len(episodes), episodes.stuck, episodes.waits) == (0, 0, False)


def test_limits_leave_a_whole_turn_its_room() -> None:
    limits = EpisodeLimits(turns=2, tokens=20, turn_tokens=5)
    assert limits.allow(1, 15)
    assert not limits.allow(1, 16), "its budget would not fit"
    assert not limits.allow(2, 3), "that was the last turn"


@dataclass
class Story:
    """A learner's side of many groups: what the ledger would hold, what is leased, and what came out."""

    luck: random.Random
    episodes: Episodes = field(default_factory=Episodes)
    ledger: list[tuple[GrantedLease, list[Utterance]]] = field(default_factory=list)
    open: dict[LeaseId, GrantedLease] = field(default_factory=dict)
    done: dict[LeaseId, Group] = field(default_factory=dict)
    numbers: int = 0

    def new(self) -> int:
        self.numbers += 1
        return self.numbers

    def begin(self) -> None:
        one = granted(self.new(), size=self.luck.randint(1, 4), prompt_index=self.luck.randint(0, 9))
        self.open[one.id] = one

    def lease(self) -> None:
        waiting = list(self.episodes.waiting())
        if waiting:
            chosen = self.luck.choice(waiting)
            one = lease(self.new(), chosen, self.luck.randint(1, len(chosen.place.slots)))
            assert unpack_tokens(one.lease.prompt) == chosen.prompt.tokens
            assert self.episodes.leased(one)
            self.open[one.id] = one

    def admit(self) -> None:
        if self.open:
            one = self.open.pop(self.luck.choice(list(self.open)))
            said = self.episodes.said(one)
            assert said is not None
            words = [(self.luck.randint(1, 4), *self.luck.sample(range(1, 9), self.luck.randint(0, 2))) for _ in
                     one.lease.seeds]  # fmt: skip
            made = [
                utter(said, each, made_by=f"1.{self.luck.randint(0, 5)}", index=one.prompt_index, logprob=-self.new())
                for each in words
            ]
            self.ledger.append((one, made))
            self.finish(self.episodes.admitted(one, made))

    def lose(self) -> None:
        if self.open:
            self.episodes.lost(self.open.pop(self.luck.choice(list(self.open))))

    def restart(self) -> None:
        """Killed: all that is not in the ledger is gone; leases come back, in any order."""
        known, self.done, self.episodes = self.done, {}, Episodes()
        turns = sorted(self.ledger, key=lambda entry: 0 if entry[0].place is None else entry[0].place.turn)
        for one, made in turns:
            self.finish(self.episodes.admitted(one, made))
        assert self.done == known
        for one in self.luck.sample(list(self.open.values()), len(self.open)):
            assert self.episodes.leased(one)

    def finish(self, group: Group | None) -> None:
        if group is not None:
            assert group.lease not in self.done
            self.done[group.lease] = group

    def check_books(self) -> None:
        """Check that the next turn of every open episode is in exactly one lease, or waits exactly once."""
        waiting = [(one.place.root, slot) for one in self.episodes.waiting() for slot in one.place.slots]
        leased = [
            (one.place.root, slot) for one in self.open.values() if one.place is not None for slot in one.place.slots
        ]
        places = Counter(waiting + leased)
        assert set(places.values()) <= {1}
        begun = {one.id: len(one.lease.seeds) for one, _ in self.ledger if one.place is None}
        going = {root: size for root, size in begun.items() if root not in self.done}
        assert len(self.episodes) == sum(going.values())
        assert {root for root, _ in places} == going.keys()
        assert self.episodes.stuck == sum(begun[root] for root in {root for root, _ in waiting})

    def check_groups(self) -> None:
        """Every slot has one episode: the records that were admitted for it, with the answers between them."""
        for root, group in self.done.items():
            size = len(group.completions)
            for slot, completion in enumerate(group.completions):
                said = [self._at(root, turn, slot) for turn in range(64)]
                turns = [each for each in said if each is not None]
                assert said[: len(turns)] == turns, "no turn is missing"
                assert 0 <= slot < size
                expected: list[int] = []
                masked: list[int] = []
                for turn in turns:
                    masked += range(len(expected), len(expected) + len(turn.tokens))
                    expected += turn.tokens
                    expected += turn.reply.tokens if isinstance(turn.reply, Answered) else ()
                ranges = completion.generated or ((0, len(completion.tokens)),)
                assert completion.tokens == tuple(expected)
                assert [place for start, end in ranges for place in range(start, end)] == masked
                assert completion.logprobs == tuple(logprob for turn in turns for logprob in turn.logprobs)
                assert sum(count for count, _ in completion.spans) == len(masked)
                assert completion.reward == sum(turn.tokens[0] for turn in turns) + group.prompt_index

    def _at(self, root: LeaseId, turn: int, slot: int) -> Utterance | None:
        found = [
            made[index]
            for one, made in self.ledger
            for index, (of, when, where) in enumerate(_places(one))
            if (of, when, where) == (root, turn, slot)
        ]
        assert len(found) <= 1, "a turn was trained on twice"
        return found[0] if found else None


def _places(one: GrantedLease) -> list[tuple[LeaseId, int, int]]:
    if one.place is None:
        return [(one.id, 0, slot) for slot in range(len(one.lease.seeds))]
    return [(one.place.root, one.place.turn, slot) for slot in one.place.slots]


MOVES: list[Any] = [Story.begin, Story.lease, Story.lease, Story.admit, Story.admit, Story.lose, Story.restart]


@given(seed=st.integers(0, 1 << 32), moves=st.lists(st.sampled_from(MOVES), max_size=60))
def test_every_slot_gets_exactly_one_episode(seed: int, moves: list[Any]) -> None:
    story = Story(random.Random(seed))
    for move in [Story.begin, Story.admit, *moves]:
        move(story)
        story.check_books()
    while story.episodes.waits or story.open:  # nothing is lost any more
        story.lease()
        story.admit()
    story.restart()
    story.check_books()
    story.check_groups()
    begun = {one.id: len(one.lease.seeds) for one, _ in story.ledger if one.place is None}
    assert {root: len(group.completions) for root, group in story.done.items()} == begun
