"""Post one notice to where a swarm.toml or a node.toml says, and tell whether it was accepted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_toml
from node.config.loader import read_node_config, read_swarm_config
from node.config.node_config import NodeConfig
from node.config.swarm_config import SwarmConfig
from node.notices.destination import Destination, destination_of
from node.notices.notice import Notice
from node.notices.retry_policy import Failed
from node.notices.sender import Client
from node.notices.shapes import request_of
from node.runtime.errors import RunError, UsageError, about_keys_of
from node.runtime.events import Clock

TEXT = "Notices arrive here. Somebody ran `volery notify`; nothing has to be done."


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A notice that was accepted: where, and the kinds that follow in a run."""

    to: Destination
    kinds: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return what to tell the operator."""
        kinds = ", ".join(self.kinds) or "none: [notify] events is empty"
        return f"Posted a notice to {self.to.description}: look whether it is there. A run posts these kinds: {kinds}."


async def post_one(path: Path) -> Sent:
    """Post a notice to where the file says. Raises UsageError, and RunError if it was not accepted."""
    config = _read(path)
    with about_keys_of(path):
        to = destination_of(config.notify)
    if to is None:
        raise UsageError(
            f"{path}: [notify] names no URL, so no notice is posted. Set url in that section, for example "
            '"https://ntfy.sh/my-topic".'
        )
    source = config.swarm.name if isinstance(config, SwarmConfig) else config.name or "volery"
    notice = Notice(
        kind="test", event="notify", source=source, title=f"{source}: a test", text=TEXT, at_ms=Clock.now_ms()
    )
    client = Client(to)
    try:
        outcome = await client.post(request_of(notice, to))
    finally:
        await client.close()
    if isinstance(outcome, Failed):
        raise RunError(
            f"{to.shown} has not accepted the notice: {outcome.detail}. Compare [notify] url and shape in {path} with "
            f"what the service expects; it was posted {to.form}."
        )
    return Sent(to=to, kinds=tuple(config.notify.events))


def _read(path: Path) -> SwarmConfig | NodeConfig:
    """Return the configuration: that of a learner if the file has a section [swarm], else that of a node."""
    try:
        is_swarm = "swarm" in parse_toml(read_file(path))
    except (OSError, NotText, ValueError):
        is_swarm = path.name != "node.toml"  # its reader says what is wrong with the file
    return read_swarm_config(path) if is_swarm else read_node_config(path)
