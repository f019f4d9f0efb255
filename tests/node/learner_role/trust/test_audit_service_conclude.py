"""Audits that are concluded together: the same as one by one, in fewer transactions, and nothing follows too early."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import trio

from learner.ledger.rows import LeaseRow, RecordRow
from learner.ledger.trust import AuditOutcome
from learner.rollouts.buffer import Completion, Group
from learner.trust.audit_history import NEWCOMER_GROUPS, AuditHistory
from learner.trust.audit_queue import MAX_WAITING, Work
from learner.trust.ban_evidence import Found, Margin
from node.learner_role.shared.signals import PeerBanned, RecordsBelieved
from node.learner_role.trust import audit_service
from protocol.core.digest import digest_of
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId
from protocol.work import Rule
from tests.integration.test_selective_delivery import delivered
from tests.support.commits import commits
from tests.support.learner_fixture import FakePeer, Killed, Learner, Settings, fast_directory, open_learner
from tests.support.trainer_fixture import OTHER, PEER, lease_id

pytestmark = pytest.mark.usefixtures("mock_clock")

AUDITED = Settings(audits=True)

CLEAN = tuple(Found(gap=0.0, lead=1.0) for _ in range(28))
"""The findings of an honest group."""

NEAR = tuple(Found(gap=2.0 * (place < 2), lead=0.1) for place in range(28))
"""It passes, and speaks against its peer all the same."""

OFF = tuple(Found(gap=2.0 * (place < 5), lead=1.0) for place in range(28))
"""It fails, which does not convict a peer by itself."""

MADE_UP = tuple(Found(gap=2.0, lead=1.0) for _ in range(28))
"""It convicts."""

THIRD = Keypair(bytes([77]) * 32).peer_id

Over = tuple[Work, Sequence[Found]]

TABLES = ("audits", "confidence", "margins", "evidence", "dropped", "revisions", "records", "leases")


def audit(learner: Learner, number: int, found: Sequence[Found], *, peer: PeerId = PEER.peer_id) -> Over:
    """An audit that is over, of a group that was delivered and waits for it."""
    lease = lease_id(number)
    row = LeaseRow(
        lease=lease, peer=peer, task="even", prompt=1, rollouts=1, issued_ms=0, deadline_ms=1, envelope=b"lease"
    )
    record = RecordRow(
        record=RecordId(digest_of(lease)), lease=lease, index=0, peer=peer, rule=Rule.ADMITTED, reward=1.0,
        tokens=len(found), version=PolicyVersion(1, 0), lag=0, received_ms=1, generation_ms=1, detail="",
        envelope=b"record",
    )  # fmt: skip
    learner.ledger.work.leases_issued([row])
    learner.ledger.work.deliveries_judged([record], {lease: b"receipt"}, 1)
    hold(learner, lease, peer)
    learner.trust.exposure.came(peer, lease, believed=False)
    learner.trust._under_audit.add(lease)
    return Work(lease=lease, root=lease, peer=peer, passages=(), waits=True), found


def hold(learner: Learner, lease: LeaseId, peer: PeerId) -> None:
    completion = Completion(tokens=(1,), logprobs=(-0.5,), reward=1.0, spans=((1, PolicyVersion(1, 0)),))
    group = Group(
        lease=lease, peer=peer, prompt_index=1, prompt=(1, 2), completions=(completion,),
        behaviour=frozenset({PolicyVersion(1, 0)}),
    )  # fmt: skip
    learner.capacity.buffer.add(group, hold=True)
    learner.trust._pending[lease] = {lease}


def rows(root: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute(sql).fetchall()


def audits(root: Path) -> list[int]:
    """The leases that were audited, in order."""
    return [int.from_bytes(lease, "big") for (lease,) in rows(root, "SELECT lease FROM audits ORDER BY rowid")]


def memory_of(learner: Learner) -> Any:
    """What a conclusion changes in memory, with what was told."""
    trust, buffer = learner.trust, learner.capacity.buffer
    return deepcopy(
        (
            trust.standings._known, trust.exposure._since, trust._pending, trust._spoiled, trust._under_audit,
            buffer._held, sorted(group.lease for _, _, group in buffer._heap), buffer._dropped, learner.log,
        )
    )  # fmt: skip


def story(seed: int) -> list[tuple[int, PeerId, tuple[Found, ...]]]:
    """Numbered audits of three peers, of which one is honest, one fails now and then, and one is banned; some leases
    come twice."""
    dice = random.Random(seed)
    told = []
    for number in range(1, 41):
        peer = dice.choice((PEER.peer_id, OTHER.peer_id, THIRD))
        kinds = {PEER.peer_id: [CLEAN], OTHER.peer_id: [CLEAN] * 4 + [NEAR, OFF], THIRD: [CLEAN] * 6 + [MADE_UP]}
        told.append((number, peer, dice.choice(kinds[peer])))
    return told + dice.sample(told, 5)


async def concluded(root: Path, seed: int, sizes: Iterable[int]) -> Any:
    """Return the results of a story's audits, of which so many at a time are concluded together."""
    told: list[Any] = []
    async with open_learner(root, AUDITED) as learner:
        signals = learner.context.signals
        for signal in (signals.records_believed, signals.peer_judged, signals.peer_banned):
            signal.subscribe(told.append)  # type: ignore[attr-defined]
        made: dict[int, Over] = {}
        for number, peer, found in story(seed):
            if number not in made:
                made[number] = audit(learner, number, found, peer=peer)
        over = [made[number] for number, _, _ in story(seed)]
        random.Random(seed).shuffle(over)
        for size in sizes:
            await learner.trust.conclude(over[:size])
            over = over[size:]
        assert not over
        memory = memory_of(learner)
    return memory, told, audits(root), {table: sorted(rows(root, f"SELECT * FROM {table}")) for table in TABLES}


