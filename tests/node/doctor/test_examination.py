"""A machine examined over loopback: a real learner, one that is not there, and one of another swarm."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from node.config.node_config import DrillSection, EngineSection, NodeConfig, NodeNetworkSection
from node.doctor.examination import MOST_MEMBERS, NO_MODEL, choose, dialable, examine, where_is
from node.doctor.findings import (
    ClockOffset,
    Contact,
    EngineFinding,
    EngineSpeed,
    Listening,
    NotKnown,
    Rate,
    Where,
)
from node.doctor.verdict import Ability, conclude
from node.state.rollout_state import swarm_directory
from protocol.core.ids import PeerId
from protocol.core.invite import Invite
from protocol.versions.exchange import PeerAddresses
from swarm.libp2p import open_libp2p
from swarm.transport.reach_evidence import ReachEvidence
from tests.node.doctor.test_engine_trial import home_with_version
from tests.support.doctor_swarm import SWARM, Learner, open_learner
from tests.support.store_fixture import small_swarm

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NODE = NodeConfig(
    engine=EngineSection(kind="fake"),
    testing=DrillSection(fake_token_s=0.001),
    network=NodeNetworkSection(listen=[LOOPBACK]),
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))


@asynccontextmanager
async def learner(root: Path, *, ahead_ms: int = 0) -> AsyncIterator[Learner]:
    async with open_learner(root, [LOOPBACK], size_bytes=1 << 20, ahead_ms=ahead_ms) as found:
        yield found


async def test_every_part_is_found_out_and_nobody_joins(tmp_path: Path) -> None:
    async with learner(tmp_path, ahead_ms=-90_000) as host:
        found = await examine(host.invite, NODE, state=None)
        assert host.joined == []
    assert isinstance(found.contact, Contact)
    assert found.contact.where is Where.THIS_MACHINE
    assert found.contact.found.learner == SWARM.learner.peer_id
    assert isinstance(found.clock, ClockOffset)
    assert found.clock.ahead_s == pytest.approx(90.0, abs=found.clock.error_s + 0.01)
    assert isinstance(found.down, Rate)
    assert isinstance(found.up, Rate)
    assert isinstance(found.evidence, ReachEvidence)
    [sight] = found.evidence.sights
    assert isinstance(found.listening, Listening)
    assert sight.from_listening
    assert sight.address == sight.local == f"/ip4/127.0.0.1/tcp/{found.listening.ports[0]}"
    assert found.mapping == NotKnown(why="the learner is on this machine"), "no router is asked"
    assert isinstance(found.hops, NotKnown)
    assert isinstance(found.speed, EngineSpeed)
    assert found.speed.is_of_stand_in
    assert not (tmp_path / "home").exists(), "nothing is written"
    conclusion = conclude(found)
    assert (conclusion.ability, conclusion.can_take_part) == (Ability.NOT_KNOWN, True)


async def test_the_engine_is_tried_with_what_a_node_of_this_swarm_has(tmp_path: Path) -> None:
    async with learner(tmp_path) as host:
        home = home_with_version(swarm_directory(host.invite.authority.swarm) / "node-1")
        (home / "node.key").touch()
        found = await examine(host.invite, NODE, state=None)
    assert isinstance(found.speed, EngineSpeed)
    assert not found.speed.is_of_stand_in


async def test_a_look_fetches_nothing(tmp_path: Path) -> None:
    async with learner(tmp_path) as host:
        found = await examine(host.invite, NODE, state=None, is_thorough=False)
        assert host.serving.served_bytes == 0
    assert isinstance(found.clock, ClockOffset)
    for part in (found.down, found.up, found.speed):
        assert part == NotKnown(why="`volery doctor INVITE` measures it")


async def test_a_port_that_is_taken_is_no_obstacle(tmp_path: Path) -> None:
    async with learner(tmp_path) as host:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
            network = NodeNetworkSection(listen=[address])
            config = msgspec.structs.replace(NODE, network=network)
            found = await examine(host.invite, config, state=None, is_thorough=False)
    assert isinstance(found.listening, Listening)
    assert found.listening.instead_of.startswith(address)
    assert not found.listening.is_fixed
    assert not found.failure


async def test_a_node_that_listens_nowhere(tmp_path: Path) -> None:
    config = msgspec.structs.replace(NODE, network=NodeNetworkSection(listen=[]))
    async with learner(tmp_path) as host:
        found = await examine(host.invite, config, state=None, is_thorough=False)
    assert found.listening == Listening()
    assert found.mapping == NotKnown(why="the node does not listen")


async def test_without_an_invite_nobody_is_asked() -> None:
    found = await examine(None, NODE, state=None)
    assert not found.is_with_invite
    assert isinstance(found.engine, EngineFinding)
    assert conclude(found).can_take_part


async def test_a_learner_that_is_not_there(tmp_path: Path) -> None:
    async with learner(tmp_path) as host:
        invite = host.invite
    found = await examine(invite, NODE, state=None, wait_s=0.0)
    assert found.failure.startswith("The learner cannot be reached at /ip4/127.0.0.1/tcp/")
    assert "Connection refused" in found.failure
    assert not found.is_usage
    conclusion = conclude(found)
    assert (conclusion.ability, conclusion.can_take_part) == (Ability.NOTHING, False)
    assert found.down == NotKnown(why="the learner was not reached")
    assert found.speed == NotKnown(why=NO_MODEL)


@pytest.mark.parametrize("change", ["another swarm", "a wrong token"])
async def test_an_invite_that_is_not_right(tmp_path: Path, change: str) -> None:
    stranger = small_swarm("strangers")
    async with learner(tmp_path) as host:
        invite = host.invite
        wrong = (
            Invite(operator=stranger.operator.public, swarm=stranger.authority.swarm, addresses=invite.addresses)
            if change == "another swarm"
            else msgspec.structs.replace(invite, token="please")
        )
        found = await examine(wrong, NODE, state=None, wait_s=0.0)
    assert found.is_usage
    assert ("another swarm" if change == "another swarm" else "The join token is missing or wrong") in found.failure


def test_an_engine_that_is_not_there_is_told_as_joining_would() -> None:
    found = choose(NodeConfig(engine=EngineSection(kind="vllm", python="/nowhere/python")))
    assert isinstance(found, NotKnown)
    assert "/nowhere/python has no vLLM" in found.why


@pytest.mark.parametrize(
    ("remote", "where"),
    [
        ("/ip4/127.0.0.1/tcp/1", Where.THIS_MACHINE),
        ("/ip4/192.168.1.9/tcp/1", Where.THIS_NETWORK),
        ("/ip4/45.0.0.1/tcp/1", Where.INTERNET),
        ("/ip6/fd00::1/tcp/1", Where.THIS_NETWORK),
    ],
)
def test_where_the_learner_is(remote: str, where: Where) -> None:
    assert where_is(remote) is where


async def test_only_members_in_the_internet_are_dialled_and_few_of_them() -> None:
    def member(number: int, *addresses: str) -> PeerAddresses:
        peer = PeerId("12D3KooW" + "p" * 43 + str(number))
        return PeerAddresses(peer=peer, addresses=[f"{address}/p2p/{peer}" for address in addresses])

    told = [
        member(1, "/ip4/127.0.0.1/tcp/22", "/ip4/169.254.169.254/tcp/80", "/ip4/10.1.2.3/tcp/1"),
        member(2, "/ip6/2600::5/tcp/1", "/ip4/45.0.0.2/tcp/1", "/dns/inside.example/tcp/1"),
        *(member(number, f"/ip4/45.0.0.{number}/tcp/1") for number in range(3, 9)),
    ]
    async with open_libp2p(bytes(32), []) as transport:
        found = dialable(told, transport)
    assert len(found) == MOST_MEMBERS
    assert [address.partition("/tcp")[0] for address in found[0]] == ["/ip4/45.0.0.2", "/ip6/2600::5"]


async def test_it_ends_where_the_learner_says_nothing(autojump_clock: trio.abc.Clock) -> None:
    """A host that lets everybody in, and answers nothing."""

    async def be_silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, be_silent, 0)
        port = listeners[0].socket.getsockname()[1]
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{SWARM.learner.peer_id}"
        invite = Invite(operator=SWARM.operator.public, swarm=SWARM.authority.swarm, addresses=[address])
        found = await examine(invite, NODE, state=None)
        nursery.cancel_scope.cancel()
    assert "cannot be reached" in found.failure or "in time" in found.failure
