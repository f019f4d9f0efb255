"""A node behind a real router: miniupnpd in network namespaces, asked by each protocol, restarted, and left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from benchmarks.network.namespaces import ip
from swarm.libp2p.port_mapping.outcomes import MappedBy
from swarm.libp2p.port_mapping.upnp import WORKER
from tests.support.home_router import NO_PCP, OUTSIDE, Home, Told, open_home, why_not
from tests.support.paths import ROOT

WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

HANGS_S = 60.0
"""A test that has not come to its end by then never will."""

PROGRAM = str(Path(ROOT) / "tests" / "support" / "mapped_node.py")

HOSTILE = str(Path(ROOT) / "tests" / "support" / "hostile_router.py")

MANY, SOME = 5000, 5
"""Announcements that a hostile router sends, and requests that it gets, before its work is looked at."""

MAX_GROWTH_BYTES = 16 << 20

PINHOLE = "2a00:77:1::2"


@pytest.fixture
def home() -> Iterator[Home]:
    with open_home() as opened:
        yield opened


@dataclass(kw_only=True)
class Node:
    """A node's program, and the events that it tells."""

    process: trio.Process
    told: Told

    async def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next event that is meant; those before it are forgotten."""
        while not is_it(event := await self.told.next()):
            pass
        return event

    async def mapped(self, protocol: MappedBy) -> int:
        """The external port at the router's own address."""
        event = await self.until(lambda one: one["event"] == "port_mapped" and one["host"] == OUTSIDE)
        assert event["protocol"] == protocol.value
        assert not event["double"]
        return int(event["port"])

    async def look(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(b"look\n")

    async def leave(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        assert await self.process.wait() == 0


@asynccontextmanager
async def node(home: Home, name: str) -> AsyncIterator[Node]:
    async with home.program(name, [PROGRAM, name, "4001"]) as process:
        yield Node(process=process, told=Told(process=process))


def speaks(home: Home, protocol: MappedBy) -> dict[str, bool]:
    """Return the daemon's options, with which it is asked by this protocol."""
    if protocol is MappedBy.NAT_PMP:
        home.nft(NO_PCP)
    return {"datagrams": protocol is not MappedBy.UPNP, "upnp": protocol is MappedBy.UPNP}


async def worker(home: Home, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the program that speaks UPnP answers in a node's namespace."""
    async with home.program(name, ["-I", str(WORKER), json.dumps(request)]) as process:
        assert process.stdout is not None
        reply = b"".join([some async for some in process.stdout])
    return dict(json.loads(reply))


async def until_dialled(home: Home, host: str, port: int) -> str:
    """Return who answers outside, as soon as somebody does."""
    while not (name := await home.dial(host, port)):
        await trio.sleep(0.1)
    return name


@pytest.mark.parametrize("protocol", list(MappedBy))
async def test_others_reach_the_node_until_it_leaves(home: Home, protocol: MappedBy) -> None:
    with trio.fail_after(HANGS_S), home.daemon(**speaks(home, protocol)):
        async with node(home, "node1") as one:
            assert await one.mapped(protocol) == 4001
            assert await home.dial(OUTSIDE, 4001) == "node1"
            assert home.external_ports() == {4001: "192.168.77.2"}
            await one.leave()
        assert home.external_ports() == {}
        assert await home.dial(OUTSIDE, 4001) == ""


async def test_a_pinhole_lets_others_in_over_ipv6(home: Home) -> None:
    with trio.fail_after(HANGS_S), home.daemon(datagrams=True, upnp=False):
        async with node(home, "node1") as one:
            event = await one.until(lambda event: event.get("host") == PINHOLE)
            assert (event["protocol"], event["port"]) == ("PCP", 4001)
            assert await home.dial(PINHOLE, 4001) == "node1"
            await one.leave()
        assert await home.dial(PINHOLE, 4001) == ""


@pytest.mark.parametrize("protocol", list(MappedBy))
async def test_a_router_that_restarts_maps_anew(home: Home, protocol: MappedBy) -> None:
    """By datagrams the router tells that it has started; UPnP's does not, so the node is told to look."""
    configured = speaks(home, protocol)
    async with node(home, "node1") as one:
        with trio.fail_after(HANGS_S):
            with home.daemon(**configured):
                await one.mapped(protocol)
            assert home.external_ports() == {}
            with home.daemon(**configured):
                if protocol is MappedBy.UPNP:
                    await one.look()
                assert await until_dialled(home, OUTSIDE, 4001) == "node1"
                await one.leave()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", list(MappedBy))
async def test_a_mapping_that_is_gone_is_withdrawn_and_asked_for_again(home: Home, protocol: MappedBy) -> None:
    configured = speaks(home, protocol)
    async with node(home, "node1") as one:
        with trio.fail_after(HANGS_S):
            with home.daemon(**configured):
                await one.mapped(protocol)
            await one.look()
            lost = await one.until(lambda event: "lost" in event.get("reason", "") and ":" not in event["gateway"])
            assert "192.168.77.1" in lost["gateway"]
            with home.daemon(**configured):
                await one.look()
                assert await one.mapped(protocol) == 4001
                assert await home.dial(OUTSIDE, 4001) == "node1"


@pytest.mark.parametrize("protocol", list(MappedBy))
async def test_two_nodes_of_one_home_get_a_port_each(home: Home, protocol: MappedBy) -> None:
    with trio.fail_after(HANGS_S), home.daemon(**speaks(home, protocol)):
        async with node(home, "node1") as one, node(home, "node2") as two:
            first, second = await one.mapped(protocol), await two.mapped(protocol)
            assert first != second
            assert await home.dial(OUTSIDE, first) == "node1"
            assert await home.dial(OUTSIDE, second) == "node2"
            await two.leave()
            assert home.external_ports() == {first: "192.168.77.2"}


async def test_a_gateway_chooses_another_port_where_it_can(home: Home) -> None:
    """IGD 2's AddAnyPortMapping. The mapping of the other machine is not touched, whatever is asked for."""
    request = {"url": "http://192.168.77.1:5000/rootDesc.xml", "gateway": "192.168.77.1", "internal_port": 4001}
    with trio.fail_after(HANGS_S), home.daemon(datagrams=False, upnp=True):
        granted = []
        for name in ("node1", "node2", "node1"):
            asked = {**request, "do": "map", "ports": [4001], "lifetime_s": 1200}
            granted.append((await worker(home, name, asked))["external_port"])
        assert granted[0] == granted[2] == 4001
        assert granted[1] != 4001
        assert await worker(home, "node2", {**request, "do": "unmap", "external_port": 4001}) == {}
        assert home.external_ports() == {4001: "192.168.77.2", granted[1]: "192.168.77.3"}
        assert not (await worker(home, "node2", {**request, "do": "look", "external_port": 4001}))["is_ours"]


async def test_a_network_that_is_left_and_found_again(home: Home) -> None:
    with trio.fail_after(HANGS_S), home.daemon(datagrams=True, upnp=False):
        async with node(home, "node1") as one:
            await one.mapped(MappedBy.PCP)
            route = ("route", "{}", "default", "via", "192.168.77.1")
            ip("-n", home.namespaces["node1"], *(part.format("del") for part in route))
            await one.look()
            await one.until(
                lambda event: event["event"] == "changed" and not any(OUTSIDE in a for a in event["addresses"])
            )
            ip("-n", home.namespaces["node1"], *(part.format("add") for part in route))
            await one.look()
            assert await one.mapped(MappedBy.PCP) == 4001


async def test_a_hostile_router_neither_ends_a_node_nor_fills_its_memory(home: Home) -> None:
    router = home.program("router", [HOSTILE, "192.168.77.1"])
    async with router as hostile, node(home, "node1") as one:
        with trio.fail_after(HANGS_S):
            told, done = Told(process=hostile), {"requests": 0, "announcements": 0}
            rss_bytes: list[int] = []
            while done["announcements"] < MANY or done["requests"] < SOME:
                done |= await told.next()
                if done["requests"]:
                    rss_bytes.append(psutil.Process(one.process.pid).memory_info().rss)
            assert max(rss_bytes) - rss_bytes[0] < MAX_GROWTH_BYTES
            await one.leave()


async def test_a_router_that_maps_nothing_is_told_with_the_reason(home: Home) -> None:
    async with node(home, "node1") as one:
        with trio.fail_after(HANGS_S):
            failed = await one.until(lambda event: event["event"] == "port_mapping_failed" and event["gateway"] != "")
            assert "does not answer" in failed["reason"]