@pytest.mark.parametrize("together", [256, 3])
@pytest.mark.parametrize("seed", range(6))
async def test_audits_concluded_together_come_to_the_same_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, together: int
) -> None:
    monkeypatch.setattr(audit_service, "WRITTEN_TOGETHER", together)
    with fast_directory() as one_by_one, fast_directory() as at_once:
        expected = await concluded(one_by_one, seed, [1] * 45)
        assert await concluded(at_once, seed, [45]) == expected
        _, news, *_ = expected
        assert {type(one) for one in news} == {RecordsBelieved, str, PeerBanned}, "all that may follow"
        reasons = {reason for (reason,) in rows(one_by_one, "SELECT reason FROM dropped")}
        assert reasons >= {"audit", "doubt"}


async def test_what_passes_together_is_one_transaction(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        over = [audit(learner, number, CLEAN, peer=(PEER, OTHER)[number % 2].peer_id) for number in range(40)]
        before = commits(learner.ledger.path)
        await learner.trust.conclude(over)
        assert commits(learner.ledger.path) - before == 1
        assert audits(tmp_path) == list(range(40))
        known = learner.ledger.trust.confidence_of([PEER.peer_id, OTHER.peer_id])
        assert [one.passed for one in known.values()] == [20, 20]
        assert learner.capacity.buffer.held == 0
        assert len(learner.capacity.buffer) == 40
        assert learner.trust.under_audit() == frozenset()
        assert len(learner.logged("audited")) == 40


async def test_a_transaction_has_so_many_audits_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit_service.WRITTEN_TOGETHER < MAX_WAITING
    monkeypatch.setattr(audit_service, "WRITTEN_TOGETHER", 3)
    async with open_learner(tmp_path, AUDITED) as learner:
        over = [audit(learner, number, CLEAN) for number in range(7)]
        before = commits(learner.ledger.path)
        await learner.trust.conclude(over)
        assert commits(learner.ledger.path) - before == 3
        assert audits(tmp_path) == list(range(7))


async def test_the_engines_answer_is_concluded_in_one_transaction(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True, steps=8, staleness=3)) as learner:
        await learner.train(FakePeer())
        newest = max(learner.capacity.manifests)
        await learner.trust.recover([delivered(learner, newest, newest, number=900 + number) for number in range(5)])
        portion = learner.trust.agenda.next()
        assert portion is not None
        assert learner.audits is not None
        before = commits(learner.ledger.path)
        await learner.audits._audit(portion)
        assert commits(learner.ledger.path) - before == 2, "the engine's time, and the audits"
        assert sorted(audits(tmp_path)[-5:]) == [900, 901, 902, 903, 904]


