"""Lease each peer the work that can still be trained on when its turn comes, all of it, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.monitoring.fruitless_leases import End
from learner.rollouts.admission import GrantedLease
from learner.rollouts.buffer import UNINFORMATIVE, Buffer, Completion, Group
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt
from learner.rollouts.prompt_choice import PROMPTS_AHEAD
from learner.scheduling.batch_speed import Speed
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.lease_backoff import BLAMED, FIRST_PAUSE_MS, FREE_LEASES, LONGEST_PAUSE_MS
from learner.scheduling.lease_scheduler import TOGETHER_MS, LeaseScheduler
from learner.scheduling.peer_load import Held
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.limits import MAX_PROMPT_TOKENS, MAX_WORK_BYTES
from protocol.versions.staleness import Chain
from tests.support.examples import examples
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM, lease_id, manifest, version

HERE, THERE = PEER.peer_id, OTHER.peer_id
GROUP = 2
BATCH = 4
ALL = [f"1.{number}" for number in range(10)]
ONE = Completion(tokens=(1,), logprobs=(-1.0,), reward=0.0, spans=((1, version("1.0")),))


def prompts(*lengths: int) -> Iterator[Prompt]:
    """Endless prompts of these lengths in turn."""
    for index in count():
        yield Prompt(task="even", index=index, tokens=(1,) * lengths[index % len(lengths)])


def workload(
    *published: str, head: str, window: int, busy: bool = False, bases: tuple[int, ...] = (0,), **changes: Any
) -> LeaseScheduler:
    """A learner at `head` that published these versions; when busy, it trains."""
    numbers, drawn = count(1), prompts(3)
    terms = LeaseTerms(group_size=GROUP, temperature=1.0, max_new_tokens=4, stop_ids=(0,), deadline_s=60)
    own = {name: changes.pop(name) for name in ("next_prompt", "peer_share") if name in changes}
    capacity = LeaseCapacity(
        **{
            "window": window,
            "batch": BATCH,
            "ahead": 2.0,
            "chain": Chain(bases=bases, head=version(head)),
            "buffer": Buffer(window=window),
            "leasing": Leasing(terms=terms, secret=bytes(32), new_id=lambda: next(numbers).to_bytes(16, "big")),
            "manifests": {version(one): manifest(version(one)) for one in published},
        }
        | changes
    )
    made = LeaseScheduler(capacity=capacity, **{"next_prompt": lambda: next(drawn)} | own)
    made.capacity.collecting = made.capacity.chain.head.version + busy
    made.capacity.busy, made.capacity.busy_since_ms = busy, NOW_MS
    return made


def waits(made: LeaseScheduler, rollouts: int, made_with: str) -> None:
    """So many rollouts of that version wait to be trained on."""
    group = Group(
        lease=lease_id(len(made.capacity.buffer) + 1000),
        peer=HERE,
        prompt_index=0,
        prompt=(1,),
        completions=(ONE,) * rollouts,
        behaviour=frozenset([version(made_with)]),
    )
    if rollouts:
        made.capacity.buffer.add(group)


def ask(made: LeaseScheduler, rollouts: int, peer: PeerId = HERE, now_ms: int = NOW_MS) -> list[GrantedLease]:
    """Return the leases that the peer gets at once."""
    made.ask(peer, rollouts)
    return [lease for _, leases in made.serve(now_ms, peer) for lease in leases]


def sizes(leases: list[GrantedLease]) -> list[int]:
    return [len(granted.lease.seeds) for granted in leases]


def begin(made: LeaseScheduler, leases: list[GrantedLease], now_ms: int = NOW_MS, made_with: str | None = None) -> None:
    for granted in leases:
        made.started(granted.peer, granted.id, version(made_with) if made_with else granted.lease.minimum, now_ms)


def finish(made: LeaseScheduler, leases: list[GrantedLease], now_ms: int, *, keep: bool = True) -> None:
    """The leases are delivered and admitted."""
    for granted in leases:
        assert made.capacity.leasing.take(granted.id, granted.peer) is not None
        if keep:
            waits(made, len(granted.lease.seeds), str(granted.lease.minimum))
        made.capacity.leasing.close(granted.id)
        made.delivered(granted.peer, granted.id, now_ms)


def minimum(made: LeaseScheduler, peer: PeerId = HERE) -> str | None:
    """What the next lease of the peer asks for."""
    found = ask(made, 1, peer)
    return str(found[0].lease.minimum) if found else None


# Which version


def test_nothing_before_the_first_version() -> None:
    made = workload(head="1.0", window=3)
    assert ask(made, 4) == []
    assert made.held(HERE, NOW_MS) is Held.VERSION


@pytest.mark.parametrize(
    ("window", "busy", "expected"),
    [
        (3, False, "1.6"),  # trained on at 9: lag 3
        (3, True, "1.7"),  # a batch is being trained on: the next is trained on at 10
        (1, False, "1.8"),
        (1, True, "1.9"),
        (0, False, "1.9"),
        (0, True, None),  # exactly on-policy: only the next will do
        (50, False, "1.0"),
    ],
)
def test_the_oldest_version_that_is_of_use(window: int, busy: bool, expected: str | None) -> None:
    """A peer with an unknown version may use any newer one, since a lease says "or newer"."""
    assert minimum(workload(*ALL, head="1.9", window=window, busy=busy)) == expected


@pytest.mark.parametrize(("installed", "expected"), [("1.5", "1.6"), ("1.6", "1.6"), ("1.8", "1.8"), ("1.9", "1.9")])
def test_what_a_peer_has_is_asked_for_while_it_is_of_use(installed: str, expected: str) -> None:
    made = workload(*ALL, head="1.9", window=3)
    made.worker(HERE).installed = version(installed)
    assert minimum(made) == expected


@pytest.mark.parametrize("said", ["1.6", "1.7", None])
def test_who_has_used_a_version_is_not_asked_for_an_older_one_whatever_it_says(said: str | None) -> None:
    made = workload(*ALL, head="1.9", window=3)
    worker = made.worker(HERE)
    for used, expected in (("1.8", "1.8"), ("1.7", "1.8"), ("1.9", "1.9")):
        worker.installed = version(said) if said else None
        made.delivered(HERE, lease_id(1), NOW_MS, version(used))
        assert minimum(made) == expected
    made.delivered(HERE, lease_id(1), NOW_MS)
    assert worker.has == version("1.9"), "nothing of it was admitted"


def test_batches_before_a_version_is_too_old_take_so_many_of_it_and_no_more() -> None:
    """Version 1.6 is used in one batch, at 9; version 1.7 in two, less the rollouts of 1.6 that are there."""
    made = workload(*ALL, head="1.9", window=3, ahead=9.0)
    made.worker(HERE).installed = version("1.6")
    assert sizes(ask(made, 100)) == [2, 2]
    assert minimum(made) == "1.7", "there are enough rollouts of 1.6"
    made.worker(HERE).installed = version("1.7")
    assert sizes(ask(made, 100)) == [2]
    assert minimum(made) == "1.8"


def test_newer_rollouts_that_wait_take_nothing_from_older_ones() -> None:
    """The oldest is trained on first."""
    made = workload(*ALL, head="1.9", window=3, ahead=9.0)
    waits(made, 12, "1.9")
    made.worker(HERE).installed = version("1.6")
    assert sizes(ask(made, 100)) == [2, 2], "all four go before what waits, of which the last is used at 12"
    assert minimum(made) is None, "with any more the last of those of 1.9 would be too old"


def test_a_version_counts_as_what_it_was_made_with() -> None:
    made = workload(*ALL, head="1.9", window=3, ahead=9.0)
    made.worker(HERE).installed = version("1.6")
    leases = ask(made, 100)
    begin(made, leases, made_with="1.9")
    assert sizes(ask(made, 100)) == [2, 2], "the first were made with 1.9, and displace nothing of 1.6"


def test_between_publications() -> None:
    published = ["1.4", "1.6", "1.8"]
    assert minimum(workload(*published, head="1.9", window=3)) == "1.6"
    assert minimum(workload(*published, head="1.9", window=2)) == "1.8"
    assert minimum(workload(*published, head="1.9", window=1, busy=True)) is None, "1.10 is about to come"


def test_while_its_version_is_being_published_only_that_will_do_on_policy() -> None:
    made = workload("1.8", head="1.9", window=0, busy=True)
    made.capacity.collecting = 9  # trained, not yet published
    assert minimum(made) is None
    made.capacity.manifests[version("1.9")] = manifest(version("1.9"))
    assert minimum(made) == "1.9"


def test_versions_of_earlier_incarnations_count_while_they_survive() -> None:
    published = ["1.3", "1.4", "2.4", "2.5"]
    assert minimum(workload(*published, head="2.5", window=2, bases=(0, 4))) == "1.3"
    assert minimum(workload(*published[1:], head="2.5", window=1, bases=(0, 4))) == "1.4"


def test_a_version_that_a_restart_cut_off_never_satisfies_a_lease() -> None:
    """1.5 was published and cut off; it is newer than 1.4, so a lease that said "1.4 or newer" would allow it."""
    made = workload("1.3", "1.4", "1.5", "2.4", "2.5", head="2.5", window=3, bases=(0, 4))
    for installed in (None, version("1.3"), version("1.5")):
        made.worker(HERE).installed = installed
        assert minimum(made) == "2.4"


# How many


@pytest.mark.parametrize(
    ("asked", "waiting", "groups"),
    [
        (4, 0, 2),
        (5, 0, 3),  # a request is rounded up to whole groups
        (100, 0, 4),
        (100, 1, 4),  # and so is the room
        (100, 4, 2),
        (100, 8, 0),
        (100, 11, 0),  # groups from before a restart may fill more than there is room for
        (1, 7, 1),
    ],
)
def test_no_more_than_the_pace(asked: int, waiting: int, groups: int) -> None:
    made = workload("1.9", head="1.9", window=5)
    waits(made, waiting, "1.9")
    assert sizes(ask(made, asked)) == [GROUP] * groups
    assert made.capacity.pace == 8


def test_the_last_steps_need_no_more_than_they_train_on() -> None:
    made = workload("1.9", head="1.9", window=3, steps=10)
    assert made.capacity.pace == 4
    made.capacity.collecting = 10
    assert made.capacity.pace == 0


def test_the_pace_follows_what_is_measured() -> None:
    """One batch, and what is made while two are in a peer's hands; never more than the window has use for."""
    made = workload("1.9", head="1.9", window=3, ahead=None)
    assert made.capacity.pace == 2 * BATCH, "before anything was measured"
    made.worker(HERE).speed.observe(4, 5.0)
    made.worker(HERE).asked = 4
    made.measure(10.0)
    assert made.capacity.pace == 2 * BATCH
    made.measure(100.0)
    assert made.capacity.pace == round(1.1 * BATCH)
    made.measure(0.1)
    assert made.capacity.pace == 4 * BATCH
    assert workload(head="1.9", window=0, ahead=None).capacity.pace == BATCH


