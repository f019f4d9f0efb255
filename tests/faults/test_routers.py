"""Members behind home routers connect, and connect again after a failure. Needs root.

The times are recorded, and decide nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from benchmarks.network.emulation import Node as Host
from benchmarks.network.founding import key_of
from benchmarks.network.home import Home
from benchmarks.network.namespaces import ip
from benchmarks.network.requirements import LINKS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from tests.faults.conftest import Figure
from tests.faults.village import LEARNER, Village, open_village

MISSING = missing_tools([*LINKS, "nft"])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [pytest.mark.root, pytest.mark.rest, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

STOPPED_S = 15.0
"""Seconds for which a process is stopped: longer than it takes for that alone to be noticed."""

RELAY = Host(name=LEARNER, delay_ms=5)


def home(name: str, kind: str = "port", num_nodes: int = 1) -> Home:
    return Home(name=name, kind=KINDS[kind], num_nodes=num_nodes, delay_ms=5)


@pytest.mark.parametrize("kind", ["port", "hairpin"])
async def test_two_of_one_home_meet_on_their_own_network(tmp_path: Path, kind: str) -> None:
    """It holds with hairpinning and without, and no node outside learns their inside addresses."""
    homes = [home("a", kind, num_nodes=2), home("b")]
    async with open_village(tmp_path, ["a1", "a2", "b"], homes, [RELAY]) as village:
        _learner, *members = await village.settle("a1", "a2", "b")
        told = await village.introduce(*members)
        statuses = await village.meet(*members)
        assert village.lab is not None
        inside = {name: village.lab.address(name) for name in ("a1", "a2", "b")}
        assert statuses[0]["met"]["a2"][0]["address"].split("/")[2] == inside["a2"]
        assert statuses[1]["met"]["a1"][0]["address"].split("/")[2] == inside["a1"]
        assert any(inside["a2"] in one for one in told["a1"]["a2"])
        assert not any("/192.168." in one for one in [*told["a1"]["b"], *told["b"]["a1"], *told["b"]["a2"]])


async def test_two_that_dial_each_other_at_the_same_moment_end_with_one_connection(tmp_path: Path) -> None:
    """Both dial from the port on which they listen, so that their packets cross and TCP makes one connection of it."""
    hosts = [RELAY, Host(name="one", delay_ms=50), Host(name="two", delay_ms=50)]
    async with open_village(tmp_path, ["one", "two"], hosts=hosts) as village:
        one, two = await village.start("one"), await village.start("two")
        at = time.monotonic() + 0.5
        for here, there in ((one, two), (two, one)):
            addresses = village._dialable(there.name, there.said("ready")[0]["addresses"])
            await here.say("dial", addresses=addresses[:1], wait=at)
        assert [(await player.hear("dialled"))["why"] for player in (one, two)] == ["", ""]
        for player, other in ((one, two), (two, one)):
            await village.see(player, "one connection", lambda status, o=other: len(status["met"].get(o.name, ())) == 1)


async def test_the_relay_dies_while_two_knock_and_they_meet_when_it_is_back(tmp_path: Path, figure: Figure) -> None:
    homes = [home("a"), home("b")]
    async with open_village(tmp_path, ["a", "b"], homes, [RELAY]) as village:
        learner, *members = await village.settle("a", "b")
        assert village.lab is not None
        # No dial succeeds while the path between the homes is cut, so dialling goes on until the relay is gone.
        drop = f"insert rule inet home forward ip daddr 30.77.0.0/24 ip daddr != {village.lab.address(LEARNER)} drop"
        for name in ("arouter", "brouter"):
            await nft(village, name, drop)
        await village.introduce(*members)
        await village.see(learner, "a circuit", lambda status: status["circuits"])
        await learner.kill()
        for member in members:
            await member.hear("gone", peer=LEARNER)
        knocker = min(members, key=lambda member: key_of(member.name).peer_id)
        await knocker.hear("trouble", what="neighbour_not_met")
        for name in ("arouter", "brouter"):
            await nft(village, name, "flush chain inet home forward")
            await nft(village, name, "add rule inet home forward accept")
        learner = await village.start(LEARNER)
        await learner.say("trust", names=["a", "b"])
        back = time.monotonic()
        for member in members:
            await village.see(member, "a relay", lambda status: status["reach"]["relays"])
        await village.introduce(*members)
        await village.meet(*members)
        figure("from the relay's return to their meeting, s", time.monotonic() - back)


async def test_a_router_starts_anew_and_maps_anew_and_all_who_met_meet_again(tmp_path: Path, figure: Figure) -> None:
    """The router forgets all, gives other ports, and drops every packet of a connection that it does not know."""
    homes = [home("a"), home("b"), home("c")]
    async with open_village(tmp_path, ["a", "b", "c"], homes, [RELAY]) as village:
        learner, *members = await village.settle("a", "b", "c")
        await village.introduce(*members)
        await village.meet(*members)
        before = await members[0].status()
        counts = {member.name: len(member.said("gone")) for member in members}
        assert village.lab is not None
        await strict(village, "arouter")
        village.lab.reboot(village.lab.homes[0])
        began = time.monotonic()
        for peer in (LEARNER, "b", "c"):
            await members[0].hear("gone", peer=peer)
        figure("until all is known to be lost, s", time.monotonic() - began)
        await village.meet(*members)
        await village.see(members[0], "the learner", lambda status: LEARNER in status["met"])
        figure("until all have met again, s", time.monotonic() - began)
        assert counts == {"a": 0, "b": 0, "c": 0}
        after = await members[0].status()
        assert before["met"].keys() == after["met"].keys()
        assert not learner.ended


async def test_a_machine_that_slept_is_back_among_all_soon(tmp_path: Path, figure: Figure) -> None:
    """Its process is stopped, its clock is ten minutes ahead, and meanwhile its router forgot it."""
    homes = [home("a"), home("b")]
    async with open_village(tmp_path, ["a", "b"], homes, [RELAY]) as village:
        _learner, *members = await village.settle("a", "b")
        await village.introduce(*members)
        await village.meet(*members)
        sleeper, other = members
        pid = sleeper.said("ready")[0]["pid"]
        assert village.lab is not None
        await strict(village, "arouter")
        await sleeper.say("sleep", seconds=600)
        await sleeper.status()
        os.kill(pid, signal.SIGSTOP)
        village.lab.reboot(village.lab.homes[0])
        await trio.sleep(STOPPED_S)  # the fault itself
        os.kill(pid, signal.SIGCONT)
        woke = time.monotonic()
        await sleeper.hear("gone", peer=other.name)
        await sleeper.hear("gone", peer=LEARNER)
        figure("until it knows that all is lost, s", time.monotonic() - woke, "10")
        await village.see(sleeper, "the learner", lambda status: LEARNER in status["met"])
        figure("until it is back at the learner, s", time.monotonic() - woke)
        await village.meet(*members)
        figure("until it has met its neighbour again, s", time.monotonic() - woke)


async def test_a_node_that_gets_another_address_is_back_among_all_soon(tmp_path: Path, figure: Figure) -> None:
    """As when a laptop leaves one network for another, or its lease runs out."""
    homes = [home("a"), home("b")]
    async with open_village(tmp_path, ["a", "b"], homes, [RELAY]) as village:
        _learner, *members = await village.settle("a", "b")
        await village.introduce(*members)
        await village.meet(*members)
        assert village.lab is not None
        old, namespace = village.lab.address("a"), village.lab.namespace("a")
        new = old.rpartition(".")[0] + ".77"
        commands = [f"addr del {old}/24 dev eth0", f"addr add {new}/24 dev eth0", "route add default via 192.168.1.1"]
        began = time.monotonic()
        ip("-n", namespace, batch="".join(f"{command}\n" for command in commands))
        for peer in (LEARNER, "b"):
            await members[0].hear("gone", peer=peer)
        figure("until it knows that it has moved, s", time.monotonic() - began, "10")
        moved = await village.see(members[0], "the learner", lambda status: LEARNER in status["met"])
        assert any(f"/{new}/" in one for one in moved["addresses"])
        assert not any(f"/{old}/" in one for one in moved["addresses"])
        await village.see(members[0], "a relay", lambda status: status["reach"]["relays"])
        await village.introduce(*members)
        await village.meet(*members)
        figure("until it has met its neighbour again, s", time.monotonic() - began)


async def test_a_node_that_is_started_again_is_seen_at_its_port_again(tmp_path: Path, figure: Figure) -> None:
    """The system holds the ports of its old connection for a minute, so the new one leaves from elsewhere."""
    async with open_village(tmp_path, ["a", "b"], [home("a"), home("b")], [RELAY]) as village:
        learner, *members = await village.settle("a", "b")
        (seen,) = (await members[0].status())["seen_at"]
        await members[0].leave()
        await learner.hear("gone", peer="a")
        began = time.monotonic()
        again = await village.start("a")
        await village.join(again)
        status = await village.see(again, "where it is seen", lambda status: status["seen_at"])
        figure("until it is seen at its port again, s", time.monotonic() - began)
        assert status["seen_at"] == [seen]
        await village.introduce(again, members[1])
        await village.meet(again, members[1])


async def test_a_learner_that_comes_back_lets_nobody_storm(tmp_path: Path, figure: Figure) -> None:
    """The learner of four homes that had all connected is killed. Connected homes stay so, and the others dial once,
    each at its own moment.
    """
    names = ["a", "b", "c", "d"]
    async with open_village(tmp_path, names, [home(name) for name in names], [RELAY]) as village:
        learner, *members = await village.settle(*names)
        await village.introduce(*members)
        await village.meet(*members)
        await learner.kill()
        for member in members:
            await member.hear("gone", peer=LEARNER)
        learner = await village.start(LEARNER)
        await learner.say("trust", names=names)
        for member in members:
            await village.see(member, "a relay", lambda status: status["reach"]["relays"])
        await village.introduce(*members)
        statuses = await village.meet(*members)
        assert (await learner.status())["relayed"] == 0, "a connected member was dialled again"
        assert all(len(those) == 1 for status in statuses for those in status["met"].values())
        assert not any(one["peer"] != LEARNER for member in members for one in member.said("gone"))


PRINTER = """
import socket, sys
listening = socket.create_server(("", 9100))
sys.stdout.write("r")
sys.stdout.flush()
while True:
    print(listening.accept()[1], flush=True)
