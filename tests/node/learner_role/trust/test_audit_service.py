"""Audits beside training: newcomers wait, cheats are banned and cost nothing, restarts forget nothing."""

from __future__ import annotations

import math
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from learner.ledger.reputation import BANNED
from learner.ledger.rows import AuditRow, LeaseRow, PeerRow, RecordRow
from learner.ledger.trust import AuditOutcome
from learner.rollouts.admission import AdmittedRecord
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.open_leases import own_lease
from learner.trust.audit_history import (
    NEWCOMER_GROUPS,
    NEWCOMER_SUSPICION,
    SUSPICION_EVIDENCE,
    AuditHistory,
    TrustLevel,
    after,
)
from learner.trust.audit_queue import Passage, Work
from learner.trust.ban_evidence import Found, History, count_above
from learner.trust.margins import TINY as MARGINS
from learner.trust.margins import Experts
from node.engine.interface import EngineCrashed, InstallFailed, Verified
from node.learner_role.shared.run_state import PeerSession
from node.learner_role.shared.signals import PeerTold
from node.learner_role.trust.audit_service import GroupDecision
from node.learner_role.trust.auditor import MAX_FAILURES, found_of
from node.learner_role.trust.peer_standings import PEERS_REMEMBERED
from node.learner_role.trust.receipt_revisions import MAX_UNTOLD
from node.learner_role.trust.version_retention import MAX_OUTDATED
from node.reports.explain.why import why_in_ledger
from node.runtime.errors import RunError
from protocol.core.codec import pack_logprobs
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.core.pipe import Arrays
from protocol.work import RECEIPT_REVISIONS, Heartbeat, Refused, Revised, Rule, Span, Welcome, open_receipt, read_record
from tests.integration.test_selective_delivery import delivered
from tests.support.learner_fixture import (
    FakePeer,
    FakeTrainer,
    Judge,
    Killed,
    Learner,
    Settings,
    fast_directory,
    hello,
    honest_tokens,
    open_learner,
    until,
)
from tests.support.trainer_fixture import OTHER, PEER, SWARM, granted, manifest, record

pytestmark = pytest.mark.usefixtures("mock_clock")

AUDITED = Settings(audits=True, steps=8, staleness=3)

BELIEVED = 1 << 20
"""Audits passed by a peer of whom much is believed unseen."""

THIRD = Keypair(bytes([77]) * 32).peer_id
"""Somebody else who comes."""