def test_who_asked_first_is_served_first_and_nobody_twice() -> None:
    made = workload("1.9", head="1.9", window=3)
    made.ask(HERE, 6)
    made.ask(THERE, 6)
    served = list(made.serve(NOW_MS))
    assert [(peer, sum(sizes(leases))) for peer, leases in served] == [(HERE, 6), (THERE, 2)]
    assert list(made.serve(NOW_MS)) == []
    assert ask(made, 2) == []
    assert made.held(HERE, NOW_MS) is Held.ROOM
    made.withdraw(HERE)
    made.capacity.collecting += 1
    finish(made, served[0][1], NOW_MS, keep=False)
    assert list(made.serve(NOW_MS)) == [], "nobody waits"


def test_who_stands_by_is_not_served() -> None:
    made = workload("1.9", head="1.9", window=3)
    made.worker(HERE).standby = "too dear"
    assert ask(made, 4) == []
    assert made.held(HERE, NOW_MS) is Held.STANDBY
    made.worker(HERE).standby = ""
    assert list(made.serve(NOW_MS)) != []


def test_a_grant_of_long_prompts_fits_a_frame() -> None:
    long = Prompt(task="even", index=1, tokens=(7,) * MAX_PROMPT_TOKENS)
    made = workload("1.9", head="1.9", window=3, batch=1000, next_prompt=lambda: long)
    granted = ask(made, 500)
    assert 20 < len(granted) < 250
    assert sum(len(sign(SWARM.learner, SWARM.authority.swarm, one.lease)) for one in granted) < MAX_WORK_BYTES
    assert made.capacity.leasing.open_rollouts == sum(sizes(granted)), "what did not fit was not leased"
    assert made._prompts.ahead[0] is long, "and its prompt is the next one's"