"""


async def test_a_member_elsewhere_has_nobody_knock_inside_another_home(tmp_path: Path) -> None:
    """The member claims a printer's address, one that half the world's homes have. It tells it to the learner, over a
    circuit, and before hole punching.
    """
    homes = [home("a", num_nodes=2), home("liar")]
    async with open_village(tmp_path, ["a1", "liar"], homes, [RELAY]) as village, trio.open_nursery() as nursery:
        assert village.lab is not None
        command = village.lab.inside("a2", [sys.executable, "-c", PRINTER])
        printer = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert printer.stdout is not None
        await printer.stdout.receive_some()  # it listens
        learner, honest, liar = await village.settle("a1", "liar")
        address = f"/ip4/{village.lab.address('a2')}/tcp/9100"
        await liar.say("lie", addresses=[address])
        await liar.hear("lied")
        told = await village.introduce(honest, liar)
        assert not any("/192.168." in one for one in told["a1"]["liar"])
        knocker = min(honest, liar, key=lambda member: key_of(member.name).peer_id)
        await knocker.hear("trouble", what="neighbour_not_met")
        for number in range(2):
            await liar.say("circuit", relay=LEARNER, peer="a1")
            await liar.hear("circuit_over", after=number)
        printer.kill()
        assert b"".join([some async for some in printer.stdout]).strip() == b"", "somebody knocked"
        assert {learner.ended, honest.ended} == {False}
        nursery.cancel_scope.cancel()


async def test_one_that_lies_about_where_it_sees_others_is_outvoted(tmp_path: Path) -> None:
    hosts = [RELAY, Host(name="honest", delay_ms=5), Host(name="liar", delay_ms=5)]
    async with open_village(tmp_path, ["a", "honest", "liar"], [home("a")], hosts) as village:
        _learner, *members = await village.settle("honest", "liar", "a")
        assert village.lab is not None
        await members[1].say("misreport", observed="/ip4/45.3.2.1/tcp/80")
        await members[1].hear("misreported")
        await village.introduce(*members)
        *_, status = await village.meet(*members)
        await village.see(members[2], "its own address alone", lambda status: len(status["seen_at"]) == 1)
        (seen,) = (await members[2].status())["seen_at"]
        assert seen.split("/")[2] == village.lab.network.address("arouter")
        assert status["reach"]["kind"] == "by_punching"


async def strict(village: Village, router: str) -> None:
    """Make a router drop packets of unknown connections, instead of taking them for the beginning of one."""
    assert village.lab is not None
    path = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose"
    await trio.run_process(village.lab.inside(router, ["sh", "-c", f"echo 0 > {path}"]))


async def nft(village: Village, router: str, rules: str) -> None:
    assert village.lab is not None
    await trio.run_process(village.lab.inside(router, ["nft", "-f", "-"]), stdin=rules.encode())
