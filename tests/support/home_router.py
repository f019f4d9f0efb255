"""Make a home behind a router that maps ports: two nodes, the router with miniupnpd, and the outside, in namespaces.

    node1 192.168.77.2 --+
                         +-- 192.168.77.1 router 30.77.0.1 -- 30.77.0.2 outside
    node2 192.168.77.3 --+

IPv6 is routed: 2a00:77:1::/64 at home, 2a00:77:2::/64 outside, behind a firewall that lets nothing in. miniupnpd needs
addresses that count as public; they reach no real host, since nothing leaves the namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from benchmarks.network.namespaces import inside, ip, open_namespaces, run
from benchmarks.network.requirements import obstacle
from tests.support.paths import ROOT

OUTSIDE = "30.77.0.1"
"""The router's external address."""

NODES = {"node1": 2, "node2": 3}
"""The last part of each node's addresses."""

CHAINS = ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd")

RULES = """
table inet filter {
    chain input {
        type filter hook input priority 0; policy accept;
    }
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname "lan" accept
        meta l4proto ipv6-icmp accept
        jump miniupnpd
    }
    chain prerouting {
        type nat hook prerouting priority -100; policy accept;
        jump prerouting_miniupnpd
    }
    chain postrouting {
        type nat hook postrouting priority 100; policy accept;
        jump postrouting_miniupnpd
        oifname "wan" ip saddr 192.168.77.0/24 masquerade
    }
    chain miniupnpd { }
    chain prerouting_miniupnpd { }
    chain postrouting_miniupnpd { }
}
"""

CONFIGURATION = """
ext_ifname=wan
listening_ip=lan
http_port=5000
enable_natpmp={datagrams}
enable_upnp={upnp}
secure_mode=yes
system_uptime=no
uuid=00000000-0077-0077-0077-000000000077
min_lifetime=120
max_lifetime=86400
allow 1024-65535 192.168.77.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
"""Configuration of miniupnpd. A restart of the daemon is a restart of the router: its epoch begins again."""

NO_PCP = "add rule inet filter input udp dport 5351 @th,64,8 2 drop"
"""A rule by which the router ignores requests whose first byte, the version, is 2."""


START_S = 60.0

READY = {True: b"Listening for NAT-PMP/PCP traffic", False: b"HTTP listening on port"}
"""The daemon's line when it can be asked, with and without datagrams."""


def why_not() -> str:
    """Return why no home router can be had here; empty if one can."""
    if reason := obstacle():
        return reason
    missing = [tool for tool in ("ip", "nft", "miniupnpd") if shutil.which(tool, path=_path()) is None]
    return f"install the Debian packages miniupnpd and nftables: {', '.join(missing)} missing" if missing else ""


@dataclass(kw_only=True)
class Told:
    """The events of a program: a line of JSON on stdout for each."""

    process: trio.Process
    _lines: list[bytes] = field(default_factory=list)
    _partial: bytes = b""

    async def next(self) -> dict[str, Any]:
        """Return the next event. Fail if the program has ended."""
        assert self.process.stdout is not None
        while not self._lines:
            some = await self.process.stdout.receive_some(4096)
            assert some, "the program has ended"
            *self._lines, self._partial = (self._partial + some).split(b"\n")
        return dict(json.loads(self._lines.pop(0)))