# For whom


def measured(made: LeaseScheduler, seconds: float, rollouts: int = 8) -> None:
    """The peer once took so long for so many; a step takes 10 s."""
    made.worker(HERE).speed.observe(rollouts, seconds)
    made.measure(10.0)


def test_a_lease_is_no_larger_than_what_can_be_delivered_in_time() -> None:
    """While 1.10 is being made: of 1.9, with S = 2, the batch at 10 and two more are of use: until 30 s from now. The
    other peer is quick enough to fill them all without this one.
    """
    made = workload(*ALL, head="1.9", window=2, busy=True, ahead=9.0)
    made.worker(HERE).installed = version("1.9")
    made.worker(THERE).speed.observe(1000, 1.0)
    measured(made, 40.0)
    assert sizes(ask(made, 8)) == [2], "8 take 40 s, so 2 take 10: with the margin they are there after 12.5 s of 20"
    assert sizes(ask(made, 8)) == [], "the first are done after 10 s: then there are 10 s left, and two take 12.5"
    made.forget(HERE)
    made.worker(HERE).installed = version("1.9")
    measured(made, 20.0)
    assert sizes(ask(made, 8)) == [2, 2, 2]


def test_a_slow_peer_gets_small_groups_and_short_prompts() -> None:
    drawn = prompts(9, 5, 7)
    made = workload(*ALL, head="1.9", window=2, busy=True, ahead=99.0, batch=32, next_prompt=lambda: next(drawn))
    made.capacity.leasing.terms = LeaseTerms(
        group_size=8, temperature=1.0, max_new_tokens=4, stop_ids=(0,), deadline_s=60
    )
    made.worker(HERE).installed = version("1.9")
    made.worker(THERE).speed.observe(1000, 1.0)
    measured(made, 32.0)
    granted = ask(made, 8)
    assert sizes(granted) == [4]
    assert len(granted[0].lease.prompt) == 4 * 5, "the shortest of those that are next"
    assert len(ask(made, 8, THERE)[0].lease.prompt) == 4 * 9, "and who is quick gets what comes first"


def test_who_can_deliver_nothing_in_time_waits_for_a_newer_version() -> None:
    made = workload(*ALL, head="1.9", window=1, busy=True)
    made.worker(HERE).installed = version("1.9")
    made.worker(THERE).speed.observe(1000, 1.0)
    measured(made, 100.0)
    assert ask(made, 8) == []
    assert made.held(HERE, NOW_MS) is Held.VERSION


def test_a_lease_is_no_larger_than_what_is_made_before_the_owners_hours_end() -> None:
    """8 rollouts take 8 s, with the margin 10: so four are made in five."""
    made = workload(*ALL, head="1.9", window=3, ahead=9.0)
    made.worker(HERE).installed = version("1.9")
    measured(made, 8.0)
    made.worker(HERE).until_ms = NOW_MS + 5_000
    assert sizes(ask(made, 8)) == [2, 2]
    assert sizes(ask(made, 8)) == [], "they take four of the five seconds, and two more would take 2.5"
    assert made.held(HERE, NOW_MS) is Held.HOURS
    assert ask(made, 8, THERE), "nobody else is kept from anything"
    made.worker(HERE).until_ms = math.inf
    assert made.held(HERE, NOW_MS) is not Held.HOURS
    assert list(made.serve(NOW_MS)) != []


def test_nothing_is_granted_outside_the_owners_hours() -> None:
    """Whatever is known of the peer, and however much the learner waits."""
    made = workload("1.9", head="1.9", window=3)
    made.worker(HERE).until_ms = NOW_MS
    assert ask(made, 8) == []
    assert made.held(HERE, NOW_MS) is Held.HOURS
    made.worker(HERE).until_ms = NOW_MS + 1
    assert sizes(ask(made, 4)) == [2, 2], "a peer of unknown speed must not count as too slow"


