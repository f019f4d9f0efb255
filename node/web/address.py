"""Choose where a live page is: read `[web] listen`, and open the listening socket.

Invariants:

- Without a port in `listen`, a run keeps the port that it had, as long as that is free. So an open page finds its
  program again after a restart.
- A port that another program uses is an ordinary outcome: the run goes on without a page.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import sys
import time
from dataclasses import dataclass

from node.runtime.errors import UsageError

FIRST_PORT = 7463
"""Port of the first page on a machine. No registered service uses it."""

USUAL_PORTS = range(FIRST_PORT, FIRST_PORT + 32)
"""Ports that are tried first; more programs than that rarely run on one machine."""

BACKLOG = 64

PATIENCE_S = 3.0
"""Seconds for which a learner tries the port that its page had again: the page server of a learner that was killed
holds it that long at most."""

PAUSE_S = 0.1

UNREAD_MS = 20_000
"""Milliseconds after which the system closes a connection whose browser takes nothing of what it is sent. Linux alone
can do that."""

_LISTEN = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(:(?P<port>[0-9]{1,5}))?"
)


class PortTaken(Exception):
    """No port is free for the page. The message says which were tried."""


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where to listen. `port`: None for one that is free."""

    host: str
    port: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return ipaddress.ip_address(self.host).is_loopback


def read_listen(text: str) -> Listen | None:
    """Return what `[web] listen` means: "HOST", "HOST:PORT", "[IPv6]:PORT"; None if it is "". Raises UsageError.

    HOST is an address of this machine, or "localhost".
    """
    if not text:
        return None
    match = _LISTEN.fullmatch(text)
    host = match["host"].strip("[]") if match else ""
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f'[web] listen = "{text}" is no address. Write "127.0.0.1" (this machine alone), "0.0.0.0" (every network) '
            'or "0.0.0.0:7463" (with a port), or "" for no page.'
        ) from None
    assert match is not None
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 0 < port < 1 << 16:
        raise UsageError(f'[web] listen = "{text}": a port is a number from 1 to 65535.')
    return Listen(host=host, port=port)


def open_listener(listen: Listen, before: int | None = None, *, patience_s: float = 0.0) -> socket.socket:
    """Return a listening socket, which a child process may inherit. Raises PortTaken.

    before: the port that the page had. It is tried first, for `patience_s` while it is in use.
    """
    tried = [listen.port] if listen.port is not None else [*filter(None, [before]), *USUAL_PORTS, 0]
    for port in tried:
        ends = time.monotonic() + (patience_s if port == before else 0.0)
        while True:
            try:
                return _bound(listen.host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= ends:
                    break
            time.sleep(PAUSE_S)
    shown = f"port {tried[0]} is in use by another program" if listen.port is not None else "no port is free"
    raise PortTaken(
        f"{listen.host}: {shown}, or this machine has no such address. Set [web] listen to another address or port."
    )


def url_of(listener: socket.socket, token: str = "") -> str:
    """Return the page's address for a browser on this machine, with the token that allows changes, if one is given."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")


def _bound(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    found.set_inheritable(True)
    return found
