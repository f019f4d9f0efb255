"""A group is leased to one teacher at a time; failed or recalled work is leased to another one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from learner.rollouts.buffer import Buffer, Group
from learner.rollouts.score_leases import Scored, ScoreLeases, ScoreWork, fits_lease
from protocol.core.codec import pack_tokens
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.scores import ScoreLease
from protocol.versions.staleness import Chain
from tests.learner.rollouts.test_buffer import group
from tests.support.examples import examples

ALPHA, BETA = PeerId("alpha"), PeerId("beta")
CHAIN = Chain(bases=(0,), head=PolicyVersion(1, 0))


def leases_of(*numbers: int) -> ScoreLeases:
    buffer = Buffer(window=4, needs_scores=True)
    for number in numbers:
        assert buffer.add(group(number, "1.0"))
    return ScoreLeases(buffer=buffer)


def work(one: Group, peer: PeerId, number: int, *, deadline_ms: int = 100) -> ScoreWork:
    lease = ScoreLease(
        id=number.to_bytes(16, "big"),
        peer=peer,
        teacher=bytes(32),
        prompt=pack_tokens(one.prompt),
        completions=[pack_tokens(completion.tokens) for completion in one.completions],
        temperature=1.0,
        issued_ms=0,
        deadline_ms=deadline_ms,
    )
    return ScoreWork(peer=peer, group=one, lease=lease, raw=b"signed")


def scored(one: ScoreWork) -> Scored:
    said = tuple(tuple(-1.0 for _ in completion.tokens) for completion in one.group.completions)
    return Scored(work=one, scores=said, raw=b"record")


def issue(leases: ScoreLeases, peer: PeerId, number: int) -> ScoreWork:
    [first, *_] = leases.for_peer(1, 1)
    issued = work(first, peer, number)
    leases.issue(issued)
    return issued


def test_a_group_is_leased_to_one_teacher_and_then_waits_for_its_batch() -> None:
    leases = leases_of(1)
    first = issue(leases, ALPHA, 1)
    assert leases.for_peer(64, 1 << 20) == []
    assert leases.take(first.id, BETA) is None, "it is another's"
    assert leases.take(first.id, ALPHA) == first
    assert leases.for_peer(64, 1 << 20) == [], "while it is judged"
    assert leases.use(scored(first))
    assert len(leases.buffer) == 2
    assert leases.take(first.id, ALPHA) is None


def test_as_many_completions_are_leased_as_are_asked_for_and_a_group_at_least() -> None:
    leases = leases_of(1, 2, 3)
    assert len(leases.for_peer(1, 1 << 20)) == 1
    assert len(leases.for_peer(3, 1 << 20)) == 2
    assert len(leases.for_peer(64, 1 << 20)) == 3
    assert len(leases.for_peer(64, 1)) == 1, "of so many tokens at most"


def test_what_is_late_or_returned_or_lost_is_for_others() -> None:
    leases = leases_of(1, 2, 3)
    late, returned, lost = (issue(leases, ALPHA, number) for number in (1, 2, 3))
    assert leases.late(100) == []
    assert leases.late(101) == [late, returned, lost]
    leases.put_back(late)
    assert leases.release(ALPHA, [returned.id]) == [returned]
    assert leases.release(BETA) == []
    assert leases.release(ALPHA) == [lost]
    assert {one.lease for one in leases.for_peer(64, 1 << 20)} == {one.group.lease for one in (late, returned, lost)}


def test_what_waits_for_its_audit_is_in_no_batch_and_goes_on_after_it() -> None:
    leases = leases_of(1, 2)
    first, second = issue(leases, ALPHA, 1), issue(leases, ALPHA, 2)
    for one in (first, second):
        assert leases.take(one.id, ALPHA)
        leases.audit(scored(one))
    assert leases.next_audit() == scored(first)
    assert len(leases.buffer) == 0
    assert leases.under_way(ALPHA) == [first, second]
    leases.use(scored(first))
    leases.put_back(second)
    assert leases.next_audit() is None
    assert len(leases.buffer) == 2
    assert [one.lease for one in leases.for_peer(64, 1 << 20)] == [second.group.lease]


def test_of_a_peer_that_is_banned_nothing_is_learnt_that_no_batch_has_taken() -> None:
    leases = leases_of(1, 2, 3, 4)
    trained, used, waits, under_way = (issue(leases, ALPHA, number) for number in (1, 2, 3, 4))
    for one in (trained, used, waits):
        assert leases.take(one.id, ALPHA)
    leases.use(scored(trained))
    assert leases.buffer.take(2, CHAIN)
    leases.use(scored(used))
    leases.audit(scored(waits))
    assert leases.disown(ALPHA) == {used.id, waits.id, under_way.id}
    assert len(leases.buffer) == 0
    again = {one.lease for one in leases.unscored(1 << 20)}
    assert again == {one.group.lease for one in (used, waits, under_way)}
    assert not any(completion.teacher for one in leases.unscored(1 << 20) for completion in one.completions)


def test_a_group_that_grew_too_old_meanwhile_is_nobodys() -> None:
    leases = leases_of(1)
    first = issue(leases, ALPHA, 1)
    leases.buffer.clear()
    assert leases.take(first.id, ALPHA)
    assert not leases.use(scored(first))
    leases.forget_trained()
    assert leases.disown(ALPHA) == set()


def test_what_the_learner_scores_itself_is_leased_to_nobody() -> None:
    leases = leases_of(1)
    groups = leases.unscored(1)
    leases.hold(groups)
    assert leases.for_peer(64, 1 << 20) == []
    leases.let_go(groups)
    assert leases.for_peer(64, 1 << 20) == groups


def test_what_no_lease_can_hold_is_left_to_the_learner() -> None:
    one = group(1, "1.0")
    assert fits_lease(one)
    long = replace(one, completions=(replace(one.completions[0], tokens=(1,) * 200_000), *one.completions[1:]))
    assert not fits_lease(long)


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from(["issue", "take", "late", "disown", "audit"]), st.integers(0, 5)), max_size=40)
)
def test_whatever_happens_no_group_is_lost_or_scored_twice(events: list[tuple[str, int]]) -> None:
    leases = leases_of(*range(1, 7))
    number, trained = 0, set[LeaseId]()
    for what, which in events:
        peer = (ALPHA, BETA)[which % 2]
        mine = [one for one in leases.open.values() if one.peer == peer]
        match what:
            case "issue" if found := leases.for_peer(1, 1):
                number += 1
                leases.issue(work(found[0], peer, number))
            case "take" if mine and leases.take(mine[0].id, peer):
                leases.audit(scored(mine[0])) if which > 2 else leases.use(scored(mine[0]))
            case "late" if mine:
                leases.put_back(mine[0])
            case "disown":
                leases.disown(peer)
            case "audit" if waiting := leases.next_audit():
                leases.use(waiting) if which > 2 else leases.put_back(waiting.work)
        if batch := leases.buffer.take(6, CHAIN):
            trained |= {one.lease for one in batch.groups}
        out = {one.group.lease for one in leases.open.values()} | {
            one.work.group.lease for one in leases.waiting.values()
        }
        free = {one.lease for one in leases.unscored(1 << 20)}
        assert not out & free
        assert out | free <= leases.buffer.leases
        assert leases.buffer.leases | trained == {group(one, "1.0").lease for one in range(1, 7)}