def test_a_swarm_of_slow_peers_is_not_kept_from_what_only_it_can_do() -> None:
    """No batch is formed before its rollouts are there, however long that takes."""
    made = workload(*ALL, head="1.9", window=0)
    made.worker(HERE).installed = version("1.9")
    measured(made, 1000.0)
    assert sizes(ask(made, 8)) == [2, 2]


def test_one_peer_has_no_more_than_its_share_of_what_is_under_way_or_waits() -> None:
    made = workload("1.9", head="1.9", window=9, batch=8, ahead=5.0, peer_share=0.2)
    for number in range(6):
        made.worker(PeerId(f"peer {number}"))
    waits(made, 8, "1.9")  # its own, and the learner does not stand still
    assert (ask(made, 40), made.held(HERE, NOW_MS)) == ([], Held.SHARE)
    theirs = ask(made, 40, THERE)
    assert sizes(theirs) == [2, 2, 2, 2]
    assert ask(made, 40, THERE) == []
    [group] = made.capacity.buffer.take(8, made.capacity.chain).groups
    made.capacity.busy, made.capacity.collecting = True, 10
    assert group.peer == HERE
    assert sizes(ask(made, 3)) == [2, 2]
    assert sizes(ask(made, 40)) == [2, 2]
    assert ask(made, 40) == []


def test_of_few_peers_each_has_as_much_as_the_others() -> None:
    made = workload("1.9", head="1.9", window=9, batch=8, ahead=5.0, peer_share=0.2)
    made.capacity.busy = True
    assert sum(sizes(ask(made, 100))) == 40, "nobody else is there"
    made = workload("1.9", head="1.9", window=9, batch=8, ahead=5.0, peer_share=0.2)
    made.capacity.busy = True
    made.worker(THERE)
    made.worker(PeerId("stands by")).standby = "enough"
    assert (sum(sizes(ask(made, 100))), sum(sizes(ask(made, 100, THERE)))) == (20, 20)


def test_who_delivers_nothing_cannot_stop_the_learner_by_its_share() -> None:
    made = workload("1.9", head="1.9", window=0, batch=8, ahead=1.0, peer_share=0.2)
    made.worker(THERE)
    mine = ask(made, 4)
    lost = ask(made, 4, THERE)
    finish(made, mine, NOW_MS + 1)
    assert ask(made, 4) == []
    made.ask(THERE, 4)
    made.expire(NOW_MS + 200_000, 0)
    assert lost[0].id not in made.capacity.leasing.open
    assert (
        sum(len(one.lease.seeds) for peer, leases in made.serve(NOW_MS + 200_000) if peer == HERE for one in leases)
        == 4
    )


def test_nothing_is_held_against_who_is_not_known() -> None:
    made = workload(*ALL, head="1.9", window=1, busy=True)
    made.measure(10.0)
    assert sizes(ask(made, 4)) == [2, 2]


def test_how_fast_a_peer_is_shows_when_leases_that_began_together_are_all_delivered() -> None:
    made = workload("1.9", head="1.9", window=3, ahead=9.0)
    leases = ask(made, 6)
    begin(made, leases[:2])
    begin(made, leases[2:], NOW_MS + TOGETHER_MS + 1)
    finish(made, leases[:1], NOW_MS + 2000)
    assert not made.worker(HERE).speed.is_known
    finish(made, leases[1:2], NOW_MS + 4000)
    assert made.worker(HERE).speed.seconds(4) == pytest.approx(4.0)
    made.release(HERE, NOW_MS)
    assert made._together == {}


def test_how_fast_a_peer_is_shows_although_some_of_a_batch_went_back() -> None:
    made = workload("1.9", head="1.9", window=3, ahead=9.0)
    leases = ask(made, 6)
    begin(made, leases)
    made.returned(HERE, [leases[0].id], NOW_MS + 1000)
    finish(made, leases[1:], NOW_MS + 6000)
    assert made.worker(HERE).speed.seconds(6) == pytest.approx(6.0), "all of them were generated"


def test_a_clock_that_was_set_back_makes_nobody_fast() -> None:
    made = workload("1.9", head="1.9", window=3, ahead=9.0)
    leases = ask(made, 4)
    begin(made, leases)
    finish(made, leases, NOW_MS - 60_000)
    assert not made.worker(HERE).speed.is_known


@pytest.mark.parametrize("word", ["1.9", "1.5"])
def test_the_first_word_on_a_version_counts(word: str) -> None:
    made = workload(*ALL, head="1.9", window=3)
    (lease,) = ask(made, 2)
    assert made.started(HERE, lease.id, version(word), NOW_MS)
    assert not made.started(HERE, lease.id, version("1.8"), NOW_MS)
    assert not made.started(THERE, lease.id, version("1.8"), NOW_MS)
    assert not made.started(HERE, LeaseId(bytes(16)), version("1.8"), NOW_MS)
    assert made.capacity.leasing.by_version == {max(version(word), lease.lease.minimum).version: 2}


def test_who_is_gone_stays_forgotten_when_its_request_is_answered() -> None:
    made = workload("1.9", head="1.9", window=3)
    made.ask(HERE, 2)
    made.forget(HERE)
    made.held(HERE, NOW_MS)
    assert made.workers == {}


def test_nobody_counts_up_to_a_version_that_a_peer_makes_up() -> None:
    made = workload("1.9", head="1.9", window=3)
    (lease,) = ask(made, 2)
    assert made.started(HERE, lease.id, PolicyVersion(1, (1 << 53) - 1), NOW_MS)
    assert sizes(ask(made, 2, THERE)) == [2]