async def test_a_failure_is_handled_after_what_came_before_it_and_before_the_rest(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        buffer, trust, seen = learner.capacity.buffer, learner.ledger.trust, []
        told = dict.fromkeys((1, 2, 4, 5), (CLEAN, PEER.peer_id)) | {3: (OFF, OTHER.peer_id)}
        over = [audit(learner, number, found, peer=peer) for number, (found, peer) in sorted(told.items())]
        audited = trust.audited

        def watched(audits: Sequence[AuditOutcome], *, margins: Sequence[Margin]) -> None:
            waits = sorted(int.from_bytes(group.lease, "big") for _, _, group in buffer._heap)
            held = sorted(int.from_bytes(lease, "big") for lease in buffer._held)
            seen.append(([int.from_bytes(one.row.lease, "big") for one in audits], waits, held))
            audited(audits, margins=margins)

        trust.audited = watched  # type: ignore[method-assign]
        await learner.trust.conclude(over)
        assert seen == [
            ([1, 2], [], [1, 2, 3, 4, 5]),
            ([3], [1, 2], [4, 5]),
            ([4, 5], [1, 2], [4, 5]),
        ]
        assert [fields["passed"] for fields in learner.logged("audited")] == [True, True, False, True, True]
        assert learner.trust.standings.remember(OTHER.peer_id).failed == 1
    assert audits(tmp_path) == [1, 2, 3, 4, 5]
    [(why,)] = rows(tmp_path, f"SELECT reason FROM dropped WHERE lease = x'{lease_id(3).hex()}'")
    assert why == "audit"


async def test_a_ban_in_the_middle_refuses_what_else_the_peer_made(tmp_path: Path) -> None:
    """And the others' audits beside that are written together all the same."""
    async with open_learner(tmp_path, AUDITED) as learner:
        honest, cheat = PEER.peer_id, OTHER.peer_id
        told = [
            (1, honest, CLEAN), (2, cheat, CLEAN), (3, cheat, MADE_UP), (4, honest, CLEAN), (5, cheat, CLEAN),
            (6, honest, CLEAN), (7, cheat, MADE_UP),
        ]  # fmt: skip
        over = [audit(learner, number, found, peer=peer) for number, peer, found in told]
        before = commits(learner.ledger.path)
        await learner.trust.conclude(over)
        assert commits(learner.ledger.path) - before == 3
        assert audits(tmp_path) == [1, 2, 3, 4, 6]
        assert learner.trust.standings.remember(cheat).banned
        assert learner.trust.standings.remember(honest).passed == 3
        assert (learner.capacity.buffer.by_peer, learner.capacity.buffer.held) == ({honest: 3}, 0)
        assert len(learner.logged("peer_banned")) == 1
        assert learner.trust.under_audit() == frozenset()
    refused = dict(rows(tmp_path, f"SELECT lease, rule FROM records WHERE peer = '{cheat}'"))
    assert refused == {lease_id(3): "audit", **{lease_id(number): "banned" for number in (2, 5, 7)}}


async def test_who_is_banned_while_others_audits_are_written_is_refused(tmp_path: Path) -> None:
    """A ban that waits has its turn between two transactions."""
    async with open_learner(tmp_path, AUDITED) as learner, trio.open_nursery() as nursery:
        trust = learner.ledger.trust
        over = [audit(learner, 1, OFF, peer=OTHER.peer_id), audit(learner, 2, CLEAN)]
        audited = trust.audited

        def banned_meanwhile(audits: Sequence[AuditOutcome], *, margins: Sequence[Margin]) -> None:
            trio.from_thread.run_sync(nursery.start_soon, learner.bans.convict, PEER.peer_id, "it chooses")
            trio.from_thread.run(trio.testing.wait_all_tasks_blocked)
            audited(audits, margins=margins)

        trust.audited = banned_meanwhile  # type: ignore[method-assign]
        await learner.trust.conclude(over)
        assert audits(tmp_path) == [1]
        assert learner.trust.standings.remember(PEER.peer_id) == AuditHistory(banned="it chooses")
        assert learner.capacity.buffer.held == len(learner.capacity.buffer) == 0


async def test_a_lease_that_comes_twice_is_audited_once(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        passed, failed = audit(learner, 1, CLEAN), audit(learner, 2, OFF, peer=OTHER.peer_id)
        await learner.trust.conclude([passed, passed, failed, passed, failed])
        await learner.trust.conclude([failed, passed])
        assert audits(tmp_path) == [1, 2]
        assert len(learner.logged("audited")) == 2
        assert learner.trust.standings.remember(PEER.peer_id).passed == 1
        assert learner.trust.standings.remember(OTHER.peer_id).failed == 1


@pytest.mark.parametrize("written", [0, 1, 2])
async def test_nothing_follows_from_what_could_not_be_written(tmp_path: Path, written: int) -> None:
    """But that what failed is out of the buffer first. The write that fails is the first, the second or the third."""
    async with open_learner(tmp_path, AUDITED) as learner:
        trust, buffer = learner.trust, learner.capacity.buffer
        cheat = OTHER.peer_id
        over = [audit(learner, number, CLEAN) for number in (1, 2)]
        over.append(audit(learner, 3, OFF, peer=cheat))
        over += [audit(learner, number, CLEAN) for number in (4, 5)]
        learner.ledger.dies = ("audited", "before", written + 1)
        with pytest.raises(Killed):
            await trust.conclude(over)
        followed = [(), (1, 2), (1, 2, 3)][written]
        assert audits(tmp_path) == list(followed)
        assert [fields["lease"] for fields in learner.logged("audited")] == [lease_id(n).hex()[:8] for n in followed]
        assert trust.standings.remember(PEER.peer_id).passed == min(written, 1) * 2
        assert buffer.by_peer[PEER.peer_id] == min(written, 1) * 2
        assert buffer.held_by_peer[cheat] == (written == 0)
        assert {lease_id(4), lease_id(5)} <= buffer._held.keys()
        assert {lease_id(4), lease_id(5)} <= trust.exposure._since[PEER.peer_id].keys()
        assert {lease_id(4), lease_id(5)} <= trust.under_audit()


async def test_nothing_is_known_of_a_pass_before_it_is_on_disk(tmp_path: Path) -> None:
    """Or what comes meanwhile would be believed for audits that a crash forgets."""
    async with open_learner(tmp_path, AUDITED) as learner:
        over = [audit(learner, number, CLEAN) for number in range(NEWCOMER_GROUPS)]
        before, audited = memory_of(learner), learner.ledger.trust.audited

        def written(audits: Sequence[AuditOutcome], *, margins: Sequence[Margin]) -> None:
            assert memory_of(learner)[1:] == before[1:]
            assert learner.trust.standings.remember(PEER.peer_id) == AuditHistory()
            audited(audits, margins=margins)

        learner.ledger.trust.audited = written  # type: ignore[method-assign]
        await learner.trust.conclude(over)
        assert not learner.trust.standings.remember(PEER.peer_id).waits


@pytest.mark.parametrize(("call", "num_written"), [("audits_of", 0), ("audited", 3)])
async def test_when_it_is_cancelled_what_is_written_is_followed_and_nothing_else(
    tmp_path: Path, call: str, num_written: int
) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        over = [audit(learner, number, CLEAN) for number in range(3)]
        with trio.CancelScope() as scope:
            asked = getattr(learner.ledger.trust, call)

            def cancelling(*args: Any, **options: Any) -> Any:
                trio.from_thread.run_sync(scope.cancel)
                return asked(*args, **options)

            setattr(learner.ledger.trust, call, cancelling)
            await learner.trust.conclude(over)
        assert len(audits(tmp_path)) == num_written
        assert len(learner.logged("audited")) == num_written
        assert len(learner.capacity.buffer) == num_written
        assert learner.trust.standings.remember(PEER.peer_id).passed == num_written
        assert len(learner.trust.under_audit()) == 3 - num_written
