"""Describe a service: what it runs, what it is called, and the line by which its file is recognised.

The file that a service manager reads is the only record of a service, so nothing can disagree with it. A comment in
the file holds the facts that `volery service status` needs.

Invariants:

- A service's name consists of ASCII letters, digits, `-`, `.` and `_`, whatever the swarm is called. Two swarms have
  the same name only if they are called the same.
- Arguments and variables hold no control characters, which the files could not hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from node.runtime.errors import UsageError, shortened

ServiceRole = Literal["learner", "node"]

PREFIX = "volery-"
"""Every service's name begins with it."""

MAX_NAME = 100
"""Most characters of the part of a name that the swarm decides. A file name has room for 255."""

DIGEST = 8
"""Characters of a digest that end a name which was too long, so that two such names differ."""

MEMORY_SHARE = 0.9
"""Fraction of the machine's memory that a service may use by default. The rest lets its owner log in and end it."""

NICE = {"node": 5, "learner": 0}
"""Niceness by default. A node is lent, so its owner's programs go first; 5 is also the default of its engine."""

STOP_S = {"node": 30, "learner": 120}
"""Seconds between SIGTERM and SIGKILL. A node hands over what it has generated in 3 s, and ends its engine. A learner
writes a checkpoint, for which it takes up to 60 s."""

STOPPED, USAGE = 130, 2
"""Exit codes after which a service is not started again: somebody stopped it, or the next start would fail alike."""

FIRST_PAUSE_S = 10
LONGEST_PAUSE_S = 600
"""Seconds between two starts after failures, where the service manager lets the pause grow. A learner that is away
for a night is asked 50 times."""

CONSTANT_PAUSE_S = 60
"""The same where the manager knows one pause only."""

MARK = re.compile(r"volery-service: (\{.*\})")


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """A service that is to be installed.

    Args:
        title: the swarm's name, for people.
        called: the name that the service's own is made from: the swarm's, or what the owner chose.
        state: the state directory of the node or learner.
        command: the program and its arguments, all paths absolute.
        environment: variables that the program needs and a service manager would not set.
        memory_gb: maximum memory in 10^9 bytes; None: MEMORY_SHARE of the machine's.
    """

    role: ServiceRole
    title: str
    called: str
    state: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    memory_gb: float | None
    nice: int

    def __post_init__(self) -> None:
        for text in (*self.command, *self.environment.values()):
            if not text.isprintable():
                raise UsageError(
                    f"{shortened(text)!r} holds characters that a service's file may not hold. Choose a directory with "
                    "a plain name."
                )

    @property
    def name(self) -> str:
        """Return the service's name, which is also the name of its file."""
        return f"{PREFIX}{self.role}-{escaped(self.called)}"

    @property
    def description(self) -> str:
        return f"Volery {self.role} of the swarm {self.title}"

    @property
    def stop_s(self) -> int:
        return STOP_S[self.role]

    @property
    def mark(self) -> str:
        """Return the line that tells what a file is, for a comment. It holds no "--", which would end one in XML."""
        facts = {"name": self.name, "role": self.role, "swarm": self.title, "state": str(self.state)}
        return f"volery-service: {json.dumps(facts)}".replace("--", "-\\u002d")


@dataclass(frozen=True, kw_only=True)
class InstalledService:
    """A service whose file is on this machine."""

    name: str
    role: ServiceRole
    swarm: str
    state: Path
    file: Path


def read_mark(text: str, file: Path) -> InstalledService | None:
    """Return the service that the text of `file` describes; None if it is not one of ours."""
    if (found := MARK.search(text)) is None:
        return None
    try:
        facts = json.loads(found.group(1))
        role: ServiceRole = "learner" if facts["role"] == "learner" else "node"
        return InstalledService(
            name=str(facts["name"]), role=role, swarm=str(facts["swarm"]), state=Path(facts["state"]), file=file
        )
    except (ValueError, KeyError, TypeError):
        return None


def escaped(name: str) -> str:
    """Return `name` with every byte that is no ASCII letter, digit, `-` or `.` as `_xx`; shortened if it is long."""
    plain = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or byte in b"-.") else f"_{byte:02x}"
        for byte in name.encode("utf-8", "surrogateescape")
    )
    if len(plain) <= MAX_NAME:
        return plain
    digest = sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST]
    return f"{plain[: MAX_NAME - DIGEST - 1]}-{digest}"