# What has become hopeless


def takes_a_batch(made: LeaseScheduler) -> None:
    """From now on the next one is collected."""
    made.capacity.busy, made.capacity.collecting = True, made.capacity.chain.head.version + 1


def ids(leases: list[GrantedLease]) -> list[LeaseId]:
    return [granted.id for granted in leases]


def test_what_no_batch_can_hold_any_more_is_recalled_once_and_others_are_leased_as_much() -> None:
    made = workload(*ALL, head="1.9", window=2)
    made.worker(HERE).installed = version("1.7")
    leases = ask(made, 4)
    begin(made, leases)
    assert made.recall(NOW_MS) == [], "a batch that is formed now would hold it"
    takes_a_batch(made)
    assert sizes(ask(made, 100, THERE)) == [2, 2]
    assert ids(made.recall(NOW_MS)) == ids(leases)
    assert made.recall(NOW_MS) == []
    assert made.capacity.minimum == version("1.8")
    assert sizes(ask(made, 100, THERE)) == [2, 2], "the room of what was recalled"
    assert set(ids(leases)) < set(made.capacity.leasing.open), "it may be on its way"


def test_one_lease_is_recalled_as_it_is_begun_with_what_is_too_old() -> None:
    made = workload(*ALL, head="1.9", window=2, busy=True)
    first, second = ask(made, 4)
    begin(made, [first], made_with="1.9")
    begin(made, [second])
    made.capacity.chain, made.capacity.collecting = made.capacity.chain.advance(), 11
    assert made.recall(NOW_MS, first.id) == []
    assert ids(made.recall(NOW_MS, second.id)) == [second.id]
    assert made.recall(NOW_MS, LeaseId(bytes(16))) == []


@pytest.mark.parametrize(
    ("installed", "recalled"),
    [("1.7", True), ("1.8", False), (None, False)],  # the version of an unknown peer is not known
)
def test_what_was_not_begun_counts_as_what_would_make_it_now(installed: str | None, recalled: bool) -> None:
    made = workload(*ALL, head="1.9", window=2)
    made.worker(HERE).installed = version("1.7")
    leases = ask(made, 4)
    takes_a_batch(made)
    made.worker(HERE).installed = version(installed) if installed else None
    assert bool(made.recall(NOW_MS)) is recalled
    if recalled:
        begin(made, leases, made_with="1.8")
        assert made.capacity.leasing.recalled == {}, "its peer had installed what is new enough, and kept it"
        assert made.capacity.leasing.by_version[8] == 4


def test_what_a_restart_cut_off_is_recalled_and_what_survived_is_not() -> None:
    made = workload("1.3", "1.4", "1.5", head="1.5", window=3)
    made.worker(HERE).installed = version("1.4")
    made.worker(THERE).installed = version("1.5")
    kept, lost = ask(made, 2), ask(made, 2, THERE)
    begin(made, [*kept, *lost])
    made.capacity.chain = Chain(bases=(0, 4), head=version("2.4"))
    made.capacity.manifests[version("2.4")] = manifest(version("2.4"))
    made.capacity.collecting = 4
    assert ids(made.recall(NOW_MS)) == ids(lost)
    assert made.capacity.minimum == version("2.4") > version("1.5")


def test_on_policy_the_version_that_is_to_come_is_the_oldest_of_use() -> None:
    made = workload("1.9", head="1.9", window=0, busy=True)
    assert made.capacity.minimum == version("1.10")


def test_who_gives_back_is_free_sooner_and_proves_slower() -> None:
    made = workload(*ALL, head="1.9", window=2, ahead=9.0)
    made.worker(HERE).installed = version("1.7")
    measured(made, 8.0)
    leases = ask(made, 8)
    begin(made, leases)
    takes_a_batch(made)
    later_ms = NOW_MS + 60_000
    assert ids(made.recall(later_ms)) == ids(leases)
    held = sum(sizes(leases))
    assert made.worker(HERE).speed.seconds(held) > 8.0 * held / 8, "it has not made them in 60 s"
    made.worker(HERE).free_ms = later_ms + 1e6
    assert made.returned(HERE, [*ids(leases), lease_id(99)], later_ms) == leases
    assert made.worker(HERE).free_ms == later_ms
    assert made._together == {}


def test_what_is_recalled_early_says_nothing_of_speed() -> None:
    made = workload(*ALL, head="1.9", window=2)
    made.worker(HERE).installed = version("1.7")
    measured(made, 8.0)
    leases = ask(made, 4)
    begin(made, leases)
    takes_a_batch(made)
    assert made.recall(NOW_MS + 10) == leases
    assert made.worker(HERE).speed.seconds(8) == 8.0


