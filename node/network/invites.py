"""Write invites to a swarm from the learner's state: the same one again, or one with other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, text_of
from node.config.invite_text import INVITE_FILE
from node.config.loader import read_swarm_config
from node.config.preflight import require_addresses
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock
from node.state.learner_state import LearnerStateDir, open_learner_home
from node.state.locate import find_place
from protocol.core.errors import LocalProtocolError
from protocol.core.invite import Invite, InviteError, read_invite, write_invite

HOUR_MS = 3_600_000


def invite_to(home: LearnerStateDir, config: SwarmConfig, addresses: list[str]) -> str:
    """Return the invite to the swarm of `home`, whose learner may be dialled at `addresses`. Raises LocalProtocolError
    if they are too many, or none."""
    return write_invite(
        Invite(
            operator=home.authority.operator,
            swarm=home.authority.swarm,
            addresses=addresses,
            token=config.network.join_token,
            name=config.swarm.name,
        )
    )


def found_swarm(config_file: Path) -> str:
    """Found the swarm of a swarm.toml, as its learner would at its first start, and return the invite.

    The invite has the addresses that the learner will listen at. The first start goes on from this state. Raises
    UsageError, RunError.
    """
    config = read_swarm_config(config_file)
    home = open_learner_home(
        Path(config.swarm.state),
        name=config.swarm.name,
        certificate_days=config.swarm.certificate_days,
        now_ms=Clock.now_ms(),
    )
    with closing(home):
        return invite_to(home, config, [f"{address}/p2p/{home.learner.peer_id}" for address in config.network.listen])


def show_invite(config: Path, *, announce: Sequence[str], expires_h: float) -> str:
    """Return the invite that the learner wrote at its last start, with other addresses or an end if asked for.

    `announce` are addresses without the /p2p/ part, which names the learner. Raises UsageError, RunError.
    """
    path = find_place(config).state / INVITE_FILE
    if not path.exists():
        raise UsageError(
            f"{path} does not exist yet. Start the swarm once with `volery learn {config}`. With [network] listen = "
            "[] nobody can join, and there is no invite."
        )
    text, invite = _kept_invite(path)
    if not announce and not expires_h:
        return text
    require_addresses([], list(announce), announced_by="--announce")
    learner = invite.addresses[0].rpartition("/p2p/")[2]
    addresses = [_of_learner(address, learner) for address in announce]
    try:
        return write_invite(
            msgspec.structs.replace(
                invite,
                addresses=addresses or invite.addresses,
                expires_ms=Clock.now_ms() + round(expires_h * HOUR_MS) if expires_h else 0,
            )
        )
    except LocalProtocolError as error:
        raise UsageError(
            f"--announce: {len(addresses)} addresses do not fit one invite ({error}). Name fewer."
        ) from None


def _kept_invite(path: Path) -> tuple[str, Invite]:
    """Return the text in a learner's state and the invite in it. Raises RunError if the file holds anything else."""
    try:
        text = text_of(read_file(path)).strip()
        return text, read_invite(text, now_ms=0)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except NotText as error:
        why = str(error)
    except InviteError as error:
        why = f"is damaged ({error})"
    raise RunError(f"{path} {why}. Move it away; the next start of the learner writes it again.") from None


def _of_learner(address: str, learner: str) -> str:
    """Return the address with the learner's name, which it may have already. Raises UsageError if it names another
    peer."""
    where, _, peer = address.partition("/p2p/")
    if peer not in ("", learner):
        raise UsageError(f"--announce {address}: {peer} is not this learner, which is {learner}. Leave /p2p/ out.")
    return f"{where}/p2p/{learner}"
