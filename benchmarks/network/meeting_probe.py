"""Check whether two nodes can connect: both dial at the same time, each from the port that it listens on.

    one    SYN --> router, which lets the answer in       router, which swallows what comes too early <-- SYN    other

Each dials the address at which a public host saw the other. TCP repeats a SYN that was swallowed; this module repeats
one that was refused. It uses no library and no protocol, so no method can connect a pair that fails here.

Invariant: two nodes have connected only if one of them received a byte over a connection between their ports.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.network.homes import WITNESSES, Laboratory
from benchmarks.network.ports import FAMILIES, Place, Port, address_of, seen_by

MEET_S = 4.0
"""Timeout for two nodes: SYNs are sent after 0, 1 and 3 seconds, and the next one would come after 7."""

KNOCK_AGAIN_S = 0.25
"""Pause after a refused SYN. A shorter one would cause thousands of tries: a symmetric router draws another port for
each, and would at some time draw the one that the other side waits for."""

POLL_S = 0.05
"""Seconds between checks for the next dial."""


def meet(lab: Laboratory, one: str, other: str) -> bool:
    """Return whether two nodes get a connection that carries bytes, over IPv6 if both have it. Raises ProbeFailed."""
    family = next((it for it in reversed(FAMILIES) if address_of(lab, one, it) and address_of(lab, other, it)), None)
    if family is None:
        return False
    with Port(lab, one, family) as here, Port(lab, other, family) as there, Port(lab, WITNESSES[0], family) as witness:
        sides = [Side(port=here, target=seen_by(there, witness)), Side(port=there, target=seen_by(here, witness))]
        ends = time.monotonic() + MEET_S + lab.round_trip_s(one, other)
        while time.monotonic() < ends:
            poll = select.poll()
            for side in sides:
                side.knock()
                side.register(poll)
            ready = {fd for fd, _ in poll.poll(POLL_S * 1000)}
            if any(side.heard(ready) for side in sides):
                return True
    return False


@dataclass(kw_only=True)
class Side:
    """One of two nodes that connect: it dials the other until a byte has come."""

    port: Port
    target: Place
    knocking: socket.socket | None = None
    again_s: float = 0.0
    """When to dial again, monotonic."""
    connected: list[socket.socket] = field(default_factory=list)

    def knock(self) -> None:
        """Begin to connect, unless an attempt is under way."""
        if self.knocking is None and not self.connected and time.monotonic() >= self.again_s:
            self.again_s = time.monotonic() + KNOCK_AGAIN_S
            with suppress(OSError):  # refused at once, or the port is busy with the same connection
                self.knocking = self.port.connect(self.target)

    def register(self, poll: select.poll) -> None:
        """Register the sockets whose events are awaited."""
        poll.register(self.port.listener, select.POLLIN)
        if self.knocking is not None:
            poll.register(self.knocking, select.POLLOUT)
        for connected in self.connected:
            poll.register(connected, select.POLLIN)

    def heard(self, ready: set[int]) -> bool:
        """Handle the ready sockets; return whether a byte came from the other."""
        for connected in [one for one in self.connected if one.fileno() in ready]:
            with suppress(ConnectionError):
                if connected.recv(1):
                    return True
            self.connected.remove(connected)
        if self.knocking is not None and self.knocking.fileno() in ready:
            failed = self.knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self.knocking.close()
            else:
                self._take(self.knocking)
            self.knocking = None
        if self.port.listener.fileno() in ready:
            with suppress(BlockingIOError):
                self._take(self.port.accept())
        return False

    def _take(self, connected: socket.socket) -> None:
        with suppress(ConnectionError):
            connected.send(b"x")
            self.connected.append(connected)
