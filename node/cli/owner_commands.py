"""Pause, resume, drain or limit nodes on this machine, by files in their state directories; run them as services.

Invariants:

- A command never guesses which node is meant: it is named, it is the only one here or the only one that runs, or
  `--all` is given.
- A learner is never paused or drained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.help.parser import group
from node.cli.options import Json, as_json_text, config_file, whole_text
from node.runtime.stdout import say

if TYPE_CHECKING:
    from node.config.live_limits import Value
    from node.state.status_file import NodeStatus

MINUTE_MS = 60_000

service = group("service", about="Run a node or a learner from login or boot on, without a terminal.")

Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="NODE",
        help="A node: node-2, its display name, or its state directory. Default: the only node here, or that runs.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All nodes in the usual places on this machine.")]


def pause(state: Target = None, all_nodes: All = False, as_json: Json = False) -> None:
    """Stop a node's generating until `volery resume`, also after a restart.

    The node stays in the swarm: it fetches new versions and relays them.
    """
    from node.state.owner_orders import BY_COMMAND, LOOK_S, OwnerRequests
    from node.state.status_file import standing_of

    told = []
    for root in roots(state, all_nodes=all_nodes):
        OwnerRequests(root).pause(BY_COMMAND)
        running = standing_of(root) is not None
        told.append({"state": root, "running": running, "paused": True})
        soon = f"stops within {LOOK_S:.0f} s" if running else "is not running, and stays paused when it starts"
        if not as_json:
            say(f"Paused: {root}. The node {soon}. To go on: volery resume {root}")
    if as_json:
        say(as_json_text(told))


def resume(state: Target = None, all_nodes: All = False, as_json: Json = False) -> None:
    """Let a paused node work again."""
    from node.state.owner_orders import LOOK_S, OwnerRequests
    from node.state.status_file import standing_of

    told = []
    for root in roots(state, all_nodes=all_nodes):
        orders = OwnerRequests(root)
        was_paused, running = bool(orders.paused_by), standing_of(root) is not None
        orders.resume()
        told.append({"state": root, "running": running, "paused": False, "was_paused": was_paused})
        said = "Resumed" if was_paused else "Was not paused"
        hears = f"goes on within {LOOK_S:.0f} s; `volery status {root}` shows what it does then"
        if not as_json:
            say(f"{said}: {root}. The node {hears if running else 'is not running'}.")
    if as_json:
        say(as_json_text(told))


def drain(
    state: Target = None,
    all_nodes: All = False,
    within: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MINUTES", help="Return leases that are not delivered by then. Default: wait without limit."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a running node finish and deliver its leases, take no more, and end with exit code 0."""
    from node.runtime.errors import RunError
    from node.runtime.events import Clock
    from node.state.owner_orders import Drain, OwnerRequests
    from node.state.status_file import standing_of

    idle, told = [], []
    for root in roots(state, all_nodes=all_nodes):
        if standing_of(root) is None:
            idle.append(root)
            continue
        OwnerRequests(root).drain(
            Drain(deadline_ms=None if within is None else Clock.now_ms() + round(within * MINUTE_MS))
        )
        told.append({"state": root, "within_minutes": within})
        if not as_json:
            say(f"Draining: {root}. The node ends when its leases are delivered; `volery status` shows how far it is.")
    if idle and not all_nodes:
        raise RunError(f"{idle[0]}: no node is running there. It has no leases, so there is nothing to drain.")
    if as_json:
        say(as_json_text(told))