@dataclass(frozen=True, kw_only=True)
class Home:
    """The namespaces, and the directory of the daemon's files."""

    namespaces: dict[str, str]
    directory: Path

    @contextmanager
    def daemon(self, *, datagrams: bool, upnp: bool) -> Iterator[None]:
        """Run miniupnpd, which speaks PCP and NAT-PMP, or UPnP, or all, until the block ends; then kill it, as a power
        cut would.
        """
        configuration = self.directory / "miniupnpd.conf"
        yes = {True: "yes", False: "no"}
        configuration.write_text(CONFIGURATION.format(datagrams=yes[datagrams], upnp=yes[upnp]), encoding="ascii")
        command = ["miniupnpd", "-d", "-f", str(configuration), "-P", str(self.directory / "pid")]
        running = subprocess.Popen(
            inside(self.namespaces["router"], command), stderr=subprocess.PIPE, env={**os.environ, "PATH": _path()}
        )
        ready = threading.Event()
        reading = threading.Thread(target=_read, args=(running, READY[datagrams], ready))
        reading.start()
        try:
            assert ready.wait(START_S), "miniupnpd did not report that it listens"
            yield
        finally:
            running.kill()
            running.wait()
            reading.join()
            for chain in CHAINS:
                self.nft(f"flush chain inet filter {chain}")

    def nft(self, rules: str) -> str:
        """Change the router's rules."""
        return run(*inside(self.namespaces["router"], ["nft", "-f", "-"]), stdin=rules)

    def external_ports(self) -> dict[int, str]:
        """Return the router's mappings: the internal address of each external port."""
        listed = run(*inside(self.namespaces["router"], ["nft", "list", "chain", "inet", "filter", CHAINS[1]]))
        return {int(port): host for port, host in re.findall(r"dport (\d+).*dnat ip to ([\d.]+)", listed)}

    async def dial(self, host: str, port: int) -> str:
        """Return who answers at an address, asked from outside; empty if nobody does."""
        code = (
            "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).recv(64).decode())"
        )
        command = inside(self.namespaces["outside"], [sys.executable, "-I", "-S", "-c", code, host, str(port)])
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        return done.stdout.decode().strip()

    @asynccontextmanager
    async def program(self, node: str, arguments: Sequence[str]) -> AsyncIterator[trio.Process]:
        """Run a Python program in a node's namespace, and kill it at the end if it has not ended by itself."""
        command = inside(self.namespaces[node], [sys.executable, *arguments])
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                lambda task_status: trio.run_process(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    check=False,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    task_status=task_status,
                )
            )
            yield process
            nursery.cancel_scope.cancel()


@contextmanager
def open_home() -> Iterator[Home]:
    """Yield a home whose router does not map ports yet."""
    with (
        open_namespaces(["router", "outside", *NODES]) as names,
        tempfile.TemporaryDirectory(prefix="home-router-") as directory,
    ):
        _connect(names)
        home = Home(namespaces=names, directory=Path(directory))
        home.nft(RULES)
        yield home


def _connect(names: dict[str, str]) -> None:
    router, outside = names["router"], names["outside"]
    for name in names.values():
        _sysctl(name, "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
    ip("-n", router, "link", "add", "lan", "type", "bridge")
    ip("-n", router, "addr", "add", "192.168.77.1/24", "dev", "lan")
    ip("-n", router, "addr", "add", "2a00:77:1::1/64", "dev", "lan")
    ip("-n", router, "addr", "add", "fe80::1/64", "dev", "lan")
    ip("-n", router, "link", "set", "lan", "up")
    for node, last in NODES.items():
        ip("-n", router, "link", "add", f"to{last}", "type", "veth", "peer", "name", "eth0", "netns", names[node])
        ip("-n", router, "link", "set", f"to{last}", "master", "lan", "up")
        ip("-n", names[node], "addr", "add", f"192.168.77.{last}/24", "dev", "eth0")
        ip("-n", names[node], "addr", "add", f"2a00:77:1::{last}/64", "dev", "eth0")
        ip("-n", names[node], "link", "set", "eth0", "up")
        ip("-n", names[node], "route", "add", "default", "via", "192.168.77.1")
        ip("-n", names[node], "route", "add", "default", "via", "fe80::1", "dev", "eth0")
    ip("-n", router, "link", "add", "wan", "type", "veth", "peer", "name", "eth0", "netns", outside)
    for name, device, last in ((router, "wan", 1), (outside, "eth0", 2)):
        ip("-n", name, "addr", "add", f"30.77.0.{last}/24", "dev", device)
        ip("-n", name, "addr", "add", f"2a00:77:2::{last}/64", "dev", device)
        ip("-n", name, "link", "set", device, "up")
    ip("-n", outside, "route", "add", "2a00:77:1::/64", "via", "2a00:77:2::1")
    _sysctl(router, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")


def _read(daemon: subprocess.Popen[bytes], mark: bytes, ready: threading.Event) -> None:
    """Read all output of the daemon, which would block if nobody did; set `ready` at the mark."""
    assert daemon.stderr is not None
    with daemon.stderr as lines:
        for line in lines:
            if mark in line:
                ready.set()


def _sysctl(name: str, *settings: str) -> None:
    for setting in settings:
        key, _, value = setting.partition("=")
        path = "/proc/sys/" + key.replace(".", "/")
        run(*inside(name, ["sh", "-c", f"echo {value} > {path}"]))


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
