"""Find the state directory or configuration that a command means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.config.invite_text import is_invite, open_invite
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from node.runtime.formatting import plain_name
from node.state.rollout_state import data_directory, swarm_directory
from protocol.core.invite import Invite

DEFAULT_CONFIG = Path("swarm.toml")


NAME_ONE = "Name a swarm.toml, or a node's state directory."


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


def find_place(target: Path | None) -> StateLocation:
    """Return the place that `target` names; without a target ./swarm.toml, or the only node on this machine. An invite
    names the only node on this machine that has joined its swarm. Raises UsageError.
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
        raise UsageError(f"{target}: no such file or directory. {NAME_ONE}")
    config = read_swarm_config(target)
    return StateLocation(state=Path(config.swarm.state), is_learner=True, config=config)


def _usual_place() -> StateLocation:
    if DEFAULT_CONFIG.exists():
        return find_place(DEFAULT_CONFIG)
    places = list(known_places())
    if not places:
        raise UsageError(
            "There is no swarm.toml here and no node on this machine. Name a swarm.toml or a state directory."
        )
    return _only(places)


def known_places() -> Iterator[StateLocation]:
    """Yield the rollout nodes in the usual places of this machine."""
    for key in sorted(data_directory().glob("*/*/node.key")):
        yield StateLocation(state=key.parent, is_learner=False)


def _place_of(invite: Invite) -> StateLocation:
    """Return the only node on this machine that has joined the invite's swarm. Raises UsageError."""
    places = [place for place in known_places() if place.state.parent == swarm_directory(invite.authority.swarm)]
    if not places:
        name = plain_name(invite.name)
        raise UsageError(
            f"This is an invite to {name!r}, and no node in the usual places of this machine has joined it. {NAME_ONE} "
            "To join: volery join INVITE."
        )
    return _only(places)


def _only(places: Sequence[StateLocation]) -> StateLocation:
    """Return the only place. Raises UsageError if there are several."""
    if len(places) == 1:
        return places[0]
    listed = "\n  ".join(str(place.state) for place in places)
    raise UsageError(f"There are {len(places)} nodes on this machine. Name one of:\n  {listed}")
