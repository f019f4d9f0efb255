"""`volery pause`, `resume` and `drain`: what an owner tells nodes on the same machine, by files in their state.

What always holds: which node is meant is never guessed: it is named, or the only one on this machine, or all are
(`--all`); a learner is none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.runtime.stdout import say

MINUTE_MS = 60_000

Target = Annotated[
    Path | None, typer.Argument(metavar="[STATE]", help="A node's state directory; the only one by default.")
]
All = Annotated[bool, typer.Option("--all", help="Every node in the usual places of this machine.")]


def pause(state: Target = None, all_nodes: All = False) -> None:
    """Have a node make nothing until `volery resume`, also after a restart. It goes on passing versions on."""
    from node.state.owner_orders import BY_COMMAND, LOOK_S, OwnerRequests
    from node.state.status_file import standing_of

    for root in roots(state, all_nodes=all_nodes):
        OwnerRequests(root).pause(BY_COMMAND)
        soon = f"stops within {LOOK_S:.0f} s" if standing_of(root) else "is not running, and will make nothing then"
        say(f"Paused: {root}. The node {soon}. To go on: volery resume {root}")


def resume(state: Target = None, all_nodes: All = False) -> None:
    """Have a paused node work again."""
    from node.state.owner_orders import LOOK_S, OwnerRequests
    from node.state.status_file import standing_of

    for root in roots(state, all_nodes=all_nodes):
        orders = OwnerRequests(root)
        was_paused, running = bool(orders.paused_by), standing_of(root)
        orders.resume()
        said = "Resumed" if was_paused else "Was not paused"
        hears = f"hears within {LOOK_S:.0f} s; `volery status {root}` says what it does then"
        say(f"{said}: {root}. The node {hears if running else 'is not running'}.")


def drain(
    state: Target = None,
    all_nodes: All = False,
    within: Annotated[
        float | None, typer.Option(min=0, help="Minutes after which what is not delivered is given back; else no end.")
    ] = None,
) -> None:
    """Have a running node take no more work, deliver what it has leased, and end with exit code 0."""
    from node.runtime.errors import RunError
    from node.runtime.events import Clock
    from node.state.owner_orders import Drain, OwnerRequests
    from node.state.status_file import standing_of

    idle = []
    for root in roots(state, all_nodes=all_nodes):
        if standing_of(root) is None:
            idle.append(root)
            continue
        OwnerRequests(root).drain(
            Drain(deadline_ms=None if within is None else Clock.now_ms() + round(within * MINUTE_MS))
        )
        say(f"Drains: {root}. The node ends when what it has leased is delivered; `volery status` says how far.")
    if idle and not all_nodes:
        raise RunError(f"{idle[0]}: no node runs there. Nothing is leased, so there is nothing to drain.")


def roots(state: Path | None, *, all_nodes: bool) -> list[Path]:
    """State directories of the rollout nodes that are meant. Raises UsageError."""
    from node.runtime.errors import UsageError
    from node.state.locate import find_place, known_places

    if state is not None and all_nodes:
        raise UsageError("Name a state directory, or choose --all, not both.")
    if state is not None:
        place = find_place(state)
        if place.is_learner:
            raise UsageError(f"{state} is a learner's, which is stopped by Ctrl-C. Name a node's state directory.")
        return [place.state]
    found = [place.state for place in known_places()]
    if not found:
        raise UsageError("There is no node in the usual places of this machine. Name a node's state directory.")
    if len(found) > 1 and not all_nodes:
        listed = "\n  ".join(map(str, found))
        raise UsageError(f"There are {len(found)} nodes on this machine; name one, or choose --all:\n  {listed}")
    return found
