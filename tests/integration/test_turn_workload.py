"""Later turns of episodes are leased before new prompts, to peers in time, and take no room."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.admission import GrantedLease
from learner.rollouts.environment import Answered, Ended
from learner.rollouts.episodes import Utterance
from learner.scheduling.lease_scheduler import LeaseScheduler
from learner.scheduling.peer_load import Held
from protocol.core.codec import unpack_tokens
from tests.learner.scheduling.test_lease_scheduler import (
    ALL,
    BATCH,
    GROUP,
    HERE,
    THERE,
    ask,
    begin,
    sizes,
    waits,
    workload,
)
from tests.support.trainer_fixture import NOW_MS, manifest, version

GOES_ON, IS_OVER = Answered(tokens=(9, 9)), Ended(reward=1.0)


def deliver(made: LeaseScheduler, granted: GrantedLease, *replies: Answered | Ended, now_ms: int = NOW_MS) -> None:
    """Deliver and admit the lease, with the version that it asked for; the replies differ by slot."""
    assert made.capacity.leasing.take(granted.id, granted.peer) is not None
    made.capacity.leasing.close(granted.id)
    made.delivered(granted.peer, granted.id, now_ms)
    made.judged_lease(granted.peer, is_admitted=True, now_ms=now_ms)
    said = [
        Utterance(tokens=(20 + slot, 0), logprobs=(-1.0,) * 2, spans=((2, granted.lease.minimum),), reply=reply)
        for slot, reply in enumerate(replies)
    ]
    if (group := made.capacity.episodes.admitted(granted, said)) is not None:
        made.capacity.buffer.add(group)


def turns(leases: list[GrantedLease]) -> list[int]:
    return [0 if granted.place is None else granted.place.turn for granted in leases]


def test_later_turns_come_before_new_prompts_and_take_no_room() -> None:
    made = workload("1.0", head="1.0", window=1, ahead=1.0)
    first, second = ask(made, 4)
    assert (turns([first, second]), ask(made, 4)) == ([0, 0], []), "a whole batch is leased, so no more is granted"
    deliver(made, first, GOES_ON, GOES_ON)
    assert made.capacity.leasing.open_rollouts + len(made.capacity.episodes) == BATCH
    one, other = ask(made, 4, THERE)
    assert turns([one, other]) == [1, 1]
    assert [granted.place.slots for granted in (one, other) if granted.place] == [(0,), (1,)]
    assert unpack_tokens(one.lease.prompt) == (1, 1, 1, 20, 0, 9, 9)
    assert ask(made, 4) == [], "an episode must keep its room from its first lease on"
    deliver(made, one, GOES_ON)
    deliver(made, other, IS_OVER)
    [third] = ask(made, 4)
    assert (turns([third]), len(made.capacity.buffer)) == ([2], 0)
    deliver(made, third, IS_OVER)
    assert (len(made.capacity.buffer), len(made.capacity.episodes), made.capacity.leasing.open_rollouts) == (2, 0, 2)


def test_a_request_is_filled_with_new_prompts() -> None:
    made = workload("1.0", head="1.0", window=2, ahead=2.0)
    [first] = ask(made, 2)
    deliver(made, first, GOES_ON, IS_OVER)
    found = ask(made, 5)
    assert (turns(found), sizes(found)) == ([1, 0, 0], [1, 2, 2])
    assert ask(made, 9, THERE)[-1].place is None
    assert made.capacity.room() == 0


def test_a_turn_is_made_with_no_older_version_than_its_group() -> None:
    made = workload("1.4", "1.5", "1.6", head="1.6", window=3, ahead=1.0)
    made.worker(HERE).installed = version("1.5")
    [first] = ask(made, 2)
    assert str(first.lease.minimum) == "1.5"
    deliver(made, first, GOES_ON, GOES_ON)
    made.worker(THERE).installed = version("1.4")
    made.worker(HERE).installed = version("1.6")
    [begun] = ask(made, 1, THERE)
    assert (begun.place, str(begun.lease.minimum)) == (None, "1.4"), (
        "the peer must get new prompts that it can begin at once"
    )
    old, new = ask(made, 1, THERE), ask(made, 1)
    assert [str(granted.lease.minimum) for granted in old + new] == ["1.5", "1.6"], (
        "the later turns must ask for their group's version"
    )


def test_what_is_lost_waits_and_whoever_asks_goes_on() -> None:
    made = workload("1.0", head="1.0", window=1, ahead=1.0)
    first, _ = ask(made, 4)
    deliver(made, first, GOES_ON, GOES_ON)
    lost = ask(made, 2, THERE)
    assert made.capacity.episodes.waits is False
    made.release(THERE, NOW_MS)
    again = ask(made, 2)
    assert [granted.place for granted in again] == [granted.place for granted in lost]
    assert not {granted.id for granted in again} & {granted.id for granted in lost}
    made.returned(HERE, [again[0].id], NOW_MS)
    assert [granted.place for granted in ask(made, 2)] == [lost[0].place]


def test_who_stands_by_or_is_outside_its_hours_goes_on_with_nothing() -> None:
    made = workload("1.0", head="1.0", window=1, ahead=1.0)
    first, _ = ask(made, 4)
    deliver(made, first, GOES_ON, GOES_ON)
    made.worker(HERE).standby = "others are cheaper"
    made.worker(THERE).until_ms = NOW_MS
    assert (ask(made, 2), ask(made, 2, THERE)) == ([], [])
    assert (made.held(HERE, NOW_MS), made.held(THERE, NOW_MS)) == (Held.STANDBY, Held.HOURS)
    made.worker(THERE).speed.prior = 0.1
    made.worker(THERE).until_ms = NOW_MS + 13_000  # one turn takes 10 s, and a quarter more
    assert sizes(ask(made, 2, THERE)) == [1]


def test_groups_that_no_batch_can_hold_are_given_up_and_what_is_under_way_is_not_recalled() -> None:
    made = workload(*ALL[:5], head="1.4", window=2, ahead=9.0)
    made.worker(HERE).installed = version("1.2")
    [first] = ask(made, 2)
    deliver(made, first, GOES_ON, GOES_ON)
    made.worker(HERE).installed = version("1.4")
    later = ask(made, 1)
    begin(made, later)
    assert made.recall(NOW_MS) == []
    made.capacity.collecting += 1  # a batch is taken
    assert made.recall(NOW_MS) == []
    assert (len(made.capacity.episodes), made.capacity.episodes.waits) == (0, False)
    assert later[0].id in made.capacity.leasing.open, "the lease must stay open, so that its record is credited"
    waits(made, BATCH, "1.4")
    batch = made.capacity.buffer.take(BATCH, made.capacity.chain.advance())
    assert batch is not None
    assert (dict(batch.dropped), batch.stale) == ({first.id: "stale"}, 2)


def test_a_slow_peer_may_go_on_when_the_learner_waits_for_what_nobody_makes() -> None:
    made = workload("1.0", head="1.0", window=0, ahead=1.0)
    made.measure(1.0)
    first, second = ask(made, 4)
    for granted in (first, second):
        deliver(made, granted, GOES_ON, IS_OVER)
    made.worker(THERE).speed.prior = 0.001
    assert len(made.capacity.episodes) == BATCH
    assert sizes(ask(made, 1, THERE)) == [1], "a slow peer may continue when no other peer does"


def test_a_turn_that_would_come_too_late_is_left_to_others() -> None:
    made = workload("1.3", "1.4", head="1.4", window=2, busy=True, ahead=9.0)
    made.capacity.tempo = type(made.capacity.tempo)(train_s=10.0)
    [first] = ask(made, 2)
    assert str(first.lease.minimum) == "1.3"
    deliver(made, first, GOES_ON, GOES_ON)
    waits(made, 3 * BATCH, "1.4")  # the rollouts that the others generate are there already
    made.worker(THERE).speed.prior = 0.01
    assert ask(made, 1, THERE) == [], "a turn must not be leased when it would come after the 10 s that are left"
    made.worker(HERE).speed.prior = 10.0
    assert turns(ask(made, 1)) == [1]


def test_turns_count_in_what_is_measured() -> None:
    made = workload("1.0", head="1.0", window=3, ahead=None)
    made.worker(HERE).speed.prior, made.worker(HERE).asked = 1.0, 4
    made.measure(2.0)
    one_turn = made.capacity.tempo
    made.capacity.episodes.mean_turns = 4.0
    made.measure(2.0)
    assert made.capacity.tempo.supply.rate == pytest.approx(one_turn.supply.rate / 4)
    assert made.capacity.tempo.generation_s == pytest.approx(one_turn.generation_s * 4)


def test_after_a_restart_a_turn_that_was_leased_twice_is_the_later_ones() -> None:
    """The first lease was withdrawn a moment before the kill, and the ledger does not know."""
    made = workload("1.0", head="1.0", window=1, ahead=1.0)
    first, _ = ask(made, 4)
    deliver(made, first, GOES_ON, IS_OVER)
    [lost] = ask(made, 1, THERE)
    episodes = made.capacity.episodes
    made.release(THERE, NOW_MS)
    [again] = ask(made, 1, now_ms=NOW_MS + 5)
    made.capacity.leasing.recover(lost)
    episodes.lost(again)
    assert [granted.id for granted in made.take_up(episodes)] == [lost.id]
    assert again.id in made.capacity.leasing.open
    assert (made.capacity.episodes.waits, lost.id in made.capacity.leasing.open) == (False, False)


@dataclass
class Run:
    """A learner that trains on episodes, and peers that come, go, and lose their leases, in simulated time."""

    made: LeaseScheduler
    luck: random.Random
    now_ms: int = NOW_MS
    held: list[GrantedLease] = field(default_factory=list)
    steps: int = 0

    def turn_over(self) -> None:
        """Do one random thing that is possible now: a delivery, a loss, a request, a batch, a version."""
        self.now_ms += self.luck.randint(0, 3000)
        self.luck.choice([self.deliver, self.deliver, self.deliver, self.lose, self.ask, self.ask, self.train])()

    def ask(self) -> None:
        made, peer = self.made, self.luck.choice([HERE, THERE])
        made.worker(peer).installed = self.luck.choice([None, max(made.capacity.manifests)])
        before = made.capacity.leasing.open_rollouts + len(made.capacity.episodes)
        found = ask(made, self.luck.randint(1, 9), peer, self.now_ms)
        begin(made, found, self.now_ms)
        self.held += found
        new = sum(sizes([granted for granted in found if granted.place is None]))
        going = made.capacity.leasing.open_rollouts + len(made.capacity.episodes)
        assert going == before + new, "a later turn took room"
        assert not new or going + len(made.capacity.buffer) < made.capacity.pace + GROUP

    def deliver(self) -> None:
        if self.held:
            granted = self.held.pop(self.luck.randrange(len(self.held)))
            replies = [self.luck.choice([GOES_ON, IS_OVER]) for _ in granted.lease.seeds]
            if self.made.capacity.episodes.said(granted) is not None:
                deliver(self.made, granted, *replies, now_ms=self.now_ms)

    def lose(self) -> None:
        if self.held and self.luck.random() < 0.3:
            peer = self.luck.choice(self.held).peer
            self.held = [granted for granted in self.held if granted.peer != peer]
            self.made.release(peer, self.now_ms)

    def train(self) -> None:
        made = self.made
        if made.capacity.busy:
            made.capacity.chain = made.capacity.chain.advance()
            oldest = made.capacity.chain.head.version - made.capacity.window
            made.capacity.manifests = {v: m for v, m in made.capacity.manifests.items() if v.version >= oldest}
            made.capacity.manifests[made.capacity.chain.head] = manifest(made.capacity.chain.head)
            made.capacity.busy = False
            made.measure(self.luck.choice([0.5, 30.0]))
        elif (batch := made.capacity.buffer.take(made.capacity.batch, made.capacity.chain)) is not None:
            assert all(0 <= lag <= made.capacity.window for lag in batch.lags.values())
            self.steps += 1
            made.capacity.busy, made.capacity.busy_since_ms = True, self.now_ms
            made.capacity.collecting = made.capacity.chain.head.version + 1
            made.recall(self.now_ms)


@given(seed=st.integers(0, 1 << 32), window=st.sampled_from([0, 1, 3]), ahead=st.sampled_from([1.0, 1.5, 4.0]))
def test_whatever_is_lost_training_goes_on(seed: int, window: int, ahead: float) -> None:
    """Nothing waits for itself for ever: with peers that ask and deliver, there is a next batch."""
    run = Run(workload("1.0", head="1.0", window=window, ahead=ahead), random.Random(seed))
    for _ in range(80):
        run.turn_over()
    before = run.steps
    for _ in range(400):
        if run.steps >= before + 2:
            return
        run.now_ms += 1000
        run.ask()
        run.deliver()
        run.train()
    raise AssertionError("no batch comes together")
