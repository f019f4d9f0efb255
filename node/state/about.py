"""Read how a node last described itself, for commands on the same machine: `about.json` in its state directory.

The node writes the file at each start, after its receipts were opened.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.errors import RunError

ABOUT_FILE = "about.json"
"""Its name in the state directory. It also shows that there must be receipts."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself. `per_kwh`: price of energy; None if its owner names none."""

    name: str = ""
    engine: str = ""
    machine: str = ""
    per_kwh: float | None = None


def read_about(state: Path) -> About:
    """Return the description in `state`, an empty one if there is none. Raises RunError if it cannot be read."""
    path = state / ABOUT_FILE
    try:
        return msgspec.convert(parse_json(read_file(path)), About)
    except FileNotFoundError:
        return About()
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read ({error}). Move it away: it only describes this node, and the next start writes it "
            "again."
        ) from None


def display_name(state: Path) -> str:
    """Return the node's display name, "" if it has none, or if the file is damaged, which only describes the node."""
    try:
        return read_about(state).name
    except RunError:
        return ""
