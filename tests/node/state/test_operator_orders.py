"""An operator's decisions on a peer: bans without an audit, and pardons."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio

from learner.trust.audit_history import TrustLevel
from node.cli.operator_commands import ban, pardon
from node.runtime.errors import RunError, UsageError
from node.state import status_file as standing
from node.state.operator_orders import (
    SETTINGS,
    Ban,
    NoSetting,
    OperatorDecisions,
    Pardon,
    checked_setting,
    read_order,
    setting_words,
)
from node.state.order_files import FOLDER, NoOrder
from protocol.work import Refused, Rule
from tests.support.learner_fixture import FakePeer, Settings, hello, open_learner, until
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, open_story, peer_row
from tests.support.trainer_fixture import OTHER, PEER

ORDERS = [Ban(peer=PEER.peer_id, reason="it is rude"), Pardon(peer=PEER.peer_id)]


def test_orders_come_back_whole_and_in_their_order(tmp_path: Path) -> None:
    orders = OperatorDecisions(tmp_path)
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
        peer, orders = FakePeer(key=OTHER, rollouts=8), OperatorDecisions(tmp_path)
        nursery.start_soon(learner.train, peer)
        await until(lambda: len(learner.capacity.buffer) >= 8)
        orders.give(Ban(peer=peer.id, reason="it is rude"))
        learner.trust.revisions.wakeup.set()
        await until(lambda: orders.waiting() == [])
        assert learner.trust.standings.remember(peer.id).standing is TrustLevel.BANNED
        assert peer.id not in learner.run.present
        assert len(learner.capacity.buffer) + learner.capacity.buffer.held == 0
        answer = await learner.sessions.welcome(peer.id, hello())
        assert isinstance(answer, Refused)
        assert "it is rude" in answer.reason
        rules: set[Any] = {rule for (rule,) in learner.ledger.query("SELECT DISTINCT rule FROM records")}
        assert Rule.BANNED.value in rules
        orders.give(Pardon(peer=peer.id))
        learner.trust.revisions.wakeup.set()
        await until(lambda: orders.waiting() == [])
        assert learner.trust.standings.remember(peer.id).standing is TrustLevel.NEWCOMER
        assert not isinstance(await learner.sessions.welcome(peer.id, hello()), Refused)
        nursery.cancel_scope.cancel()
    async with open_learner(tmp_path, Settings(audits=True)) as again:
        assert not isinstance(await again.sessions.welcome(peer.id, hello()), Refused)


@pytest.mark.usefixtures("mock_clock")
async def test_an_order_for_a_learner_that_was_not_running_and_one_that_is_none(tmp_path: Path) -> None:
    OperatorDecisions(tmp_path).give(Ban(peer=OTHER.peer_id, reason=""))
    (tmp_path / FOLDER / "0.json").write_text("{")
    async with open_learner(tmp_path, Settings(audits=True)) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.operator.run)
        await until(lambda: learner.trust.standings.remember(OTHER.peer_id).standing is TrustLevel.BANNED)
        [told] = learner.logged("trouble")
        assert "0.json is no order" in str(told["text"])
        learner.trust.revisions.wakeup.set()
        await until(lambda: [path.name for path in OperatorDecisions(tmp_path).waiting()] == ["0.json"])
        assert len(learner.logged("trouble")) == 1, "said once"
        nursery.cancel_scope.cancel()


def test_the_commands_name_one_peer_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "learner.key").touch()
    with pytest.raises(RunError, match="there is no ledger"):
        pardon(ALPHA, tmp_path)
    story = open_story(tmp_path / "ledger.sqlite")
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    story.join(peer_row(LEARNER, "kites", role="learner"))
    ban(ALPHA[-6:], tmp_path, "it is rude")
    pardon(BETA, tmp_path)
    assert [read_order(path) for path in OperatorDecisions(tmp_path).waiting()] == [
        Ban(peer=ALPHA, reason="it is rude"),
        Pardon(peer=BETA),
    ]
    waits = f"waits: no learner is running on {tmp_path}. The order takes effect when one starts."
    assert capsys.readouterr().out.splitlines() == [
        f"The order to ban a peer, {ALPHA} {waits} To undo: volery pardon {ALPHA}",
        f"The order to pardon a peer, {BETA} {waits}",
    ]
    for name in ("nobody", "", ALPHA[-3:], "A" * 52, "1" * 52, ALPHA.lower(), "kites"):
        with pytest.raises(UsageError, match="is not a peer of this swarm"):
            ban(name, tmp_path)
    for name in (LEARNER, LEARNER[-6:]):
        with pytest.raises(UsageError, match="is the learner of this swarm"):
            ban(name, tmp_path)
    with pytest.raises(UsageError, match=r"--reason has 513 characters; at most 512 are kept. Shorten it"):
        ban(ALPHA, tmp_path, "x" * 513)
    assert len(OperatorDecisions(tmp_path).waiting()) == 2


def test_a_peer_is_named_by_its_name_where_one_has_it(tmp_path: Path) -> None:
    (tmp_path / "learner.key").touch()
    story = open_story(tmp_path / "ledger.sqlite")
    for peer, name in ((ALPHA, "atlas"), (BETA, "bob\x1b"), (GAMMA, ALPHA[-6:]), (OTHER.peer_id, "bob")):
        story.join(peer_row(peer, name))
    ban("atlas", tmp_path)
    ban(ALPHA[-6:], tmp_path)  # an end of an id, whoever calls itself so
    assert [read_order(path).peer for path in OperatorDecisions(tmp_path).waiting()] == [ALPHA, ALPHA]
    for decide in (ban, pardon):
        with pytest.raises(UsageError, match="Several peers have the name 'bob'; name one by its id:") as error:
            decide("bob", tmp_path)
        assert {line.strip() for line in str(error.value).splitlines()[1:]} == {BETA, OTHER.peer_id}


def test_what_is_said_is_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is banned by a learner that does not run; who has not come yet may be, and that is said."""
    (tmp_path / "learner.key").touch()
    open_story(tmp_path / "ledger.sqlite").join(peer_row(ALPHA, ""))
    board = standing.StatusFile(tmp_path)
    board.show(standing.NodeStatus(doing="at work", limits={}))
    ban(ALPHA, tmp_path)
    pardon(OTHER.peer_id, tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        f"Banned: {ALPHA}. The learner obeys within a second. To undo: volery pardon {ALPHA}",
        f"Pardoned: {OTHER.peer_id}. It may join again in a second, when the learner has read the order.",
        "No peer with that id has joined this swarm. The order lifts an earlier ban of the id, if there is one.",
    ]
    board.clear()
    ban(OTHER.peer_id, tmp_path)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"The order to ban {OTHER.peer_id} waits: no learner is running on {tmp_path}.")
    assert second == "No peer with that id has joined this swarm. It will be refused if it comes."


