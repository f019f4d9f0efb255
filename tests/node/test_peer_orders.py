"""What an operator decides of a peer: bans that nobody's audit brought about, and pardons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from learner.verification.confidence import Standing
from node.errors import RunError, UsageError
from node.operator_commands import ban, pardon
from node.peer_orders import FOLDER, Ban, NoOrder, Pardon, PeerOrders, read_order
from protocol.work import Refused, Rule
from tests.learner.working import OTHER, PEER
from tests.node.learning import FakePeer, Settings, hello, open_learner, until
from tests.node.ledgers import ALPHA, BETA, open_story, peer_row

ORDERS = [Ban(peer=PEER.peer_id, reason="it is rude"), Pardon(peer=PEER.peer_id)]


def test_orders_come_back_whole_and_in_their_order(tmp_path: Path) -> None:
    orders = PeerOrders(tmp_path)
    assert orders.waiting() == []
    for order in ORDERS:
        orders.give(order)
    assert [read_order(path) for path in orders.waiting()] == ORDERS
    assert (tmp_path / FOLDER).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"{}", b'{"order": "ban"}', b'{"order": "bless", "peer": "x"}',
        b'{"order": "pardon", "peer": 1}',
        b'{"order": "pardon", "peer": "short"}', b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_file_that_is_no_order_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "1.json"
    path.write_bytes(text)
    with pytest.raises(NoOrder, match=r"1\.json is no order and was left where it is"):
        read_order(path)


@pytest.mark.usefixtures("mock_clock")
async def test_who_is_banned_by_the_operator_leaves_and_who_is_pardoned_may_come_back(tmp_path: Path) -> None:
    async with (
        open_learner(tmp_path, Settings(steps=4, prompts=20, ahead=4.0, audits=True)) as learner,
        trio.open_nursery() as nursery,
    ):
        peer, orders = FakePeer(key=OTHER, rollouts=8), PeerOrders(tmp_path)
        nursery.start_soon(learner.train, peer)
        await until(lambda: len(learner.run.buffer) >= 8)
        orders.give(Ban(peer=peer.id, reason="it is rude"))
        learner.trust.stirred.set()
        await until(lambda: orders.waiting() == [])
        assert learner.trust.standing(peer.id) is Standing.BANNED
        assert peer.id not in learner.run.present
        assert len(learner.run.buffer) + learner.run.buffer.held == 0
        answer = await learner.desk.welcome(peer.id, hello())
        assert isinstance(answer, Refused)
        assert "it is rude" in answer.reason
        rules: set[Any] = {rule for (rule,) in learner.ledger._query("SELECT DISTINCT rule FROM records")}
        assert Rule.BANNED.value in rules
        orders.give(Pardon(peer=peer.id))
        learner.trust.stirred.set()
        await until(lambda: orders.waiting() == [])
        assert learner.trust.standing(peer.id) is Standing.NEWCOMER
        assert not isinstance(await learner.desk.welcome(peer.id, hello()), Refused)
        nursery.cancel_scope.cancel()
    async with open_learner(tmp_path, Settings(audits=True)) as again:
        assert not isinstance(await again.desk.welcome(peer.id, hello()), Refused)


@pytest.mark.usefixtures("mock_clock")
async def test_an_order_for_a_learner_that_was_not_running_and_one_that_is_none(tmp_path: Path) -> None:
    PeerOrders(tmp_path).give(Ban(peer=OTHER.peer_id, reason=""))
    (tmp_path / FOLDER / "0.json").write_text("{")
    async with open_learner(tmp_path, Settings(audits=True)) as learner, trio.open_nursery() as nursery:
        trust = learner.trust
        nursery.start_soon(trust.watch)
        await until(lambda: trust.standing(OTHER.peer_id) is Standing.BANNED)
        [told] = learner.logged("trouble")
        assert "0.json is no order" in str(told["text"])
        trust.stirred.set()
        await until(lambda: [path.name for path in PeerOrders(tmp_path).waiting()] == ["0.json"])
        assert len(learner.logged("trouble")) == 1, "said once"
        nursery.cancel_scope.cancel()


def test_the_commands_name_one_peer_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "learner.key").touch()
    with pytest.raises(RunError, match="there is no ledger"):
        pardon(ALPHA, tmp_path)
    story = open_story(tmp_path / "ledger.sqlite")
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    ban(ALPHA[-6:], tmp_path, "it is rude")
    pardon(BETA, tmp_path)
    assert [read_order(path) for path in PeerOrders(tmp_path).waiting()] == [
        Ban(peer=ALPHA, reason="it is rude"),
        Pardon(peer=BETA),
    ]
    assert f"Banned: {ALPHA}. The learner does it within a second" in capsys.readouterr().out
    for name in ("nobody", "", ALPHA[-3:]):
        with pytest.raises(UsageError, match="is no peer of this swarm"):
            ban(name, tmp_path)
    ban(OTHER.peer_id, tmp_path)  # one that has not come yet
