"""Count leases that end without a record against their peer, and delay its next leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.monitoring.fruitless_leases import End
from learner.scheduling.lease_backoff import FIRST_PAUSE_MS, FREE_LEASES
from node.learner_role.scheduling.lease_service import GRANT_WAIT_S, LATE_GRACE_MS
from protocol.core.ids import LeaseId
from protocol.work import IN_GOOD_ORDER, Grant, LeaseRequest, LeaseReturn, open_lease
from tests.support.learner_fixture import Learner, Settings, hello, open_learner, until
from tests.support.trainer_fixture import PEER, SWARM

HERE = PEER.peer_id
ROOMY = Settings(prompts=8, group_size=2, ahead=2.0, steps=99)

pytestmark = pytest.mark.usefixtures("mock_clock")


def ids_of(grant: Grant) -> list[LeaseId]:
    learner = SWARM.learner.peer_id
    return [LeaseId(open_lease(raw, SWARM.authority.swarm, learner=learner).id) for raw in grant.leases]


def owe(learner: Learner, leases: int) -> None:
    """So many leases of the peer have brought nothing."""
    learner.scheduler.debts.brought_nothing(HERE, leases, learner.wall.ms)


@asynccontextmanager
async def restarted(root: Path, away_s: float) -> AsyncIterator[tuple[Learner, list[LeaseId]]]:
    """A learner that was away for so long while leases were open, with the peer that is back, and may owe no more."""
    async with open_learner(root, ROOMY) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.sessions.leases.run)
        await learner.sessions.welcome(HERE, hello())
        mine = ids_of(await learner.sessions.grant(HERE, LeaseRequest(rollouts=4)))
        nursery.cancel_scope.cancel()
    async with open_learner(root, ROOMY) as again:
        again.wall.ms += round(1000 * away_s)
        again.sessions.recover_leases()
        await again.sessions.welcome(HERE, hello(leases=mine))
        await again.training.begin()
        owe(again, FREE_LEASES)
        yield again, mine


def return_leases(learner: Learner, leases: list[LeaseId]) -> None:
    learner.sessions.take_return(HERE, LeaseReturn(leases=list(leases), reason="too late"))


def expire(learner: Learner, leases: list[LeaseId]) -> None:
    learner.wall.ms = learner.capacity.leasing.open[leases[0]].deadline_ms + LATE_GRACE_MS + 1
    learner.sessions.leases.expire()


def leave(learner: Learner, leases: list[LeaseId]) -> None:
    learner.sessions.note_departure(HERE, IN_GOOD_ORDER)


def lose(learner: Learner, leases: list[LeaseId]) -> None:
    learner.sessions.leases.withdraw(HERE, leases)


Ends = Callable[[Learner, list[LeaseId]], None]
ENDS = {return_leases: End.RETURNED, expire: End.EXPIRED, leave: End.LOST, lose: End.RETURNED}


@pytest.mark.parametrize("end", ENDS)
async def test_a_lease_that_the_learners_own_restart_made_worthless_is_nobodys_debt(tmp_path: Path, end: Ends) -> None:
    async with restarted(tmp_path, away_s=3600.0) as (learner, mine):
        ended: list[str] = []
        learner.context.signals.lease_closed.subscribe(lambda news: ended.append(news.status))
        end(learner, mine)
        assert learner.capacity.leasing.open == learner.capacity.leasing.recalled == {}
        assert (learner.capacity.leasing.open_rollouts, learner.capacity.leasing.pending(HERE)) == (0, 0)
        assert ended == ["recalled"] * len(mine)
        assert not learner.scheduler.debts.is_owing(HERE)
        assert learner.scheduler.fruitless.ends.total() == 0


@pytest.mark.parametrize(("end", "how"), ENDS.items())
async def test_a_lease_of_before_with_time_left_is_owed_like_any_other(tmp_path: Path, end: Ends, how: End) -> None:
    async with restarted(tmp_path, away_s=0.0) as (learner, mine):
        end(learner, mine)
        assert learner.scheduler.debts.is_owing(HERE)
        assert learner.scheduler.fruitless.ends == {how: len(mine)}


async def test_what_is_not_withdrawn_yet_is_counted_on_although_it_would_be_excused(tmp_path: Path) -> None:
    async with restarted(tmp_path, away_s=3600.0) as (learner, mine):
        arrived, missing = mine
        learner.capacity.leasing.arrives(arrived, HERE, learner.wall.ms)
        learner.sessions.leases.expire()
        assert set(learner.capacity.leasing.open) == set(mine)
        assert learner.capacity.leasing.recalled == {}
        expire(learner, [missing])
        assert set(learner.capacity.leasing.open) == {arrived}
        assert learner.capacity.leasing.recalled == {}
        assert learner.capacity.leasing.open_rollouts == 2


async def wait_s(learner: Learner, clock: MockClock, seconds: float) -> None:
    learner.wall.ms += round(1000 * seconds)
    clock.jump(seconds)
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("late", [False, True])
async def test_who_owes_is_leased_a_group_as_soon_as_its_pause_is_over(
    tmp_path: Path, mock_clock: MockClock, late: bool
) -> None:
    """Whether it asked before the pause began or since then; nothing else happens meanwhile."""
    pause_s = FIRST_PAUSE_MS / 1000
    assert 2 * pause_s < GRANT_WAIT_S
    async with open_learner(tmp_path, ROOMY) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.sessions.leases.run)
        await learner.sessions.welcome(HERE, hello())
        mine = ids_of(await learner.sessions.grant(HERE, LeaseRequest(rollouts=2)))
        answers: list[Grant] = []

        async def ask() -> None:
            answers.append(await learner.sessions.grant(HERE, LeaseRequest(rollouts=32)))

        owe(learner, FREE_LEASES)
        if late:
            return_leases(learner, mine)
            nursery.start_soon(ask)
        else:
            learner.scheduler.debts.brought_nothing(HERE, 1, learner.wall.ms - FIRST_PAUSE_MS)  # a pause that is over
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            return_leases(learner, mine)
            pause_s *= 2
        await wait_all_tasks_blocked()
        await wait_s(learner, mock_clock, 0.9 * pause_s)
        assert answers == []
        await wait_s(learner, mock_clock, 0.1 * pause_s)
        assert learner.sessions.leases._waiting == {}, "it is being granted one"
        await until(lambda: answers != [])
        [grant] = answers
        assert len(grant.leases) == 1
        nursery.cancel_scope.cancel()
