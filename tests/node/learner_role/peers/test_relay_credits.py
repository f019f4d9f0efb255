"""Relay receipts at the learner: credited once, by the ledger and the manifests, through restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from learner.trust.ban_evidence import Found
from node.learner_role.peers import relay_credits as relay_desk
from protocol.accounting.credit_note import RelayShare, open_credit_note, require_match
from protocol.accounting.relay_receipt import open_relay_receipt, relay_receipt
from protocol.core.envelope import sign
from protocol.core.errors import Fault, PeerError
from protocol.core.identity import Keypair
from protocol.core.ids import PeerId
from protocol.versions.manifest import SignedManifest
from protocol.work import Delivery, LeaseRequest, Relayed, Span, Welcome, open_lease
from tests.node.learner_role.peers.test_session_service import until
from tests.support.learner_fixture import Learner, Settings, hand_in, hello, open_learner
from tests.support.store_fixture import small_model
from tests.support.trainer_fixture import OTHER, PEER, SWARM, record

HERE, THERE = PEER.peer_id, OTHER.peer_id
STRANGER = Keypair(bytes([9]) * 32)
SETTINGS = Settings(steps=9)

pytestmark = pytest.mark.usefixtures("mock_clock")

Row = tuple[bytes, str, str, int]


@asynccontextmanager
async def opened(root: Path, *peers: PeerId, settings: Settings = SETTINGS) -> AsyncIterator[Learner]:
    """A learner with a published version, its loops for records and receipts, and these peers present."""
    async with open_learner(root, settings) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        nursery.start_soon(learner.sessions.relays.run)
        for peer in peers:
            assert isinstance(await learner.sessions.welcome(peer, hello()), Welcome)
        yield learner
        nursery.cancel_scope.cancel()


def published(learner: Learner) -> SignedManifest:
    assert learner.run.published is not None
    return learner.run.published


def sizes(signed: SignedManifest) -> list[int]:
    return [chunk.size for chunk in signed.manifest.chunks]


def receipt(signed: SignedManifest, giver: PeerId, *, by: Keypair = PEER) -> bytes:
    """`by` had every chunk of `giver`."""
    told = relay_receipt(signed.hash, dict.fromkeys(range(len(signed.manifest.chunks)), giver))
    assert told is not None
    return sign(by, SWARM.authority.swarm, told)


async def deliver(learner: Learner, key: Keypair = PEER) -> None:
    """A group of `key`, made with the published version and admitted."""
    grant = await learner.sessions.grant(key.peer_id, LeaseRequest(rollouts=2))
    for raw in grant.leases:
        lease = open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id)
        spans = [Span(0, 3, published(learner).version, published(learner).hash)]
        records = [record(lease, index, author=key, spans=spans) for index in range(len(lease.seeds))]
        await hand_in(learner, key.peer_id, Delivery(lease=lease.id, records=records))


def credited(root: Path) -> list[Row]:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute("SELECT manifest, receiver, relay, bytes FROM relayed ORDER BY receiver, relay").fetchall()


async def test_a_relay_is_credited_once_its_receiver_has_worked_with_the_version(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        signed = published(learner)
        raw = receipt(signed, THERE)
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=raw))
        await deliver(learner)
        await until(lambda: credited(tmp_path) != [])
        assert credited(tmp_path) == [(signed.hash, HERE, THERE, sum(sizes(signed)))]
        await until(lambda: learner.logged("relays_credited") != [])
        assert learner.logged("relays_credited") == [
            {"peer": HERE, "version": "1.0", "relays": 1, "bytes": sum(sizes(signed))}
        ]
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
            [(evidence,)] = db.execute("SELECT envelope FROM relay_receipts").fetchall()
            [(noted,)] = db.execute("SELECT envelope FROM credit_notes").fetchall()
        assert evidence == raw
        word = open_relay_receipt(evidence, SWARM.authority.swarm, receiver=HERE)
        assert word.relays == [THERE]
        note = open_credit_note(noted, SWARM.authority)
        require_match(note, evidence, word)
        assert (note.receiver, note.shares) == (HERE, [RelayShare(THERE, sum(sizes(signed)))])


async def test_the_record_may_come_first(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        await deliver(learner)
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(published(learner), THERE)))
        await until(lambda: len(credited(tmp_path)) == 1)


async def test_two_who_do_no_work_earn_nothing_from_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        signed = published(learner)
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(signed, THERE)))
        learner.sessions.take_relay_receipt(THERE, Relayed(receipt=receipt(signed, HERE, by=OTHER)))
        await deliver(learner, OTHER)
    assert [(receiver, relay) for _, receiver, relay, _ in credited(tmp_path)] == [(THERE, HERE)], "by work alone"


@pytest.mark.parametrize("giver", [SWARM.learner.peer_id, HERE, STRANGER.peer_id])
async def test_the_learner_oneself_and_strangers_are_not_credited(tmp_path: Path, giver: PeerId) -> None:
    async with opened(tmp_path, HERE) as learner:
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(published(learner), giver)))
        await deliver(learner)
    assert credited(tmp_path) == []


async def test_a_receipt_of_somebody_else_breaks_the_protocol(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        with pytest.raises(PeerError) as caught:
            learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(published(learner), HERE, by=OTHER)))
        assert caught.value.fault is Fault.UNAUTHORISED


async def test_what_was_heard_before_the_trainer_was_ready_is_looked_at_then(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        await deliver(learner)
        raw = receipt(published(learner), THERE)
    async with open_learner(tmp_path, SETTINGS) as again, trio.open_nursery() as nursery:
        nursery.start_soon(again.sessions.relays.run)
        again.sessions.take_relay_receipt(HERE, Relayed(receipt=raw))
        await wait_all_tasks_blocked()
        assert credited(tmp_path) == []
        await again.training.begin()
        await until(lambda: len(credited(tmp_path)) == 1)
        nursery.cancel_scope.cancel()


async def test_a_restart_credits_nothing_twice_and_knows_who_had_worked(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        signed = published(learner)
        await deliver(learner)
        await deliver(learner, OTHER)
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(signed, THERE)))
        await until(lambda: len(credited(tmp_path)) == 1)
        before = credited(tmp_path)
    async with opened(tmp_path, HERE, THERE) as again:
        assert signed.hash in again.capacity.manifests.values()
        again.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(signed, THERE)))
        again.sessions.take_relay_receipt(THERE, Relayed(receipt=receipt(signed, HERE, by=OTHER)))
        await until(lambda: len(credited(tmp_path)) == 2)
        assert [event["peer"] for event in again.logged("relays_credited")] in ([], [THERE])
    assert [row for row in credited(tmp_path) if row[1] == HERE] == before


async def test_what_waits_for_its_audit_earns_nothing_by_a_restart(tmp_path: Path) -> None:
    settings = replace(SETTINGS, audits=True)
    async with opened(tmp_path, HERE, THERE, settings=settings) as learner:
        signed = published(learner)
        await deliver(learner)
    async with opened(tmp_path, HERE, THERE, settings=settings) as again:
        again.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(signed, THERE)))
        await until(lambda: not again.sessions.relays._heard)
        await wait_all_tasks_blocked()
        assert credited(tmp_path) == []
        [work] = again.trust.agenda.clear()
        await again.trust.conclude([(work, [Found(gap=0.0, lead=1.0)] * 6)])
        await until(lambda: len(credited(tmp_path)) == 1)


async def test_what_waits_is_credited_or_dropped_in_order_when_the_learner_stops(tmp_path: Path) -> None:
    async with open_learner(tmp_path, SETTINGS) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        for peer in (HERE, THERE):
            await learner.sessions.welcome(peer, hello())
        await deliver(learner)
        nursery.start_soon(learner.sessions.relays.run)
        await wait_all_tasks_blocked()
        await until(lambda: not learner.sessions.relays._used)
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(published(learner), THERE)))
        nursery.cancel_scope.cancel()
    assert len(credited(tmp_path)) == 1


async def test_a_version_that_has_left_the_window_is_not_credited(tmp_path: Path) -> None:
    async with opened(tmp_path, HERE, THERE) as learner:
        signed = published(learner)
        await deliver(learner)
        await until(lambda: not learner.sessions.relays._used)
        learner.capacity.manifests = {}
        learner.sessions.take_relay_receipt(HERE, Relayed(receipt=receipt(signed, THERE)))
    assert credited(tmp_path) == []


async def test_of_one_peer_few_receipts_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_desk, "MAX_HEARD_OF_ONE", 2)
    monkeypatch.setattr(relay_desk, "MAX_HEARD", 3)
    async with open_learner(tmp_path, SETTINGS) as learner:
        signed = SWARM.publish(small_model(1))
        for key in (PEER, PEER, PEER, OTHER, STRANGER):
            learner.sessions.relays.hear(key.peer_id, receipt(signed, THERE, by=key))
        assert [heard.peer for heard in learner.sessions.relays._heard] == [HERE, HERE, THERE]
        monkeypatch.setattr(relay_desk, "MAX_HEARD", 9)
        monkeypatch.setattr(relay_desk, "MAX_HEARD_BYTES", 0)
        learner.sessions.relays.hear(STRANGER.peer_id, receipt(signed, THERE, by=STRANGER))
        assert len(learner.sessions.relays._heard) == 3
