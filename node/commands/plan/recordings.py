"""Find the recording that a person means, and read all of it.

Invariants:

- Nothing is concluded from a recording before all of it was read.
- A line that is not an event is a UsageError that names it. Only a last line that a kill cut off is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from learner.artifacts.regular_file import open_file
from learner.provisioning.estimation.recording import FILE, Recorded, RecordingError, read_lines
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from node.runtime.formatting import NAME_CHARS, plain_name
from protocol.core.ids import short

MAX_LINE_BYTES = 1 << 20
"""Most bytes of a line: a plan that names 8192 peers takes half of that."""

SIMULATED_CHARS = 64
"""Most characters of a simulated machine's name: those that a pool allows, and the number of one of several."""


def find_recording(target: Path) -> tuple[Path, SwarmConfig | None]:
    """Return the recording that `target` leads to, and the swarm.toml on the way. Raises UsageError."""
    if target.is_dir() and (target / "swarm.toml").is_file():
        return find_recording(target / "swarm.toml")
    if target.is_dir():
        found = next((one for one in (target / FILE, target / "state" / FILE) if one.is_file()), None)
        if found is None:
            raise UsageError(f"{target} holds no {FILE}, so no learner ran there. Name a learner's state directory.")
        return found, None
    if not target.exists():
        raise UsageError(f"{target}: no such file or directory. Name a {FILE}, a swarm.toml or a state directory.")
    if target.suffix != ".toml":
        return target, None
    config = read_swarm_config(target)
    path = Path(config.swarm.state) / FILE
    if not path.is_file():
        raise UsageError(f"{path} does not exist: run the swarm of {target} first, with `volery learn {target}`.")
    return path, config


def read_events(path: Path) -> list[Recorded]:
    """Return all events of the recording in `path`, none if it is empty. Raises UsageError."""
    try:
        with open_file(path) as file:
            events = list(read_lines(_lines(file, path), str(path)))
            if not events and file.tell():
                raise RecordingError(f"{path} holds no complete line. Name a {FILE}, or a directory that has one.")
            return events
    except RecordingError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def peer_names(called: Mapping[str, str]) -> dict[str, str]:
    """Return how tables name each peer: its display name and the end of its id, or the whole id if two names are equal.

    The name of a simulated peer is its id.
    """
    names = {peer: _peer_name(peer, name) for peer, name in called.items()}
    often = Counter(names.values())
    return {peer: name if often[name] == 1 else peer for peer, name in names.items()}


def _peer_name(peer: str, name: str) -> str:
    if name == peer:
        return plain_name(name, SIMULATED_CHARS)
    return f"{plain_name(name, NAME_CHARS) or 'peer'} {short(peer)}"


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise RecordingError(f"{path}, line {number} is longer than {MAX_LINE_BYTES} bytes: it is no recording.")
        yield line