@settings(max_examples=examples(150), deadline=None)
@given(
    window=st.integers(0, 4),
    kappa=st.integers(1, 3),
    moves=st.lists(st.tuples(st.sampled_from("alibbgtttr"), st.integers(0, 9)), min_size=30, max_size=90),
)
def test_recalled_is_what_can_never_be_trained_on_and_nothing_else(
    window: int, kappa: int, moves: list[tuple[int, int]]
) -> None:
    """Two peers lease, install, begin with any version and deliver at any time. Batches are taken and trained, and
    sometimes a restart goes back. The learner's knowledge of a lease says whether a batch may hold it.
    """
    made = workload("1.0", head="1.0", window=window, ahead=4.0)
    begun: dict[LeaseId, PolicyVersion] = {}

    def knows(granted: GrantedLease) -> PolicyVersion | None:
        installed = made.worker(granted.peer).installed
        return begun.get(granted.id, max(installed, granted.lease.minimum) if installed else None)

    def next_batch_holds(one: PolicyVersion) -> bool:
        """As the buffer says that forms it."""
        chain = made.capacity.chain.advance() if made.capacity.busy else made.capacity.chain
        buffer = Buffer(window=window)
        buffer.add(Group(lease=lease_id(1), peer=HERE, prompt_index=0, prompt=(1,), completions=(ONE,),
                         behaviour=frozenset([one])))  # fmt: skip
        return buffer.take(1, chain) is not None

    for kind, number in moves:
        peer, versions = (HERE, THERE)[number % 2], sorted(made.capacity.manifests)
        match kind:
            case "a" | "l":
                ask(made, number + 1, peer)
            case "i":
                made.worker(peer).installed = versions[-1 - number % len(versions)]
            case "b" if made.capacity.leasing.open:
                granted = list(made.capacity.leasing.open.values())[number % len(made.capacity.leasing.open)]
                with_what = max(granted.lease.minimum, versions[number % len(versions)])
                if made.started(granted.peer, granted.id, with_what, NOW_MS):
                    begun[granted.id] = with_what
            case "g" if made.capacity.leasing.open:
                made.returned(
                    peer, [list(made.capacity.leasing.open)[number % len(made.capacity.leasing.open)]], NOW_MS
                )
            case "t" if made.capacity.busy:
                made.capacity.chain = made.capacity.chain.advance()
                made.capacity.busy = False
                if made.capacity.chain.head.version % kappa == 0:
                    made.capacity.manifests[made.capacity.chain.head] = manifest(made.capacity.chain.head)
            case "t":
                takes_a_batch(made)
            case "r" if number < 3:
                made.capacity.chain = made.capacity.chain.restart(max(0, made.capacity.chain.head.version - 2))
                made.capacity.collecting, made.capacity.busy = made.capacity.chain.head.version, False
                made.capacity.manifests[made.capacity.chain.head] = manifest(made.capacity.chain.head)
        before = set(made.capacity.leasing.recalled)
        recalled = made.recall(NOW_MS)
        for granted in recalled:
            assert granted.id not in before
            known = knows(granted)
            assert known is not None
            assert not next_batch_holds(known), "it would have been stale"
            assert known < made.capacity.minimum, "and its peer drops it when it hears so"
        for granted in made.capacity.leasing.open.values():
            known = knows(granted)
            if granted.id not in made.capacity.leasing.recalled:
                assert known is None or known > made.capacity.chain.head or next_batch_holds(known)
        counted = [one for one in made.capacity.leasing.open.values() if one.id not in made.capacity.leasing.recalled]
        assert made.capacity.leasing.open_rollouts == sum(sizes(counted))


# Groups that teach nothing


@pytest.mark.parametrize(("window", "kept", "leased"), [(3, 1.0, 8), (3, 0.5, 16), (3, 0.3, 26), (0, 0.5, 8)])
def test_so_much_is_leased_that_what_is_kept_of_it_fills_the_batches(window: int, kept: float, leased: int) -> None:
    buffer = Buffer(window=window, informative_only=True, kept=kept)
    made = workload("1.6", head="1.6", window=window, buffer=buffer, ahead=2.0 if window else 1.0)
    assert sum(sizes(ask(made, 100))) == (leased if window else BATCH)


def test_what_waits_counts_whole_since_it_was_kept() -> None:
    made = workload("1.6", head="1.6", window=3, buffer=Buffer(window=3, kept=0.5))
    waits(made, 6, "1.6")
    made.capacity.buffer.kept = 0.5
    assert sum(sizes(ask(made, 100))) == 4, "two of them will be kept: 2 batches of 4 then"


