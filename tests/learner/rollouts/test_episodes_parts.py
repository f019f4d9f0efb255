"""Returned leases: their parts are kept, and the rest waits with the same seeds.

A completion of several parts counts as one for rewards and training.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.admission import GrantedLease
from learner.rollouts.buffer import Group
from learner.rollouts.environment import Answered, Ended, Unfinished
from learner.rollouts.episodes import MAX_PARTS, PARTS, Episodes, GivenUp, Utterance, Waiting
from protocol.core.codec import pack_tokens
from protocol.versions.staleness import Chain
from tests.support.trainer_fixture import granted, lease_id, version

PROMPT = (5, 6, 7)
UNFINISHED = Unfinished()


def part(*tokens: int, made_by: str = "1.1") -> Utterance:
    return Utterance(
        tokens=tokens, logprobs=(-0.5,) * len(tokens), spans=((len(tokens), version(made_by)),), reply=UNFINISHED
    )


def end(*tokens: int, made_by: str = "1.1", reward: float = 1.0) -> Utterance:
    return replace(part(*tokens, made_by=made_by), reply=Ended(reward=reward))


def lease(number: int, waiting: Waiting) -> GrantedLease:
    """Lease `number` of all that waits there, as the scheduler grants it."""
    seeds = [seed if seed is not None else 1000 * number + i for i, seed in enumerate(waiting.seeds(waiting.place))]
    opened = granted(number, size=len(seeds), prompt=pack_tokens(waiting.prompt.tokens), seeds=seeds)
    return replace(opened, prompt_index=waiting.prompt.index, place=waiting.place)


def take(episodes: Episodes, number: int, place: int = 0) -> GrantedLease:
    one = lease(number, list(episodes.waiting())[place])
    assert episodes.leased(one)
    return one


def test_what_is_left_waits_with_its_seeds_and_the_group_is_complete_once() -> None:
    episodes = Episodes()
    first = granted(1, size=3)
    assert episodes.returned(first, {0: end(2, 0, reward=0.5), 2: part(3, 4)}) is None
    assert (len(episodes), dict(episodes.by_version)) == (3, {1: 3})
    unbegun, begun = episodes.waiting()
    assert (unbegun.place.slots, unbegun.prompt.tokens, unbegun.start) == ((1,), PROMPT, 0)
    assert (begun.place.slots, begun.prompt.tokens, begun.start) == ((2,), (*PROMPT, 3, 4), 2)
    assert [one.seeds(one.place) for one in (unbegun, begun)] == [[101], [102]], "those of the first lease"
    rest, goes_on = take(episodes, 2), take(episodes, 3)
    assert (episodes.said(goes_on), episodes.begun(goes_on)) == ((), (3, 4))
    assert episodes.admitted(rest, [end(8, 0)]) is None
    group = episodes.admitted(goes_on, [end(9, 0, made_by="1.2", reward=2.0)])
    assert group is not None
    assert [one.tokens for one in group.completions] == [(2, 0), (8, 0), (3, 4, 9, 0)]
    assert [one.reward for one in group.completions] == [0.5, 1.0, 2.0]
    joined = group.completions[2]
    assert (joined.generated, joined.turns) == ((), 1), "parts of two peers must make one turn"
    assert joined.spans == ((2, version("1.1")), (2, version("1.2")))
    assert len(joined.logprobs) == 4
    assert group.behaviour == {version("1.1"), version("1.2")}
    assert (len(episodes), episodes.waits, episodes.mean_turns) == (0, False, 1.0)


def test_a_rest_that_is_lost_or_handed_back_again_keeps_its_seeds() -> None:
    episodes = Episodes()
    episodes.returned(granted(1), {0: part(1)})
    both = [take(episodes, 2), take(episodes, 3)]
    for one in both:
        episodes.lost(one)
    assert [one.seeds(one.place) for one in episodes.waiting()] == [[100], [101]]
    begun = take(episodes, 4)
    assert episodes.returned(begun, {0: part(2, 3)}) is None
    again = next(one for one in episodes.waiting() if one.start)
    assert (again.start, again.prompt.tokens, again.seeds(again.place)) == (3, (*PROMPT, 1, 2, 3), [100])


def test_a_turn_of_an_episode_goes_on_where_it_was_and_the_next_has_seeds_of_its_own() -> None:
    episodes = Episodes()
    episodes.admitted(granted(1, size=1), [replace(part(3, 0), reply=Answered(tokens=(60,)))])
    second = take(episodes, 2)
    episodes.returned(second, {0: part(7)})
    third = take(episodes, 3)
    assert third.lease.seeds == second.lease.seeds
    assert (episodes.said(third), episodes.begun(third)) == (((3, 0),), (7,))
    episodes.admitted(third, [replace(part(8, 0), reply=Answered(tokens=(61,)))])
    [waiting] = episodes.waiting()
    assert (waiting.start, waiting.seeds(waiting.place)) == (0, [None])
    assert waiting.prompt.tokens == (*PROMPT, 3, 0, 60, 7, 8, 0, 61)
    group = episodes.admitted(take(episodes, 4), [end(9, 0)])
    assert group is not None
    assert group.completions[0].generated == ((0, 2), (3, 6), (7, 9))
    assert (group.completions[0].turns, episodes.mean_turns) == (3, 3.0)


def test_a_turn_of_too_many_parts_or_nobody_to_go_on_gives_its_group_up() -> None:
    episodes = Episodes()
    episodes.returned(granted(1, size=1), {0: part(1)})
    chain = Chain(bases=(0,), head=version("1.1"))
    for number in range(2, MAX_PARTS + 1):
        assert episodes.give_up(chain, 2) == []
        episodes.returned(take(episodes, number), {0: part(1)})
    assert episodes.give_up(chain, 2) == []
    episodes.returned(take(episodes, 99), {0: part(1)})
    assert episodes.give_up(chain, 2) == [GivenUp(root=lease_id(1), reason=PARTS, episodes=1)]
    assert (len(episodes), episodes.waits) == (0, False)
    episodes.returned(granted(200), {0: end(2, 0)})
    episodes.returned(granted(201), {0: part(2)})
    assert episodes.give_up_begun() == [GivenUp(root=lease_id(201), reason=PARTS, episodes=2)]
    assert episodes.is_open(lease_id(200)), "any peer may be leased a rollout that was not begun"


def test_a_part_too_old_for_any_batch_is_given_up() -> None:
    episodes = Episodes()
    episodes.returned(granted(1), {0: part(1, made_by="1.1")})
    assert episodes.give_up(Chain(bases=(0,), head=version("1.3")), 2) == []
    [gone] = episodes.give_up(Chain(bases=(0,), head=version("1.4")), 2)
    assert (gone.root, gone.reason) == (lease_id(1), "stale")


@given(st.lists(st.integers(1, 5), min_size=4, max_size=4), st.integers(0, 2**32))
def test_however_leases_end_each_completion_comes_out_whole_and_once(lengths: list[int], seed: int) -> None:
    """Whoever makes a completion makes the next of its tokens, 10 * slot + position, and leaves when chance says so."""
    choose = random.Random(seed).random
    episodes, number, found = Episodes(), 1, list[Group]()

    def make(one: GrantedLease) -> None:
        slots = range(4) if one.place is None else one.place.slots
        start = len(episodes.begun(one))
        heard: dict[int, Utterance] = {}
        for index, slot in enumerate(slots):
            tokens = tuple(10 * slot + i for i in range(start, lengths[slot]))
            made = tokens[: int(choose() * (len(tokens) + 1))]
            if len(made) == len(tokens):
                heard[index] = end(*tokens, reward=float(slot))
            elif made:
                heard[index] = part(*made)
        assert list(one.lease.seeds) == [100 + slot for slot in slots]
        if not heard:
            episodes.lost(one)
        elif (group := episodes.returned(one, heard)) is not None:
            found.append(group)

    while not found and number < 200:
        if not episodes.waits:
            make(granted(number, size=4))
        else:
            make(take(episodes, number))
        number += 1
    [group] = found
    assert [one.tokens for one in group.completions] == [
        tuple(10 * slot + i for i in range(length)) for slot, length in enumerate(lengths)
    ]
    assert [one.reward for one in group.completions] == [0.0, 1.0, 2.0, 3.0]
    assert (len(episodes), episodes.waits) == (0, False)
