"""Decide which peers may join and which leases they get; handle leases that are returned or lost."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger.reputation import EXCUSED, OUT_OF_HOURS, observed_days
from learner.ledger.sqlite.database import snapshot
from learner.rollouts.admission import GrantedLease
from learner.rollouts.open_leases import Prompt
from node.config.engine_requirements import EngineTerms
from node.learner_role.peers.introducer import EVERY_S
from node.learner_role.peers.session_service import ALL_LOGGED_HEARTBEATS, HEARD_REACHES, LOGGED_HEARTBEATS, TICK_S
from node.learner_role.scheduling.lease_service import GRANT_WAIT_S, LATE_GRACE_MS
from node.learner_role.shared.signals import connect_peers
from node.reports.model.verdict_meanings import JUDGING
from protocol.accounting.claims import Energy, EnergySource, Price
from protocol.accounting.reputation import ObservedDay
from protocol.core.codec import encode
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_LEASES_PER_GRANT, MAX_PROMPT_TOKENS, MAX_WORK_BYTES, PROTOCOL_VERSION
from protocol.reach import REACH, Reach, ReachKind
from protocol.versions.exchange import PeerAddresses
from protocol.versions.formats import QUANTIZED
from protocol.work import (
    IN_GOOD_ORDER,
    LEASE_RECALLS,
    PARTS,
    PROOFS,
    RELAY_RECEIPTS,
    Farewell,
    Grant,
    Heartbeat,
    Introduction,
    Lease,
    LeaseRecall,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Proofs,
    Refused,
    Started,
    Welcome,
    open_lease,
)
from swarm.work.membership import RETURNS_WITHIN_S, Membership
from tests.support.learner_fixture import HEARTBEAT_S, TIMEOUT_S, Learner, Settings, hello, open_learner, until
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM, version

HERE, THERE = PEER.peer_id, OTHER.peer_id
ROOMY = Settings(prompts=8, group_size=2, ahead=2.0, steps=99)
"""A batch of 16 rollouts, and room for 32."""

pytestmark = pytest.mark.usefixtures("mock_clock")


@asynccontextmanager
async def opened(root: Path, settings: Settings = ROOMY, *peers: PeerId) -> AsyncIterator[Learner]:
    """A learner that has published version 1.0, with its sessions at work and `peers` welcomed."""
    async with open_learner(root, settings) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.sessions.run)
        nursery.start_soon(learner.sessions.leases.run)
        for peer in peers:
            assert isinstance(await learner.sessions.welcome(peer, hello()), Welcome)
        yield learner
        nursery.cancel_scope.cancel()


async def ask(learner: Learner, peer: PeerId = HERE, rollouts: int = 4) -> Grant:
    return await learner.sessions.grant(peer, LeaseRequest(rollouts=rollouts))


def leases_of(grant: Grant) -> list[Lease]:
    return [open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]


def ids_of(grant: Grant) -> list[LeaseId]:
    return [LeaseId(lease.id) for lease in leases_of(grant)]


def statuses(learner: Learner) -> dict[bytes, str]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return dict(db.execute("SELECT lease, status FROM leases"))


async def become(learner: Learner, expected: dict[LeaseId, str]) -> None:
    """Wait until the ledger has these leases with these ends."""
    await until(lambda: statuses(learner) == expected)


async def tick(learner: Learner, clock: MockClock, seconds: float = TICK_S) -> None:
    """Let at least TICK_S pass, until the service has looked around and written what it saw."""
    await wait_all_tasks_blocked()
    await until(lambda: not learner.sessions.writing)
    await wait_all_tasks_blocked()
    rounds = learner.sessions.rounds
    learner.wall.ms += round(seconds * 1000)
    clock.jump(seconds)
    await until(lambda: learner.sessions.rounds > rounds)


def observed_days_of(learner: Learner, peer: PeerId) -> list[ObservedDay]:
    with snapshot(learner.ledger.path) as db:
        return observed_days(db, learner.wall.ms, JUDGING).get(peer, [])


class Lines:
    """Notes what a reception would send."""

    def __init__(self) -> None:
        self.said: list[tuple[PeerId, object]] = []

    def tell(self, peer: PeerId, message: object) -> None:
        self.said.append((peer, message))

    dismiss = tell


# Joining.


async def test_a_welcome_tells_the_terms(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY) as learner:
        first = await learner.sessions.welcome(HERE, hello(addresses=["/memory/here"]))
        second = await learner.sessions.welcome(THERE, hello())
        assert isinstance(first, Welcome)
        assert isinstance(second, Welcome)
        assert (first.now_ms, first.heartbeat_ms) == (NOW_MS, round(HEARTBEAT_S * 1000))
        assert (first.staleness, first.publish_every, first.newest) == (1, 1, version("1.0"))
        assert first.ext == {RELAY_RECEIPTS: b"", PROOFS: b"", PARTS: b""}
        assert second.peers == [PeerAddresses(peer=HERE, addresses=["/memory/here"])]


@pytest.mark.parametrize("token", ["", "sesam", "Sesame", "sesame ", "sésame"])
async def test_the_join_token_is_asked_for(tmp_path: Path, token: str) -> None:
    async with opened(tmp_path, Settings(token="sesame")) as learner:
        answer = await learner.sessions.welcome(HERE, hello(token=token))
        assert isinstance(answer, Refused)
        assert "Ask the operator for a new invite" in answer.reason
        assert answer.retry_after_ms is None, "never: it will not get better by itself"
        assert learner.run.present == {}
        assert isinstance(await learner.sessions.welcome(HERE, hello(token="sesame")), Welcome)


async def test_an_engine_with_quantised_weights_joins_where_the_operator_allows_it(tmp_path: Path) -> None:
    quantised = hello(ext={QUANTIZED: b"fp8\x1b"})
    async with opened(tmp_path) as learner:
        answer = await learner.sessions.welcome(HERE, quantised)
        assert isinstance(answer, Refused)
        assert "quantised weights, and yours has fp8" in answer.reason
        assert "\x1b" not in answer.reason
        assert answer.retry_after_ms is None
        assert learner.run.present == {}
        learner.sessions.engines = EngineTerms(formats=("stored", "fp8\\x1b"))
        assert isinstance(await learner.sessions.welcome(HERE, quantised), Welcome)


async def test_another_protocol_version_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as learner:
        answer = await learner.sessions.welcome(HERE, hello(protocol=PROTOCOL_VERSION + 1))
        assert isinstance(answer, Refused)
        assert f"this swarm {PROTOCOL_VERSION}" in answer.reason


# Leases.


async def test_leases_are_in_the_ledger_when_they_are_handed_out(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        grant = await ask(learner)
        leases = leases_of(grant)
        assert [(lease.peer, lease.minimum, len(lease.seeds)) for lease in leases] == [(HERE, version("1.0"), 2)] * 2
        assert len({seed for lease in leases for seed in lease.seeds}) == 4
        assert {row.lease for row in learner.ledger.work.open_leases()} == set(ids_of(grant))
        assert [row.envelope for row in learner.ledger.work.open_leases()] == grant.leases
        assert learner.capacity.leasing.open_rollouts == 4


async def test_a_request_waits_for_room_and_is_woken_by_it(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner, trio.open_nursery() as nursery:
        learner.run.membership.timeout_s = 2 * GRANT_WAIT_S
        held = ids_of(await ask(learner, rollouts=32))
        assert len(held) == 16
        answers: list[Grant] = []

        async def wait() -> None:
            answers.append(await ask(learner, THERE, rollouts=3))

        nursery.start_soon(wait)
        await tick(learner, mock_clock, GRANT_WAIT_S - 2)
        assert answers == []
        learner.sessions.take_return(HERE, LeaseReturn(leases=held[:1], reason="too much"))
        await wait_all_tasks_blocked()
        await until(lambda: bool(answers))
        assert len(answers[0].leases) == 1, "there was room for one group of the two that were asked for"
        assert not set(ids_of(answers[0])) & set(held), "a new id"
        seeds = [seed for lease in leases_of(answers[0]) for seed in lease.seeds]
        assert len(set(seeds)) == 2
        await until(lambda: statuses(learner)[held[0]] == "returned")


async def test_a_request_that_waits_in_vain_is_told_when_to_ask_again(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner, trio.open_nursery() as nursery:
        learner.run.membership.timeout_s = 2 * GRANT_WAIT_S
        await ask(learner, rollouts=32)
        looked: list[int] = []
        serve = learner.scheduler.serve

        def counting(now_ms: int, only: PeerId | None = None) -> Iterator[tuple[PeerId, list[GrantedLease]]]:
            looked.append(now_ms)
            return serve(now_ms, only)

        learner.scheduler.serve = counting  # type: ignore[method-assign]
        answers: list[Grant] = []

        async def wait() -> None:
            answers.append(await ask(learner))

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        mock_clock.jump(GRANT_WAIT_S)
        await wait_all_tasks_blocked()
        assert len(looked) == 1, "nobody looked around while nothing happened"
        assert answers[0].leases == []
        assert "Enough rollouts are under way" in answers[0].reason
        assert answers[0].retry_after_ms > 0


async def test_a_request_outside_the_owners_hours_is_told_so(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner, trio.open_nursery() as nursery:
        learner.run.membership.timeout_s = 2 * GRANT_WAIT_S
        learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=0.0))
        answers: list[Grant] = []

        async def wait() -> None:
            answers.append(await ask(learner))

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert (await ask(learner, THERE)).leases
        mock_clock.jump(GRANT_WAIT_S)
        await wait_all_tasks_blocked()
        assert answers[0].leases == []
        assert "not lent now (outside your hours, or paused)" in answers[0].reason
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=3600.0))
        await until(lambda: len(answers) == 2)
        assert answers[1].leases, "at once when they begin"


async def test_no_lease_before_the_first_version_after_the_last_step_or_without_a_welcome(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async def gets_nothing(learner: Learner, peer: PeerId) -> str:
        answers: list[Grant] = []

        async def wait() -> None:
            answers.append(await ask(learner, peer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            mock_clock.jump(GRANT_WAIT_S)
        assert answers[0].leases == []
        return answers[0].reason

    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.sessions.welcome(HERE, hello())  # and nobody watches for silence
        await gets_nothing(learner, HERE)
        await learner.training.begin()
        await gets_nothing(learner, THERE)
        assert (await ask(learner)).leases
        learner.run.finished = True
        assert "finished" in await gets_nothing(learner, HERE)


async def test_the_last_steps_lease_no_more_than_they_will_train_on(tmp_path: Path) -> None:
    async with opened(tmp_path, Settings(prompts=2, group_size=2, ahead=8.0, steps=2, staleness=4), HERE) as learner:
        grant = await ask(learner, rollouts=100)
        assert sum(len(lease.seeds) for lease in leases_of(grant)) == 8


async def test_a_grant_of_long_prompts_fits_a_frame(tmp_path: Path) -> None:
    settings = Settings(prompts=64, group_size=2, ahead=1.0, steps=99)
    async with opened(tmp_path, settings, HERE) as learner:
        long = tuple([7] * MAX_PROMPT_TOKENS)
        learner.scheduler.next_prompt = lambda: Prompt(task="even", index=1, tokens=long)
        grant = await ask(learner, rollouts=128)
        assert 20 < len(grant.leases) < 64
        assert len(encode(grant)) <= MAX_WORK_BYTES
        assert learner.capacity.leasing.open_rollouts == 2 * len(grant.leases), "what did not fit was not leased"


async def test_a_grant_that_is_cancelled_leaves_nothing_granted(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ask(learner)
        assert learner.capacity.leasing.open_rollouts == 0
        await until(lambda: "open" not in statuses(learner).values())


async def test_a_peer_that_leaves_while_its_leases_are_written(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        issue = learner.ledger.work.leases_issued

        def leave_then_write(rows: Any) -> None:
            trio.from_thread.run_sync(learner.sessions.note_departure, HERE, IN_GOOD_ORDER)
            trio.from_thread.run(wait_all_tasks_blocked)
            issue(rows)

        learner.ledger.work.leases_issued = leave_then_write  # type: ignore[method-assign]
        await ask(learner)
        assert learner.capacity.leasing.open_rollouts == 0
        await until(lambda: set(statuses(learner).values()) == {"lost"})


async def test_which_version_a_lease_is_made_with_is_written(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        [mine, other] = ids_of(await ask(learner))
        learner.sessions.take_start(HERE, Started(lease=mine, version=version("1.0")))
        learner.sessions.take_start(HERE, Started(lease=mine, version=version("1.1")))
        learner.sessions.take_start(THERE, Started(lease=other, version=version("1.1")))
        await tick(learner, mock_clock)
        await until(lambda: started_versions(learner) == {mine: "1.0", other: None})


def started_versions(learner: Learner) -> dict[bytes, str | None]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return dict(db.execute("SELECT lease, started_version FROM leases"))


# How leases are lost.


async def test_a_goodbye_frees_the_leases_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        held = ids_of(await ask(learner))
        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        assert learner.capacity.leasing.open_rollouts == 0
        assert learner.run.present == {}
        await become(learner, dict.fromkeys(held, "lost"))


@pytest.mark.parametrize("notices", ["the line", "silence"])
async def test_who_is_gone_outside_its_hours_has_not_vanished(
    tmp_path: Path, mock_clock: MockClock, notices: str
) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=0.0))
        learner.sessions.take_heartbeat(THERE, Heartbeat(hours_left_s=3600.0))
        for peer in (HERE, THERE) if notices == "the line" else ():
            learner.sessions.note_departure(peer, "the connection was reset")
        await tick(learner, mock_clock, TIMEOUT_S)
        await tick(learner, mock_clock)
        assert learner.run.present == {}
        await tick(learner, mock_clock)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        told = dict(db.execute("SELECT peer, reason FROM presence"))
    assert told[HERE] == OUT_OF_HOURS
    assert told[THERE] not in EXCUSED
    assert told[THERE]


async def test_a_broken_line_frees_them_only_when_the_peer_stays_away(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        held = ids_of(await ask(learner))
        learner.sessions.note_departure(HERE, "the connection was reset")
        assert learner.run.present == {}
        await tick(learner, mock_clock, TIMEOUT_S)
        assert set(learner.capacity.leasing.open) == set(held)
        await tick(learner, mock_clock)
        assert learner.capacity.leasing.open_rollouts == 0
        await become(learner, dict.fromkeys(held, "lost"))
        left = learner.logged("peer_left")
        assert [(event["reason"], event["leases_released"]) for event in left] == [
            ("the connection was reset", 0),
            (f"no heartbeat for {TIMEOUT_S:.0f} s", 2),
        ]


async def test_a_peer_that_comes_back_goes_on_with_what_it_still_holds(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        kept, forgotten = ids_of(await ask(learner))
        [theirs] = ids_of(await ask(learner, THERE, rollouts=2))
        learner.sessions.note_departure(HERE, "the connection was reset")
        await learner.sessions.welcome(HERE, hello(leases=[kept]))
        for _ in range(10):
            learner.sessions.take_heartbeat(HERE, Heartbeat())
            learner.sessions.take_heartbeat(THERE, Heartbeat())
            await tick(learner, mock_clock)
        await become(learner, {kept: "open", forgotten: "open", theirs: "open"})
        assert set(learner.run.present) == {HERE, THERE}
        assert ids_of(await ask(learner, HERE)) == [forgotten], "the very same, before any other"
        assert forgotten not in ids_of(await ask(learner, HERE))


async def test_a_peer_that_could_not_deliver_any_more_what_it_has_lost_is_not_granted_it(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        first, second = ids_of(await ask(learner))
        learner.scheduler.worker(HERE).speed.observe(2, 10.0)
        learner.wall.ms = learner.capacity.leasing.open[first].lease.deadline_ms - 20_000  # enough for one of them
        await learner.sessions.welcome(HERE, hello())
        await become(learner, {first: "open", second: "lost"})
        assert ids_of(await ask(learner, HERE)) == [first]


async def test_whoever_begins_a_lease_again_says_anew_with_which_version(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        mine, other = ids_of(await ask(learner))
        for lease in (mine, other):
            learner.sessions.take_start(HERE, Started(lease=lease, version=version("1.0")))
        await tick(learner, mock_clock)
        await learner.sessions.welcome(HERE, hello(leases=[other]))
        await ask(learner, HERE)
        learner.sessions.take_start(HERE, Started(lease=mine, version=version("1.1")))
        learner.sessions.take_start(HERE, Started(lease=other, version=version("1.1")))
        await tick(learner, mock_clock)
        await until(lambda: started_versions(learner)[mine] == "1.1")
        assert started_versions(learner)[other] == "1.0"


async def test_what_happens_while_the_service_stops_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        mine = ids_of(await ask(learner, HERE))
        theirs = ids_of(await ask(learner, THERE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(learner.sessions.run)
            await wait_all_tasks_blocked()
            learner.sessions.note_departure(HERE, IN_GOOD_ORDER)  # it wakes, and is stopped before it has written
            nursery.cancel_scope.cancel()
        await become(learner, dict.fromkeys(mine, "lost") | dict.fromkeys(theirs, "open"))
        learner.sessions.note_departure(THERE, IN_GOOD_ORDER)
        learner.sessions.write_rest()
        assert set(statuses(learner).values()) == {"lost"}


async def test_a_silent_peer_is_dismissed_and_a_beating_heart_keeps_it(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        await ask(learner, HERE)
        held = ids_of(await ask(learner, THERE))
        for _ in range(6):
            await tick(learner, mock_clock)
            learner.sessions.take_heartbeat(THERE, Heartbeat(installed=version("1.0")))
        assert set(learner.run.present) == {THERE}
        assert set(learner.capacity.leasing.open) == set(held)


async def test_a_lease_expires_a_moment_after_its_deadline(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        grant = await ask(learner)
        learner.wall.ms = leases_of(grant)[0].deadline_ms + LATE_GRACE_MS - round(TICK_S * 1000)
        await tick(learner, mock_clock)
        assert len(learner.capacity.leasing.open) == 2
        learner.sessions.take_heartbeat(HERE, Heartbeat())
        await tick(learner, mock_clock)
        await until(lambda: set(statuses(learner).values()) == {"expired"})


async def test_leases_go_on_after_a_restart_until_their_peer_stays_silent(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        mine = ids_of(await ask(learner, HERE))
        theirs = ids_of(await ask(learner, THERE))
    async with open_learner(tmp_path, ROOMY) as again, trio.open_nursery() as nursery:
        again.sessions.recover_leases()
        nursery.start_soon(again.sessions.run)
        nursery.start_soon(again.sessions.leases.run)
        assert set(again.capacity.leasing.open) == {*mine, *theirs}
        told: list[str] = []
        again.context.signals.lease_closed.subscribe(lambda news: told.append(news.status))
        await again.sessions.welcome(HERE, hello(leases=mine))
        for _ in range(60):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        assert set(again.capacity.leasing.open) == {*mine, *theirs}, "leases must stay open while the model is loading"
        await again.training.begin()
        for _ in range(round(RETURNS_WITHIN_S)):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        assert set(again.capacity.leasing.open) == {*mine, *theirs}
        for _ in range(3):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        assert set(again.capacity.leasing.open) == set(mine)
        await become(again, dict.fromkeys(mine, "open") | dict.fromkeys(theirs, "returned"))
        assert set(told) == {"recalled"}, "it may look for us still"
        assert sum(day.leases_failed for day in observed_days_of(again, THERE)) == 0
        assert not again.scheduler.debts.is_owing(THERE)
        nursery.cancel_scope.cancel()


async def test_what_was_made_while_a_learner_was_away_counts_though_its_model_loads_for_minutes(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        mine = ids_of(await ask(learner))
    async with open_learner(tmp_path, ROOMY) as again, trio.open_nursery() as nursery:
        again.sessions.recover_leases()
        nursery.start_soon(again.sessions.run)
        for _ in range(120):
            await tick(again, mock_clock)
        await again.training.begin()
        for _ in range(19):  # the longest pause of a node that looks for its learner
            await tick(again, mock_clock)
        await again.sessions.welcome(HERE, hello(leases=mine))
        assert [again.capacity.leasing.lookup(lease, HERE) is not None for lease in mine] == [True] * len(mine)
        for _ in range(2):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        assert set(again.capacity.leasing.open) == set(mine)
        nursery.cancel_scope.cancel()


async def test_a_lease_whose_deadline_passed_while_the_learner_was_away_is_held_against_nobody(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    away_s = 3600.0
    async with opened(tmp_path, ROOMY, HERE) as learner:
        grant = await ask(learner)
        mine = ids_of(grant)
    async with open_learner(tmp_path, ROOMY) as again, trio.open_nursery() as nursery:
        told: list[str] = []
        again.context.signals.lease_closed.subscribe(lambda news: told.append(news.status))
        again.wall.ms += round(1000 * away_s)
        again.sessions.recover_leases()
        nursery.start_soon(again.sessions.run)
        await again.sessions.welcome(HERE, hello(leases=mine))
        for _ in range(2):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        assert set(again.capacity.leasing.open) == set(mine), "the model is loading, and nobody could deliver until now"
        await again.training.begin()
        deadline_ms = again.wall.ms + 60_000
        assert {granted.deadline_ms for granted in again.capacity.leasing.open.values()} == {deadline_ms}
        again.wall.ms = deadline_ms
        for seconds in (TICK_S, LATE_GRACE_MS / 1000):
            assert set(again.capacity.leasing.open) == set(mine)
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock, seconds)
        assert again.capacity.leasing.open == {}
        await become(again, dict.fromkeys(mine, "returned"))
        assert set(told) == {"recalled"}, "nobody has withheld anything"
        days = observed_days_of(again, HERE)
        assert sum(day.leases_failed for day in days) == 0
        nursery.cancel_scope.cancel()


async def test_a_lease_of_before_with_time_left_when_the_learner_is_back_expires_like_any_other(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        mine = ids_of(await ask(learner))
    async with open_learner(tmp_path, ROOMY) as again, trio.open_nursery() as nursery:
        again.sessions.recover_leases()
        nursery.start_soon(again.sessions.run)
        await again.sessions.welcome(HERE, hello(leases=mine))
        await again.training.begin()
        again.wall.ms += 60_000
        for _ in range(4):
            again.sessions.take_heartbeat(HERE, Heartbeat())
            await tick(again, mock_clock)
        await become(again, dict.fromkeys(mine, "expired"))
        nursery.cancel_scope.cancel()


async def test_a_lease_that_was_granted_since_the_start_expires_however_soon_after_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        learner.run.membership = Membership(timeout_s=3600.0)  # the time in which leases of before would be excused
        grant = await ask(learner)
        learner.wall.ms = leases_of(grant)[0].deadline_ms + LATE_GRACE_MS
        assert learner.wall.ms < learner.run.opened_ms + 3_600_000
        await tick(learner, mock_clock)
        await until(lambda: set(statuses(learner).values()) == {"expired"})


async def test_what_has_arrived_does_not_expire_while_it_waits_to_be_judged(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        first, second = ids_of(await ask(learner))
        learner.sessions.note_delivery(HERE, first)
        learner.sessions.note_delivery(THERE, second)
        learner.wall.ms += 60_000 + LATE_GRACE_MS
        learner.sessions.take_heartbeat(HERE, Heartbeat())
        await tick(learner, mock_clock)
        assert set(learner.capacity.leasing.open) == {first}, "another's word says nothing of a lease"
        await become(learner, {first: "open", second: "expired"})


async def test_stopping_the_learner_gives_nobodys_leases_away(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        held = ids_of(await ask(learner))
    learner.sessions.note_departure(HERE, "the learner stopped")
    assert statuses(learner) == dict.fromkeys(held, "open")


# What has become hopeless.


def takes_a_batch(learner: Learner, steps: int = 1) -> None:
    """As the training loop does, so many times; S is 1."""
    learner.capacity.busy, learner.capacity.collecting = True, learner.capacity.chain.head.version + steps
    learner.run.notify()


def recalls(lines: Lines) -> list[tuple[PeerId, LeaseRecall]]:
    return [(to, said) for to, said in lines.said if isinstance(said, LeaseRecall)]


@asynccontextmanager
async def recalling(root: Path, *, ext: dict[str, bytes]) -> AsyncIterator[tuple[Learner, Lines, list[LeaseId]]]:
    """A peer that says `ext` in its greeting has begun one lease with 1.0 and holds another; the head is 1.1."""
    async with opened(root, ROOMY) as learner:
        lines = Lines()
        connect_peers(learner.context.signals, lines)
        await learner.sessions.welcome(HERE, hello(ext=ext))
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        leases = ids_of(await ask(learner))
        learner.sessions.take_start(HERE, Started(lease=leases[0], version=version("1.0")))
        learner.capacity.chain = learner.capacity.chain.advance()
        learner.capacity.collecting = 1
        yield learner, lines, leases


TAKES_RECALLS = {LEASE_RECALLS: b""}


async def test_a_peer_is_told_at_once_and_once_when_a_batch_leaves_its_leases_behind(tmp_path: Path) -> None:
    async with recalling(tmp_path, ext=TAKES_RECALLS) as (learner, lines, leases):
        learner.run.notify()
        await wait_all_tasks_blocked()
        assert recalls(lines) == [], "the batch that is being collected can hold them"
        takes_a_batch(learner)
        learner.run.notify()
        await wait_all_tasks_blocked()
        assert recalls(lines) == [(HERE, LeaseRecall(leases=list(leases), minimum=version("1.1")))]
        told = {"peer": HERE, "leases": 2, "rollouts": 4, "minimum": "1.1"}
        assert learner.logged("leases_recalled") == [told]
        assert set(learner.capacity.leasing.open) == set(leases), "a delivery may be on its way"
        assert learner.capacity.leasing.open_rollouts == 0


async def test_it_is_reminded_with_every_heartbeat_until_they_are_back(tmp_path: Path) -> None:
    async with recalling(tmp_path, ext=TAKES_RECALLS) as (learner, lines, leases):
        takes_a_batch(learner)
        await wait_all_tasks_blocked()
        lines.said.clear()
        learner.sessions.take_return(HERE, LeaseReturn(leases=leases[:1], reason="too old"))
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        assert [said.leases for _, said in recalls(lines)] == [leases[1:]]
        learner.sessions.take_return(HERE, LeaseReturn(leases=leases[1:], reason="too old"))
        lines.said.clear()
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        assert recalls(lines) == []
        assert [event["recalled"] for event in learner.logged("leases_returned")] == [1, 1]
        await become(learner, dict.fromkeys(leases, "returned"))
        assert recalled(learner) == set(leases)


async def test_who_comes_back_without_them_has_dropped_them(tmp_path: Path) -> None:
    async with recalling(tmp_path, ext=TAKES_RECALLS) as (learner, _, leases):
        takes_a_batch(learner)
        await wait_all_tasks_blocked()
        learner.sessions.note_departure(HERE, "the connection was reset")
        await learner.sessions.welcome(HERE, hello(ext=TAKES_RECALLS))
        await become(learner, dict.fromkeys(leases, "returned"))
        assert recalled(learner) == set(leases)


def recalled(learner: Learner) -> set[bytes]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return {lease for (lease,) in db.execute("SELECT lease FROM recalled")}


async def test_who_does_not_know_of_recalls_is_not_told_and_not_counted_on(tmp_path: Path) -> None:
    async with recalling(tmp_path, ext={}) as (learner, lines, leases):
        takes_a_batch(learner)
        await wait_all_tasks_blocked()
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        assert recalls(lines) == []
        assert set(learner.capacity.leasing.open) == set(leases)
        assert learner.capacity.leasing.open_rollouts == 0


async def test_what_is_begun_with_too_old_a_version_is_recalled_as_it_is_begun(tmp_path: Path) -> None:
    async with recalling(tmp_path, ext=TAKES_RECALLS) as (learner, lines, leases):
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.1")))
        takes_a_batch(learner)
        await wait_all_tasks_blocked()
        assert [said.leases for _, said in recalls(lines)] == [leases[:1]], "the other one would be made with 1.1"
        learner.sessions.take_start(HERE, Started(lease=leases[1], version=version("1.0")))
        assert [said.leases for _, said in recalls(lines)] == [leases[:1], leases[1:]]


async def test_many_are_recalled_in_several_messages(tmp_path: Path) -> None:
    many = Settings(prompts=300, group_size=2, ahead=2.0, steps=99)
    async with opened(tmp_path, many) as learner:
        lines = Lines()
        connect_peers(learner.context.signals, lines)
        await learner.sessions.welcome(HERE, hello(ext=TAKES_RECALLS))
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        leases = ids_of(await ask(learner, rollouts=512)) + ids_of(await ask(learner, rollouts=88))
        learner.capacity.chain = learner.capacity.chain.advance()
        takes_a_batch(learner)
        await wait_all_tasks_blocked()
        assert [len(said.leases) for _, said in recalls(lines)] == [MAX_LEASES_PER_GRANT, 44]
        assert {lease for _, said in recalls(lines) for lease in said.leases} == set(leases)


# What peers count.


async def test_a_stay_counts_what_was_moved_during_it(tmp_path: Path, mock_clock: MockClock) -> None:
    def beat(up: int, engine_s: float = 0.0) -> None:
        learner.sessions.take_heartbeat(HERE, Heartbeat(bytes_up=up, bytes_down=2 * up, engine_s=engine_s))

    async with opened(tmp_path, ROOMY, HERE) as learner:
        beat(100, 1.0)
        beat(150, 1.5)
        learner.sessions.note_departure(HERE, "the connection was reset")
        await learner.sessions.welcome(HERE, hello())
        beat(170, 2.0)
        beat(10, 0.5)  # the node was started anew in between
        await tick(learner, mock_clock)
        await until(lambda: presences(learner) == [(150, 300, "the connection was reset"), (30, 60, "")])
        assert engine_s(learner) == pytest.approx(2.5)
    async with opened(tmp_path, ROOMY, HERE) as learner:
        beat(15, 0.75)  # we were restarted: what it counted before is in the books already
        beat(20, 1.0)
        await tick(learner, mock_clock)
        await until(lambda: presences(learner)[2:] == [(5, 10, "")])
        assert engine_s(learner) == pytest.approx(2.75)


def presences(learner: Learner) -> list[tuple[int, int, str]]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return db.execute("SELECT bytes_up, bytes_down, reason FROM presence ORDER BY id").fetchall()


def engine_s(learner: Learner) -> float:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        (found,) = db.execute("SELECT engine_s FROM peers").fetchone()
    return float(found)


async def test_joules_are_counted_by_stay_and_source(tmp_path: Path, mock_clock: MockClock) -> None:
    def beat(*told: tuple[EnergySource, float], up: int = 0) -> None:
        learner.sessions.take_heartbeat(HERE, Heartbeat(bytes_up=up, energy=[Energy(*one) for one in told]))

    gpu, cpu, other = EnergySource.NVML, EnergySource.RAPL, EnergySource.OTHER
    async with opened(tmp_path, ROOMY, HERE) as learner:
        beat((gpu, 100.0))
        beat((gpu, 150.0), (cpu, 10.0), up=5)
        learner.sessions.note_departure(HERE, "the connection was reset")
        await learner.sessions.welcome(HERE, hello())
        beat((gpu, 170.0), (cpu, 4.0), up=6)  # the processors' meter began anew
        beat((gpu, 7.0), (cpu, 1.0), (other, 1.0), (other, 2.0), up=1)  # and then the node did
        await tick(learner, mock_clock)
        await until(lambda: joules(learner)[2:] == [(2, "nvml", 27.0), (2, "other", 3.0), (2, "rapl", 5.0)])
        assert joules(learner)[:2] == [(1, "nvml", 150.0), (1, "rapl", 10.0)]
        beat(up=1)
        await tick(learner, mock_clock)
        assert len(joules(learner)) == 5, "a missing value must not delete an earlier one"


def joules(learner: Learner) -> list[tuple[int, str, float]]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return db.execute("SELECT * FROM energy ORDER BY presence, source").fetchall()


async def test_a_peers_price_is_written_as_it_asks_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as learner:
        await learner.sessions.welcome(HERE, hello(price=Price(micros_per_hour=50_000, currency="EUR"), name="atlas"))
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
            row = db.execute("SELECT peer, name, role, micros_per_hour, currency FROM peers").fetchall()
        assert row == [(HERE, "atlas", "rollout", 50_000, "EUR")]


async def test_no_word_of_a_peer_makes_the_node_wait_for_the_disk(tmp_path: Path) -> None:
    """While somebody holds the ledger, everything a peer may say in passing is still taken in at once."""
    async with opened(tmp_path, ROOMY, HERE, THERE) as learner:
        [lease, other] = ids_of(await ask(learner))
        with learner.ledger.transaction():
            learner.sessions.take_heartbeat(HERE, Heartbeat(bytes_up=1))
            learner.sessions.take_start(HERE, Started(lease=lease, version=version("1.0")))
            learner.sessions.take_return(HERE, LeaseReturn(leases=[other], reason=""))
            learner.sessions.note_departure(THERE, IN_GOOD_ORDER)
            learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        await become(learner, {lease: "lost", other: "returned"})


async def test_who_takes_proofs_is_told_of_a_version_and_waited_for_until_it_has_them_or_leaves(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY) as learner, trio.open_nursery() as nursery:
        lines = Lines()
        connect_peers(learner.context.signals, lines)
        await learner.sessions.welcome(HERE, hello(ext={PROOFS: b""}))
        await learner.sessions.welcome(THERE, hello())
        nursery.start_soon(learner.sessions.proofs.run)
        learner.sessions.announce_tally(b"a tally")
        assert proofs_told(lines) == [(HERE, Proofs(tally=b"a tally"))], "others would not know the message"
        learner.sessions.take_proof_request(HERE, ProofRequest(version=version("1.0")))
        await learner.sessions.proofs.wait_settled()
        await until(lambda: len(proofs_told(lines)) == 2)
        assert proofs_told(lines)[1:] == [(HERE, Proofs())]
        # An answer that is being made while a version comes out says nothing about that.
        learner.sessions.take_proof_request(HERE, ProofRequest(version=version("1.0")))
        await asked_on_a_thread(learner, lambda: learner.sessions.announce_tally(b"another"))
        await until(lambda: len(proofs_told(lines)) == 4)
        with trio.move_on_after(0) as requests_to_save:
            await learner.sessions.proofs.wait_settled()
        assert requests_to_save.cancelled_caught, "it is asked once more"
        learner.sessions.note_departure(HERE, "its line broke")
        await learner.sessions.proofs.wait_settled()
        nursery.cancel_scope.cancel()


def proofs_told(lines: Lines) -> list[tuple[PeerId, object]]:
    return [(to, said) for to, said in lines.said if isinstance(said, Proofs)]


async def asked_on_a_thread(learner: Learner, meanwhile: Callable[[], None]) -> None:
    """Have something happen while the proof desk looks into the ledger."""
    done = trio.Event()
    looked = learner.sessions.proofs._answer

    def look(peer: PeerId, request: ProofRequest) -> Proofs:
        answer = looked(peer, request)
        trio.from_thread.run_sync(meanwhile)
        trio.from_thread.run_sync(done.set)
        return answer

    learner.sessions.proofs._answer = look  # type: ignore[method-assign]
    await done.wait()
    learner.sessions.proofs._answer = looked  # type: ignore[method-assign]


async def test_everybody_is_introduced_and_in_the_end_dismissed(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        lines = Lines()
        connect_peers(learner.context.signals, lines)
        welcome = await learner.sessions.welcome(THERE, hello())
        assert isinstance(welcome, Welcome)
        assert [one.peer for one in welcome.peers] == [HERE]
        await tick(learner, mock_clock, EVERY_S)
        assert [(to, [one.peer for one in said.peers]) for to, said in introductions(lines)] == [(HERE, [THERE])]
        lines.said.clear()
        learner.sessions.note_departure(THERE, IN_GOOD_ORDER)
        await tick(learner, mock_clock, EVERY_S)
        assert [(to, [one.peer for one in said.peers]) for to, said in introductions(lines)] == [(HERE, [])]
        lines.said.clear()
        learner.sessions.farewell("The run is finished.")
        assert lines.said == [(HERE, Farewell(reason="The run is finished."))]


async def test_who_was_told_that_the_run_is_over_leaves_once(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        learner.sessions.farewell("The run is finished.")
        learner.sessions.note_departure(HERE, "dismissed")
        assert HERE not in learner.run.membership.members, "it would fall silent, and be said to leave again"
        assert [event["reason"] for event in learner.logged("peer_left")] == ["dismissed"]


def introductions(lines: Lines) -> list[tuple[PeerId, Introduction]]:
    return [(to, said) for to, said in lines.said if isinstance(said, Introduction)]


async def test_who_waits_for_everybody_to_leave_is_told_of_each(tmp_path: Path) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner, trio.open_nursery() as nursery:
        gone = trio.Event()

        async def wait() -> None:
            while learner.run.present:
                await learner.run.wait_changed()
            gone.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        learner.sessions.note_departure(HERE, "dismissed")
        await gone.wait()


async def test_a_peer_that_beats_without_end_fills_no_log(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        for number in range(1000):
            learner.sessions.take_heartbeat(HERE, Heartbeat(bytes_up=number))
        assert len(learner.logged("heartbeat")) == LOGGED_HEARTBEATS.burst
        mock_clock.jump(1 / LOGGED_HEARTBEATS.per_s)
        learner.sessions.take_heartbeat(HERE, Heartbeat(bytes_up=1001))
        assert learner.logged("heartbeat")[-1]["bytes_up"] == 1001


async def test_many_peers_are_shown_and_fill_no_log(tmp_path: Path, mock_clock: MockClock) -> None:
    peers = [PeerId(f"12D3KooW{number:03}") for number in range(300)]
    async with opened(tmp_path, ROOMY, *peers) as learner:
        learner.context.events.write_to(tmp_path / "events.jsonl")
        for peer in peers:
            learner.sessions.take_heartbeat(peer, Heartbeat(bytes_up=1))
        assert len(learner.logged("heartbeat")) == 300
        assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == ALL_LOGGED_HEARTBEATS.burst


async def test_stays_of_many_are_written_in_turn_and_all_at_the_end(tmp_path: Path, mock_clock: MockClock) -> None:
    peers = [PeerId(f"12D3KooW{number:03}") for number in range(150)]
    async with opened(tmp_path, ROOMY, *peers) as learner:
        for peer in peers:
            learner.sessions.take_heartbeat(peer, Heartbeat(bytes_up=7))
        await tick(learner, mock_clock)
        assert 100 <= written(learner) < 150
        await tick(learner, mock_clock)
        await until(lambda: written(learner) == 150)
        for peer in peers:
            learner.sessions.take_heartbeat(peer, Heartbeat(bytes_up=8))
        learner.sessions.write_rest()
        assert written(learner, 8) == 150


def written(learner: Learner, bytes_up: int = 7) -> int:
    """Return how many stays in the ledger have so many bytes."""
    with snapshot(learner.root / "ledger.sqlite") as db:
        return int(db.query("SELECT count(*) FROM presence WHERE bytes_up = ?", (bytes_up,))[0][0])


def beat(reach: Reach) -> Heartbeat:
    return Heartbeat(ext={REACH: encode(reach)})


async def test_how_a_peer_is_reached_is_logged_when_that_changes(tmp_path: Path) -> None:
    reaches = [
        Reach(kind=ReachKind.UNKNOWN),
        Reach(kind=ReachKind.BY_PUNCHING, why="seen"),
        Reach(kind=ReachKind.BY_PUNCHING, why="seen", addresses=["/ip4/1.2.3.4/tcp/5"]),
        Reach(kind=ReachKind.BY_PUNCHING, why="seen", addresses=["/ip4/1.2.3.4/tcp/6"]),
    ]
    async with opened(tmp_path, ROOMY, HERE) as learner:
        for reach in reaches:
            learner.sessions.take_heartbeat(HERE, beat(reach))
        assert [row["kind"] for row in learner.logged("peer_reach")] == ["unknown", "by_punching"]


async def test_a_peer_whose_reach_changes_without_end_is_heard_now_and_then(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path, ROOMY, HERE) as learner:
        for number in range(1000):
            learner.sessions.take_heartbeat(HERE, beat(Reach(kind=ReachKind.NOT, why=str(number))))
        assert len(learner.logged("peer_reach")) == HEARD_REACHES.burst
        learner.sessions.take_heartbeat(HERE, beat(Reach(kind=ReachKind.DIRECTLY, why="the last")))
        for _ in range(2):  # it beats in between, or would be taken for gone
            await tick(learner, mock_clock, 1 / HEARD_REACHES.per_s / 2)
            learner.sessions.take_heartbeat(HERE, Heartbeat())
        await tick(learner, mock_clock)
        assert learner.logged("peer_reach")[-1]["why"] == "the last"
