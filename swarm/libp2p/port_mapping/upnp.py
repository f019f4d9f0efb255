"""Ask one gateway for one port by UPnP, through `upnp_worker`, a process that is ended when it takes too long.

Invariants:

- A call takes at most CALL_S, after which its process is dead.
- The reply of the process is limited to MAX_REPLY_BYTES, and checked like a gateway's answer, since a gateway may have
  taken the process over.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from swarm.libp2p.port_mapping.gateway_client import GatewayClient
from swarm.libp2p.port_mapping.lease import FIRST_RANDOM_PORT, Forgot, Moved
from swarm.libp2p.port_mapping.outcomes import Answer, Granted, IPAddress, MappedBy, NoAnswer, Refused, why_no_external
from swarm.libp2p.sockets.addresses import Address

WORKER = Path(__file__).with_name("upnp_worker.py")

CALL_S = 8.0
"""Seconds for a description, an address and four requests; each takes a home router up to a second."""

MAX_REPLY_BYTES = 4096

NUM_PORTS = 3
"""External ports that one call tries."""

log = logging.getLogger(__name__)

NO_ANSWER = NoAnswer(why="the router does not answer UPnP in time")


@dataclass(kw_only=True)
class UpnpWay:
    """A mapping by UPnP, which is ours while the gateway lists our address and port."""

    client: GatewayClient
    internal_port: int
    url: str
    """The URL of the gateway's description."""
    protocol: MappedBy = MappedBy.UPNP
    _port: int = 0
    """The external port that we have, 0 for none."""
    _host: str = ""

    async def ask(self, external_port: int, lifetime_s: int) -> Answer:
        """Ask for the port, or renew it."""
        spread = range(FIRST_RANDOM_PORT, 65536)
        others = [spread[(external_port * 7919 + turn * 15013) % len(spread)] for turn in range(1, NUM_PORTS)]
        reply = await self._call("map", ports=[external_port, *others], lifetime_s=lifetime_s)
        match reply:
            case None:
                return NO_ANSWER
            case {"error": str(why)}:
                return Refused(why=f"the router's UPnP says: {why}", is_conflict=reply.get("is_conflict") is True)
            case {"external_port": int(port), "host": str(host), "lifetime_s": int(granted_s)}:
                return self._granted(port, host, granted_s)
            case _:
                return Refused(why="the router's answer by UPnP could not be read")

    async def look(self) -> Forgot | Moved | None:
        """Return what happened to the mapping; None if nothing did, or the gateway is silent."""
        match await self._call("look", external_port=self._port):
            case {"is_ours": False}:
                return Forgot(why="the router no longer lists it")
            case {"is_ours": True, "host": str(host)} if host != self._host and not _why_bad(host, self._port):
                self._host = host
                return Moved(host=host)
        return None

    async def release(self) -> None:
        """Delete the mapping."""
        if self._port:
            await self._call("unmap", external_port=self._port)

    def _granted(self, port: int, host: str, lifetime_s: int) -> Answer:
        if why := _why_bad(host, port):
            return Refused(why=f"the router grants an address that cannot be used: {why}")
        self._port, self._host = port, host
        return Granted(external=Address(kind="ip4", host=host, port=port), lifetime_s=lifetime_s)

    async def _call(self, do: str, **details: object) -> Mapping[str, object] | None:
        request = {
            "do": do,
            "url": self.url,
            "gateway": str(self.client.gateway.host),
            "internal_port": self.internal_port,
            **details,
        }
        command = [sys.executable, "-I", str(WORKER), json.dumps(request)]
        output = b""
        run = partial(
            trio.run_process,
            command,
            stdin=b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            deliver_cancel=_kill,
        )
        try:
            with trio.move_on_after(CALL_S):
                async with trio.open_nursery() as nursery:
                    process: trio.Process = await nursery.start(run)
                    assert process.stdout is not None
                    while len(output) <= MAX_REPLY_BYTES and (some := await process.stdout.receive_some()):
                        output += some
                    nursery.cancel_scope.cancel()
        except* OSError as errors:
            log.debug("the process that speaks UPnP did not start: %s", errors.exceptions[0])
        return _parse(output)


async def _kill(process: trio.Process) -> None:
    """Kill the process: it has nothing to tidy up."""
    process.kill()


def _parse(output: bytes) -> Mapping[str, object] | None:
    """Return the reply of the process; None if there is none that can be read."""
    if len(output) > MAX_REPLY_BYTES:
        return None
    try:
        reply = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return reply if isinstance(reply, dict) else None


def _why_bad(host: str, port: int) -> str:
    try:
        ip: IPAddress = ipaddress.IPv4Address(host)
    except ValueError:
        return "it names no IPv4 address"
    return why_no_external(ip, port) if 0 <= port < 65536 else f"{port} is no port"
