"""Provide a port of a node that listens and that connections are dialled from, as hole punching needs it.

Invariants:

- Sockets belong to this process, each created in the namespace of its node.
- No socket blocks.
- Closing the port closes them all.
"""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack, suppress

from benchmarks.network.homes import Laboratory
from benchmarks.network.namespaces import socket_in

TIMEOUT_S = 1.5
"""Timeout beyond a round trip: TCP repeats a lost SYN after one second."""

FAMILIES = (socket.AF_INET, socket.AF_INET6)
ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}

IN, REFUSED, SILENT = "let in", "refused", "swallowed"

Place = tuple[str, int]


class ProbeFailed(Exception):
    """A router does not behave as its kind does, or could not be observed. The message says which, and how."""


class Port:
    """A port of a node that listens, and that connections are dialled from. Closing it closes all its sockets."""

    def __init__(self, lab: Laboratory, node: str, family: socket.AddressFamily, number: int = 0) -> None:
        self.lab, self.node, self.family = lab, node, family
        self._opened = ExitStack()
        self.listener = self._bound(number)
        self.listener.listen()
        self.listener.setblocking(False)
        self.number = int(self.listener.getsockname()[1])

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def place(self) -> Place:
        """Its address and port in its own network."""
        return address_of(self.lab, self.node, self.family), self.number

    def connect(self, remote: Place) -> socket.socket:
        """Begin to connect from this port; the socket does not block."""
        connecting = self._bound(self.number)
        connecting.setblocking(False)
        with suppress(BlockingIOError):
            connecting.connect(remote)
        return connecting

    def accept(self) -> socket.socket:
        """Return an incoming connection. Raises BlockingIOError without one."""
        accepted, _ = self.listener.accept()
        accepted.setblocking(False)
        return self._opened.enter_context(accepted)

    def _bound(self, number: int) -> socket.socket:
        made = socket_in(self.lab.namespace(self.node), self.family, socket.SOCK_STREAM)
        self._opened.enter_context(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((ANY[self.family], number))
        return made


def seen_by(mine: Port, witness: Port) -> Place:
    """Connect to a public host, and return our outside address there. Raises ProbeFailed."""
    time_limit = answer_timeout_s(mine.lab, mine.node, witness.node)
    answer = answer_to(mine.connect(witness.place), time_limit)
    if answer != IN:
        raise ProbeFailed(f"{mine.node} does not reach {witness.node}, a public host: its SYN was {answer}")
    arrival = select.poll()
    arrival.register(witness.listener, select.POLLIN)
    if not arrival.poll(time_limit * 1000):  # the last part of the handshake is still on its way
        raise ProbeFailed(f"{mine.node} connected to {witness.node}, a public host, which saw no connection")
    host, port, *_ = witness.accept().getpeername()
    return host, port


def answer_to(knocking: socket.socket, timeout_s: float) -> str:
    """Return the answer to a SYN: IN, REFUSED, or SILENT."""
    poll = select.poll()
    poll.register(knocking, select.POLLOUT)
    if not poll.poll(max(timeout_s, 0) * 1000):
        return SILENT
    error = knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error not in {0, errno.ECONNREFUSED}:
        raise ProbeFailed(f"a SYN could not be sent: {errno.errorcode.get(error, error)}")
    return REFUSED if error else IN


def address_of(lab: Laboratory, node: str, family: int) -> str:
    return lab.address(node) if family == socket.AF_INET else lab.address6(node)


def answer_timeout_s(lab: Laboratory, one: str, other: str) -> float:
    return TIMEOUT_S + lab.round_trip_s(one, other)
