"""Speak UPnP with one gateway: take one request as JSON, answer with one line of JSON, and end.

    {"do": "map", "url": ..., "gateway": ..., "internal_port": 4001, "ports": [4001, 20000], "lifetime_s": 1200}
    {"external_port": 4001, "host": "203.0.113.7", "lifetime_s": 1200}          or {"error": ..., "is_conflict": true}
    {"do": "look", ..., "external_port": 4001}      {"is_ours": true, "host": "203.0.113.7"}
    {"do": "unmap", ..., "external_port": 4001}     {}

Why a process: its library, miniupnpc 2.3, releases the GIL while it waits, so in that respect a thread would do. But
the library reads an answer for as long as the gateway sends one, without a limit on bytes or time, and parses it in C.
A thread in it cannot be ended, and a process can. A process also has a limit on its memory, and does not take this node
down when it crashes.

The library fetches the description without following redirects. It takes the control URL from the description, which
may name another machine, so we check that URL before anything is sent there. It uses the first of WANIPConnection and
WANPPPConnection that the description lists, whether or not that one is connected.

Its Python binding lacks AddPinhole (WANIPv6FirewallControl), so IPv6 firewalls are opened by PCP only. It asks
AddAnyPortMapping for a mapping without end, which our next request shortens. It has no error classes: all errors are
`Exception`, told apart by their text, which is "Success" for a search that found nothing.

Invariants:

- A mapping that lists another machine, or another port of ours, is neither replaced nor deleted. A router that does not
  say what it lists is believed when it says that a port is taken.
- The process ends after MAX_RUN_S, whatever the gateway does, and takes at most MAX_MEMORY_BYTES (on Linux).
"""

from __future__ import annotations

import ipaddress
import json
import resource
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import miniupnpc

MAX_RUN_S = 30
"""Seconds. The parent process gives up sooner; this is for a parent that is gone."""

MAX_MEMORY_BYTES = 128 << 20
"""Bytes of address space. Python and the library need a quarter."""

DESCRIPTION = "volery"
"""The description that the router's owner reads in its list of mappings."""

CONFLICTS = ("ConflictInMappingEntry", "ConflictWithOtherMechanisms", "Conflict")
"""Texts of codes 718 and 729: others have that port."""

ONLY_PERMANENT = "OnlyPermanentLeasesSupported"
"""Text of code 725: old gateways know no lifetime."""


class Refusal(Exception):
    """The gateway refused; the message is its text."""

    def __init__(self, why: str, *, is_conflict: bool = False) -> None:
        super().__init__(why)
        self.is_conflict = is_conflict


class Igd:
    """The gateway that `url` describes."""

    def __init__(self, url: str, gateway: str) -> None:
        self._upnp = miniupnpc.UPnP()
        control = self._call("selectigd", url)
        if not _is_at(str(control), gateway):
            raise Refusal(f"the description names a control URL that is not at the router: {str(control)[:256]}")
        self.own = str(self._upnp.lanaddr)

    def map(self, internal_port: int, ports: list[int], lifetime_s: int) -> dict[str, object]:
        """Map the first of the ports, or one that the gateway chooses, or another of the ports that is free."""
        first, *others = ports
        found = self._map_one(first, internal_port, lifetime_s) or self._map_any(first, internal_port, lifetime_s)
        for port in others:
            found = found or self._map_one(port, internal_port, lifetime_s)
        if found is None:
            raise Refusal("other machines have the ports that were tried", is_conflict=True)
        return found

    def look(self, internal_port: int, external_port: int) -> dict[str, object]:
        """Return whether the mapping lists us, and the gateway's address."""
        return {"is_ours": self._holder(external_port) == (self.own, internal_port), "host": self._host()}

    def unmap(self, internal_port: int, external_port: int) -> dict[str, object]:
        """Delete the mapping if it is ours."""
        if self._holder(external_port) == (self.own, internal_port):
            self._call("deleteportmapping", external_port, "TCP")
        return {}

    def _map_one(self, port: int, internal_port: int, lifetime_s: int) -> dict[str, object] | None:
        """Map this port; return None if others have it."""
        if self._holder(port) not in (None, (self.own, internal_port)):
            return None
        try:
            self._add(port, internal_port, lifetime_s)
        except Refusal as refusal:
            if refusal.is_conflict:
                return None
            raise
        return self._granted(port, internal_port, lifetime_s)

    def _map_any(self, port: int, internal_port: int, lifetime_s: int) -> dict[str, object] | None:
        """Map a port that the gateway chooses; return None if it chooses none, as IGD 1 does not."""
        try:
            chosen = int(self._call("addanyportmapping", port, "TCP", self.own, internal_port, DESCRIPTION, ""))
        except Refusal:
            return None
        self._add(chosen, internal_port, lifetime_s)  # gives it its end
        return self._granted(chosen, internal_port, lifetime_s)

    def _add(self, port: int, internal_port: int, lifetime_s: int) -> None:
        """Map the port, without end if the gateway knows no lifetimes."""
        try:
            self._call("addportmapping", port, "TCP", self.own, internal_port, DESCRIPTION, "", lifetime_s)
        except Refusal as refusal:
            if str(refusal) != ONLY_PERMANENT:
                raise
            self._call("addportmapping", port, "TCP", self.own, internal_port, DESCRIPTION, "", 0)

    def _granted(self, port: int, internal_port: int, lifetime_s: int) -> dict[str, object] | None:
        """Return the mapping. Two nodes may have asked at the same time: the one that is listed has it."""
        if self._holder(port) not in (None, (self.own, internal_port)):
            return None
        return {"external_port": port, "host": self._host(), "lifetime_s": lifetime_s}

    def _holder(self, port: int) -> tuple[str, int] | None:
        """Return where the gateway forwards the port to; None if nowhere, or if it does not say."""
        found = self._call("getspecificportmapping", port, "TCP")
        return (str(found[0]), int(found[1])) if found else None

    def _host(self) -> str:
        return str(ipaddress.IPv4Address(str(self._call("externalipaddress"))))

    def _call(self, name: str, *arguments: object) -> Any:
        """Call the library. It raises Exception itself, with the gateway's text or its own."""
        try:
            return getattr(self._upnp, name)(*arguments)
        except Exception as error:
            why = str(error)[:256]
            raise Refusal(why, is_conflict=why in CONFLICTS) from error


def answer(request: dict[str, Any]) -> dict[str, object]:
    """Perform a request."""
    try:
        igd = Igd(str(request["url"]), str(request["gateway"]))
        match request["do"]:
            case "map":
                return igd.map(request["internal_port"], request["ports"], request["lifetime_s"])
            case "look":
                return igd.look(request["internal_port"], request["external_port"])
            case _:
                return igd.unmap(request["internal_port"], request["external_port"])
    except Refusal as refusal:
        return {"error": str(refusal), "is_conflict": refusal.is_conflict}
    except ValueError as error:  # an external address that is invalid
        return {"error": str(error)[:256], "is_conflict": False}


def _is_at(url: str, gateway: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and ipaddress.ip_address(parts.hostname or "") == ipaddress.ip_address(gateway)
    except ValueError:
        return False


def main() -> None:
    """Limit what the library may take, then perform the request in the first argument."""
    signal.alarm(MAX_RUN_S)
    if sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(answer(json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
