"""After a restart the former members are expected again; a damaged file loses only this."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.network.known_members import FILE, MOST, NOTED_EVERY_S, KnownMembers
from node.runtime.events import EventLog, Field
from protocol.core.ids import PeerId
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport


def known(root: Path, transport: MemoryTransport) -> tuple[KnownMembers, list[dict[str, Field]], dict[PeerId, str]]:
    """The members of a start, what it says, and whom its transport is told to expect."""
    said: list[dict[str, Field]] = []
    expected: dict[PeerId, str] = {}
    events = EventLog()
    events.listen(lambda name, fields: said.append({"event": name, **fields}))

    def expect(origins: Mapping[PeerId, str], awaited: Collection[PeerId] = ()) -> None:
        expected.update(origins)
        assert all(peer in origins for peer in awaited)

    transport.expect = expect  # type: ignore[method-assign]
    return KnownMembers(root=root, transport=transport, events=events), said, expected


async def test_a_restart_expects_who_was_here(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with network.node("learner") as learner, network.node("node") as node, trio.open_nursery() as nursery:
        members, said, expected = known(tmp_path, learner)
        members.recall()
        nursery.start_soon(members.keep)
        await node.dial(learner.addresses())
        await trio.sleep(2 * NOTED_EVERY_S)
        assert not (tmp_path / FILE).exists(), "a stranger is not remembered"
        learner.trust(node.peer_id)
        while not (tmp_path / FILE).exists():
            await trio.sleep(NOTED_EVERY_S)
        members, _, expected = known(tmp_path, learner)
        members.recall([node.peer_id])
        assert expected == learner.origins() != {}
        assert members.news() == b""
        assert said == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"a": 1}', b"\xff", b"[" * 100_000, b" " * 2_000_000])
async def test_a_damaged_file_is_said_and_made_anew(tmp_path: Path, data: bytes) -> None:
    async with MemoryNetwork().node("learner") as learner:
        (tmp_path / FILE).write_bytes(data)
        members, said, expected = known(tmp_path, learner)
        members.recall()
        assert expected == {}
        assert [row["event"] for row in said] == ["trouble"]
        assert FILE in str(said[0]["text"])


async def test_only_the_last_are_remembered(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with network.node("learner") as learner, network.node("node") as node:
        (tmp_path / FILE).write_text(json.dumps({str(number): "192.0.2.1" for number in range(MOST)}))
        members, _, expected = known(tmp_path, learner)
        members.recall()
        assert len(expected) == MOST
        await node.dial(learner.addresses())
        learner.trust(node.peer_id)
        remembered = json.loads(members.news())
        assert len(remembered) == MOST
        assert "0" not in remembered
        assert list(remembered)[-1] == node.peer_id
