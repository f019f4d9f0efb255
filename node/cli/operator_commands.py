"""Ban and pardon peers, make a learner's ledger smaller, and try where notices go.

Invariants:

- A command never guesses which peer is meant (`node.reports.explain.meant_peer`).
- A running learner obeys within a second, and a stopped one when it starts; the command says which it is.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import Json, OfLearner, as_json_text, config_file, run_program, whole_text
from node.runtime.stdout import say

if TYPE_CHECKING:
    from node.reports.explain.meant_peer import Meant
    from node.state.operator_orders import Ban, Pardon

Peer = Annotated[
    str, typer.Argument(metavar="PEER", callback=whole_text, help="A peer's id, the end of its id, or its name.")
]


def compact(
    target: OfLearner = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=36_500,
            metavar="DAYS",
            help="Keep receipts of the newest days unpacked. Default: [swarm] keep_days.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the ledger of a stopped learner smaller. Nothing is lost: receipts read as they were signed."""
    from node.commands.compact.command import compact as program

    packed = program(target, keep_days)
    say(as_json_text(asdict(packed)) if as_json else packed.text)


def ban(
    peer: Peer,
    target: OfLearner = None,
    reason: Annotated[
        str, typer.Option(callback=whole_text, help="Reason that the peer is told, at most 512 characters.")
    ] = "the operator decided so",
    as_json: Json = False,
) -> None:
    """Ban a peer: nothing of its work is trained on from now on, and its key cannot join again."""
    from node.reports.explain.meant_peer import REFUSED_LATER
    from node.runtime.errors import UsageError
    from node.state.operator_orders import Ban
    from protocol.core.limits import MAX_REASON_CHARS

    if len(reason) > MAX_REASON_CHARS:
        raise UsageError(f"--reason has {len(reason)} characters; at most {MAX_REASON_CHARS} are kept. Shorten it.")
    meant = _meant(peer, target)
    undo = f"To undo: volery pardon {meant.peer}"
    runs = _give(meant, Ban(peer=meant.peer, reason=reason))
    if as_json:
        say(_as_json(meant, runs=runs))
        return
    if runs:
        say(f"Banned: {meant.description}. The learner obeys within a second. {undo}")
    else:
        say(f"The order to ban {meant.description} waits: {_nobody(meant)} {undo}")
    if not meant.has_joined:
        say(REFUSED_LATER)


def pardon(peer: Peer, target: OfLearner = None, as_json: Json = False) -> None:
    """Lift a ban: the peer may join again, as a newcomer whose first groups are all audited."""
    from node.reports.explain.meant_peer import LIFTED
    from node.state.operator_orders import Pardon

    meant = _meant(peer, target)
    runs = _give(meant, Pardon(peer=meant.peer))
    if as_json:
        say(_as_json(meant, runs=runs))
        return
    if runs:
        say(f"Pardoned: {meant.description}. It may join again in a second, when the learner has read the order.")
    else:
        say(f"The order to pardon {meant.description} waits: {_nobody(meant)}")
    if not meant.has_joined:
        say(LIFTED)


def notify(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="SWARM",
            callback=config_file,
            help="A swarm.toml, or the directory that holds it; or a node.toml.",
        ),
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Post a test notice to where `[notify]` says, to see whether notices arrive.

    A run posts alarms, bans and its end there by itself.
    """
    from node.commands.notify.command import post_one

    async def program() -> int:
        sent = await post_one(config)
        kinds = list(sent.kinds)
        say(as_json_text({"to": sent.to.shown, "shape": sent.to.shape, "events": kinds}) if as_json else sent.text)
        return 0

    run_program(program)


def _as_json(meant: Meant, *, runs: bool) -> str:
    facts = {"peer": meant.peer, "name": meant.name, "has_joined": meant.has_joined}
    return as_json_text({**facts, "state": meant.state, "learner_runs": runs})


def _nobody(meant: Meant) -> str:
    return f"no learner is running on {meant.state}. The order takes effect when one starts."


def _give(meant: Meant, order: Ban | Pardon) -> bool:
    """Write the order; return whether a learner runs, which obeys at once. Raises RunError."""
    from node.state.operator_orders import OperatorDecisions
    from node.state.status_file import standing_of

    runs = standing_of(meant.state) is not None
    OperatorDecisions(meant.state).give(order)
    return runs


def _meant(name: str, target: Path | None) -> Meant:
    """Return the peer that `name` means. Raises UsageError, RunError."""
    from node.reports.explain.meant_peer import meant_peer
    from node.runtime.errors import UsageError
    from node.state.locate import find_place

    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a volunteer's node. Name the learner's swarm.toml or state directory.")
    return meant_peer(name, place.state)