# Settings of a running learner


@pytest.mark.parametrize(
    ("key", "value", "is_taken"),
    [
        ("staleness", 4.0, "the staleness window is S = 4"),
        ("learning_rate", 3e-5, "the learning rate is 3e-05"),
        ("every_versions", 0.0, "only the first and the last version are evaluated"),
        ("every_versions", 1.0, "every version is evaluated"),
        ("every_versions", 20.0, "one in 20 versions is evaluated"),
        ("publish", 0.0, "new versions are held back"),
        ("publish", 1.0, "new versions are published"),
    ],
)
def test_a_value_that_a_run_can_take_is_told_in_words(key: str, value: float, is_taken: str) -> None:
    found = checked_setting(key, value, is_sequential=False, kappa=2)
    assert found == value
    assert isinstance(found, int) == (key != "learning_rate"), "a whole number is one, also in the log"
    assert setting_words(key, found) == is_taken


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("staleness", 1, "from 2"),
        ("staleness", 1e9, "to 1000"),
        ("staleness", 2.5, "not 2.5"),
        ("learning_rate", math.nan, "above 0"),
        ("learning_rate", 1.5, "at most 1"),
        ("every_versions", -1, "every_versions is 0"),
        ("publish", 0.5, "publish is 1"),
        ("seed", 1, f"These can: {', '.join(SETTINGS)}."),
    ],
)
def test_what_a_run_cannot_take_is_refused_with_what_it_can(key: str, value: float, says: str) -> None:
    with pytest.raises(NoSetting, match=says):
        checked_setting(key, value, is_sequential=False, kappa=2)


def test_a_run_that_takes_turns_has_no_window() -> None:
    with pytest.raises(NoSetting, match="sequential"):
        checked_setting("staleness", 2, is_sequential=True, kappa=1)


@pytest.mark.parametrize("value", ["<b>", None, [], True])
def test_a_log_may_say_anything(value: object) -> None:
    assert setting_words("seed", value)
    assert setting_words(value, value)