@settings(max_examples=examples(100), deadline=None)
@given(window=st.integers(0, 3), rewards=st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_batch_comes_whatever_is_dropped(window: int, rewards: list[bool]) -> None:
    """Each group is informative or not, as drawn; whoever is asked again delivers until there is a batch."""
    made = workload("1.0", head="1.0", window=window, buffer=Buffer(window=window, informative_only=True))
    drawn = iter([*rewards, *[True] * 1000])
    for _ in range(200):
        if (batch := made.capacity.buffer.take(made.capacity.batch, made.capacity.chain)) is not None:
            assert batch.rollouts >= BATCH
            assert sum(reason == UNINFORMATIVE for reason in batch.dropped.values()) == len(batch.dropped)
            return
        leases = ask(made, 3)
        assert leases, "there is room as long as there is no batch"
        for granted in leases:
            assert made.capacity.leasing.take(granted.id, granted.peer) is not None
            best = replace(ONE, reward=float(next(drawn)))
            completions = (best, *(ONE,) * (len(granted.lease.seeds) - 1))
            made.capacity.buffer.add(
                Group(
                    lease=granted.id,
                    peer=HERE,
                    prompt_index=0,
                    prompt=(1,),
                    completions=completions,
                    behaviour=frozenset([granted.lease.minimum]),
                )
            )
            made.capacity.leasing.close(granted.id)
    raise AssertionError("no batch came")


# What always holds


@settings(max_examples=examples(150), deadline=None)
@given(
    window=st.integers(0, 4),
    group=st.integers(2, 5),
    batch_groups=st.integers(1, 4),
    ahead=st.none() | st.floats(1, 4),
    kappa=st.integers(1, 3),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12), st.floats(0.1, 60)), max_size=80),
)
def test_what_was_leased_is_used_when_delivered_in_time_and_a_batch_always_comes(
    window: int,
    group: int,
    batch_groups: int,
    ahead: float | None,
    kappa: int,
    moves: list[tuple[int, int, float]],
) -> None:
    """Peers deliver what is made with older versions first; whatever is asked, nothing is dropped, and when all is
    delivered and asked for again there is a batch."""
    kappa = min(kappa, max(1, window))
    terms = LeaseTerms(group_size=group, temperature=1.0, max_new_tokens=4, stop_ids=(0,), deadline_s=60)
    made = workload("1.0", head="1.0", window=window, ahead=ahead, batch=group * batch_groups)
    made.capacity.leasing.terms = terms
    open_leases: list[GrantedLease] = []
    now_ms = NOW_MS

    def step() -> bool:
        batch = made.capacity.buffer.take(made.capacity.batch, made.capacity.chain)
        if batch is None:
            assert not made.capacity.buffer._dropped
            return False
        assert not batch.dropped
        assert max(batch.lags.values()) <= window
        made.capacity.chain = made.capacity.chain.advance()
        made.capacity.collecting = made.capacity.chain.head.version
        if made.capacity.collecting % kappa == 0:
            made.capacity.manifests[made.capacity.chain.head] = manifest(made.capacity.chain.head)
        made.measure(10.0)
        return True

    def granted() -> None:
        nonlocal open_leases
        for _, leases in made.serve(now_ms):
            begin(made, leases, now_ms)
            open_leases = sorted(open_leases + leases, key=lambda granted: granted.lease.minimum)

    for kind, number, seconds in moves:
        now_ms += round(1000 * seconds)
        match kind:
            case 0 | 1:
                made.ask((HERE, THERE)[kind], number)
            case 2:
                peer = (HERE, THERE)[number % 2]
                made.worker(peer).installed = max(made.capacity.manifests)
            case _:
                finish(made, open_leases[:number], now_ms)
                open_leases = open_leases[number:]
                step()
        granted()
        assert (
            len(made.capacity.buffer) + made.capacity.leasing.open_rollouts
            < max(made.capacity.pace, made.capacity.batch * 5) + group
        )
    for _ in range(3):
        finish(made, open_leases, now_ms)
        open_leases = []
        while step():
            pass
        made.worker(HERE).installed = made.worker(THERE).installed = max(made.capacity.manifests)
        made.ask(HERE, made.capacity.batch)
        made.ask(THERE, made.capacity.batch)
        granted()
    finish(made, open_leases, now_ms)
    assert step(), "a learner that waits for a batch must get one"


# Speed


def test_what_was_tried_is_known_and_what_was_not_is_in_proportion() -> None:
    speed = Speed()
    assert (speed.is_known, speed.rate, speed.seconds(8)) == (False, 0.0, 0.0)
    speed.observe(64, 32.0)
    assert speed.seconds(64) == 32.0
    assert speed.seconds(16) == 8.0, "not tried: it will be"
    speed.observe(16, 30.0)
    assert speed.seconds(16) == 30.0, "this engine takes as long for few as for many"
    assert speed.seconds(64) == 32.0
    assert speed.rate == 2.0


def test_one_odd_batch_does_not_count() -> None:
    speed = Speed()
    for seconds in (10.0, 11.0, 90.0, 10.5, 10.0):
        speed.observe(8, seconds)
    assert speed.seconds(8) == 10.5


@given(
    tried=st.lists(st.tuples(st.integers(1, 500), st.floats(0.01, 1e4)), max_size=20),
    seconds=st.floats(0, 1e5),
    most=st.integers(1, 300),
    step=st.integers(1, 16),
    prior=st.just(0.0) | st.floats(1e-3, 1e3),
)
def test_what_it_makes_within_a_time_takes_no_longer(
    tried: list[tuple[int, float]], seconds: float, most: int, step: int, prior: float
) -> None:
    speed = Speed(prior=prior)
    for rollouts, took in tried:
        speed.observe(rollouts, took)
    found = speed.within(seconds, most, step)
    assert 0 <= found <= most
    assert found == 0 or not speed.is_known or speed.seconds(found) <= seconds
    assert found < step or found % step == 0 or found == most


def test_a_version_orders_by_incarnation() -> None:
    assert PolicyVersion(2, 0) > PolicyVersion(1, 9)


# Prompts that are being written


def test_a_request_waits_while_the_next_prompts_are_being_written_and_says_so() -> None:
    written, drawn = [False], prompts(3)
    made = workload(*ALL, head="1.9", window=2, next_prompt=lambda: next(drawn) if written[0] else None)
    assert ask(made, 2 * GROUP) == []
    assert made.held(HERE, NOW_MS) is Held.PROMPT
    assert (made.capacity.leasing.open_rollouts, made.lacks_prompts) == (0, True)
    written[0] = True
    [(peer, leases)] = made.serve(NOW_MS)
    assert (peer, sum(sizes(leases)), made.lacks_prompts) == (HERE, 2 * GROUP, False)


def test_what_is_written_by_then_is_leased_and_the_rest_when_it_is_asked_for() -> None:
    left, drawn = [PROMPTS_AHEAD], prompts(3)

    def next_prompt() -> Prompt | None:
        left[0] -= 1
        return next(drawn) if left[0] >= 0 else None

    made = workload(*ALL, head="1.9", window=2, next_prompt=next_prompt)
    assert len(ask(made, 2 * GROUP)) == 1
    assert made.held(HERE, NOW_MS) is Held.PROMPT
    left[0] = 1
    assert len(ask(made, 2 * GROUP)) == 1