def limits(
    state: Target = None,
    all_nodes: All = False,
    hours: Annotated[
        str | None,
        typer.Option(metavar="RANGES", help='Generate only in these local hours: "19:00-07:30"; "": always.'),
    ] = None,
    upload_mbit: Annotated[
        str | None, typer.Option(metavar="MBIT", help="Maximum million bits per second to send, or none.")
    ] = None,
    download_mbit: Annotated[
        str | None, typer.Option(metavar="MBIT", help="Maximum million bits per second to receive, or none.")
    ] = None,
    quota_gb: Annotated[
        str | None, typer.Option(metavar="GB", help="Maximum GB of disk for versions of the model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the limits of a running node; with options, change them until the node ends.

    A change takes effect within a second. To keep it, write it in node.toml.
    """
    from node.config.live_limits import read_option

    texts = {"hours": hours, "upload_mbit": upload_mbit, "download_mbit": download_mbit, "quota_gb": quota_gb}
    wanted = {key: read_option(key, text) for key, text in texts.items() if text is not None}
    running = _running(roots(state, all_nodes=all_nodes))
    if wanted:
        _order_limits(running, wanted)
    if as_json:
        values = [
            {"state": root, "limits": one.limits, "changeable": one.changeable, "ordered": wanted}
            for root, one in running.items()
        ]
        say(as_json_text(values))
    elif wanted:
        say(_ordered_text(running, wanted))
    else:
        say("\n".join(_limits_text(root, standing) for root, standing in running.items()))


def _running(found: Sequence[Path]) -> dict[Path, NodeStatus]:
    """Return the nodes that run, with their states. Raises RunError if none does."""
    from node.runtime.errors import RunError
    from node.state.status_file import standing_of

    running = {root: standing for root in found if (standing := standing_of(root)) is not None}
    if not running:
        raise RunError(
            f"{found[0]}: no node is running there. It takes its limits from node.toml and options when it starts; "
            "`volery join INVITE --dry-run` shows them."
        )
    return running


def _order_limits(running: Mapping[Path, NodeStatus], wanted: Mapping[str, Value]) -> None:
    """Give all nodes the same limits, or none of them anything. Raises UsageError."""
    from node.runtime.errors import UsageError
    from node.state.owner_orders import BY_LIMITS, Limit, LimitOrders

    for root, standing in running.items():
        for key in wanted:
            if key not in standing.changeable:
                raise UsageError(f"{root}: this node cannot change {key} while it runs. Set it in node.toml.")
    for root in running:
        for key, value in wanted.items():
            LimitOrders(root).give(Limit(key=key, value=value, by=BY_LIMITS))


def _ordered_text(running: Mapping[Path, NodeStatus], wanted: Mapping[str, Value]) -> str:
    """Return what was ordered, how long it holds, and how to keep it."""
    from node.config.live_limits import as_toml
    from node.state.owner_orders import LOOK_S

    changed = [f"  {as_toml(key, value)}" for key, value in wanted.items()]
    lines = [f"{root}, within {LOOK_S:.0f} s and until the node ends:" for root in running]
    return "\n".join([*lines, *changed, "To keep a change over a restart, make it in node.toml as well."])


def _limits_text(root: Path, standing: NodeStatus) -> str:
    """Return the limits of a node in two groups: those that can change while it runs, and the others."""
    from node.config.live_limits import named

    at_once = [named(key) for key in standing.changeable]
    later = [key for key in standing.limits if key not in at_once]
    lines = [str(root), "change at once, with options of this command:"]
    lines += [f"  {key:24} {standing.limits[key]}" for key in at_once]
    lines += ["change in node.toml, after a restart:", *(f"  {key:24} {standing.limits[key]}" for key in later)]
    return "\n".join(lines)


def roots(state: Path | None, *, all_nodes: bool) -> list[Path]:
    """Return the state directories of the rollout nodes that are meant. Raises UsageError."""
    from node.runtime.errors import UsageError
    from node.state.locate import find_place, known_nodes, only_node

    if state is not None and all_nodes:
        raise UsageError("Name a node, or choose --all, not both.")
    if state is not None:
        place = find_place(state)
        if place.is_learner:
            raise UsageError(f"{state} belongs to a learner; Ctrl-C stops that. Name a node's state directory.")
        return [place.state]
    nodes = known_nodes()
    if not nodes:
        raise UsageError("There is no node in the usual places of this machine. Name a node's state directory.")
    meant = [node.place for node in nodes] if all_nodes else [only_node(nodes, otherwise=", or choose --all")]
    return [place.state for place in meant]


@service.command()
def install(
    learner: Annotated[
        Path | None,
        typer.Option("--learner", metavar="SWARM", callback=config_file, help="A swarm.toml, or its directory."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="INVITE", help="An invite, a file that holds it, or a node that has joined."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A node.toml with limits, engine and addresses.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State directory of the node. Default: its first one.")
    ] = None,
    name: Annotated[
        str, typer.Option(callback=whole_text, help="Name of the service. Default: the swarm's name.")
    ] = "",
    memory_gb: Annotated[
        float | None, typer.Option(min=0.1, help="Maximum GB of memory. Default: 90 % of the machine's.")
    ] = None,
    nice: Annotated[
        int | None, typer.Option(min=0, max=19, help="Niceness. Default: 5 for a node, 0 for a learner.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the service's file; install nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Install a service for this user and start it: with systemd, launchd, or a scheduled task in WSL2.

    Without --learner or --node: ./swarm.toml, or the only node here or that runs.
    """
    from node.commands.service import command
    from node.commands.service.managers import manager_here

    manager = manager_here()
    wanted = command.Wanted(
        learner=learner, node=node, config=config, state=state, called=name, memory_gb=memory_gb, nice=nice
    )
    plan = command.plan_service(wanted)
    file = manager.file_of(plan.spec.name)
    if dry_run:
        text = manager.text(plan.spec)
        say(as_json_text({"file": file, "text": text}) if as_json else f"# {file}\n{text}")
        return
    advice = command.install(plan, manager)
    if as_json:
        say(as_json_text({"name": plan.spec.name, "file": file, "state": plan.spec.state, "notes": advice.notes}))
    else:
        say(command.installed_text(plan, manager, advice))


@service.command("status")
def service_status(as_json: Json = False) -> None:
    """Show the services of this user, and whether they run."""
    from node.commands.service import command
    from node.commands.service.managers import manager_here

    found = command.statuses(manager_here())
    say(as_json_text([one.as_values() for one in found]) if as_json else command.status_text(found))
    if not found or not all(one.standing.runs for one in found):
        raise typer.Exit(1)


@service.command()
def uninstall(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", callback=whole_text, help="Name of the service. Default: the only one of this user."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Stop a service and remove it. A node first hands over its work; state and keys stay."""
    from node.commands.service import command
    from node.commands.service.managers import manager_here

    gone = command.uninstall(name, manager_here())
    if as_json:
        say(as_json_text({"name": gone.name, "file": gone.file, "state": gone.state}))
    else:
        say(f"Stopped and removed {gone.name}. State and keys are still in {gone.state}.")