def other_lease(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


async def test_what_waits_to_be_told_is_bounded_and_forgotten_with_the_line(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        for takes in (False, True):
            ext = {RECEIPT_REVISIONS: b""} if takes else {}
            assert isinstance(await learner.sessions.welcome(PEER.peer_id, hello(ext=ext)), Welcome)
            for number in range(2 * MAX_UNTOLD):
                learner.trust.revisions.announce(PEER.peer_id, {other_lease(number): b"receipt"})
            assert len(learner.trust.revisions._untold.get(PEER.peer_id, [])) == (MAX_UNTOLD if takes else 0)
            learner.sessions.note_departure(PEER.peer_id, "the line broke")
            assert learner.trust.revisions._untold == {}


def made_up(seed: int, version: PolicyVersion) -> tuple[int, ...]:
    return (7, 7, 0)


def rows(root: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute(sql).fetchall()


async def test_a_newcomers_groups_are_trained_on_after_their_audit(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        peer = FakePeer(rollouts=8)
        await learner.train(peer)
        assert learner.trust.standings.remember(peer.id).standing is TrustLevel.TRUSTED
        assert learner.scheduler.worker(peer.id).quota == float("inf")
    assert rows(tmp_path, "SELECT count(*) FROM audits WHERE passed = 0") == [(0,)]
    unaudited = "SELECT count(*) FROM records r WHERE step IS NOT NULL AND lease NOT IN (SELECT lease FROM audits)"
    first = rows(tmp_path, f"{unaudited} AND step <= {NEWCOMER_GROUPS // AUDITED.prompts}")
    assert first == [(0,)], "nothing of it was trained on unseen before enough had passed"
    assert rows(tmp_path, "SELECT max(step) FROM steps") == [(AUDITED.steps,)]


async def test_while_audits_wait_no_more_is_leased_than_the_quota_and_none_of_it_is_trained_on(tmp_path: Path) -> None:
    gate = trio.Event()

    class Slow(Judge):
        async def verify(self, claims: Any) -> Any:
            await gate.wait()
            return await super().verify(claims)

    async with (
        open_learner(tmp_path, Settings(audits=True, steps=2, prompts=20, ahead=4.0), judge=Slow()) as learner,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(learner.train, FakePeer(rollouts=64))
        await until(lambda: learner.capacity.buffer.held == NEWCOMER_GROUPS * 2)
        for _ in range(20):
            await trio.to_thread.run_sync(int)
        assert learner.capacity.leasing.open_rollouts == 0
        assert learner.capacity.chain.head.version == 0
        assert len(learner.capacity.buffer) == 0
        gate.set()
        await until(lambda: learner.run.finished)
        nursery.cancel_scope.cancel()


async def test_who_makes_tokens_up_is_banned_before_anything_is_trained_on(tmp_path: Path) -> None:
    honest, cheat = FakePeer(), FakePeer(key=OTHER, draw=made_up)
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(honest, cheat)
        assert learner.trust.standings.remember(cheat.id).standing is TrustLevel.BANNED
        assert cheat.id not in learner.run.present
        [banned] = learner.logged("peer_banned")
        assert banned["peer"] == cheat.id
        assert "are not what the seeded sampler draws" in str(banned["reason"])
        assert learner.capacity.leasing.pending(cheat.id) == 0
    assert rows(tmp_path, f"SELECT count(*) FROM records WHERE peer = '{cheat.id}' AND step IS NOT NULL") == [(0,)]
    told = dict(rows(tmp_path, f"SELECT rule, count(*) FROM records WHERE peer = '{cheat.id}' GROUP BY rule"))
    assert set(told) <= {"audit", "banned", "unknown_lease"}
    assert told["audit"]
    failed = rows(tmp_path, "SELECT lease FROM audits WHERE NOT passed ORDER BY lease")
    assert failed
    kept = rows(tmp_path, "SELECT lease FROM evidence ORDER BY lease")
    assert kept == failed, "the records that convicted it must be kept as they were signed"
    for _ in range(2):  # the next start has it in the ledger alone
        async with open_learner(tmp_path, AUDITED) as again:
            answer = await again.sessions.welcome(cheat.id, hello())
            assert isinstance(answer, Refused)
            assert answer.retry_after_ms is None
            assert "banned" in answer.reason
            assert "ask the operator" in answer.reason
            assert not isinstance(await again.sessions.welcome(honest.id, hello()), Refused)


async def test_what_passes_is_not_trained_on_while_all_audits_of_its_peer_speak_against_it(tmp_path: Path) -> None:
    """It counts all the same, and honest audits take it back."""
    peer = FakePeer(rollouts=8)
    off = count_above([Found(gap=2.0 * (place < 3), lead=0.1) for place in range(28)], MARGINS)
    suspected, finding = after(AuditHistory(), off, MARGINS)
    assert (finding.suspected, finding.convicted) == (True, False)
    async with open_learner(tmp_path, AUDITED) as learner:
        learner.ledger.trust.confidence_written(peer.id, suspected, 1)
        await learner.train(peer)
        assert learner.logged("group_doubted")
        [known] = learner.ledger.trust.confidence_of([peer.id]).values()
        assert known.failed == suspected.failed
    kept_out = {LeaseId(lease) for (lease,) in rows(tmp_path, "SELECT lease FROM dropped WHERE reason = 'doubt'")}
    assert kept_out
    for lease in kept_out:
        assert all(verdict.rule is Rule.ADMITTED for verdict in peer.receipts[lease].verdicts)
        told = why_in_ledger(tmp_path / "ledger.sqlite", lease.hex()).text
        assert "it passed its audit, but all audits together are evidence against its peer (doubt)" in told
    found = rows(tmp_path, "SELECT a.lease, a.evidence, r.step FROM audits a JOIN records r USING (lease)")
    at_least = {LeaseId(lease) for lease, evidence, _ in found if evidence >= SUSPICION_EVIDENCE}
    at_most = {LeaseId(lease) for lease, evidence, _ in found if evidence > NEWCOMER_SUSPICION}
    assert at_least <= kept_out <= at_most
    assert not any(step is not None and LeaseId(lease) in kept_out for lease, _, step in found)
    assert rows(tmp_path, "SELECT max(step) FROM steps") == [(AUDITED.steps,)]


async def test_what_a_sleepers_audit_found_is_kept_though_no_checkpoint_needs_it(tmp_path: Path) -> None:
    """Nobody waits for such an audit, so it may be over long after its records were trained on."""
    honest, sleeper, found = FakePeer(), FakePeer(key=OTHER), list[LeaseId]()
    late = 4  # versions: no checkpoint is as old any more; MAX_OUTDATED are kept, and more would be given up

    class Late(Judge):
        """Late with what the sleeper made up, and finds it honest until some of it was trained on meanwhile."""

        async def verify(self, claims: Any) -> Any:
            portion = learner.trust.agenda.next()
            assert portion is not None
            made = [lease for lease, _, passage in portion.passages if passage.tokens == (7, 7, 0)]
            if made and not found:
                head = learner.capacity.chain.head.version
                await until(lambda: learner.training.saving.saved > head + late or learner.run.finished)
                trained = rows(tmp_path, f"SELECT lease FROM records WHERE step < {head + late - 1}")
                found.extend(lease for lease in made if (bytes(lease),) in trained)
            if not found:
                claims = [replace(claim, tokens=honest_tokens(claim.seed)) for claim in claims]
            return await super().verify(claims)

    def draw(seed: int, version: PolicyVersion) -> tuple[int, ...]:
        is_awake = all(
            learner.trust.standings.remember(one.id).standing is TrustLevel.TRUSTED for one in (honest, sleeper)
        )
        return made_up(seed, version) if is_awake else honest_tokens(seed)

    sleeper.draw = draw
    async with open_learner(tmp_path, Settings(audits=True, steps=60, staleness=3), judge=Late()) as learner:
        for peer in (honest, sleeper):
            learner.ledger.trust.confidence_written(peer.id, AuditHistory(passed=BELIEVED), 1)
        learner.trust.floor = 0.5
        await learner.train(honest, sleeper)
    told = rows(tmp_path, "SELECT lease FROM audits WHERE NOT passed")
    failed = [lease for lease in found if (bytes(lease),) in told]
    assert failed, "it was trained on, and the oldest checkpoint of then was newer"
    for lease in failed:
        kept = why_in_ledger(tmp_path / "ledger.sqlite", lease.hex(), replay=True).kept
        assert kept is not None
        assert own_lease(kept.lease, SWARM.authority.swarm).id == lease
        assert (7, 7, 0) in [read_record(raw, SWARM.authority.swarm).tokens for raw in kept.records]
        assert len(kept.records) == 2


async def test_who_draws_honestly_and_claims_other_log_probabilities_is_banned_too(tmp_path: Path) -> None:
    honest, liar = FakePeer(claim=-0.505), FakePeer(key=OTHER, claim=-4.0)
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(honest, liar)
        assert learner.trust.standings.remember(liar.id).standing is TrustLevel.BANNED
        assert learner.trust.standings.remember(honest.id).standing is TrustLevel.TRUSTED
        [banned] = learner.logged("peer_banned")
        assert "log probabilities are more than 1 nats from those of the version named" in str(banned["reason"])


async def test_the_receipt_of_what_failed_is_replaced_and_told_on_the_next_line(tmp_path: Path) -> None:
    honest, cheat = FakePeer(), FakePeer(key=OTHER, draw=made_up)
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(honest, cheat)
        revised = learner.ledger.trust.untold_revisions(cheat.id, 10)
        assert revised
        for lease, raw in revised:
            receipt = open_receipt(raw, SWARM.authority)
            assert receipt.lease == lease
            assert receipt.peer == cheat.id
            assert receipt.tokens == 0
            assert {verdict.rule for verdict in receipt.verdicts} <= {Rule.AUDIT, Rule.BANNED}
            assert learner.ledger.work.receipt_of(lease, cheat.id) == raw
        told: list[Any] = []
        learner.context.signals.peer_told.subscribe(lambda news: told.append((news.peer, news.message)))
        assert await learner.trust.welcome(cheat.id)
        learner.trust.revisions._untold[cheat.id] = revised
        learner.trust.revisions.tell(cheat.id)
        assert told == [], "it is not here"
        learner.run.present[cheat.id] = PeerSession(row=1, name="", addresses=())
        learner.trust.revisions.tell(cheat.id)
        assert told == [], "it would not understand"
        learner.run.present[cheat.id].takes_revisions = True
        learner.trust.revisions.tell(cheat.id)
        assert [message.receipt for _, message in told] == [raw for _, raw in revised]
        await trio.to_thread.run_sync(learner.trust.revisions.write())
        assert learner.ledger.trust.untold_revisions(cheat.id, 10) == []


async def test_what_repeats_another_lease_is_audited_whatever_its_chance(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True, group_size=2)) as learner:
        trust, text = learner.trust, tuple(random.Random(1).choices(range(60), k=40))
        trust.floor = 1e-9
        trusted = AuditHistory()
        for _ in range(2000):
            trusted, _ = after(trusted, count_above([Found(gap=0.0, lead=1.0)] * 64, MARGINS), MARGINS)
        trust.standings._known[PEER.peer_id] = trust.standings._known[OTHER.peer_id] = trusted
        for number, who, tokens, is_odd in (
            (1, PEER, text, False),
            (2, OTHER, (*text[:30], 1, 2, 3, *text[33:]), True),
            (3, OTHER, tuple(random.Random(2).choices(range(60), k=40)), False),
        ):
            lease = granted(number, peer=who.peer_id, max_new_tokens=40)
            raws = [
                record(lease.lease, index, author=who, tokens=tokens, logprobs=pack_logprobs([-3.0] * 40))
                for index in range(2)
            ]
            group = [AdmittedRecord(signed=read_record(raw, SWARM.authority.swarm), reply=None) for raw in raws]
            before = trust.unaudited  # for there is no such version
            trust.admit(lease, group, trust.sketches([one.signed for one in group]))
            assert (trust.unaudited > before) is is_odd
        [told] = learner.logged("near_copy")
        assert told["peer"] == OTHER.peer_id


async def test_who_is_unlike_the_swarm_is_audited_whole_for_as_long(tmp_path: Path) -> None:
    dice = random.Random(4)
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(FakePeer())
        trust, trusted = learner.trust, AuditHistory()
        trust.floor = 1e-9
        for _ in range(2000):
            trusted, _ = after(trusted, count_above([Found(gap=0.0, lead=1.0)] * 64, MARGINS), MARGINS)
        trusted = replace(trusted, passed=BELIEVED)
        looked = {PEER.peer_id: 0, OTHER.peer_id: 0}
        for peer in looked:
            trust.standings._known[peer] = trusted
        for number in range(1000, 1600):
            who = OTHER if number % 10 == 0 else PEER
            length = 40 if who is PEER or number >= 1400 else 4
            lease = granted(number, peer=who.peer_id, max_new_tokens=60)
            raws = []
            for index in range(2):
                tokens = tuple(dice.choices(range(1, 60), k=length + dice.randrange(length)))
                claimed = pack_logprobs([-0.1] * len(tokens))
                spans = [Span(0, len(tokens), PolicyVersion(1, 0), bytes(32))]
                raws.append(record(lease.lease, index, author=who, tokens=tokens, logprobs=claimed, spans=spans))
            group = [AdmittedRecord(signed=read_record(raw, SWARM.authority.swarm), reply=None) for raw in raws]
            before = trust.unaudited  # for there is no such version
            trust.admit(lease, group)
            looked[who.peer_id] += trust.unaudited - before
        assert looked[PEER.peer_id] == 0
        assert 20 <= looked[OTHER.peer_id] < 55, "not the first, nor long after it was like the others again"
        [told] = learner.logged("peer_unusual")
        assert told["peer"] == OTHER.peer_id
        assert str(told["reason"]).startswith("length -")


async def test_what_the_trainer_tells_of_each_completion_is_told_of_its_group(tmp_path: Path) -> None:
    """Also where groups from logs lie between those of the swarm."""

    def told(arrays: Arrays) -> Arrays:
        return {"apart": (arrays["lengths"] + 100 * arrays["rewards"]).astype(np.float32)}

    heard = []
    mixed = Settings(audits=True, steps=4, prompts=6, logged=8)
    async with open_learner(tmp_path, mixed, trainer=FakeTrainer(apart=told)) as learner:
        learner.trust.note_trained = lambda batch, apart: heard.append((batch, apart))  # type: ignore[method-assign]
        await learner.train(FakePeer())
    assert len(heard) == 4
    for batch, apart in heard:
        made = [(group, one) for group in batch.groups for one in group.completions]
        assert apart == pytest.approx([len(group.prompt) + len(one.tokens) + 100 * one.reward for group, one in made])
        assert len(set(apart)) > 1


async def test_who_claims_what_its_version_does_not_say_is_seen_in_training(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        trust = learner.trust

        def train(number: int, peer: PeerId, *apart: float, turns: int = 1) -> None:
            one = Completion(
                tokens=(1, 0) * turns,
                logprobs=(-0.1,) * turns,
                reward=1.0,
                spans=((turns, PolicyVersion(1, 0)),),
                generated=tuple((2 * turn, 2 * turn + 1) for turn in range(turns)) if turns > 1 else (),
            )
            group = Group(
                lease=other_lease(number),
                peer=peer,
                prompt_index=0,
                prompt=(1,),
                completions=(one,) * len(apart),
                behaviour=frozenset({PolicyVersion(1, 0)}),
            )
            trust.note_trained(Batch(groups=(group,), lags={group.lease: 1}, dropped={}), apart)

        for number in range(400):
            train(number, PEER.peer_id, 0.05, math.nan, 0.07)
            train(1000 + number, OTHER.peer_id, 0.5, 0.9, turns=2)
            train(2000 + number, OTHER.peer_id, math.nan, math.nan)
        assert learner.logged("peer_unusual") == [], "other peers may have made some of several turns"
        for number in range(3000, 3012):
            train(number, OTHER.peer_id, 0.5, math.nan)
        [told] = learner.logged("peer_unusual")
        assert told["peer"] == OTHER.peer_id
        assert str(told["reason"]).startswith("mismatch +")


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_while_an_audit_is_written_nothing_is_lost_or_audited_twice(moment: str) -> None:
    with fast_directory() as root:
        peer = FakePeer()
        for number in (1, 3, 9):
            async with open_learner(root, AUDITED) as learner:
                learner.ledger.dies = ("audited", moment, number)
                with pytest.raises(BaseExceptionGroup) as caught:
                    await learner.train(peer)
                assert caught.group_contains(Killed)
        async with open_learner(root, AUDITED) as learner:
            await learner.train(peer)
        assert rows(root, "SELECT max(step) FROM steps") == [(AUDITED.steps,)]
        assert rows(root, "SELECT count(*) FROM audits WHERE passed = 0") == [(0,)]
        twice = "SELECT lease FROM audits GROUP BY lease HAVING count(*) > 1"
        assert rows(root, twice) == []


async def test_what_failed_its_audit_and_comes_back_by_an_undone_step_is_not_trained_on(tmp_path: Path) -> None:
    """Nor audited again: one lease has one audit."""
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(FakePeer())
        newest = max(learner.capacity.manifests)
        failed, passed = (delivered(learner, newest, newest, number=number) for number in (901, 902))
        for (lease, _), is_passed in ((failed, False), (passed, True)):
            row = AuditRow(
                lease=lease.id, peer=lease.peer, at_ms=1, tokens=6, counts=(), worst=0.0, evidence=0.0,
                passed=is_passed,
            )  # fmt: skip
            learner.ledger.trust.audited([AuditOutcome(row=row, known=AuditHistory(passed=1))])
        await learner.trust.recover([failed, passed])
        assert len(learner.trust.agenda) == 0
        assert learner.trust.decide(passed[0].id) is GroupDecision.ACCEPT
        assert learner.trust.decide(failed[0].id) is GroupDecision.DROP


async def test_an_audit_that_was_waiting_to_be_written_is_written_once(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        await learner.train(FakePeer())
        trust, newest = learner.trust, max(learner.capacity.manifests)
        group = delivered(learner, newest, newest)
        await trust.recover([group])
        portion = trust.agenda.next()
        assert portion is not None
        honest = [[Found(gap=0.0, lead=1.0)] * len(one.tokens) for _, _, one in portion.passages]
        [(work, found)] = trust.agenda.take_results(portion, honest)
        await trust.recover([group])  # the trainer was restarted before that was written
        await trust.conclude([(work, found)])
        assert trust.decide(group[0].id) is GroupDecision.ACCEPT
        portion = trust.agenda.next()
        assert portion is not None
        [(again, found)] = trust.agenda.take_results(portion, honest)
        audited = trust.audited
        await trust.conclude([(again, found)])
        assert trust.audited == audited


class Stuck(Judge):
    """Never done with the first that it is asked."""

    async def verify(self, claims: Any) -> Any:
        await trio.sleep_forever()


@pytest.mark.parametrize("versions_of_room", [None, 3.5])
async def test_what_waits_to_be_looked_at_fills_no_disk(tmp_path: Path, versions_of_room: float | None) -> None:
    """The first bound is of versions, the other of bytes: what an engine never comes to is given up."""
    trusted, size = AuditHistory(passed=BELIEVED), 0
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    if versions_of_room is not None:
        async with open_learner(tmp_path / "first", AUDITED) as learner:
            await learner.training.begin()
            size = learner.store.versions()[0].total_bytes
    quota = None if versions_of_room is None else round(versions_of_room * size)
    most, steps = 0, 6 * MAX_OUTDATED
    long = Settings(audits=True, steps=steps, staleness=3, quota_bytes=quota)
    async with open_learner(tmp_path / "second", long, judge=Stuck()) as learner:
        learner.ledger.trust.confidence_written(PEER.peer_id, trusted, 1)
        learner.trust.floor = 0.5
        clean = learner.training.publishing.clean

        async def counted() -> None:
            nonlocal most
            await clean()
            most = max(most, len(learner.store.versions()))

        learner.training.publishing.clean = counted  # type: ignore[method-assign]
        await learner.train(FakePeer())
        assert learner.capacity.chain.head.version == steps
        assert learner.trust.unaudited > 0
        assert learner.trust.failed == 0
        around = long.staleness + 2  # the window, and the anchor
        if quota is None:
            assert MAX_OUTDATED < most <= MAX_OUTDATED + around
        else:
            assert most <= versions_of_room
        learner.trust._unlist(learner.trust.agenda.clear())
        assert learner.selection is not None
        while waiting := learner.selection.service.next():
            learner.selection.service.end(waiting[0])
        assert learner.trust.kept._uses == {}
        assert sum(learner.store._pins.values()) == 1, "the newest"


async def test_a_version_that_is_given_up_while_it_is_loaded_is_no_failure_of_the_engine(tmp_path: Path) -> None:
    judge = Judge()
    gone: list[bytes] = []
    async with open_learner(tmp_path, AUDITED, judge=judge) as learner:

        def script(op: str) -> None:
            if op == "install" and len(gone) <= MAX_FAILURES:
                portion = learner.trust.agenda.next()
                assert portion is not None
                gone.append(portion.manifest)
                learner.trust.kept.version_lost.emit(portion.manifest)
                raise InstallFailed("it has no weights")

        judge.script = script
        await learner.train(FakePeer())
        assert len(gone) > MAX_FAILURES
        assert learner.logged("audit_impossible") == []


async def test_a_version_that_cannot_be_loaded_is_nobodys_fault(tmp_path: Path) -> None:
    refused = []

    def script(op: str) -> None:
        if op == "install" and not refused:
            refused.append(op)
            raise InstallFailed("it has no weights")

    async with open_learner(tmp_path, AUDITED, judge=Judge(script=script)) as learner:
        peer = FakePeer()
        await learner.train(peer)
        [told] = learner.logged("audit_impossible")
        assert told["reason"] == "it has no weights"
        assert learner.trust.unaudited > 0
        assert learner.trust.standings.remember(peer.id).standing is not TrustLevel.BANNED
    assert rows(tmp_path, "SELECT max(step) FROM steps") == [(AUDITED.steps,)]
    assert rows(tmp_path, "SELECT count(*) FROM dropped WHERE reason = 'audit'")[0][0] > 0


async def test_what_was_leased_before_experts_were_asked_for_is_dropped_without_blame(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        lease = granted(size=1)
        signed = read_record(record(lease.lease, 0), SWARM.authority.swarm)
        learner.trust.experts = Experts.TOLD
        assert learner.trust.admit(lease, [AdmittedRecord(signed=signed, reply=None)], returned=True)
        assert len(learner.trust.agenda) == 0
        assert learner.trust.decide(lease.root) is GroupDecision.DROP
        known = learner.trust.standings.remember(lease.peer)
        assert (known.failed, known.standing) == (0, TrustLevel.NEWCOMER)


async def test_an_engine_that_crashes_is_asked_again_and_one_that_always_does_ends_the_run(tmp_path: Path) -> None:
    left = [MAX_FAILURES - 1]

    def script(op: str) -> None:
        if op == "verify" and left[0]:
            left[0] -= 1
            raise EngineCrashed("it was killed")

    async with open_learner(tmp_path, AUDITED, judge=Judge(script=script)) as learner:
        await learner.train(FakePeer())
        assert len(learner.logged("audit_impossible")) == MAX_FAILURES - 1
        assert learner.trust.unaudited == 0
        left[0] = MAX_FAILURES
    async with open_learner(
        tmp_path, Settings(audits=True, steps=16, staleness=3), judge=Judge(script=script)
    ) as other:
        with pytest.raises(BaseExceptionGroup) as caught:
            await other.train(FakePeer(key=OTHER))
        assert caught.group_contains(RunError, match="Audits failed 5 times in a row: it was killed")


def crowd(learner: Learner) -> None:
    """As many peers are remembered as may be, all of whom have left."""
    learner.trust.standings._known |= {PeerId(f"gone {number}"): AuditHistory() for number in range(PEERS_REMEMBERED)}


async def forget_those_who_left(learner: Learner) -> None:
    crowd(learner)
    assert not await learner.trust.welcome(THIRD)
    assert len(learner.trust.standings._known) < PEERS_REMEMBERED


def bare_work(number: int) -> Work:
    """An audit that is over, of PEER's lease, which is in the ledger."""
    lease = other_lease(number)
    return Work(lease=lease, root=lease, peer=PEER.peer_id, passages=(), waits=False)


def issue(learner: Learner, *numbers: int) -> None:
    """Leases of PEER that only the ledger knows."""
    rows = [
        LeaseRow(
            lease=other_lease(number), peer=PEER.peer_id, task="even", prompt=1, rollouts=2, issued_ms=0,
            deadline_ms=1, envelope=b"lease",
        )
        for number in numbers
    ]  # fmt: skip
    learner.ledger.work.leases_issued(rows)


async def test_an_audit_that_ends_after_its_peer_left_and_was_forgotten_adds_to_what_was_known(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        issue(learner, 901, 902)
        before = AuditHistory(
            passed=5, failed=2, history=History(audits=7, log_wealth=AuditHistory().history.log_wealth)
        )
        learner.ledger.trust.confidence_written(PEER.peer_id, before, 1)
        await learner.trust.welcome(PEER.peer_id)
        await forget_those_who_left(learner)
        clean = [Found(gap=0.0, lead=1.0)] * 8
        await learner.trust.conclude([(bare_work(901), clean)])
        [known] = learner.ledger.trust.confidence_of([PEER.peer_id]).values()
        assert (known.passed, known.failed, known.history.audits) == (6, 2, 8)
        await learner.bans.convict(PEER.peer_id, "it chooses")
        await forget_those_who_left(learner)
        await learner.trust.conclude([(bare_work(902), clean)])
        [known] = learner.ledger.trust.confidence_of([PEER.peer_id]).values()
        assert known.banned == "it chooses"


async def test_a_suspected_peer_has_nothing_in_the_buffer_but_what_waits_for_its_own_audit(tmp_path: Path) -> None:
    """Also what was believed without one, when it was trusted."""
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        trust, buffer = learner.trust, learner.capacity.buffer
        issue(learner, 901, 902, 903, 904)
        learner.ledger.trust.confidence_written(PEER.peer_id, AuditHistory(passed=NEWCOMER_GROUPS), 1)
        for number, peer in ((902, PEER.peer_id), (903, PEER.peer_id), (904, THIRD)):
            spans = ((1, PolicyVersion(1, 0)),)
            completions = tuple(
                Completion(tokens=(1,), logprobs=(-0.5,), reward=reward, spans=spans) for reward in (0.0, 1.0)
            )
            group = Group(
                lease=other_lease(number), peer=peer, prompt_index=1, prompt=(1, 2), completions=completions,
                behaviour=frozenset({PolicyVersion(1, 0)}),
            )  # fmt: skip
            buffer.add(group, hold=number == 903)
        trust._pending[other_lease(903)] = {other_lease(903)}
        off = [Found(gap=2.0 * (place < 5), lead=1.0) for place in range(28)]
        await trust.conclude([(bare_work(901), off)])
        [known] = learner.ledger.trust.confidence_of([PEER.peer_id]).values()
        assert (known.failed, known.banned) == (1, "")
        assert (buffer.held_by_peer[PEER.peer_id], buffer.by_peer[PEER.peer_id], buffer.by_peer[THIRD]) == (2, 0, 2)
    dropped = dict(rows(tmp_path, "SELECT lease, reason FROM dropped"))
    assert dropped[other_lease(902)] == "doubt"
    assert not dropped.keys() & {other_lease(903), other_lease(904)}


@pytest.mark.parametrize(("before", "passes"), [("a small one", False), ("one that is gone", True), (None, True)])
async def test_until_a_started_learner_has_published_margins_go_by_the_version_before(
    tmp_path: Path, before: str | None, passes: bool
) -> None:
    """As much rounding as a large model has, at leads where a small one has none."""
    if before is not None:
        async with open_learner(tmp_path, Settings(audits=True)) as learner:
            await learner.training.begin()
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        issue(learner, 901)
        assert learner.run.published is None
        if before == "one that is gone":
            gone = PolicyVersion(1, 7)
            learner.ledger.training.version_published(gone, manifest(gone), 1, total_bytes=1000, new_bytes=0)
        rounded = [Found(gap=0.35 if number < 14 else 0.0, lead=0.3) for number in range(100)]
        await learner.trust.conclude([(bare_work(901), rounded)])
        [known] = learner.ledger.trust.confidence_of([PEER.peer_id]).values()
        assert (known.passed == 1) is passes
        assert bool(known.banned) is not passes


async def test_what_comes_of_a_peer_that_was_banned_meanwhile_is_refused_also_when_it_is_forgotten(
    tmp_path: Path,
) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        lease, trust = granted(901), learner.trust
        learner.capacity.leasing.recover(lease)
        await trust.welcome(PEER.peer_id)
        taken = learner.capacity.leasing.take(lease.id, PEER.peer_id)
        assert taken is not None
        await learner.bans.convict(PEER.peer_id, "it chooses")
        await forget_those_who_left(learner)
        assert trust.admit(lease, []), "it is being judged, so its peer is not forgotten"
        learner.capacity.leasing.close(lease.id)
        await forget_those_who_left(learner)
        assert PEER.peer_id not in trust.standings._known
        issue(learner, 901)
        row = RecordRow(
            record=RecordId(bytes(32)), lease=lease.id, index=0, peer=PEER.peer_id, rule=Rule.ADMITTED, reward=1.0,
            tokens=1, version=PolicyVersion(1, 0), lag=0, received_ms=1, generation_ms=1, detail="", envelope=b"record",
        )  # fmt: skip
        learner.ledger.work.deliveries_judged([row], {lease.id: b"receipt"}, 1)
        await trust.revisions.settle()
    refused = rows(tmp_path, "SELECT rule, detail FROM records")
    assert refused == [("banned", "its peer is banned: it chooses")]


async def test_who_is_banned_while_its_coming_is_written_is_refused(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        joined = learner.ledger.peers.peer_joined

        def banned_meanwhile(row: PeerRow, now_ms: int) -> int:
            trio.from_thread.run(learner.bans.convict, PEER.peer_id, "it chooses")
            return joined(row, now_ms)

        learner.ledger.peers.peer_joined = banned_meanwhile  # type: ignore[method-assign]
        answer = await learner.sessions.welcome(PEER.peer_id, hello())
        assert isinstance(answer, Refused)
        assert "banned from the swarm: it chooses" in answer.reason
        assert learner.run.present == {}
        assert PEER.peer_id not in learner.run.membership.members
        learner.sessions.write_rest()
    assert rows(tmp_path, "SELECT reason FROM presence") == [(BANNED,)]


async def test_who_is_trusted_stays_so_whoever_comes_while_its_coming_is_written(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        learner.ledger.trust.confidence_written(PEER.peer_id, AuditHistory(passed=2 * NEWCOMER_GROUPS), 1)
        joined = learner.ledger.peers.peer_joined

        def crowded(row: PeerRow, now_ms: int) -> int:
            trio.from_thread.run(forget_those_who_left, learner)
            return joined(row, now_ms)

        learner.ledger.peers.peer_joined = crowded  # type: ignore[method-assign]
        assert isinstance(await learner.sessions.welcome(PEER.peer_id, hello()), Welcome)
        assert learner.trust.standings.remember(PEER.peer_id).standing is TrustLevel.TRUSTED
        assert learner.scheduler.worker(PEER.peer_id).quota == math.inf


async def test_the_heartbeat_of_who_came_back_brings_what_was_revised(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED) as learner:
        told: list[Any] = []

        def note(news: PeerTold) -> None:
            if isinstance(news.message, Revised):
                told.append(news.message)

        learner.context.signals.peer_told.subscribe(note)
        await learner.sessions.welcome(PEER.peer_id, hello(ext={"volery.receipt-revisions": b""}))
        learner.trust.revisions._untold[PEER.peer_id] = [(bytes([n]) * 16, b"receipt %d" % n) for n in range(20)]  # type: ignore[misc]
        learner.sessions.take_heartbeat(PEER.peer_id, Heartbeat())
        learner.sessions.take_heartbeat(PEER.peer_id, Heartbeat())
        learner.sessions.take_heartbeat(PEER.peer_id, Heartbeat())
        assert [message.receipt for message in told] == [b"receipt %d" % n for n in range(20)]


def test_findings_are_in_nats_that_margins_were_measured_in() -> None:
    """At half the temperature the same error of a logit is twice as many nats; at four times the size floats are spaced
    four times as far; and nothing brings what is claimed nearer."""
    passage = Passage(
        prompt=(1,), tokens=(4, 5), logprobs=(-1.25, -2.0), parts=((0, 2),), seed=7, temperature=0.5,
        version=PolicyVersion(1, 1), manifest=ManifestHash(bytes(32)),
    )  # fmt: skip
    told = Verified(gaps=(0.0, 0.5), logprobs=(-1.0, -2.0), leads=(3.0, 0.25), sizes=(30.0, 3.0))
    first, second = found_of(told, passage)
    assert (first.gap, first.lead, first.apart) == (0.0, 1.5, 0.125)
    assert (second.gap, second.lead, second.apart) == (0.25, 0.125, 0.0)
    loud, louder = found_of(replace(told, sizes=(32.0, 100.0)), passage)
    assert (loud.lead, loud.apart) == (0.75, 0.0625)
    assert (louder.gap, louder.lead) == (0.0625, 0.03125)
    hot, _ = found_of(replace(told, sizes=(3.0, 3.0)), replace(passage, temperature=2.0))
    assert (hot.lead, hot.apart) == (6.0, 0.25)
