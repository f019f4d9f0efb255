"""Lease completions of unequal length: the longest first, to suitable peers, without changing what is trained on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from statistics import fmean

import pytest

from learner.rollouts.admission import GrantedLease
from learner.rollouts.buffer import Buffer, Completion, Group
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.completion_lengths import CompletionLengths
from learner.scheduling.lease_scheduler import LeaseScheduler
from protocol.core.ids import PeerId, PolicyVersion
from protocol.versions.staleness import Chain
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, manifest, version

FAST, SLOW = PEER.peer_id, OTHER.peer_id
GROUP, BATCH, PROBLEMS = 2, 48, 24
FIRST = version("1.0")


def tokens_of(index: int) -> int:
    """One problem in four is ten times as long."""
    return 1000 if index % 4 == 0 else 100


def prompts() -> Iterator[Prompt]:
    """Pass after pass, each in an order of its own."""
    for number in count():
        order = list(range(PROBLEMS))
        random.Random(number).shuffle(order)
        for problem in order:
            yield Prompt(task="even", index=number * PROBLEMS + problem, tokens=(1, 2, 3))


def scheduler(*, longest_first: bool, window: int = 0) -> LeaseScheduler:
    """A learner that has published its first version, and knows how long completions are if it is to."""
    numbers, drawn = count(1), prompts()
    terms = LeaseTerms(group_size=GROUP, temperature=1.0, max_new_tokens=1000, stop_ids=(0,), deadline_s=600)
    lengths = CompletionLengths(alike=lambda index: (index % PROBLEMS, 0)) if longest_first else None
    capacity = LeaseCapacity(
        window=window,
        batch=BATCH,
        ahead=1.0,
        chain=Chain(bases=(0,), head=FIRST),
        buffer=Buffer(window=window),
        leasing=Leasing(terms=terms, secret=bytes(32), new_id=lambda: next(numbers).to_bytes(16, "big")),
        manifests={FIRST: manifest(FIRST)},
    )
    made = LeaseScheduler(capacity=capacity, next_prompt=lambda: next(drawn), lengths=lengths)
    if lengths is not None:
        for index in range(3 * PROBLEMS):
            lengths.observe(index, [tokens_of(index)] * GROUP, 3)
    for peer, rate in ((FAST, 8.0), (SLOW, 1.0)):
        made.worker(peer).speed.prior = rate
        made.worker(peer).installed = FIRST
    return made


def ask(made: LeaseScheduler, peer: PeerId, rollouts: int, now_ms: int = NOW_MS) -> list[GrantedLease]:
    made.ask(peer, rollouts)
    return [lease for _, leases in made.serve(now_ms, peer) for lease in leases]


def deliver(made: LeaseScheduler, granted: GrantedLease, used: PolicyVersion, now_ms: int) -> None:
    """It is admitted, and waits for a batch."""
    leasing, size = made.capacity.leasing, len(granted.lease.seeds)
    assert leasing.take(granted.id, granted.peer) is not None
    made.learn_length(granted, [tokens_of(granted.prompt_index)] * size)
    completion = Completion(tokens=(1,), logprobs=(0.0,), reward=0.0, spans=((1, used),))
    made.capacity.buffer.add(
        Group(
            lease=granted.id,
            peer=granted.peer,
            prompt_index=granted.prompt_index,
            prompt=(1,),
            completions=(completion,) * size,
            behaviour=frozenset([used]),
        )
    )
    leasing.close(granted.id)
    made.delivered(granted.peer, granted.id, now_ms)


def test_a_batch_s_long_ones_are_leased_first_and_its_prompts_are_the_same() -> None:
    made, today = scheduler(longest_first=True), scheduler(longest_first=False)
    leased = [granted.prompt_index for _ in range(12) for granted in ask(made, FAST, 4)]
    other = [granted.prompt_index for _ in range(12) for granted in ask(today, FAST, 4)]
    assert len(leased) == BATCH // GROUP
    assert sorted(leased) == sorted(other)
    tokens = [tokens_of(index) for index in leased]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens.count(1000) > 2


def test_a_slow_peer_that_asks_first_is_not_leased_what_all_would_wait_for() -> None:
    made = scheduler(longest_first=True)
    made.ask(FAST, 4)
    first = ask(made, SLOW, 4)
    assert {tokens_of(granted.prompt_index) for granted in first} == {100}
    second = ask(made, FAST, 4)
    assert {tokens_of(granted.prompt_index) for granted in second} == {1000}


def test_what_peers_that_are_alike_take_in_one_go_is_leased_as_it_comes() -> None:
    """Sorted, one of them would have a batch of long groups only."""
    made, today = scheduler(longest_first=True), scheduler(longest_first=False)
    for one in (made, today):
        one.worker(SLOW).speed.prior = 8.0
    leased, other = ([granted.prompt_index for granted in ask(one, FAST, BATCH)] for one in (made, today))
    assert leased == other


def test_before_it_is_known_prompts_come_as_they_do_without() -> None:
    made, today = scheduler(longest_first=True), scheduler(longest_first=False)
    assert made.lengths is not None
    made.lengths.recover([])
    leased, other = ([g.prompt_index for _ in range(12) for g in ask(one, FAST, 4)] for one in (made, today))
    assert leased == other


@pytest.mark.parametrize("longest_first", [False, True], ids=["as they come", "longest first"])
@pytest.mark.parametrize("window", [0, 3])
def test_how_long_a_prompt_is_does_not_say_how_often_it_is_trained_on(window: int, longest_first: bool) -> None:
    """Thirty batches, each as much as a pass, though long groups take ten times as long to come."""
    made = scheduler(longest_first=longest_first, window=window)
    capacity, trained, now_ms, steps = made.capacity, Counter[int](), NOW_MS, 0
    under_way: list[tuple[int, GrantedLease, PolicyVersion]] = []
    while steps < 30:
        now_ms += 1000
        for one in [one for one in under_way if one[0] <= now_ms]:
            under_way.remove(one)
            deliver(made, one[1], one[2], now_ms)
        if (batch := capacity.buffer.take(BATCH, capacity.chain)) is not None:
            trained.update(group.prompt_index % PROBLEMS for group in batch.groups)
            assert not batch.dropped
            steps += 1
            capacity.chain = capacity.chain.advance()
            capacity.collecting = capacity.chain.head.version
            capacity.manifests[capacity.chain.head] = manifest(capacity.chain.head)
            for peer in (FAST, SLOW):
                made.worker(peer).installed = capacity.chain.head
        for peer, each_ms in ((FAST, 10), (SLOW, 20)):
            for granted in ask(made, peer, 4, now_ms):
                made.started(peer, granted.id, capacity.chain.head, now_ms)
                under_way.append((now_ms + each_ms * tokens_of(granted.prompt_index), granted, capacity.chain.head))
    assert trained.total() == 30 * PROBLEMS
    assert all(abs(times - 30) <= 2 for times in trained.values()), "no more than the next few are put off"
    long = fmean(trained[problem] for problem in range(0, PROBLEMS, 4))
    assert long == pytest.approx(30, abs=0.7)


@pytest.mark.parametrize("longest_first", [False, True], ids=["as they come", "longest first"])
def test_how_fast_a_peer_is_goes_by_what_it_was_given(longest_first: bool) -> None:
    """A token a hundredth of a second: a batch of usual groups takes what the usual one has, whatever came last."""
    made = scheduler(longest_first=longest_first)
    usual = fmean(tokens_of(problem) for problem in range(PROBLEMS))
    found = list[float]()
    for turn in range(24):
        now_ms = NOW_MS + 1_000_000 * turn
        leases = ask(made, FAST, 4, now_ms)
        for granted in leases:
            made.started(FAST, granted.id, FIRST, now_ms)
        took_ms = 10 * max(tokens_of(granted.prompt_index) for granted in leases)
        for granted in leases:
            deliver(made, granted, FIRST, now_ms + took_ms)
        made.capacity.buffer.clear()
        found.append(made.worker(FAST).speed.seconds(4))
    spread = max(found) / min(found)
    if longest_first:
        assert spread < 1.5
        assert found[-1] == pytest.approx(usual / 100, rel=0.4)
    else:
        assert spread > 5
