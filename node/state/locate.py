"""Find the state directory or configuration that a command means.

Invariants:

- A command never guesses which node is meant: a path or a name says it, or there is only one, or only one that runs.
- A path is preferred to a node's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.config.invite_text import is_invite, open_invite
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from node.runtime.formatting import plain_name
from node.state.about import display_name
from node.state.rollout_state import data_directory, swarm_directory
from node.state.status_file import standing_of
from protocol.core.invite import Invite

DEFAULT_CONFIG = Path("swarm.toml")


NAME_ONE = "Name a swarm.toml, or a node by its name or state directory."


@dataclass(frozen=True, kw_only=True)
class StateLocation:
    """A state directory, whether it is a learner's, and the swarm.toml by which it was found, if any."""

    state: Path
    is_learner: bool
    config: SwarmConfig | None = None

    @property
    def database(self) -> Path:
        """Return the database with leases and verdicts: the ledger, or a node's receipts."""
        return self.state / ("ledger.sqlite" if self.is_learner else "receipts.sqlite")

    @property
    def key(self) -> Path:
        return self.state / ("learner.key" if self.is_learner else "node.key")


@dataclass(frozen=True, kw_only=True)
class KnownNode:
    """A rollout node in the usual places. `name`: its display name. `doing`: as its status says; "" if it does not
    run."""

    place: StateLocation
    name: str
    doing: str

    def is_called(self, name: str) -> bool:
        """Whether `name` is the display name or the directory's, such as node-2."""
        return name in (self.name, self.place.state.name)

    @property
    def line(self) -> str:
        """The node in a list: how it is called, what it does, and its state directory."""
        called = self.place.state.name + (f" ({plain_name(self.name)})" if self.name else "")
        return f"{called}: {self.doing or 'not running'}, {self.place.state}"


def find_place(target: Path | None) -> StateLocation:
    """Return the place that `target` names: a path, or a node's display name or directory name.

    Without a target it is ./swarm.toml, or the only node on this machine, or the only one that runs. An invite names
    such a node of its swarm. Raises UsageError.
    """
    if target is None:
        return _usual_place()
    if is_invite(str(target)):
        return _place_of(open_invite(str(target), now_ms=0))
    if target.is_dir():
        if (target / "swarm.toml").exists():
            return find_place(target / "swarm.toml")
        for candidate, is_learner in ((target, True), (target / "state", True), (target, False)):
            place = StateLocation(state=candidate, is_learner=is_learner)
            if place.key.exists():
                return place
        for lost, beside in (("node.key", "receipts.sqlite"), ("learner.key", "genesis")):
            if (target / beside).exists():
                raise UsageError(f"{target / lost} is missing. Restore it from a copy, or name another directory.")
        raise UsageError(f"{target} holds neither a learner nor a node. {NAME_ONE}")
    if not target.exists():
        if called := [node for node in known_nodes() if node.is_called(str(target))]:
            return only_node(called)
        raise UsageError(f"{target}: no such file or directory, and no node here has that name. {NAME_ONE}")
    config = read_swarm_config(target)
    return StateLocation(state=Path(config.swarm.state), is_learner=True, config=config)


def _usual_place() -> StateLocation:
    if DEFAULT_CONFIG.exists():
        return find_place(DEFAULT_CONFIG)
    nodes = known_nodes()
    if not nodes:
        raise UsageError(
            "There is no swarm.toml here and no node on this machine. Name a swarm.toml or a state directory."
        )
    return only_node(nodes)


def known_places() -> Iterator[StateLocation]:
    """Yield the rollout nodes in the usual places of this machine."""
    for key in sorted(data_directory().glob("*/*/node.key")):
        yield StateLocation(state=key.parent, is_learner=False)


def known_nodes() -> list[KnownNode]:
    """Return the same with their names, and what each does now."""
    return [_known(place) for place in known_places()]


def _known(place: StateLocation) -> KnownNode:
    standing = standing_of(place.state)
    return KnownNode(place=place, name=display_name(place.state), doing=standing.doing if standing else "")


def _place_of(invite: Invite) -> StateLocation:
    """Return the only node on this machine that has joined the invite's swarm. Raises UsageError."""
    home = swarm_directory(invite.authority.swarm)
    nodes = [node for node in known_nodes() if node.place.state.parent == home]
    if not nodes:
        name = plain_name(invite.name)
        raise UsageError(
            f"This is an invite to {name!r}, and no node in the usual places of this machine has joined it. {NAME_ONE} "
            "To join: volery join INVITE."
        )
    return only_node(nodes)


def only_node(nodes: Sequence[KnownNode], *, otherwise: str = "") -> StateLocation:
    """Return the only one of `nodes`, or the only one that runs. Raises UsageError that lists them if there is none.

    otherwise: another way to say which nodes are meant, for the message.
    """
    running = [node for node in nodes if node.doing]
    for found in (nodes, running):
        if len(found) == 1:
            return found[0].place
    listed = "\n  ".join(node.line for node in nodes)
    raise UsageError(
        f"{len(nodes)} nodes on this machine may be meant, and {len(running)} of them run. Name one by its name or "
        f"directory{otherwise}:\n  {listed}"
    )
