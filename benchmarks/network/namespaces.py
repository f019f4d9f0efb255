"""Create Linux network namespaces that remove themselves.

Invariants:

- When their owner closes them or dies in any way, a guard process kills what still runs inside and removes them. If
  the guard dies too, the next `open_namespaces` on this machine does it.
- Only namespaces are created, so removing them removes everything.
- They conflict with nothing: names carry the owner, and two owners may use the same addresses inside.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.network.requirements import NetworkUnavailable

NAME = re.compile(r"volery-(?P<pid>\d+)-(?P<started>\d+)-\d+-[a-z0-9]+")
"""The owner's process, its start (ids are reused), the number of its network, and the node."""

CLONE_NEWNET = 0x40000000
"""The flag for a network namespace (linux/sched.h)."""

GUARD = """
cat >/dev/null
for name in "$@"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$name" 2>/dev/null
done
exit 0
"""
"""Waits until its stdin ends, which happens at the end of the owner's process, however it ends."""

_serial = count()


@contextmanager
def open_namespaces(nodes: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield namespaces, by node, while the block lasts; at its end, processes that still run in them are killed.

    Names of nodes are letters and digits. Raises NetworkUnavailable.
    """
    remove_stale()
    prefix = f"volery-{os.getpid()}-{_started(os.getpid())}-{next(_serial)}"
    names = {node: f"{prefix}-{node}" for node in nodes}
    if bad := [name for name in names.values() if NAME.fullmatch(name) is None]:
        raise ValueError(f"not a name for a namespace: {bad[0]}")
    # A session of its own, so that Ctrl-C in a terminal reaches the owner, who then closes in order.
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", *names.values()], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        guard.communicate()


def inside(namespace: str, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` in `namespace`; its process id is that of `argv` itself."""
    return ["ip", "netns", "exec", namespace, *argv]


def socket_in(namespace: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Return a socket of this process in `namespace`: a socket stays in the namespace where its thread created it.

    Raises OSError.
    """
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            return socket.socket(family, kind, protocol)
        finally:
            _enter(here)
    finally:
        os.close(here)


def _enter(namespace: int) -> None:
    """Move only this thread to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def ip(*arguments: str, batch: str | None = None) -> str:
    """Run iproute2's `ip`; `batch` is commands for its stdin. Raises NetworkUnavailable with its error output."""
    return run("ip", *arguments, *(["-batch", "-"] if batch is not None else []), stdin=batch)


def run(*argv: str, stdin: str | None = None) -> str:
    """Run a command and return its output. Raises NetworkUnavailable with its error output."""
    done = subprocess.run(argv, input=stdin or "", text=True, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"code {done.returncode}"
        raise NetworkUnavailable(f"`{' '.join(argv)}` failed: {reason}. The network needs root, veth, bridge and tbf.")
    return done.stdout


def remove_stale() -> list[str]:
    """Remove, and return, namespaces whose owner is gone and whose guard did not remove them."""
    found = [NAME.match(line) for line in ip("netns", "list").splitlines()]
    stale = [m.group() for m in found if m is not None and _started(int(m["pid"])) != m["started"]]
    subprocess.run(["sh", "-c", GUARD, "guard", *stale], stdin=subprocess.DEVNULL, check=True)
    return stale


def _started(pid: int) -> str:
    """Return the kernel's start tick of a process, empty without one; it detects another process with the same id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19]
