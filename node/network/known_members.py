"""Remember over a restart where members came from, so that they are let in before strangers.

The learner's state directory has `members.json`: peer ids and the network addresses (for IPv6 the /64 network) that
they last came from. It only decides who goes first if there is no room for all (`swarm/libp2p/connection_gate.py`).

Invariants:

- A file that is missing, damaged or cannot be written costs members their precedence, and nothing else.
- At most MOST members are remembered: those seen last.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import trio

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from swarm.transport.interface import Transport

FILE = "members.json"

MOST = 4096
"""Most members that are remembered, the same number as in the connection gate: some 400 KiB."""

MAX_FILE_BYTES = MOST * 256

NOTED_EVERY_S = 10.0
"""Seconds between checks for new members, after which the file is written. A kill loses at most this time."""


@dataclass(kw_only=True)
class KnownMembers:
    """Remember members over a restart. `root` is the learner's state directory."""

    root: Path
    transport: Transport
    events: EventLog
    _origins: dict[PeerId, str] = field(default_factory=dict)

    def recall(self, awaited: Collection[PeerId] = ()) -> None:
        """Tell the transport which members were here before, and for which of these work waits (`awaited`)."""
        path = self.root / FILE
        try:
            self._origins = _read(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            text = f"{path} cannot be read: {error}. Members have no precedence until they return. It is rewritten."
            self.events.trouble(text)
            return
        self.transport.expect(self._origins, awaited)

    async def keep(self) -> None:
        """Write the members who are here whenever one is new, until cancelled."""
        is_told = False
        while True:
            await trio.sleep(NOTED_EVERY_S)
            if not (data := self.news()):
                continue
            try:
                await trio.to_thread.run_sync(write_durably, self.root / FILE, data)
            except RunError as error:
                if not is_told:
                    self.events.trouble(str(error))
                is_told = True

    def news(self) -> bytes:
        """Return the new contents of the file; empty if it has them already."""
        before = dict(self._origins)
        for peer, origin in self.transport.origins().items():
            if self._origins.get(peer) != origin:
                self._origins.pop(peer, None)
                self._origins[peer] = origin
        for peer in list(self._origins)[:-MOST]:
            del self._origins[peer]
        return json.dumps(self._origins, indent=0).encode() if self._origins != before else b""


def recalled(root: Path) -> bool:
    """Return whether the learner with this state directory had members when it last ran."""
    try:
        return bool(_read(root / FILE))
    except (OSError, ValueError):
        return False


def _read(path: Path) -> dict[PeerId, str]:
    """Return the members and their addresses. Raises OSError, ValueError."""
    read = parse_json(read_file(path, MAX_FILE_BYTES))
    if not isinstance(read, dict) or not all(isinstance(origin, str) for origin in read.values()):
        raise ValueError("it is not a table of peers and addresses")
    return {PeerId(peer): origin for peer, origin in list(read.items())[-MOST:]}