# Leases that bring no record


def spin(made: LeaseScheduler, now_ms: int, until_ms: int, step_ms: int = 10) -> int:
    """A peer asks as often as it can and gives all back at once; return how many leases it was granted."""
    granted = 0
    while now_ms < until_ms:
        leases = ask(made, 100, now_ms=now_ms)
        granted += len(leases)
        made.returned(HERE, [one.id for one in leases], now_ms)
        now_ms += step_ms
    return granted


def test_who_gives_back_all_it_gets_is_granted_less_and_less() -> None:
    made = workload("1.0", head="1.0", window=3)
    assert spin(made, NOW_MS, NOW_MS + 30_000) <= FREE_LEASES + made.capacity.pace + 6
    assert spin(made, NOW_MS + 30_000, NOW_MS + 630_000, 1000) <= 6
    assert made.held(HERE, NOW_MS + 630_000) is Held.DEBT
    assert ask(made, 100, THERE, NOW_MS + 630_000), "the others get what they ask for"


def test_who_owes_gets_one_group_and_a_record_of_it_sets_it_free() -> None:
    made = workload("1.0", head="1.0", window=3, ahead=10.0)
    made.debts.brought_nothing(HERE, FREE_LEASES + 1, NOW_MS)
    assert ask(made, 100) == []
    now_ms = NOW_MS + FIRST_PAUSE_MS
    first = ask(made, 100, now_ms=now_ms)
    assert sizes(first) == [GROUP]
    assert ask(made, 100, now_ms=now_ms) == [], "not before it is known what came of that"
    finish(made, first, now_ms)
    made.judged_lease(HERE, is_admitted=True, now_ms=now_ms)
    assert len(ask(made, 100, now_ms=now_ms)) > 1


def test_what_was_recalled_is_no_debt_and_refused_work_is_one_lease_or_eight() -> None:
    made = workload("1.0", head="1.0", window=3, batch=200)
    leases = ask(made, 400)
    assert len(leases) > 2 * FREE_LEASES
    for granted in leases[:-1]:
        made.capacity.leasing.recall(granted.id)
    made.returned(HERE, [granted.id for granted in leases[:-1]], NOW_MS)
    finish(made, leases[-1:], NOW_MS, keep=False)
    made.judged_lease(HERE, is_admitted=False, now_ms=NOW_MS)
    assert not made.debts.is_owing(HERE)
    assert made.fruitless.ends == {End.REJECTED: 1}
    for _ in range(FREE_LEASES // BLAMED):
        made.judged_lease(HERE, is_admitted=False, owed=BLAMED, now_ms=NOW_MS)
    assert not made.debts.is_owing(HERE)
    made.judged_lease(HERE, is_admitted=False, owed=1, now_ms=NOW_MS)
    assert made.debts.is_owing(HERE)


@pytest.mark.parametrize("way", ["given back", "expired", "left"])
def test_it_is_the_same_however_leases_end(way: str) -> None:
    made, now_ms, leases = workload("1.0", head="1.0", window=3), NOW_MS, 0
    for _ in range(200):
        granted = ask(made, 100, now_ms=now_ms)
        leases += len(granted)
        match way:
            case "given back":
                made.returned(HERE, [one.id for one in granted], now_ms)
            case "expired":
                made.expire(now_ms + 60_001, 0)
            case "left":
                made.release(HERE, now_ms)
                made.forget(HERE)
        now_ms += 100
    assert leases <= FREE_LEASES + made.capacity.pace + 5


MOVES = st.lists(st.tuples(st.sampled_from("aaagGxlsihr"), st.integers(0, 2000)), min_size=30, max_size=300)


@given(moves=MOVES, batch=st.sampled_from([4, 16, 200]))
def test_a_peer_that_brings_no_record_cannot_make_the_ledger_grow(moves: list[tuple[str, int]], batch: int) -> None:
    """The peer makes any move: it asks, returns one lease or all, lets leases expire, leaves, comes back, or begins a
    lease. It may also report a version or the end of its hours, or deliver records that are rejected.
    """
    made, now_ms = workload("1.0", head="1.0", window=3, batch=batch), NOW_MS
    granted = largest = delivered = 0
    for move, passed_ms in moves:
        now_ms += passed_ms
        mine = list(made.capacity.leasing.open)
        match move:
            case "a":
                leases = ask(made, 1 << 16, now_ms=now_ms)
                granted += len(leases)
                largest = max(largest, len(made.capacity.leasing.open))
            case "g":
                made.returned(HERE, mine[:1], now_ms)
            case "G":
                made.returned(HERE, mine, now_ms)
            case "x":
                made.expire(now_ms, 0)
            case "l":
                made.release(HERE, now_ms)
                made.forget(HERE)
            case "s" if mine:
                made.started(HERE, mine[0], version("1.0"), now_ms)
            case "i":
                made.worker(HERE).installed = version("1.0")
            case "h":
                made.worker(HERE).until_ms = now_ms if passed_ms % 2 else math.inf
            case "r" if mine:
                delivered += 1
                made.capacity.leasing.take(mine[0], HERE)
                made.capacity.leasing.close(mine[0])
                made.judged_lease(HERE, is_admitted=False, now_ms=now_ms)
    rounds = 2 + math.log2(1 + (now_ms - NOW_MS) / FIRST_PAUSE_MS) + (now_ms - NOW_MS) / LONGEST_PAUSE_MS
    assert granted <= FREE_LEASES + 2 * largest + rounds + delivered
