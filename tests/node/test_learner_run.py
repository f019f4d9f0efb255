"""Which version a lease asks for: its rollouts must still be admissible when their turn comes."""

from __future__ import annotations

import pytest

from learner.buffer import Buffer, Completion, Group
from learner.leasing import LeaseTerms, Leasing
from node.learner_run import LearnerRun
from protocol.ids import PolicyVersion
from protocol.staleness import Chain
from swarm.membership import Membership
from tests.learner.working import PEER, SWARM, lease_id, manifest, version
from tests.swarm.storing import small_model

BATCH = 4


def run(
    *published: str, head: str, window: int, waiting: int = 0, busy: bool = False, bases: tuple[int, ...] = (0,)
) -> LearnerRun:
    """A run with `waiting` rollouts in its buffer; when busy, it trains on the batch before these."""
    terms = LeaseTerms(group_size=2, temperature=1.0, max_new_tokens=4, stop_ids=(0,), deadline_s=60)
    made = LearnerRun(
        window=window,
        batch=BATCH,
        pace=2 * BATCH,
        chain=Chain(bases=bases, head=version(head)),
        buffer=Buffer(window=window),
        leasing=Leasing(terms=terms, secret=bytes(32), new_id=lambda: bytes(16)),
        membership=Membership(silence_s=4.0),
        manifests={version(one): manifest(version(one)) for one in published},
    )
    made.collecting = made.chain.head.version + busy
    made.busy = busy
    if published:
        newest = max(map(version, published))
        made.published = SWARM.publish(small_model(1), version=newest.version, incarnation=newest.incarnation)
    for number in range(waiting):
        one = Completion(tokens=(1,), logprobs=(-1.0,), reward=0.0)
        made.buffer.add(
            Group(
                lease=lease_id(number),
                peer=PEER.peer_id,
                prompt_index=0,
                prompt=(1,),
                completions=(one,),
                behaviour=frozenset([made.chain.head]),
            )
        )
    return made


def wanted(made: LearnerRun) -> str | None:
    found = made.minimum_version()
    return None if found is None else str(found)


def test_nothing_before_the_first_version() -> None:
    assert wanted(run(head="1.0", window=3)) is None


ALL = [f"1.{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("window", "waiting", "busy", "minimum"),
    [
        (3, 0, False, "1.6"),  # trained on at 9: lag 3
        (3, 3, False, "1.6"),
        (3, 4, False, "1.7"),  # a whole batch comes before: trained on at 10
        (3, 0, True, "1.7"),  # a batch is being trained on: the next is trained on at 10
        (3, 4, True, "1.8"),
        (3, 100, False, "1.9"),  # never newer than the newest, or a slow peer could stop the others
        (1, 0, False, "1.8"),
        (1, 0, True, "1.9"),
        (1, 4, True, None),  # 1.10 is about to come
        (0, 0, False, "1.9"),
        (0, 0, True, None),  # exactly on-policy: only the next will do
        (50, 0, False, "1.0"),
    ],
)
def test_a_version_whose_rollouts_will_be_admissible(
    window: int, waiting: int, busy: bool, minimum: str | None
) -> None:
    assert wanted(run(*ALL, head="1.9", window=window, waiting=waiting, busy=busy)) == minimum


def test_between_publications() -> None:
    published = ["1.4", "1.6", "1.8"]
    assert wanted(run(*published, head="1.9", window=3)) == "1.6"
    assert wanted(run(*published, head="1.9", window=3, waiting=4)) == "1.8"
    assert wanted(run(*published, head="1.9", window=2, waiting=8)) == "1.8", "idle: anything admissible is welcome"
    assert wanted(run(*published, head="1.9", window=2, waiting=8, busy=True)) is None, "1.10 is about to come"


def test_while_its_version_is_being_published_only_that_will_do_on_policy() -> None:
    made = run("1.8", head="1.9", window=0, busy=True)
    made.collecting = 9  # trained, not yet published
    assert wanted(made) is None
    made.manifests[version("1.9")] = manifest(version("1.9"))
    assert wanted(made) == "1.9"


def test_versions_of_earlier_incarnations_count_while_they_survive() -> None:
    made = run("1.3", "1.4", "2.4", "2.5", head="2.5", window=2, bases=(0, 4))
    assert wanted(made) == "1.3"
    assert wanted(run("1.4", "2.4", "2.5", head="2.5", window=1, bases=(0, 4))) == "1.4"


def test_a_version_that_a_restart_cut_off_never_satisfies_a_lease() -> None:
    """1.5 was published and cut off; it is newer than 1.4, so a lease that said "1.4 or newer" would allow it."""
    made = run("1.3", "1.4", "1.5", "2.4", "2.5", head="2.5", window=3, bases=(0, 4))
    minimum = made.minimum_version()
    assert minimum == version("2.4")
    assert all(one < minimum for one in made.manifests if not made.chain.contains(one))


def test_the_last_steps_need_no_more_than_they_train_on() -> None:
    made = run("1.9", head="1.9", window=3)
    assert made.pace_left() == 8
    made.steps = 10
    assert made.pace_left() == 4
    made.collecting = 10
    assert made.pace_left() == 0
    assert PolicyVersion(1, 9) == made.chain.head
