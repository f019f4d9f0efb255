"""When a peer is banned: who hears of it in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.work import RECEIPT_REVISIONS, Refused, Revised
from tests.support.learner_fixture import Settings, hello, open_learner
from tests.support.trainer_fixture import PEER, granted

pytestmark = pytest.mark.usefixtures("mock_clock")


async def test_a_banned_peer_is_told_its_revised_receipts_then_why_and_is_forgotten_last(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        signals, order = learner.context.signals, list[object]()
        await learner.sessions.welcome(PEER.peer_id, hello(ext={RECEIPT_REVISIONS: b""}))
        learner.trust.revisions._untold[PEER.peer_id] = [(granted(1).id, b"revised")]
        signals.peer_told.subscribe(lambda news: order.append(news.message))
        signals.peer_dismissed.subscribe(lambda news: order.append(news.last_word))
        signals.lease_closed.subscribe(lambda news: order.append("its lease"))
        signals.peer_banned.subscribe(lambda news: order.append("last"))
        signals.peer_judged.subscribe(lambda news: order.append("judged"))
        learner.capacity.leasing.recover(granted(1))
        await learner.bans.convict(PEER.peer_id, "it chooses")
        [known] = learner.ledger.trust.confidence_of([PEER.peer_id]).values()
        assert known.banned == "it chooses"
        assert order[:2] == [Revised(receipt=b"revised"), "its lease"]
        assert isinstance(order[2], Refused)
        assert "it chooses" in order[2].reason
        assert order[3:] == ["last", "judged"]
        assert PEER.peer_id not in learner.run.present
        assert not learner.capacity.leasing.open
