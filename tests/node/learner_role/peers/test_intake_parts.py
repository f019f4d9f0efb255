"""A returned lease with parts is on disk before it is acknowledged, and another peer continues it.

The parts are there after a restart, and are audited in the name of their author.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.rollouts.environment import Ended, Unfinished
from learner.scheduling.lease_scheduler import PARTS_WAIT_MS
from learner.trust.audit_queue import work_of
from node.learner_role.scheduling.recovery import read_unconsumed
from protocol.core.codec import unpack_tokens
from protocol.work import Handback, Receipt, Rule, open_receipt, read_record
from tests.node.learner_role.peers.test_intake import lend, open_chain
from tests.support.environments import one_turn
from tests.support.learner_fixture import Learner, hand_in, open_learner, told_little
from tests.support.trainer_fixture import OTHER, STOP, SWARM, even_share, granted, record, version


async def return_begun(learner: Learner, lease: GrantedLease, *raws: bytes) -> Receipt:
    said: Any = Handback(lease=lease.id, records=list(raws), reason="its owner needs the machine")
    answer = await hand_in(learner, lease.peer, said)
    return open_receipt(answer.receipt, SWARM.authority)


def continuations(learner: Learner, *, takes_parts: bool = True) -> list[GrantedLease]:
    """Return the continuations that OTHER is leased now."""
    worker = learner.scheduler.worker(OTHER.peer_id)
    worker.installed, worker.takes_parts = version("1.3"), takes_parts
    learner.scheduler.ask(OTHER.peer_id, 64)
    found = [one for _, leases in learner.scheduler.serve(learner.context.now_ms(), OTHER.peer_id) for one in leases]
    learner.scheduler.withdraw(OTHER.peer_id)
    return [one for one in found if one.place is not None]


async def test_what_is_left_goes_to_another_with_its_seeds_and_the_whole_is_trained_on(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1, size=3)
        nursery.start_soon(learner.intake.run, learner.arriving)
        done, begun = record(lease.lease, 0, made_by="1.3"), record(lease.lease, 2, made_by="1.3", tokens=(1, 2))
        receipt = await return_begun(learner, lease, begun, done)
        assert [verdict.rule for verdict in receipt.verdicts] == [Rule.ADMITTED] * 2
        assert receipt.tokens == 5, "its author counts for it at once"
        [event] = learner.logged("lease_handed_back")
        assert (event["finished"], event["begun"], event["left"], event["tokens"]) == (1, 1, 2, 5)
        assert learner.ledger.work.lease(lease.id).status == "returned"
        assert await return_begun(learner, lease, begun, done) == receipt, "the same again"
        assert len(learner.capacity.buffer) == 0

        swarm = SWARM.authority.swarm
        found = read_unconsumed(learner.ledger, told_little(one_turn(even_share)), swarm)
        assert not found.groups
        assert [
            (one.place, one.prompt.tokens, one.start, one.seeds(one.place)) for one in found.episodes.waiting()
        ] == [
            (one.place, one.prompt.tokens, one.start, one.seeds(one.place))
            for one in learner.capacity.episodes.waiting()
        ], "as after a restart"

        assert [one.lease.start for one in continuations(learner, takes_parts=False)] == [0]
        [goes_on] = continuations(learner)
        assert goes_on.lease.start == 2
        rest = next(one for one in learner.capacity.leasing.open.values() if one.lease.start == 0 and one.place)
        assert (rest.lease.seeds, goes_on.lease.seeds) == ([lease.lease.seeds[1]], [lease.lease.seeds[2]])
        assert unpack_tokens(goes_on.lease.prompt) == (5, 6, 7, 1, 2)
        assert goes_on.lease.max_new_tokens + 2 == rest.lease.max_new_tokens
        nursery.cancel_scope.cancel()


async def test_after_a_while_without_anybody_who_goes_on_the_room_is_free_again(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        await return_begun(learner, lease, record(lease.lease, 0, made_by="1.3", tokens=(1,)))
        now_ms, episodes = learner.context.now_ms(), learner.capacity.episodes
        assert (learner.scheduler.give_up_begun(now_ms), len(episodes)) == (0, 2)
        learner.scheduler.worker(OTHER.peer_id).takes_parts = True
        assert learner.scheduler.give_up_begun(now_ms + PARTS_WAIT_MS) == 0
        learner.scheduler.forget(OTHER.peer_id)
        assert learner.scheduler.give_up_begun(now_ms + PARTS_WAIT_MS) == 0, "it counts from now on"
        assert learner.scheduler.give_up_begun(now_ms + 2 * PARTS_WAIT_MS) == 1
        assert len(episodes) == 0
        nursery.cancel_scope.cancel()


async def test_who_hands_back_owes_a_lease_and_a_refused_one_brings_nothing(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        first, second = lend(learner, 1, 2)
        nursery.start_soon(learner.intake.run, learner.arriving)
        owed: list[int] = []
        debts = learner.scheduler.debts
        before = debts.brought_nothing
        debts.brought_nothing = lambda peer, leases, now_ms: (owed.append(leases), before(peer, leases, now_ms))[1]  # type: ignore[method-assign]
        await return_begun(learner, first, record(first.lease, 0, made_by="1.3", tokens=(1,)))
        assert owed == [1]
        late = record(second.lease, 0, made_by="1.3", tokens=(1, STOP, 1))
        receipt = await return_begun(learner, second, late)
        assert [verdict.rule for verdict in receipt.verdicts] == [Rule.SETTINGS]
        assert learner.ledger.work.lease(second.id).status == "delivered"
        assert owed[-1] > 1, "and a rule blames it"
        nursery.cancel_scope.cancel()


def test_each_author_is_audited_for_its_own_tokens_after_what_the_learner_knows() -> None:
    """So whoever goes on cannot lie about the part before: it does not sign it, and the learner reads its own copy."""
    begun = granted(1, size=1)
    goes_on = granted(2, size=1, start=2, max_new_tokens=2)
    signed = [
        read_record(record(one.lease, 0, tokens=tokens, made_by="1.3"), SWARM.authority.swarm)
        for one, tokens in ((begun, (1, 2)), (goes_on, (3, STOP)))
    ]
    first = work_of(begun, [AdmittedRecord(signed=signed[0], reply=Unfinished())], waits=False)
    second = work_of(goes_on, [AdmittedRecord(signed=signed[1], reply=Ended(reward=1.0))], waits=False)
    assert [(one.passages[0].position, one.passages[0].tokens) for one in (first, second)] == [
        (0, (1, 2)),
        (2, (3, STOP)),
    ]
    assert second.passages[0].prompt == unpack_tokens(goes_on.lease.prompt)
